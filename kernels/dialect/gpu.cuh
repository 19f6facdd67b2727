// The dialect on a GPU: a tile is one thread's replica, and its arrays are registers.

#if _for_gpu

#define FN                  __device__ __forceinline__
#define NOINLINE              __device__ __noinline__
#define KERNEL(name, Call)  KERNEL_AS(name, Call, )
// `threads` per block, and the minimum of `blocks` per multiprocessor, which limits a thread's registers.
#define KERNEL_OF_BLOCKS(name, Call, threads, blocks) KERNEL_AS(name, Call, __launch_bounds__(threads, blocks))
#ifdef SEVERAL_RUNS  // a launch of (blocks of a run, runs) blocks, for the calls of several runs
constexpr bool SEVERAL = true;
template <class Call> struct CallsOfRuns {
    const Call* calls;
    const u8*   active;  // blocks of the other runs end at once
};
#define KERNEL_AS(name, Call, bounds)                                                 \
    FN void name##_body(const Call& call);                                            \
    extern "C" __global__ void bounds name(const __grid_constant__ CallsOfRuns<Call> runs) { \
        wait_for_previous_launch();                                                   \
        if (runs.active[blockIdx.y] == 0) return;                                     \
        static_assert(sizeof(Call) % sizeof(u64) == 0);                               \
        __shared__ u64 words[sizeof(Call) / sizeof(u64)];                             \
        const u64* const from = reinterpret_cast<const u64*>(runs.calls + blockIdx.y); \
        for (int j = int(threadIdx.x); j < int(sizeof(words) / sizeof(u64)); j += int(blockDim.x)) words[j] = from[j]; \
        __syncthreads();                                                              \
        name##_body(*reinterpret_cast<const Call*>(words));                           \
    }                                                                                 \
    FN void name##_body(const Call& call)
#else
constexpr bool SEVERAL = false;
#define KERNEL_AS(name, Call, bounds)                                                 \
    FN void name##_body(const Call& call);                                            \
    extern "C" __global__ void bounds name(const __grid_constant__ Call call) {       \
        wait_for_previous_launch();                                                        \
        name##_body(call);                                                            \
    }                                                                                 \
    FN void name##_body(const Call& call)
#endif
#define FOR_EACH_ENV(env, count) if (const ThreadTile env(count); true)
#define FOR_EACH_ENV_ALTERNATING(env, count, launch) if (const ThreadTile env(count, (launch) % 2 != 0); true)
#define FOR_EACH_ENV_PER_WARP(env, count) if (const WarpTile env(count); true)
#define FOR_EACH_LANE(k, env)    UNROLL for (int k = 0; k < LANES; ++k) if ((env).has(k))
#define FOR_EACH_LANE_ALONE(k, env) FOR_EACH_LANE(k, env)
#define FOR_EACH_LANE_OR(bits, k, env) FOR_EACH_LANE(k, env)
#define FOR_EACH_MARKED(k, marks, env) FOR_EACH_LANE(k, env) if ((marks)[k])
#define FOR_EACH_BLOCK(block)    if (const Index block = Index(blockIdx.x); true)
#define FOR_EACH_OF_BLOCK(i, block, size, count) if (const Index i = (block) * (size) + threadIdx.x; i < (count))
#define UNROLL                   _Pragma("unroll")
#define NO_UNROLL                   _Pragma("unroll 1")  // keeps code short, as instruction fetches take time

constexpr bool ON_GPU = true;

// Programmatic dependent launch (from Hopper on): this launch may have started while the previous one ends; waits until
// the previous one's writes are visible, and then lets the next launch start.
FN void wait_for_previous_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#ifdef CHECKED
extern "C" __device__ void __assertfail(const char*, const char*, unsigned int, const char*, decltype(sizeof(0)));
FN void report_index_and_exit(const char* file, int line, Index at, const char* name, Index length) {
    printf("%s:%d: index %lld of '%s', which has %lld elements\n", file, line, at, name, length);
    __assertfail(name, file, u32(line), "index", 1);  // printf's output may be lost when the kernel ends, this is not
}
#endif

constexpr int LANES = 1;  // 2 and 4 are not faster
constexpr int WARP  = 32;

// A thread's replicas are a block's width apart, so that neighbouring threads access neighbouring elements. The grid
// covers all replicas; threads past the end have none, but take part in operations of the full warp.
struct ThreadTile {
    Index first, count;

    FN explicit ThreadTile(Index n, bool backwards = false)
        : first(Index(backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * blockDim.x * LANES + threadIdx.x), count(n) {}
    FN Index index(int k) const { return first + Index(k) * blockDim.x; }
    FN bool  has(int k) const { return index(k) < count; }
};

// One replica per warp.
struct WarpTile {
    Index first, count;

    FN explicit WarpTile(Index n) : first((Index(blockIdx.x) * blockDim.x + threadIdx.x) / WARP), count(n) {}
    FN Index index(int) const { return first; }
    FN bool  has(int) const { return first < count; }
};

FN int   lowest_bit(u32 word)                     { return __ffs(int(word)) - 1; }
FN int   highest_bit(u32 word)                    { return 31 - __clz(int(word)); }
FN u32   sign_shifted_in(u32 word, float x)       { return __funnelshift_l(u32(__float_as_int(x)), word, 1); }
FN u32   sign_shifted_in(u32 word, double x)      { return __funnelshift_l(u32(__double2hiint(x)), word, 1); }
// a*b + c, rounded once here and twice on a CPU: for uses where the last bit does not matter.
FN float  multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FN double multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }
// Hides from the compiler that an index is loop-invariant, so that it keeps no address in registers across iterations.
FN Index  opaque_index(Index i)                   { asm volatile("" : "+l"(i)); return i; }
// Minimum and maximum in one instruction; not for NaN and not for zeros of different signs.
FN float  fast_minimum(float a, float b)          { return fminf(a, b); }
FN double fast_minimum(double a, double b)        { return fmin(a, b); }
FN float  fast_maximum(float a, float b)          { return fmaxf(a, b); }
FN double fast_maximum(double a, double b)        { return fmax(a, b); }
FN bool  warp_any(bool value)                     { return __any_sync(0xffffffffu, value); }
FN float fma(float a, float b, float c)           { return __fmaf_rn(a, b, c); }
FN double fma(double a, double b, double c)       { return __fma_rn(a, b, c); }
FN float  square_root(float x)                    { return __fsqrt_rn(x); }
FN double square_root(double x)                   { return __dsqrt_rn(x); }
FN float  round_down(float x)                     { return floorf(x); }
FN double round_down(double x)                    { return floor(x); }
FN u32    bits_of(float x)                        { return u32(__float_as_int(x)); }
FN u64    bits_of(double x)                       { return u64(__double_as_longlong(x)); }
FN float  from_bits(u32 x)                        { return __int_as_float(int(x)); }
FN double from_bits(u64 x)                        { return __longlong_as_double(i64(x)); }
FN u64    compare_and_swap(u64* word, u64 expected, u64 value) { return atomicCAS(word, expected, value); }
FN void   lower(u64* word, u64 value)             { atomicMin(word, value); }

// An atomic counter.
FN u32  load_count(const u32* count)  { return *count; }
FN void count_down(u32* count) { atomicSub(count, 1u); }
FN void count_up(u32* count) { atomicAdd(count, 1u); }

// Relaxed atomic words, shared with threads of other GPUs: a store, and a load.
FN void store_word(u64* word, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(word), "l"(value) : "memory");
}
FN u64 load_word(const u64* word) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

FN void trap() { asm volatile("trap;"); }

// The time of the GPU's global timer, for timeouts.
FN u64 nanoseconds() {
    u64 value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

FN int minimum_of(int a, int b) { return b < a ? b : a; }

// Prefetches into the L1 cache.
FN void prefetch(const void* at) { asm volatile("prefetch.global.L1 [%0];" :: "l"(at)); }

// Streaming loads and stores, for data that a step uses once: they leave the L2 cache first.
template <class T> FN T load_streaming(const T* at)        { return __ldcs(at); }
FN void store_streaming(float* at, float value)            { __stcs(at, value); }
FN void store_streaming(double* at, double value)          { __stcs(at, value); }
FN void store_streaming(u8* at, u8 value)                  { __stcs(at, value); }
FN void store_streaming(Wide<1>* at, const Wide<1>& row)   { __stcs(&at->value[0], row.value[0]); }
FN void store_streaming(Wide<2>* at, const Wide<2>& row)   {
    __stcs(reinterpret_cast<float2*>(at), make_float2(row.value[0], row.value[1]));
}
FN void store_streaming(Wide<4>* at, const Wide<4>& row) {
    __stcs(reinterpret_cast<float4*>(at), make_float4(row.value[0], row.value[1], row.value[2], row.value[3]));
}

extern __shared__ __align__(16) float staging[];  // dynamic shared memory: staged rows, or a team's Worlds

FN int  thread_rank()        { return int(threadIdx.x); }
FN int  block_number()       { return int(blockIdx.x); }
FN int  block_count()        { return int(gridDim.x); }
FN void block_barrier()      { __syncthreads(); }
FN void warp_barrier()       { __syncwarp(); }
template <class T> FN T shuffle(T x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
template <class T> FN T shuffle_down(T x, int distance) { return __shfl_down_sync(0xffffffffu, x, distance); }
template <class T> FN T shuffle_xor(T x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); }
FN u32  warp_ballot(bool value) { return __ballot_sync(0xffffffffu, value); }
FN bool block_any(bool value) { return __syncthreads_or(value) != 0; }

// The sum of x over a warp in a fixed order, returned to all its threads; every thread of the warp must call it.
template <class Real> FN Real warp_sum(Real x) {
    UNROLL
    for (int distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

// The sum of x over a block of THREADS threads, returned to all of them; every thread must call it.
template <int THREADS, class Real> FN Real block_sum(Real x) {
    __shared__ Real warp_sums[THREADS / WARP];
    x = warp_sum(x);
    block_barrier();  // all threads have read the previous sum
    if (thread_rank() % WARP == 0) warp_sums[thread_rank() / WARP] = x;
    block_barrier();
    Real sum = 0;
    UNROLL
    for (int warp = 0; warp < THREADS / WARP; ++warp) sum += warp_sums[warp];
    return sum;
}

// Whether this block is the last to arrive, which sees earlier writes and resets the counter; all threads must call it.
FN bool last_block(int* arrived, int blocks) {
    __shared__ bool last;
    block_barrier();
    if (thread_rank() == 0) {
        __threadfence();
        last = atomicAdd(arrived, 1) == blocks - 1;
        if (last) *arrived = 0;
        __threadfence();
    }
    block_barrier();
    return last;
}

// The first half of a barrier over all blocks of a cooperative launch; returns the `before` of wait_for_grid(), the
// second half. All threads call both; writes before the first are visible after the second. The last block to arrive
// flips the word's highest bit and leaves the other bits as they were, so the next launch needs no reset.
FN u32 arrive_at_grid(u32* arrived) {
    constexpr u32 flip = 1u << 31;
    u32           before = 0;
    block_barrier();
    if (thread_rank() == 0) {
        const u32 added = block_number() == 0 ? flip - u32(block_count() - 1) : 1u;
        asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(arrived), "r"(added) : "memory");
    }
    return before;
}
// Waits until all blocks have arrived.
FN void wait_for_grid(const u32* arrived, u32 before) {
    if (thread_rank() == 0) {
        u32 now;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
        while (((before ^ now) >> 31) == 0);
    }
    block_barrier();
}

// The number of earlier threads of the block with `keep`; `total` receives the number in the block. All threads must
// call it, with a barrier between two calls.
template <int THREADS> FN int block_rank(bool keep, int& total) {
    constexpr int warps = THREADS / WARP;
    __shared__ int counts[warps];
    const u32 marks = __ballot_sync(0xffffffffu, keep);
    const int warp = thread_rank() / WARP, lane = thread_rank() % WARP;
    if (lane == 0) counts[warp] = __popc(marks);
    block_barrier();
    int before = 0;
    total      = 0;
    UNROLL
    for (int other = 0; other < warps; ++other) {
        before += other < warp ? counts[other] : 0;
        total += counts[other];
    }
    return before + __popc(marks & ((1u << lane) - 1));
}

FN void add(int& sum, int value) { atomicAdd(&sum, value); }
FN void lower(int& minimum, int value) {
    if (value < *static_cast<volatile int*>(&minimum)) atomicMin(&minimum, value);  // the check avoids most atomics
}
FN void raise(u32& maximum, u32 value) {
    if (value > *static_cast<volatile u32*>(&maximum)) atomicMax(&maximum, value);
}

#endif
