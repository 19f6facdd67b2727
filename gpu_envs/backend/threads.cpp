// Runs kernels on all cores: one thread pool per process, created on first use and again in a forked child.
//
// A kernel processes a range of replicas, and results do not depend on how the ranges are split. While a thread runs a
// float32 kernel it flushes denormals, as the GPU's kernels do, and then restores its setting.
//
// The C++ standard library is not used: ziglang would compile it together with this file, which takes a minute.

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using Kernel = void (*)(const void* call, long long first, long long end);

// A number that several threads read and write, in sequentially consistent order.
template <typename T> class Atomic {
public:
    T    load() const { return __atomic_load_n(&value_, __ATOMIC_SEQ_CST); }
    void store(T value) { __atomic_store_n(&value_, value, __ATOMIC_SEQ_CST); }
    void subtract(T value) { __atomic_fetch_sub(&value_, value, __ATOMIC_SEQ_CST); }
    // Compare and swap: false if the value is not `expected`, which then receives it.
    bool compare_exchange(T& expected, T desired) {
        return __atomic_compare_exchange_n(&value_, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }

private:
    T value_ = 0;
};

// Nanoseconds of a monotonic clock.
long long now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

// Flushes denormals in the current thread while the object exists, if `on`.
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
#error "flushing denormals is not implemented for this processor"
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
    long long   runs     = 0;  // the number of structs at `call`, `distance` bytes apart; 0: the range is split instead
    long long   distance = 0;

    // Runs part `index`: the kernel over part of the range, which is split at multiples of a tile, or for some runs.
    void run(int index) const {
        if (runs > 0) {
            const FlushDenormals guard(flush);
            for (long long r = runs * index / parts; r < runs * (index + 1) / parts; ++r) {
                kernel(static_cast<const char*>(call) + r * distance, 0, count);
            }
            return;
        }
        const long long tiles = (count + tile - 1) / tile;
        const long long first = tiles * index / parts * tile;
        const long long end   = index + 1 == parts ? count : tiles * (index + 1) / parts * tile;
        const FlushDenormals guard(flush);
        if (first < end) kernel(call, first, end);
    }
};

constexpr int kMaxParts = 1024;  // MAX_THREADS in host.py

class Pool {
public:
    // Runs the job's parts on the caller's thread and on workers; false if another caller uses the pool, or if a
    // single thread was faster recently.
    bool run(Job job) {
        if (pthread_mutex_trylock(&run_mutex_) != 0) return false;
        const long long start    = now();
        const bool      parallel = start >= serial_until_;
        if (parallel) run_parallel(job, start);
        pthread_mutex_unlock(&run_mutex_);
        return parallel;
    }

    static void* operator new(decltype(sizeof 0) size) noexcept { return malloc(size); }
    static void  operator delete(void* pool) { free(pool); }

private:
    // Runs a job's parts on this thread and on workers, and waits for all. Sets serial_until_ if that took too long.
    void run_parallel(Job job, long long start) {
        if (job.parts > kMaxParts) job.parts = kMaxParts;
        start_workers(job.parts - 1);
        job_ = job;
        unfinished_.store(job.parts);
        const Round round = ((round_.load() >> 16) + 1) << 16 | static_cast<Round>(job.parts);
        round_.store(round);
        for (int index = 1; index < job.parts && index <= worker_count_; ++index) workers_[index].wake();
        const int       parts_here = run_parts(round, 0);
        const long long ended_here = now();
        for (int spins = 0; unfinished_.load() != 0; ++spins) {
            if (spins > 4096) sched_yield();
        }
        // If the system preempts a worker in the middle of a part, all others wait for it. If the job then took longer
        // than on a single thread, jobs run on the caller's thread alone for ten times as long as it waited.
        const long long done = now();
        if ((done - start) * parts_here > (ended_here - start) * job.parts) serial_until_ = done + 10 * (done - ended_here);
    }

    // A job's increasing number and, in the lowest 16 bits, its number of parts: both change in one atomic store.
    using Round = unsigned long long;
    static int parts_of(Round round) { return static_cast<int>(round & 0xffff); }

    class Worker {
    public:
        // Waits until `ready()`, first spinning, then asleep.
        template <typename Ready> void await(const Ready& ready) {
            for (int spins = 0; spins < 20000; ++spins) {
                if (ready()) return;
#if defined(__x86_64__)
                _mm_pause();
#endif
            }
            pthread_mutex_lock(&mutex_);
            asleep_.store(1);  // before the last check of ready(): run_parallel() stores a round, then reads asleep_
            while (!ready()) pthread_cond_wait(&wake_up_, &mutex_);
            asleep_.store(0);
            pthread_mutex_unlock(&mutex_);
        }
        // Wakes the thread if await() put it to sleep.
        void wake() {
            if (asleep_.load() == 0) return;
            pthread_mutex_lock(&mutex_);
            pthread_cond_signal(&wake_up_);
            pthread_mutex_unlock(&mutex_);
        }

        // Set before the thread starts.
        Pool* pool       = nullptr;
        int   index      = 0;
        Round last_round = 0;

    private:
        pthread_mutex_t mutex_   = PTHREAD_MUTEX_INITIALIZER;
        pthread_cond_t  wake_up_ = PTHREAD_COND_INITIALIZER;
        Atomic<int>     asleep_;
    };

    // Starts threads until there are `count`. If the system refuses one, the existing threads run all parts.
    void start_workers(int count) {
        for (; worker_count_ < count && !thread_limit_reached_; ++worker_count_) {
            Worker& worker    = workers_[worker_count_ + 1];
            worker.pool       = this;
            worker.index      = worker_count_ + 1;
            worker.last_round = round_.load();
            pthread_t thread;
            thread_limit_reached_ = pthread_create(&thread, nullptr, worker_main, &worker) != 0;
            if (thread_limit_reached_) return;
            pthread_detach(thread);  // a waiting worker cannot be joined at exit or after a fork
        }
    }

    static void* worker_main(void* argument) {
        Worker& worker = *static_cast<Worker*>(argument);
        worker.pool->work(worker.index, worker.last_round);
        return nullptr;
    }

    // The loop of a worker's thread: waits for each round after `last_round` and runs parts of it.
    [[noreturn]] void work(int index, Round last_round) {
        for (;;) {
            Round round = last_round;
            workers_[index].await([&] {
                round = round_.load();
                return round != last_round && index < parts_of(round);
            });
            last_round = round;
            run_parts(round, index);
        }
    }

    // Runs the parts of a round that no other thread has claimed, starting at `index`, and returns their number. The
    // caller waits until all parts of a round are done, so job_ belongs to the round of any claimed part.
    int run_parts(Round round, int index) {
        const int parts = parts_of(round);
        int       done  = 0;
        for (int offset = 0; offset < parts; ++offset) {
            const int part = (index + offset) % parts;
            if (!claim(part, round)) continue;
            job_.run(part);
            unfinished_.subtract(1);
            ++done;
        }
        return done;
    }

    // Claims a part, once per round: claims_[part] changes from an earlier round to this one. A late worker, whose round
    // is over, reads this round or a later one there.
    bool claim(int part, Round round) {
        Round claimed = claims_[part].load();
        while (claimed < round) {
            if (claims_[part].compare_exchange(claimed, round)) return true;
        }
        return false;
    }

    pthread_mutex_t run_mutex_ = PTHREAD_MUTEX_INITIALIZER;
    Job             job_{};
    Atomic<Round>   round_;
    Atomic<int>     unfinished_;  // parts of the round
    Atomic<Round>   claims_[kMaxParts];  // by part: the last round that claimed it
    Worker          workers_[kMaxParts];
    int             worker_count_         = 0;
    bool            thread_limit_reached_ = false;
    long long       serial_until_         = 0;
};

Atomic<Pool*>  pool;
pthread_once_t registered = PTHREAD_ONCE_INIT;

// A forked child has none of its parent's threads, and the pool's locks may be in any state: it drops the pool.
void drop_pool() { pool.store(nullptr); }
void register_fork_handler() { pthread_atfork(nullptr, nullptr, drop_pool); }

// The pool, created if necessary; null if there is not enough memory.
Pool* current_pool() {
    pthread_once(&registered, register_fork_handler);
    Pool* existing = pool.load();
    if (existing == nullptr) {
        Pool* fresh = new Pool;
        if (pool.compare_exchange(existing, fresh)) existing = fresh;
        else delete fresh;
    }
    return existing;
}

// Runs a job on up to `threads` threads, and returns when all its parts are done.
void run_job(Job serial, int threads) {
    if (threads > 1) {
        Job parallel     = serial;
        parallel.parts   = threads;
        Pool* const pool = current_pool();
        if (pool != nullptr && pool->run(parallel)) return;
    }
    serial.run(0);
}

}  // namespace

// Runs a kernel over `count` replicas, on up to `threads` threads, and returns when all are done.
extern "C" __attribute__((visibility("default"))) void run(Kernel kernel, const void* call, long long count,
                                                           long long tile, int threads, int flush) {
    run_job({kernel, call, count, tile, 1, flush != 0}, threads);
}

// Runs a kernel over `count` replicas of each of `runs` runs, whose structs are `distance` bytes apart.
extern "C" __attribute__((visibility("default"))) void run_several(Kernel kernel, const void* calls, long long distance,
                                                                   long long runs, long long count, int threads,
                                                                   int flush) {
    run_job({kernel, calls, count, 1, 1, flush != 0, runs, distance}, threads < runs ? threads : static_cast<int>(runs));
}
