// The pool of threads under load: two callers, each with two environments whose jobs are cut differently. Every replica
// of every job must be worked on once, before the caller goes on.
//
//     g++ -std=c++17 -O2 -pthread -fsanitize=thread gpu_envs/backend/threads.cpp tests/backend/pool_stress.cpp
//     ./a.out JOBS THREADS [STALL: microseconds that some parts sleep]

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

using Kernel = void (*)(const void* call, long long first, long long end);
extern "C" void run(Kernel kernel, const void* call, long long count, long long tile, int threads, int flush);

namespace {

struct Environment {
    std::vector<int> worked;
    int              stall;
    std::thread::id  caller;
    std::atomic<int> by_others{0};  // parts that other threads did
};

// Plain increments: a replica that two threads work on is a race, one that is worked on late is counted wrong.
void work(const void* call, long long first, long long end) {
    Environment& mine = **static_cast<Environment* const*>(call);
    for (long long replica = first; replica < end; ++replica) ++mine.worked[replica];
    if (std::this_thread::get_id() != mine.caller) mine.by_others.fetch_add(1, std::memory_order_relaxed);
    if (first % 7 == 3) std::this_thread::sleep_for(std::chrono::microseconds(mine.stall));
}

struct Result {
    long long wrong = 0, by_others = 0;
};

Result caller(int seed, long long jobs, int threads, int stall) {
    std::mt19937 random(seed);
    Environment  environments[2];
    Result       result;
    for (Environment& each : environments) {
        each.worked.resize(65536);
        each.caller = std::this_thread::get_id();
        each.stall  = stall;
    }
    for (long long job = 0; job < jobs; ++job) {
        Environment*    mine  = &environments[random() % 2];
        const long long count = 1 + random() % (random() % 16 == 0 ? 65536 : 256);
        const int       tile = random() % 2 == 0 ? 1 : 16, parts = 1 + random() % threads;
        run(work, &mine, count, tile, parts, random() % 2);
        for (long long replica = 0; replica < count; ++replica) {
            result.wrong += mine->worked[replica] != 1;
            mine->worked[replica] = 0;
        }
    }
    for (Environment& each : environments) result.by_others += each.by_others.load();
    return result;
}

}  // namespace

int main(int argc, char** argv) {
    const long long jobs    = argc > 1 ? std::atoll(argv[1]) : 10000;
    const int       threads = argc > 2 ? std::atoi(argv[2]) : 8, stall = argc > 3 ? std::atoi(argv[3]) : 0;
    Result          second;
    std::thread     other([&] { second = caller(1, jobs / 2, threads, stall); });
    const Result    first = caller(0, jobs / 2, threads, stall);
    other.join();
    const long long wrong = first.wrong + second.wrong, by_others = first.by_others + second.by_others;
    std::printf("%lld jobs, %lld replicas worked on other than once, %lld parts by workers\n", jobs, wrong, by_others);
    return wrong != 0 || (threads > 1 && by_others == 0);
}
