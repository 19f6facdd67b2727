// A load test of the thread pool: two callers, each with two environments whose jobs are split differently. Every replica
// of every job must be processed exactly once before run() returns.
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
    std::vector<int> counts;  // per replica: how often it was processed
    int              stall;
    std::thread::id  caller;
    std::atomic<int> worker_parts{0};  // parts that other threads ran
};

// Increments without atomics: if two threads process a replica, ThreadSanitizer reports a race.
void work(const void* call, long long first, long long end) {
    Environment& environment = **static_cast<Environment* const*>(call);
    for (long long replica = first; replica < end; ++replica) ++environment.counts[replica];
    if (std::this_thread::get_id() != environment.caller) environment.worker_parts.fetch_add(1, std::memory_order_relaxed);
    if (first % 7 == 3) std::this_thread::sleep_for(std::chrono::microseconds(environment.stall));
}

struct Result {
    long long wrong = 0, worker_parts = 0;
};

Result caller(int seed, long long jobs, int threads, int stall) {
    std::mt19937 random(seed);
    Environment  environments[2];
    Result       result;
    for (Environment& environment : environments) {
        environment.counts.resize(65536);
        environment.caller = std::this_thread::get_id();
        environment.stall  = stall;
    }
    for (long long job = 0; job < jobs; ++job) {
        Environment*    environment = &environments[random() % 2];
        const long long count       = 1 + random() % (random() % 16 == 0 ? 65536 : 256);
        const int       tile = random() % 2 == 0 ? 1 : 16, parts = 1 + random() % threads;
        run(work, &environment, count, tile, parts, random() % 2);
        for (long long replica = 0; replica < count; ++replica) {
            result.wrong += environment->counts[replica] != 1;
            environment->counts[replica] = 0;
        }
    }
    for (Environment& environment : environments) result.worker_parts += environment.worker_parts.load();
    return result;
}

}  // namespace

int main(int argc, char** argv) {
    const long long jobs    = argc > 1 ? std::atoll(argv[1]) : 10000;
    const int       threads = argc > 2 ? std::atoi(argv[2]) : 8, stall = argc > 3 ? std::atoi(argv[3]) : 0;
    Result          second;
    std::thread     second_caller([&] { second = caller(1, jobs / 2, threads, stall); });
    const Result    first = caller(0, jobs / 2, threads, stall);
    second_caller.join();
    const long long wrong = first.wrong + second.wrong, worker_parts = first.worker_parts + second.worker_parts;
    std::printf("%lld jobs, %lld replicas not processed exactly once, %lld parts run by workers\n", jobs, wrong, worker_parts);
    return wrong != 0 || (threads > 1 && worker_parts == 0);
}
