// Vectors of the CPU, and contractions: products and sums that are rounded once.

static_assert(!ON_GPU);

// Numbers of a vector. For products of lines (perceptrons.cuh): vectors and columns that are kept in registers at once.
// For products of rows (network.cuh): sums in registers, and vectors of columns that they are for.
#if defined(__AVX512F__)
constexpr int VECTOR = 16, VECTORS_AT_ONCE = 4, COLUMNS_AT_ONCE = 4, ACCUMULATORS = 16, WIDE = 4;
#elif defined(__AVX__)
constexpr int VECTOR = 8, VECTORS_AT_ONCE = 2, COLUMNS_AT_ONCE = 2, ACCUMULATORS = 8, WIDE = 2;
#else
constexpr int VECTOR = 4, VECTORS_AT_ONCE = 4, COLUMNS_AT_ONCE = 4, ACCUMULATORS = 16, WIDE = 4;
#endif
typedef float Vector __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));

// g++ would load the vector again for each use: products would take 1.5 times as long.
#if defined(__AVX512F__)
#define KEEP_IN_REGISTER(vector) asm("" : "+v"(vector))
#elif defined(__SSE__)
#define KEEP_IN_REGISTER(vector) asm("" : "+x"(vector))
#else
#define KEEP_IN_REGISTER(vector) asm("" : "+w"(vector))
#endif

#if defined(__clang__)
#define BEGIN_CONTRACTIONS _Pragma("clang fp contract(fast)")
#define END_CONTRACTIONS   _Pragma("clang fp contract(off)")
#else
#define BEGIN_CONTRACTIONS _Pragma("GCC push_options") _Pragma("GCC optimize(\"fp-contract=fast\")")
#define END_CONTRACTIONS   _Pragma("GCC pop_options")
#endif
