// Steps replicas on all cores: a pool of threads per process, made when first needed and made anew after a fork.
//
// A kernel works on a range of replicas, so how the ranges are cut never changes a result. While a thread works for a
// float32 simulation it flushes denormals, as the GPU's kernels do; its setting is restored before it goes on.
//
// Nothing of C++'s own library is used: ziglang would compile all of it when it first compiles this, for a minute.

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using Kernel = void (*)(const void* call, long long first, long long end);

// A number that several threads read and write: all of them see the same order of that.
template <typename T> class Atomic {
public:
    T    load() const { return __atomic_load_n(&value_, __ATOMIC_SEQ_CST); }
    void store(T value) { __atomic_store_n(&value_, value, __ATOMIC_SEQ_CST); }
    void subtract(T value) { __atomic_fetch_sub(&value_, value, __ATOMIC_SEQ_CST); }
    // From one value to another; where it is a third, that becomes `from`.
    bool change(T& from, T to) {
        return __atomic_compare_exchange_n(&value_, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }

private:
    T value_ = 0;
};

// Nanoseconds of a clock that is never set.
long long now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

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
        if (pthread_mutex_trylock(&callers_) != 0) return false;
        const long long start  = now();
        const bool      shared = start >= alone_until_;
        if (shared) share(job, start);
        pthread_mutex_unlock(&callers_);
        return shared;
    }

    static void* operator new(decltype(sizeof 0) size) noexcept { return malloc(size); }
    static void  operator delete(void* pool) { free(pool); }

private:
    void share(Job job, long long start) {
        if (job.parts > kMostParts) job.parts = kMostParts;
        employ(job.parts - 1);
        job_ = job;
        left_.store(job.parts);
        const Round round = ((round_.load() >> 16) + 1) << 16 | static_cast<Round>(job.parts);
        round_.store(round);
        for (int index = 1; index < job.parts && index <= workers_; ++index) workers_at_[index].wake();
        const int       mine  = help(round, 0);
        const long long ended = now();
        for (int spins = 0; left_.load() != 0; ++spins) {
            if (spins > 4096) sched_yield();
        }
        // A worker that the system takes off its core in the middle of a part keeps everybody waiting. Where that made
        // the job longer than it would have been alone, the caller works alone for ten times what it lost.
        const long long done = now();
        if ((done - start) * mine > (ended - start) * job.parts) alone_until_ = done + 10 * (done - ended);
    }

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
            pthread_mutex_lock(&mutex_);
            asleep_.store(1);  // before it looks again: whoever publishes a round then looks whether it sleeps
            while (!due()) pthread_cond_wait(&called_, &mutex_);
            asleep_.store(0);
            pthread_mutex_unlock(&mutex_);
        }
        void wake() {
            if (asleep_.load() == 0) return;
            pthread_mutex_lock(&mutex_);
            pthread_cond_signal(&called_);
            pthread_mutex_unlock(&mutex_);
        }

        // What its thread begins with.
        Pool* pool  = nullptr;
        int   index = 0;
        Round seen  = 0;

    private:
        pthread_mutex_t mutex_  = PTHREAD_MUTEX_INITIALIZER;
        pthread_cond_t  called_ = PTHREAD_COND_INITIALIZER;
        Atomic<int>     asleep_;
    };

    // Starts threads up to a number; where the system gives no more, the others do their parts.
    void employ(int wanted) {
        for (; workers_ < wanted && !full_; ++workers_) {
            Worker& worker = workers_at_[workers_ + 1];
            worker.pool    = this;
            worker.index   = workers_ + 1;
            worker.seen    = round_.load();
            pthread_t thread;
            full_ = pthread_create(&thread, nullptr, begin, &worker) != 0;
            if (full_) return;
            pthread_detach(thread);  // it cannot be joined after a fork, nor at exit while it waits: it is the process's
        }
    }

    static void* begin(void* given) {
        Worker& worker = *static_cast<Worker*>(given);
        worker.pool->work(worker.index, worker.seen);
        return nullptr;
    }

    [[noreturn]] void work(int index, Round seen) {
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
            left_.subtract(1);
            ++done;
        }
        return done;
    }

    // A part is claimed once a round: its claim goes from an earlier round to this one. A worker that comes late, to a
    // round that is over, finds this round there or a later one.
    bool claim(int part, Round round) {
        Round earlier = claims_[part].load();
        while (earlier < round) {
            if (claims_[part].change(earlier, round)) return true;
        }
        return false;
    }

    pthread_mutex_t callers_ = PTHREAD_MUTEX_INITIALIZER;
    Job             job_{};
    Atomic<Round>   round_;
    Atomic<int>     left_;
    Atomic<Round>   claims_[kMostParts];
    Worker          workers_at_[kMostParts];
    int             workers_     = 0;
    bool            full_        = false;
    long long       alone_until_ = 0;
};

Atomic<Pool*>  pool;
pthread_once_t registered = PTHREAD_ONCE_INIT;

// A child of fork has none of its parent's threads: it forgets their pool, whose locks it may hold in any state.
void forget_pool() { pool.store(nullptr); }
void register_forgetting() { pthread_atfork(nullptr, nullptr, forget_pool); }

// Null where there is no memory for one.
Pool* current_pool() {
    pthread_once(&registered, register_forgetting);
    Pool* existing = pool.load();
    if (existing == nullptr) {
        Pool* fresh = new Pool;
        if (pool.change(existing, fresh)) existing = fresh;
        else delete fresh;
    }
    return existing;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void run(Kernel kernel, const void* call, long long count,
                                                           long long tile, int threads, int flush) {
    const Job alone{kernel, call, count, tile, 1, flush != 0};
    if (threads > 1) {
        Job shared   = alone;
        shared.parts = threads;
        Pool* const pool = current_pool();
        if (pool != nullptr && pool->run(shared)) return;
    }
    alone.run(0);
}
