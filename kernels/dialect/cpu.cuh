// The dialect on a CPU: a tile is LANES replicas, which fit into the L1 cache; compilers vectorise over its lanes.

#if !_for_gpu

#ifdef __OPTIMIZE__
#define FN                  inline __attribute__((always_inline))
#else
#define FN                  inline  // without optimisation, forced inlining only slows down compilation
#endif
#define NOINLINE              static __attribute__((noinline))
#define KERNEL(name, Call)  \
    extern "C" __attribute__((visibility("default"))) void name(const Call& call, Index range_first, Index range_end)
#define KERNEL_OF_BLOCKS(name, Call, threads, blocks) KERNEL(name, Call)
#define FOR_EACH_ENV(env, count) for (RangeTile env(range_first, range_end); env.more(); env.next())
#define FOR_EACH_ENV_ALTERNATING(env, count, launch) FOR_EACH_ENV(env, count)
#define FOR_EACH_ENV_PER_WARP(env, count) FOR_EACH_ENV(env, count)
#ifdef __clang__  // clang applies `omp simd` also to arrays inside the loop's body, and up to version 16 mixes up lanes
#define OMP_SIMD(clause)         _Pragma("clang loop vectorize(enable)")
#else
#define OMP_SIMD(clause)         _Pragma(#clause)
#endif
#define FOR_EACH_LANE(k, env)    OMP_SIMD(omp simd) for (int k = 0; k < (env).lanes; ++k)
#define FOR_EACH_LANE_ALONE(k, env) for (int k = 0; k < (env).lanes; ++k)
#define FOR_EACH_LANE_OR(bits, k, env) OMP_SIMD(omp simd reduction(|:bits)) for (int k = 0; k < (env).lanes; ++k)
#define FOR_EACH_MARKED(k, marks, env)                                   \
    for (u64 left = mask_of(marks, (env).lanes); left != 0; left &= left - 1) \
        if (const int k = __builtin_ctzll(left); true)
#define FOR_EACH_BLOCK(block) for (Index block = range_first; block < range_end; ++block)
#define FOR_EACH_OF_BLOCK(i, block, size, count) \
    OMP_SIMD(omp simd) for (Index i = (block) * (size); i < minimum(Index(count), ((block) + 1) * (size)); ++i)
#ifdef __clang__
#define UNROLL                   _Pragma("unroll")
#else
#define UNROLL                   _Pragma("GCC unroll 16")
#endif

constexpr bool ON_GPU = false;

#ifdef CHECKED
extern "C" int dprintf(int, const char*, ...);
extern "C" [[noreturn]] void _exit(int);
NOINLINE void report_index_and_exit(const char* file, int line, Index at, const char* name, Index length) {
    dprintf(2, "%s:%d: index %lld of '%s', which has %lld elements\n", file, line, at, name, length);
    _exit(97);
}
#endif

constexpr int WARP = 1;

constexpr int LANES = 64;

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

static_assert(LANES == 64, "the marks of a tile must fit into the bits of one word");

// A bit for each lane with a nonzero mark, without a branch, which each mark would mispredict: a multiplication packs
// eight bytes of 0 or 1 into eight bits, as its partial products do not overlap.
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

FN int    lowest_bit(u32 word)                    { return __builtin_ctz(word); }
FN int    highest_bit(u32 word)                   { return 31 - __builtin_clz(word); }
FN u32    sign_shifted_in(u32 word, float x)      { u32 y; __builtin_memcpy(&y, &x, sizeof y); return word << 1 | y >> 31; }
FN u32    sign_shifted_in(u32 word, double x)     { u64 y; __builtin_memcpy(&y, &x, sizeof y); return word << 1 | u32(y >> 63); }
template <class Real> FN Real multiply_add(Real a, Real b, Real c) { return a * b + c; }
template <class Real> FN Real fast_minimum(Real a, Real b)         { return b < a ? b : a; }
template <class Real> FN Real fast_maximum(Real a, Real b)         { return a < b ? b : a; }
FN bool   warp_any(bool value)                    { return value; }
FN Index  opaque_index(Index i)                   { return i; }
FN float  fma(float a, float b, float c)          { return __builtin_fmaf(a, b, c); }
FN double fma(double a, double b, double c)       { return __builtin_fma(a, b, c); }
FN float  square_root(float x)                    { return __builtin_sqrtf(x); }
FN double square_root(double x)                   { return __builtin_sqrt(x); }
FN float  round_down(float x)                     { return __builtin_floorf(x); }
FN double round_down(double x)                    { return __builtin_floor(x); }
FN u32    bits_of(float x)                        { u32 y; __builtin_memcpy(&y, &x, sizeof y); return y; }
FN u64    bits_of(double x)                       { u64 y; __builtin_memcpy(&y, &x, sizeof y); return y; }
FN float  from_bits(u32 x)                        { float y; __builtin_memcpy(&y, &x, sizeof y); return y; }
FN double from_bits(u64 x)                        { double y; __builtin_memcpy(&y, &x, sizeof y); return y; }
FN u64    compare_and_swap(u64* word, u64 expected, u64 value) { return __sync_val_compare_and_swap(word, expected, value); }
FN void   lower(u64* word, u64 value)             {
    u64 old = *word;  // a failed exchange loads it again
    while (value < old && !__atomic_compare_exchange_n(word, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
}

template <class T> FN T    load_streaming(const T* at)         { return *at; }
FN void prefetch(const void*)                        {}
template <class T> FN void store_streaming(T* at, T value)     { *at = value; }

FN u32  load_count(const u32* count) { return __atomic_load_n(count, __ATOMIC_RELAXED); }
FN void count_down(u32* count)       { __sync_fetch_and_sub(count, 1u); }
FN void count_up(u32* count)         { __sync_fetch_and_add(count, 1u); }

FN void store_word(u64* word, u64 value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
FN u64  load_word(const u64* word)      { return __atomic_load_n(word, __ATOMIC_RELAXED); }
// A clock for timeouts, which only GPUs have: on CPUs torch communicates.
FN u64  nanoseconds()                   { return 0; }
FN void trap()                          {}

FN constexpr int  thread_rank()        { return 0; }
FN void           block_barrier()      {}
FN void           warp_barrier()       {}
template <class T> FN T shuffle(T x, int) { return x; }
template <class T> FN T shuffle_down(T x, int) { return x; }
template <class T> FN T shuffle_xor(T x, int) { return x; }
FN constexpr u32  warp_ballot(bool value) { return value; }
FN constexpr bool block_any(bool value) { return value; }

template <int, class Real> FN Real block_sum(Real x) { return x; }

// Whether this block is the last of `blocks` to arrive; it resets the counter.
FN bool last_block(int* arrived, int blocks) {
    const bool last = __atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) == blocks;
    if (last) *arrived = 0;
    return last;
}

template <int> FN int block_rank(bool keep, int& total) {
    total = keep;
    return 0;
}

FN void add(int& sum, int value)       { sum += value; }
FN void lower(int& minimum, int value) { minimum = value < minimum ? value : minimum; }
FN void raise(u32& maximum, u32 value) { maximum = value > maximum ? value : maximum; }

#endif
