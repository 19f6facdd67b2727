// Steps replicas on all cores: a pool of threads per process, made when first needed and made anew after a fork.
//
// A kernel works on a range of replicas, so how the ranges are cut never changes a result. While a thread works for a
// float32 simulation it flushes denormals, as the GPU's kernels do; its setting is restored before it goes on.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include <pthread.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using Kernel = void (*)(const void* call, long long first, long long end);

class FlushDenormals {
public:
    explicit FlushDenormals(bool on) : on_(on), saved_(on ? read() : 0) {
        if (on_) write(saved_ | bits);
    }
    ~FlushDenormals() {
        if (on_) write(saved_);
    }

private:
#if defined(__x86_64__)
    using Register = unsigned int;
    static constexpr Register bits = 0x8040;  // flush to zero, denormals are zero
    static Register read() { return _mm_getcsr(); }
    static void     write(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
    using Register = unsigned long long;
    static constexpr Register bits = 1ull << 24;
    static Register read() {
        Register value;
        asm volatile("mrs %0, fpcr" : "=r"(value));
        return value;
    }
    static void write(Register value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
#error "this processor's way to flush denormals is not known"
#endif
    bool     on_;
    Register saved_;
};

struct Job {
    Kernel      kernel;
    const void* call;
    long long   count, tile;
    int         parts;
    bool        flush;

    // Part `index` of the range, cut at multiples of a tile.
    void run(int index) const {
        const long long tiles = (count + tile - 1) / tile;
        const long long first = tiles * index / parts * tile;
        const long long end   = index + 1 == parts ? count : tiles * (index + 1) / parts * tile;
        const FlushDenormals guard(flush);
        if (first < end) kernel(call, first, end);
    }
};

constexpr int kMostParts = 1024;  // MOST_THREADS in host.py

class Pool {
public:
    // Runs the job's parts, on the caller's thread and on workers; false when another caller has the pool, or when
    // working alone has been quicker of late.
    bool run(Job job) {
        const std::unique_lock<std::mutex> only(callers_, std::try_to_lock);
        const Clock::time_point            start = Clock::now();
        if (!only.owns_lock() || start < alone_until_) return false;
        if (job.parts > kMostParts) job.parts = kMostParts;
        employ(job.parts - 1);
        job_ = job;
        left_.store(job.parts, std::memory_order_relaxed);
        const Round round = ((round_.load() >> 16) + 1) << 16 | static_cast<Round>(job.parts);
        round_.store(round);
        for (int index = 1; index < job.parts && index <= workers_; ++index) workers_at_[index].wake();
        const int               mine  = help(round, 0);
        const Clock::time_point ended = Clock::now();
        for (int spins = 0; left_.load(std::memory_order_acquire) != 0; ++spins) {
            if (spins > 4096) std::this_thread::yield();
        }
        // A worker that the system takes off its core in the middle of a part keeps everybody waiting. Where that made
        // the job longer than it would have been alone, the caller works alone for ten times what it lost.
        const Clock::time_point now = Clock::now();
        if ((now - start) * mine > (ended - start) * job.parts) alone_until_ = now + 10 * (now - ended);
        return true;
    }

private:
    using Clock = std::chrono::steady_clock;

    // A number that grows and, in the lowest 16 bits, how many parts there are: who knows one knows the other.
    using Round = unsigned long long;
    static int parts_of(Round round) { return static_cast<int>(round & 0xffff); }

    class Worker {
    public:
        // The next round that has a part for this worker: after some spinning it sleeps until there is one.
        template <typename Due> void await(const Due& due) {
            for (int spins = 0; spins < 20000; ++spins) {
                if (due()) return;
#if defined(__x86_64__)
                _mm_pause();
#endif
            }
            std::unique_lock<std::mutex> guard(mutex_);
            asleep_.store(true);  // before it looks again: whoever publishes a round then looks whether it sleeps
            called_.wait(guard, due);
            asleep_.store(false);
        }
        void wake() {
            if (!asleep_.load()) return;
            const std::lock_guard<std::mutex> guard(mutex_);
            called_.notify_one();
        }

    private:
        std::mutex              mutex_;
        std::condition_variable called_;
        std::atomic<bool>       asleep_{false};
    };

    // Starts threads up to a number; where the system gives no more, the others do their parts.
    void employ(int wanted) {
        for (; workers_ < wanted && !full_; ++workers_) {
            try {
                // A thread cannot be joined after a fork, nor at exit while it waits: it is the process's.
                std::thread(&Pool::work, this, workers_ + 1, round_.load()).detach();
            } catch (const std::system_error&) {
                full_ = true;
                return;
            }
        }
    }

    void work(int index, Round seen) {
        for (;;) {
            Round round = seen;
            workers_at_[index].await([&] {
                round = round_.load();
                return round != seen && index < parts_of(round);
            });
            seen = round;
            help(round, index);
        }
    }

    // Does parts of a round that nobody has begun, its own first, and tells how many. The caller does not leave a round
    // before all its parts are done, so whoever has claimed one finds the job that it is a part of.
    int help(Round round, int index) {
        const int parts = parts_of(round);
        int       done  = 0;
        for (int turn = 0; turn < parts; ++turn) {
            const int part = (index + turn) % parts;
            if (!claim(part, round)) continue;
            job_.run(part);
            left_.fetch_sub(1, std::memory_order_acq_rel);
            ++done;
        }
        return done;
    }

    // A part is claimed once a round: its claim goes from an earlier round to this one. A worker that comes late, to a
    // round that is over, finds this round there or a later one.
    bool claim(int part, Round round) {
        Round earlier = claims_[part].load();
        while (earlier < round) {
            if (claims_[part].compare_exchange_weak(earlier, round)) return true;
        }
        return false;
    }

    std::mutex         callers_;
    Job                job_{};
    std::atomic<Round> round_{0};
    std::atomic<int>   left_{0};
    std::atomic<Round> claims_[kMostParts] = {};
    Worker             workers_at_[kMostParts];
    int                workers_ = 0;
    bool               full_    = false;
    Clock::time_point  alone_until_{};
};

std::atomic<Pool*> pool{nullptr};

// A child of fork has none of its parent's threads: it forgets their pool, whose locks it may hold in any state.
void forget_pool() { pool.store(nullptr); }

Pool& current_pool() {
    static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
    (void)registered;
    Pool* existing = pool.load();
    if (existing == nullptr) {
        Pool* fresh = new Pool;
        if (pool.compare_exchange_strong(existing, fresh)) existing = fresh;
        else delete fresh;
    }
    return *existing;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void run(Kernel kernel, const void* call, long long count,
                                                           long long tile, int threads, int flush) {
    const Job alone{kernel, call, count, tile, 1, flush != 0};
    if (threads > 1) {
        Job shared   = alone;
        shared.parts = threads;
        if (current_pool().run(shared)) return;
    }
    alone.run(0);
}
