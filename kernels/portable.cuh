// The dialect: the words every other header is written in, and the only file that knows which compiler reads it.
//
//   FN                       a function of the simulation
//   KERNEL(name, Call)       an entry point; its one argument is named `call`
//   FOR_EACH_ENV(env, n)     runs over replicas 0 to n-1 in tiles of at most LANES: `env.first`, `env.lanes`
//   FOR_EACH_LANE(k, env)    runs over the replicas of one tile; bodies must not depend on one another
//   NOTE_LANES(note, k, env) FOR_EACH_LANE whose body may also gather into an int: note |= ...
//   FOR_EACH_MARKED(k, marks, env)    runs over the few lanes whose mark is not zero
//   FOR_EACH_GATHERED(i, marks, env)  runs over the few replicas i whose lane is marked. The body may run in another
//                            thread than the lane's: it sees what was stored, and nothing else
//   UNROLL                   before a loop of a small, constant number of turns
//
// On a GPU a tile is one replica and its arrays are registers; on a CPU it is a block of replicas that stays in the
// first-level cache and that the compiler vectorises. Contraction is off in both compilers, so a*b + c rounds twice
// on both; write fma(a, b, c) where one rounding is wanted.

using u8    = unsigned char;
using u32   = unsigned int;
using i64   = long long;
using u64   = unsigned long long;
using Index = long long;  // of a replica or of an array element: arrays may hold more than 2^31 elements

#ifdef __CUDACC__

#define FN                  __device__ __forceinline__
#define KERNEL(name, Call)  extern "C" __global__ void name(const __grid_constant__ Call call)
#define FOR_EACH_ENV(env, count) for (EnvLoop env(count); env.more(); env.next())
#define FOR_EACH_LANE(k, env)    for (int k = 0; k < LANES && k < (env).lanes; ++k)

#define NOTE_LANES(note, k, env) FOR_EACH_LANE(k, env)
#define FOR_EACH_MARKED(k, marks, env) FOR_EACH_LANE(k, env) if ((marks)[k])
#define FOR_EACH_GATHERED(i, marks, env)                                                               \
    for (Gathered gathered(marks, env); gathered.more(); gathered.next()) \
        for (Index i = gathered.index(), once = 1; once; once = 0)
#define UNROLL                   _Pragma("unroll")

constexpr int LANES = 1;
constexpr int WARP  = 32;

// Whole blocks enter and leave the loop together (a thread past the end has no lanes), so that its body may use
// operations of a warp or a block. Blocks are multiples of a warp.
struct EnvLoop {
    Index first, count;
    int   lanes;

    FN EnvLoop(Index n) : first(Index(blockIdx.x) * blockDim.x + threadIdx.x), count(n), lanes(0) {}
    FN bool more() {
        lanes = first < count ? 1 : 0;
        return first - Index(threadIdx.x) < count;
    }
    FN void next() { first += Index(gridDim.x) * blockDim.x; }
};

// The marked replicas of a block, handed to its first threads: where one lane in twenty restarts, one warp then does
// what would otherwise keep most warps waiting for one lane each. All that was stored before is visible.
struct Gathered {
    int   at, count;
    Index block_first;

    template <class Env> FN Gathered(const int (&marks)[LANES], const Env& env)
        : at(int(threadIdx.x)), block_first(env.first - Index(threadIdx.x)) {
        __shared__ int            counts[WARP];
        __shared__ unsigned short members[WARP * WARP];
        const int  lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        const bool mark  = env.lanes > 0 && marks[0] != 0;
        const u32  votes = __ballot_sync(0xffffffffu, mark);
        if (lane == 0) counts[warp] = __popc(votes);
        count = __syncthreads_count(mark);
        if (count == 0) return;
        if (mark) {
            int position = __popc(votes & ((1u << lane) - 1));
            for (int w = 0; w < warp; ++w) position += counts[w];
            members[position] = static_cast<unsigned short>(threadIdx.x);
        }
        __syncthreads();
        if (at < count) member_ = members[at];
    }
    FN bool  more() const { return at < count; }
    FN void  next() { at = count; }  // as many threads as replicas: one each
    FN Index index() const { return block_first + member_; }

private:
    int member_ = 0;
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
    constexpr bool one_store = WIDTH == 1 || WIDTH == 2 || WIDTH == 4;
    if (one_store && u64(rows) % (WIDTH * sizeof(float)) == 0) {
        if (env.lanes > 0) {
            Wide<one_store ? WIDTH : 1> row;
    UNROLL
            for (int j = 0; j < (one_store ? WIDTH : 1); ++j) row.value[j] = tile[j][0];
            *reinterpret_cast<Wide<one_store ? WIDTH : 1>*>(rows + env.first * WIDTH) = row;
        }
        return;
    }
    const int lane = threadIdx.x % WARP;
    float*    warp = staging + (threadIdx.x - lane) * WIDTH;
    __syncwarp();
    UNROLL
    for (int j = 0; j < WIDTH; ++j) warp[lane * WIDTH + j] = env.lanes > 0 ? tile[j][0] : 0.0f;
    __syncwarp();
    const Index start = (env.first - lane) * WIDTH, end = env.count * WIDTH;
    UNROLL
    for (int j = 0; j < WIDTH; ++j) {
        const Index element = start + j * WARP + lane;
        if (element < end) rows[element] = warp[j * WARP + lane];
    }
}

#else

#define FN                  inline __attribute__((always_inline))
#define KERNEL(name, Call)  \
    extern "C" __attribute__((visibility("default"))) void name(const Call& call, Index range_first, Index range_end)
#define FOR_EACH_ENV(env, count) for (EnvLoop env(range_first, range_end); env.more(); env.next())
#define FOR_EACH_LANE(k, env)    _Pragma("omp simd") for (int k = 0; k < (env).lanes; ++k)
#define OMP_SIMD(clause)         _Pragma(#clause)
#define NOTE_LANES(note, k, env) OMP_SIMD(omp simd reduction(|:note)) for (int k = 0; k < (env).lanes; ++k)
#define FOR_EACH_MARKED(k, marks, env) for (const int k : Marked(marks, (env).lanes))
#define FOR_EACH_GATHERED(i, marks, env)                          \
    for (const int gathered : Marked(marks, (env).lanes)) \
        for (Index i = (env).first + gathered, once = 1; once; once = 0)
#ifdef __clang__
#define UNROLL                   _Pragma("unroll")
#else
#define UNROLL                   _Pragma("GCC unroll 16")
#endif

constexpr int LANES = 64;

struct EnvLoop {
    Index first, end;
    int   lanes;

    EnvLoop(Index range_first, Index range_end) : first(range_first), end(range_end), lanes(0) {}
    bool more() {
        lanes = end - first < LANES ? int(end - first) : LANES;
        return lanes > 0;
    }
    void next() { first += LANES; }
};

// The marked lanes in a row, listed without a branch: a branch a lane would be mispredicted wherever one is marked.
struct Marked {
    int lane[LANES + 1], count = 0;

    Marked(const int (&marks)[LANES], int lanes) {
        for (int k = 0; k < lanes; ++k) {
            lane[count] = k;
            count += marks[k] != 0;
        }
    }
    const int* begin() const { return lane; }
    const int* end() const { return lane + count; }
};

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
