// Steps replicas on all cores: a pool of threads per process, made when first needed and made anew after a fork.
//
// A kernel works on a range of replicas, so how the ranges are cut never changes a result. While a thread works for a
// float32 simulation it flushes denormals, as the GPU's kernels do; its setting is restored before it goes on.

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
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

class Pool {
public:
    // Runs the job on `job.parts` threads, the caller's among them; false when another caller has the pool.
    bool run(const Job& job) {
        const std::unique_lock<std::mutex> only(callers_, std::try_to_lock);
        if (!only.owns_lock()) return false;
        while (workers_ + 1 < job.parts) {
            // A thread cannot be joined after a fork, nor at exit while it waits: it is the process's.
            std::thread(&Pool::work, this, ++workers_, rounds_.load()).detach();
        }
        job_ = job;
        left_.store(job.parts - 1);
        {
            const std::lock_guard<std::mutex> guard(sleep_);
            rounds_.fetch_add(1);
        }
        wake_.notify_all();
        job.run(0);
        for (int spins = 0; left_.load() != 0; ++spins) {
            if (spins > 4096) std::this_thread::yield();
        }
        return true;
    }

private:
    void work(int index, unsigned long long seen) {
        for (;;) {
            for (int spins = 0; rounds_.load() == seen && spins < 20000; ++spins) {
#if defined(__x86_64__)
                _mm_pause();
#endif
            }
            if (rounds_.load() == seen) {
                std::unique_lock<std::mutex> guard(sleep_);
                wake_.wait(guard, [&] { return rounds_.load() != seen; });
            }
            seen = rounds_.load();
            if (index < job_.parts) {
                job_.run(index);
                left_.fetch_sub(1);
            }
        }
    }

    std::mutex                      callers_, sleep_;
    std::condition_variable         wake_;
    std::atomic<unsigned long long> rounds_{0};
    std::atomic<int>                left_{0};
    int                             workers_ = 0;
    Job                             job_{};
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
