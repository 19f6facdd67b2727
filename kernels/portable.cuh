// The dialect: the words every other header is written in, and the only file that knows which compiler reads it.
//
//   FN                       a function of the simulation
//   SELDOM                   one that is seldom called, and kept out of the way
//   KERNEL(name, Call)       an entry point; its one argument is named `call`
//   KERNEL_OF_BLOCKS(name, Call, threads, blocks)    one whose blocks have so many threads, so many of them at a time
//   FOR_EACH_ENV(env, n)     runs over replicas 0 to n-1 in tiles of at most LANES
//   FOR_EACH_LANE(k, env)    runs over the replicas env.index(k) of one tile; bodies must not depend on one another
//   FOR_EACH_LANE_ALONE(k, env)       the same, one after another: for bodies that no compiler vectorises
//   NOTE_LANES(note, k, env) FOR_EACH_LANE whose body may also gather into an int: note |= ...
//   FOR_EACH_MARKED(k, marks, env)    runs over the few lanes whose mark is not zero
//   FOR_EACH_BLOCK(block)    runs over the blocks of a launch whose replicas have a team of agents: see team.cuh
//   CHECKED                  defined in builds that look at every index: see checked.cuh
//   UNROLL                   before a loop of a small, constant number of turns
//
// On a GPU a tile is one thread's replica and its arrays are registers; on a CPU it is a block of replicas
// that stays in the first-level cache and that the compiler vectorises. Contraction is off in both compilers, so a*b + c rounds twice
// on both; write fma(a, b, c) where one rounding is wanted.

using u8    = unsigned char;
using u16   = unsigned short;
using u32   = unsigned int;
using i64   = long long;
using u64   = unsigned long long;
using Index = long long;  // of a replica or of an array element: arrays may hold more than 2^31 elements

#ifdef __CUDACC__

#define FN                  __device__ __forceinline__
#define SELDOM              __device__ __noinline__
#define KERNEL(name, Call)  extern "C" __global__ void name(const __grid_constant__ Call call)
#define KERNEL_OF_BLOCKS(name, Call, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Call call)
#define FOR_EACH_ENV(env, count) if (const ThreadTile env(count); true)
#define FOR_EACH_LANE(k, env)    UNROLL for (int k = 0; k < LANES; ++k) if ((env).has(k))
#define FOR_EACH_LANE_ALONE(k, env) FOR_EACH_LANE(k, env)
#define NOTE_LANES(note, k, env) FOR_EACH_LANE(k, env)
#define FOR_EACH_MARKED(k, marks, env) FOR_EACH_LANE(k, env) if ((marks)[k])
#define FOR_EACH_BLOCK(block)    if (const Index block = Index(blockIdx.x); true)
#define UNROLL                   _Pragma("unroll")

constexpr bool ON_GPU = true;

#ifdef CHECKED
extern "C" __device__ void __assertfail(const char*, const char*, unsigned int, const char*, decltype(sizeof(0)));
FN void tell_index_and_stop(const char* file, int line, Index at, const char* name, Index length) {
    printf("%s:%d: index %lld of '%s', which has %lld elements\n", file, line, at, name, length);
    __assertfail(name, file, u32(line), "index", 1);  // what was printed may be lost with the kernel: this is not
}
#endif

constexpr int LANES = 1;  // two and four were tried, and were no faster
constexpr int WARP  = 32;

constexpr Index FEW_REPLICAS = 65536;  // they stay in the second-level cache

// A thread's replicas lie a block's width apart, so that neighbouring threads touch neighbouring elements. The grid
// covers all replicas; threads past the end have none, but take part in what a whole warp does.
struct ThreadTile {
    Index first, count;

    FN explicit ThreadTile(Index n) : first(Index(blockIdx.x) * blockDim.x * LANES + threadIdx.x), count(n) {}
    FN Index index(int k) const { return first + Index(k) * blockDim.x; }
    FN bool  has(int k) const { return index(k) < count; }
};

FN int   lowest_bit(u32 word)                  { return __ffs(int(word)) - 1; }
FN int   highest_bit(u32 word)                 { return 31 - __clz(int(word)); }
FN u32   sign_shifted_in(u32 word, float x)    { return __funnelshift_l(u32(__float_as_int(x)), word, 1); }
FN u32   sign_shifted_in(u32 word, double x)   { return __funnelshift_l(u32(__double2hiint(x)), word, 1); }
// a*b + c, rounded once or twice: where it is no matter.
FN float  about(float a, float b, float c)     { return __fmaf_rn(a, b, c); }
FN double about(double a, double b, double c)  { return __fma_rn(a, b, c); }
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

FN int minimum_of(int a, int b) { return b < a ? b : a; }

template <int WIDTH> struct alignas(WIDTH * sizeof(float)) Wide { float value[WIDTH]; };

extern __shared__ __align__(16) float staging[];  // one row a thread, for rows that no single store can write

// Writes one row of WIDTH floats a replica. Rows of 1, 2 and 4 floats go out in one store where the address allows;
// others pass through shared memory, so that neighbouring threads write neighbouring words.
template <int WIDTH, class Env>
FN void store_rows(float* rows, const float (&tile)[WIDTH][LANES], const Env& env) {
    constexpr int one_store = WIDTH == 1 || WIDTH == 2 || WIDTH == 4 ? WIDTH : 0;
    if (one_store != 0 && u64(rows) % (WIDTH * sizeof(float)) == 0) {
        FOR_EACH_LANE(k, env) {
            Wide<one_store + !one_store> row;
            UNROLL
            for (int j = 0; j < one_store; ++j) row.value[j] = tile[j][k];
            reinterpret_cast<Wide<one_store + !one_store>*>(rows)[env.index(k)] = row;
        }
        return;
    }
    const int lane = threadIdx.x % WARP;
    float*    warp = staging + (threadIdx.x - lane) * WIDTH;
    UNROLL
    for (int k = 0; k < LANES; ++k) {
        __syncwarp();
        UNROLL
        for (int j = 0; j < WIDTH; ++j) warp[lane * WIDTH + j] = tile[j][k];
        __syncwarp();
        const Index start = (env.index(k) - lane) * WIDTH, end = env.count * WIDTH;
        UNROLL
        for (int j = 0; j < WIDTH; ++j) {
            const Index element = start + j * WARP + lane;
            if (element < end) rows[element] = warp[j * WARP + lane];
        }
    }
    __syncwarp();  // what a lane stores to its own row from here on comes after
}

FN int  thread_rank()        { return int(threadIdx.x); }
FN void block_barrier()      { __syncthreads(); }
FN void warp_barrier()       { __syncwarp(); }
FN u32  warp_marks(bool mine) { return __ballot_sync(0xffffffffu, mine); }  // a bit for each of its threads
FN bool block_any(bool mine) { return __syncthreads_or(mine) != 0; }

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

// Memory of a block: shared among its threads.
struct LocalMemory {
    char* at;
    FN explicit LocalMemory(Index) : at(reinterpret_cast<char*>(staging)) {}
};

// Zeroes `count` floats, a multiple of 4 from a multiple of 16 bytes on.
FN void zero_out(float* at, int count, int rank, int ranks) {
    for (int j = rank; 4 * j < count; j += ranks) reinterpret_cast<Wide<4>*>(at)[j] = {};
}

// Copying out of shared memory takes three steps: every thread that wrote there calls publish() and then a barrier, all
// `ranks` threads that copy call copy_out() (this one is number `rank`), and before the memory is written again, or the
// kernel ends, every thread calls await_copies(); before other copies to the same place, settle_copies(). From Hopper
// on, the copy engine does the work meanwhile.
#if __CUDA_ARCH__ >= 900
FN void publish()      { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FN void await_copies() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
FN void settle_copies() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
FN void copy_wide(float* to, const float* from, int words, int rank, int) {
    if (rank != 0 || words == 0) return;
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\tcp.async.bulk.commit_group;" ::"l"(to),
                 "r"(u32(__cvta_generic_to_shared(from))), "r"(words * 16)
                 : "memory");
}
#else
FN void publish() {}
FN void await_copies() {}
FN void settle_copies() {}
FN void copy_wide(float* to, const float* from, int words, int rank, int ranks) {
    for (int j = rank; j < words; j += ranks) reinterpret_cast<Wide<4>*>(to)[j] = reinterpret_cast<const Wide<4>*>(from)[j];
}
#endif

// Copies `count` floats, in wide words and whole sectors where both ends lie at the same distance from a multiple of 16
// bytes. By the copy engine it costs fewer instructions, but rows that begin and end within sectors go slower that way.
template <bool BY_ENGINE> FN void copy_out(float* to, const float* from, int count, int rank, int ranks) {
    constexpr int sector = 32;
    if ((u64(to) ^ u64(from)) % sizeof(Wide<4>) != 0) {
        for (int j = rank; j < count; j += ranks) to[j] = from[j];
        return;
    }
    const int head = minimum_of(count, int((sector - u64(to) % sector) % sector / sizeof(float))), words = (count - head) / 4;
    if (BY_ENGINE) {
        copy_wide(to + head, from + head, words, rank, ranks);
    } else {
        const auto *source = reinterpret_cast<const Wide<4>*>(from + head);
        auto* const target = reinterpret_cast<Wide<4>*>(to + head);
        for (int j = rank; j < words; j += ranks) target[j] = source[j];
    }
    const int at = rank < head ? rank : rank + 4 * words;  // before and after: at most ten, and no fewer threads
    if (at < count && rank < head + 3) to[at] = from[at];
}

#else

#define FN                  inline __attribute__((always_inline))
#define SELDOM              static __attribute__((noinline))
#define KERNEL(name, Call)  \
    extern "C" __attribute__((visibility("default"))) void name(const Call& call, Index range_first, Index range_end)
#define KERNEL_OF_BLOCKS(name, Call, threads, blocks) KERNEL(name, Call)
#define FOR_EACH_ENV(env, count) for (RangeTile env(range_first, range_end); env.more(); env.next())
#ifdef __clang__  // takes `omp simd` for a word on the body's own arrays too, and up to 16 mixed up the lanes of theirs
#define OMP_SIMD(clause)         _Pragma("clang loop vectorize(enable)")
#else
#define OMP_SIMD(clause)         _Pragma(#clause)
#endif
#define FOR_EACH_LANE(k, env)    OMP_SIMD(omp simd) for (int k = 0; k < (env).lanes; ++k)
#define FOR_EACH_LANE_ALONE(k, env) for (int k = 0; k < (env).lanes; ++k)
#define NOTE_LANES(note, k, env) OMP_SIMD(omp simd reduction(|:note)) for (int k = 0; k < (env).lanes; ++k)
#define FOR_EACH_MARKED(k, marks, env)                                   \
    for (u64 left = mask_of(marks, (env).lanes); left != 0; left &= left - 1) \
        if (const int k = __builtin_ctzll(left); true)
#define FOR_EACH_BLOCK(block) for (Index block = range_first; block < range_end; ++block)
#ifdef __clang__
#define UNROLL                   _Pragma("unroll")
#else
#define UNROLL                   _Pragma("GCC unroll 16")
#endif

constexpr bool ON_GPU = false;

#ifdef CHECKED
extern "C" int dprintf(int, const char*, ...);
extern "C" [[noreturn]] void _exit(int);
SELDOM void tell_index_and_stop(const char* file, int line, Index at, const char* name, Index length) {
    dprintf(2, "%s:%d: index %lld of '%s', which has %lld elements\n", file, line, at, name, length);
    _exit(97);
}
#endif

constexpr int WARP = 1;

constexpr int LANES = 64;

constexpr Index FEW_REPLICAS = 0;

struct RangeTile {
    Index first, end;
    int   lanes;

    RangeTile(Index range_first, Index range_end) : first(range_first), end(range_end), lanes(0) {}
    bool more() {
        lanes = end - first < LANES ? int(end - first) : LANES;
        return lanes > 0;
    }
    void next() { first += LANES; }
    FN Index index(int k) const { return first + k; }
};

static_assert(LANES == 64, "the marks of a tile fill the bits of one word");

// A bit for each marked lane. Without a branch a lane, which would be mispredicted wherever one is marked: eight bytes
// of 0 or 1 are gathered into eight bits by one product, whose partial products never meet.
FN u64 mask_of(const int (&marks)[LANES], int lanes) {
    u8 bytes[LANES] = {};
    for (int k = 0; k < lanes; ++k) bytes[k] = marks[k] != 0;
    u64 mask = 0;
    for (int group = 0; group < LANES / 8; ++group) {
        u64 word;
        __builtin_memcpy(&word, bytes + 8 * group, sizeof word);
        mask |= word * 0x0102040810204080ull >> 56 << 8 * group;
    }
    return mask;
}

FN int    lowest_bit(u32 word)                 { return __builtin_ctz(word); }
FN int    highest_bit(u32 word)                { return 31 - __builtin_clz(word); }
FN u32    sign_shifted_in(u32 word, float x)   { u32 y; __builtin_memcpy(&y, &x, sizeof y); return word << 1 | y >> 31; }
FN u32    sign_shifted_in(u32 word, double x)  { u64 y; __builtin_memcpy(&y, &x, sizeof y); return word << 1 | u32(y >> 63); }
FN float  about(float a, float b, float c)     { return a * b + c; }
FN double about(double a, double b, double c)  { return a * b + c; }
FN float  lesser(float a, float b)             { return b < a ? b : a; }
FN double lesser(double a, double b)           { return b < a ? b : a; }
FN float  greater(float a, float b)            { return a < b ? b : a; }
FN double greater(double a, double b)          { return a < b ? b : a; }
FN bool   any_lane(bool value)                 { return value; }
FN float  fma(float a, float b, float c)       { return __builtin_fmaf(a, b, c); }
FN double fma(double a, double b, double c)    { return __builtin_fma(a, b, c); }
FN float  square_root(float x)                 { return __builtin_sqrtf(x); }
FN double square_root(double x)                { return __builtin_sqrt(x); }
FN float  round_down(float x)                  { return __builtin_floorf(x); }
FN double round_down(double x)                 { return __builtin_floor(x); }
FN u32    bits_of(float x)                     { u32 y; __builtin_memcpy(&y, &x, sizeof y); return y; }
FN u64    bits_of(double x)                    { u64 y; __builtin_memcpy(&y, &x, sizeof y); return y; }
FN float  from_bits(u32 x)                     { float y; __builtin_memcpy(&y, &x, sizeof y); return y; }
FN double from_bits(u64 x)                     { double y; __builtin_memcpy(&y, &x, sizeof y); return y; }
FN u64    swap_if_equal(u64* word, u64 expected, u64 value) { return __sync_val_compare_and_swap(word, expected, value); }
FN void   lower(u64* word, u64 value) {
    for (u64 old = *word; value < old;) {
        const u64 seen = __sync_val_compare_and_swap(word, old, value);
        if (seen == old) return;
        old = seen;
    }
}

template <int WIDTH, class Env>
FN void store_rows(float* rows, const float (&tile)[WIDTH][LANES], const Env& env) {
    float* start = rows + env.first * WIDTH;
    FOR_EACH_LANE(k, env) {
        for (int j = 0; j < WIDTH; ++j) start[k * WIDTH + j] = tile[j][k];
    }
}

FN constexpr int  thread_rank()        { return 0; }
FN void           block_barrier()      {}
FN void           warp_barrier()       {}
FN constexpr u32  warp_marks(bool mine) { return mine; }
FN constexpr bool block_any(bool mine) { return mine; }

template <int> FN int block_place(bool keep, int& total) {
    total = keep;
    return 0;
}

FN void add(int& sum, int value)     { sum += value; }
FN void lower(int& least, int value) { least = value < least ? value : least; }

// Memory of the calling thread, from a cache line's beginning.
struct LocalMemory {
    char* raw;
    char* at;
    explicit LocalMemory(Index bytes) : raw(static_cast<char*>(__builtin_malloc(u64(bytes) + 64))), at(raw + 64 - u64(raw) % 64) {}
    ~LocalMemory() { __builtin_free(raw); }
    LocalMemory(const LocalMemory&)            = delete;
    LocalMemory& operator=(const LocalMemory&) = delete;
};

FN void publish() {}
FN void await_copies() {}
FN void settle_copies() {}
FN void zero_out(float* at, int count, int rank, int ranks) {
    for (int j = rank; j < count; j += ranks) at[j] = 0;
}

template <bool> FN void copy_out(float* to, const float* from, int count, int rank, int ranks) {
    for (int j = rank; j < count; j += ranks) to[j] = from[j];
}

#endif
