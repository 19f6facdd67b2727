// The dialect: the words every other header is written in, and the only file that knows which compiler reads it.
//
//   FN                       a function of the simulation
//   KERNEL(name, Call)       an entry point; its one argument is named `call`
//   FOR_EACH_ENV(env, n)     runs over replicas 0 to n-1 in tiles of at most LANES
//   FOR_EACH_LANE(k, env)    runs over the replicas env.index(k) of one tile; bodies must not depend on one another
//   NOTE_LANES(note, k, env) FOR_EACH_LANE whose body may also gather into an int: note |= ...
//   FOR_EACH_MARKED(k, marks, env)    runs over the few lanes whose mark is not zero
//   UNROLL                   before a loop of a small, constant number of turns
//
// On a GPU a tile is one thread's replica and its arrays are registers; on a CPU it is a block of replicas
// that stays in the first-level cache and that the compiler vectorises. Contraction is off in both compilers, so a*b + c rounds twice
// on both; write fma(a, b, c) where one rounding is wanted.

using u8    = unsigned char;
using u32   = unsigned int;
using i64   = long long;
using u64   = unsigned long long;
using Index = long long;  // of a replica or of an array element: arrays may hold more than 2^31 elements

#ifdef __CUDACC__

#define FN                  __device__ __forceinline__
#define KERNEL(name, Call)  extern "C" __global__ void name(const __grid_constant__ Call call)
#define FOR_EACH_ENV(env, count) if (const ThreadTile env(count); true)
#define FOR_EACH_LANE(k, env)    UNROLL for (int k = 0; k < LANES; ++k) if ((env).has(k))
#define NOTE_LANES(note, k, env) FOR_EACH_LANE(k, env)
#define FOR_EACH_MARKED(k, marks, env) FOR_EACH_LANE(k, env) if ((marks)[k])
#define UNROLL                   _Pragma("unroll")

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

template <int WIDTH> struct alignas(WIDTH * sizeof(float)) Wide { float value[WIDTH]; };

extern __shared__ float staging[];  // one row a thread, for rows that no single store can write

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

#else

#define FN                  inline __attribute__((always_inline))
#define KERNEL(name, Call)  \
    extern "C" __attribute__((visibility("default"))) void name(const Call& call, Index range_first, Index range_end)
#define FOR_EACH_ENV(env, count) for (RangeTile env(range_first, range_end); env.more(); env.next())
#define FOR_EACH_LANE(k, env)    _Pragma("omp simd") for (int k = 0; k < (env).lanes; ++k)
#define OMP_SIMD(clause)         _Pragma(#clause)
#define NOTE_LANES(note, k, env) OMP_SIMD(omp simd reduction(|:note)) for (int k = 0; k < (env).lanes; ++k)
#define FOR_EACH_MARKED(k, marks, env)                                   \
    for (u64 left = mask_of(marks, (env).lanes); left != 0; left &= left - 1) \
        if (const int k = __builtin_ctzll(left); true)
#ifdef __clang__
#define UNROLL                   _Pragma("unroll")
#else
#define UNROLL                   _Pragma("GCC unroll 16")
#endif

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

#endif
