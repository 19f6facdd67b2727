// What the dialect's words mean to NVRTC: a tile is one thread's replica, and its arrays are registers.

#if _for_gpu

#define FN                  __device__ __forceinline__
#define SELDOM              __device__ __noinline__
#define KERNEL(name, Call)  KERNEL_AS(name, Call, )
#define KERNEL_OF_BLOCKS(name, Call, threads, blocks) KERNEL_AS(name, Call, __launch_bounds__(threads, blocks))
#define KERNEL_AS(name, Call, bounds)                                                 \
    FN void name##_body(const Call& call);                                            \
    extern "C" __global__ void bounds name(const __grid_constant__ Call call) {       \
        await_launch_before();                                                        \
        name##_body(call);                                                            \
    }                                                                                 \
    FN void name##_body(const Call& call)
#define FOR_EACH_ENV(env, count) if (const ThreadTile env(count); true)
#define FOR_EACH_ENV_IN_TURN(env, count, turn) if (const ThreadTile env(count, (turn) % 2 != 0); true)
#define FOR_EACH_ENV_OF_A_WARP(env, count) if (const WarpTile env(count); true)
#define FOR_EACH_LANE(k, env)    UNROLL for (int k = 0; k < LANES; ++k) if ((env).has(k))
#define FOR_EACH_LANE_ALONE(k, env) FOR_EACH_LANE(k, env)
#define NOTE_LANES(note, k, env) FOR_EACH_LANE(k, env)
#define FOR_EACH_MARKED(k, marks, env) FOR_EACH_LANE(k, env) if ((marks)[k])
#define FOR_EACH_BLOCK(block)    if (const Index block = Index(blockIdx.x); true)
#define FOR_EACH_OF_BLOCK(i, block, size, count) if (const Index i = (block) * (size) + threadIdx.x; i < (count))
#define UNROLL                   _Pragma("unroll")
#define ROLLED                   _Pragma("unroll 1")  // a loop that remains one: long code takes time to fetch

constexpr bool ON_GPU = true;

// From Hopper on a launch may begin while the one before it ends: it goes on when all that wrote is there. The next one
// may begin then, too.
FN void await_launch_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#ifdef CHECKED
extern "C" __device__ void __assertfail(const char*, const char*, unsigned int, const char*, decltype(sizeof(0)));
FN void tell_index_and_stop(const char* file, int line, Index at, const char* name, Index length) {
    printf("%s:%d: index %lld of '%s', which has %lld elements\n", file, line, at, name, length);
    __assertfail(name, file, u32(line), "index", 1);  // what was printed may be lost with the kernel: this is not
}
#endif

constexpr int LANES = 1;  // two and four were tried, and were no faster
constexpr int WARP  = 32;

// A thread's replicas lie a block's width apart, so that neighbouring threads touch neighbouring elements. The grid
// covers all replicas; threads past the end have none, but take part in what a whole warp does.
struct ThreadTile {
    Index first, count;

    FN explicit ThreadTile(Index n, bool backwards = false)
        : first(Index(backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * blockDim.x * LANES + threadIdx.x), count(n) {}
    FN Index index(int k) const { return first + Index(k) * blockDim.x; }
    FN bool  has(int k) const { return index(k) < count; }
};

// One of them, for all threads of a warp.
struct WarpTile {
    Index first, count;

    FN explicit WarpTile(Index n) : first((Index(blockIdx.x) * blockDim.x + threadIdx.x) / WARP), count(n) {}
    FN Index index(int) const { return first; }
    FN bool  has(int) const { return first < count; }
};

FN int   lowest_bit(u32 word)                  { return __ffs(int(word)) - 1; }
FN int   highest_bit(u32 word)                 { return 31 - __clz(int(word)); }
FN u32   sign_shifted_in(u32 word, float x)    { return __funnelshift_l(u32(__float_as_int(x)), word, 1); }
FN u32   sign_shifted_in(u32 word, double x)   { return __funnelshift_l(u32(__double2hiint(x)), word, 1); }
// a*b + c, rounded once or twice: where it is no matter.
FN float  about(float a, float b, float c)     { return __fmaf_rn(a, b, c); }
FN double about(double a, double b, double c)  { return __fma_rn(a, b, c); }
// An index of which a compiler does not know that it stays the same: it keeps no address in registers from turn to turn.
FN Index  anew(Index i)                        { asm volatile("" : "+l"(i)); return i; }
// Of two that are neither NaN nor zeros of unlike signs: in one instruction.
FN float  lesser(float a, float b)             { return fminf(a, b); }
FN double lesser(double a, double b)           { return fmin(a, b); }
FN float  greater(float a, float b)            { return fmaxf(a, b); }
FN double greater(double a, double b)          { return fmax(a, b); }
FN bool  any_lane(bool value)                  { return __any_sync(0xffffffffu, value); }
FN float fma(float a, float b, float c)        { return __fmaf_rn(a, b, c); }
FN double fma(double a, double b, double c)    { return __fma_rn(a, b, c); }
FN float  square_root(float x)                 { return __fsqrt_rn(x); }
FN double square_root(double x)                { return __dsqrt_rn(x); }
FN float  round_down(float x)                  { return floorf(x); }
FN double round_down(double x)                 { return floor(x); }
FN u32    bits_of(float x)                     { return u32(__float_as_int(x)); }
FN u64    bits_of(double x)                    { return u64(__double_as_longlong(x)); }
FN float  from_bits(u32 x)                     { return __int_as_float(int(x)); }
FN double from_bits(u64 x)                     { return __longlong_as_double(i64(x)); }
FN u64    swap_if_equal(u64* word, u64 expected, u64 value) { return atomicCAS(word, expected, value); }
FN void   lower(u64* word, u64 value)                       { atomicMin(word, value); }

// A number that threads count together.
FN u32  now(const u32* count)  { return *count; }
FN void count_down(u32* count) { atomicSub(count, 1u); }
FN void count_up(u32* count) { atomicAdd(count, 1u); }

// Words that threads of other GPUs write and read: each arrives as a whole, and in no order.
FN void store_word(u64* word, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(word), "l"(value) : "memory");
}
FN u64 load_word(const u64* word) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

FN void give_up() { asm volatile("trap;"); }
FN u64  nanoseconds() {
    u64 value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

FN int minimum_of(int a, int b) { return b < a ? b : a; }

// What will be read soon is on its way into the first-level cache.
FN void fetch_ahead(const void* at) { asm volatile("prefetch.global.L1 [%0];" :: "l"(at)); }

// Reads and stores what a step does not come back to: it need not stay in the second-level cache.
template <class T> FN T take_in(const T* at)        { return __ldcs(at); }
FN void hand_out(float* at, float value)            { __stcs(at, value); }
FN void hand_out(double* at, double value)          { __stcs(at, value); }
FN void hand_out(u8* at, u8 value)                  { __stcs(at, value); }
FN void hand_out(Wide<1>* at, const Wide<1>& row)   { __stcs(&at->value[0], row.value[0]); }
FN void hand_out(Wide<2>* at, const Wide<2>& row)   {
    __stcs(reinterpret_cast<float2*>(at), make_float2(row.value[0], row.value[1]));
}
FN void hand_out(Wide<4>* at, const Wide<4>& row) {
    __stcs(reinterpret_cast<float4*>(at), make_float4(row.value[0], row.value[1], row.value[2], row.value[3]));
}

extern __shared__ __align__(16) float staging[];  // a block's own memory: rows on their way out, or a team's Worlds

FN int  thread_rank()        { return int(threadIdx.x); }
FN int  block_number()       { return int(blockIdx.x); }
FN int  block_count()        { return int(gridDim.x); }
FN void block_barrier()      { __syncthreads(); }
FN void warp_barrier()       { __syncwarp(); }
template <class T> FN T from_lane(T x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
template <class T> FN T from_lane_above(T x, int distance) { return __shfl_down_sync(0xffffffffu, x, distance); }
template <class T> FN T from_lane_across(T x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); }
FN u32  warp_marks(bool mine) { return __ballot_sync(0xffffffffu, mine); }  // a bit for each of its threads
FN bool block_any(bool mine) { return __syncthreads_or(mine) != 0; }

// Sums in an order that is always the same; each thread gets them. The whole warp calls it.
template <class Real> FN Real summed_over_warp(Real x) {
    UNROLL
    for (int distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

// The same over a block of so many threads, all of which call it.
template <int THREADS, class Real> FN Real block_sum(Real x) {
    __shared__ Real of_warps[THREADS / WARP];
    x = summed_over_warp(x);
    block_barrier();  // an earlier sum has been read
    if (thread_rank() % WARP == 0) of_warps[thread_rank() / WARP] = x;
    block_barrier();
    Real sum = 0;
    UNROLL
    for (int warp = 0; warp < THREADS / WARP; ++warp) sum += of_warps[warp];
    return sum;
}

// Whether all other blocks have come here, so that what they wrote before can be read. The whole block calls it, and the
// count begins again with the last.
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

// A barrier of all blocks of a launch, whose Grid has them `together`: what they wrote before they arrived can be read by
// whoever has waited. Each block calls both, one after the other, with all its threads. The last to arrive turns the
// word's highest bit, and leaves the others as the first found them: so it serves launch after launch.
FN u32 arrive_at_grid(u32* arrived) {
    constexpr u32 turn = 1u << 31;
    u32           before = 0;
    block_barrier();
    if (thread_rank() == 0) {
        const u32 own = block_number() == 0 ? turn - u32(block_count() - 1) : 1u;
        asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(arrived), "r"(own) : "memory");
    }
    return before;
}
FN void wait_for_grid(const u32* arrived, u32 before) {
    if (thread_rank() == 0) {
        u32 now;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
        while (((before ^ now) >> 31) == 0);
    }
    block_barrier();
}

// How many threads before this one `keep`, and how many of the block's THREADS do. The whole block calls it, and waits
// before it does so again.
template <int THREADS> FN int block_place(bool keep, int& total) {
    constexpr int warps = THREADS / WARP;
    __shared__ int kept[warps];
    const u32 marks = __ballot_sync(0xffffffffu, keep);
    const int warp = thread_rank() / WARP, lane = thread_rank() % WARP;
    if (lane == 0) kept[warp] = __popc(marks);
    block_barrier();
    int before = 0;
    total      = 0;
    UNROLL
    for (int other = 0; other < warps; ++other) {
        before += other < warp ? kept[other] : 0;
        total += kept[other];
    }
    return before + __popc(marks & ((1u << lane) - 1));
}

FN void add(int& sum, int value)    { atomicAdd(&sum, value); }
FN void lower(int& least, int value) {
    if (value < *static_cast<volatile int*>(&least)) atomicMin(&least, value);  // most are spared the atomic
}
FN void raise(u32& most, u32 value) {
    if (value > *static_cast<volatile u32*>(&most)) atomicMax(&most, value);
}

#endif
