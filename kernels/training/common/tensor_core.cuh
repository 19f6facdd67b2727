// Matrix products of a warp on a GPU's tensor cores. CUDA only.
//
// A product adds Left (16 x DEPTH) times Right (DEPTH x 8) to an accumulator of 16 x 8 floats. Thread 4 g + t of the
// warp holds rows g and g + 8, columns 2 t and 2 t + 1: {(g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)}. The depth may be
// summed in any order; the order here makes a thread's fragment of a product its fragment of the next product's Left,
// so that activations stay in registers from layer to layer.
//
//   Tf32    10 bits of mantissa, DEPTH 8
//   Split   float32: each number is the sum of two TF32 numbers, a product takes three TF32 products
//   Bf16    7 bits of mantissa, DEPTH 16
//
// Each has Stored (the type of a number in shared memory) and: stored, store_pair, gather (Left from accumulators),
// weight (Right from packed weights), left_columns and right_columns (from a tile whose rows are the depth), right_from
// (from rows of floats), ones_left and ones_right (fragments of ones), add_product. For warpgroup.cuh Tf32 and Bf16
// have depth_slot (where gather puts a number of the depth), load_pair, write_pair (into words), read_words and pair_of
// (pairs packed in words: one word in Bf16, two in Tf32), and for numbers that are stored several times rounded_once
// and store_rounded.

constexpr int WARP_ROWS = 16;

// Loops over a thread's numbers c[j][q], four for each j below N, such as an accumulator of 8 N columns.
#define FOR_EACH_NUMBER(j, q, N)         \
    UNROLL for (int j = 0; j < (N); ++j) \
        UNROLL for (int q = 0; q < 4; ++q)

// Loops over a thread's two rows of an accumulator, g (h = 0) and g + 8 (h = 1).
#define FOR_BOTH_ROWS(h) UNROLL for (int h = 0; h < 2; ++h)

FN int warp_lane()                     { return int(threadIdx.x) % WARP; }
FN u32 shared_address(const void* at) { return u32(__cvta_generic_to_shared(at)); }

// Loads two floats from shared memory at every use: otherwise they would occupy registers that accumulators need.
FN Wide<2> reload_pair(const float* at) {
    Wide<2> pair;
    asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(pair.value[0]), "=f"(pair.value[1]) : "r"(shared_address(at)));
    return pair;
}

// Sets accumulators of 16 rows and 8 N columns to a layer's biases, in shared memory.
template <int N> FN void set_to_bias(float (&c)[N][4], const float* bias, int lane) {
    UNROLL
    for (int j = 0; j < N; ++j) {
        const Wide<2> pair = reload_pair(bias + 8 * j + lane % 4 * 2);
        c[j][0] = c[j][2] = pair.value[0];
        c[j][1] = c[j][3] = pair.value[1];
    }
}

FN float approximate_tanh(float x) {  // within 2^-11 of the value
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Adds the product of TF32 fragments, a (16 x 8) and b (8 x 8), to c.
FN void product_tf32(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

struct Tf32 {
    static constexpr int  DEPTH = 8;
    static constexpr bool EXACT = false;
    using Stored                = float;
    struct Left  { u32 x[4]; };
    struct Right { u32 x[2]; };

    // The tensor core truncates to ten bits of mantissa; adding half a unit of the last bit rounds instead.
    FN static u32    rounded(float x) { return bits_of(x) + 0x1000u; }
    FN static Stored stored(float x)  { return from_bits(rounded(x)); }
    FN static void   store_pair(Stored* at, float x, float y) { store_rounded(at, stored(x), stored(y)); }
    FN static void   store_rounded(Stored* at, float x, float y) { *reinterpret_cast<Wide<2>*>(at) = {{x, y}}; }
    FN static float  rounded_once(float x) { return stored(x); }
    FN static Wide<2> load_pair(const Stored* at) { return *reinterpret_cast<const Wide<2>*>(at); }
    FN static void    read_words(u32 (&words)[2], const Stored* at) {
        const Wide<2> pair = load_pair(at);
        words[0] = bits_of(pair.value[0]);
        words[1] = bits_of(pair.value[1]);
    }
    FN static Wide<2> pair_of(const u32 (&words)[2]) { return {{from_bits(words[0]), from_bits(words[1])}}; }
    FN static void    write_pair(u32* words, int number, float x, float y) {
        words[2 * number]     = rounded(x);
        words[2 * number + 1] = rounded(y);
    }
    FN static constexpr int slot(int k) { return k; }
    FN static constexpr int depth_slot(int k) { return k / 8 * 8 + k % 8 / 2 + k % 2 * 4; }
    FN static Left gather(const float (*c)[4]) {
        return {{rounded(c[0][0]), rounded(c[0][2]), rounded(c[0][1]), rounded(c[0][3])}};
    }
    FN static Right weight(const Stored* at) {
        const Wide<2> pair = *reinterpret_cast<const Wide<2>*>(at);
        return {{bits_of(pair.value[0]), bits_of(pair.value[1])}};
    }
    FN static Left left_columns(const Stored* tile, int stride, int lane) {
        const Stored* at = tile + lane % 4 * stride + lane / 4;
        return {{bits_of(at[0]), bits_of(at[8]), bits_of(at[4 * stride]), bits_of(at[4 * stride + 8])}};
    }
    template <int N> FN static void right_columns(Right (&right)[N], const Stored* tile, int stride, int lane) {
        const Stored* at = tile + lane % 4 * stride + lane / 4;
        UNROLL
        for (int j = 0; j < N; ++j) right[j] = {{bits_of(at[8 * j]), bits_of(at[4 * stride + 8 * j])}};
    }
    FN static Right right_from(const float* column, int stride, int lane, bool in_range) {
        const float* at = column + lane % 4 * stride;
        return {{in_range ? rounded(at[0]) : 0, in_range ? rounded(at[4 * stride]) : 0}};
    }
    FN static Left  ones_left()  { return {{0x3F800000u, 0x3F800000u, 0x3F800000u, 0x3F800000u}}; }
    FN static Right ones_right() { return {{0x3F800000u, 0x3F800000u}}; }
    FN static void  add_product(float (&c)[4], const Left& a, const Right& b) { product_tf32(c, a.x, b.x); }
};

struct Split {
    static constexpr int  DEPTH = 8;
    static constexpr bool EXACT = true;
    using Stored                = float;
    struct Left  { float x[4]; };
    struct Right { float x[2]; };

    FN static Stored stored(float x) { return x; }
    FN static void   store_pair(Stored* at, float x, float y) { *reinterpret_cast<Wide<2>*>(at) = {{x, y}}; }
    FN static constexpr int slot(int k) { return k; }
    FN static Left   gather(const float (*c)[4]) { return {{c[0][0], c[0][2], c[0][1], c[0][3]}}; }
    FN static Right  weight(const Stored* at) {
        const Wide<2> pair = *reinterpret_cast<const Wide<2>*>(at);
        return {{pair.value[0], pair.value[1]}};
    }
    FN static Left left_columns(const Stored* tile, int stride, int lane) {
        const Stored* at = tile + lane % 4 * stride + lane / 4;
        return {{at[0], at[8], at[4 * stride], at[4 * stride + 8]}};
    }
    template <int N> FN static void right_columns(Right (&right)[N], const Stored* tile, int stride, int lane) {
        const Stored* at = tile + lane % 4 * stride + lane / 4;
        UNROLL
        for (int j = 0; j < N; ++j) right[j] = {{at[8 * j], at[4 * stride + 8 * j]}};
    }
    FN static Right right_from(const float* column, int stride, int lane, bool in_range) {
        const float* at = column + lane % 4 * stride;
        return {{in_range ? at[0] : 0.0f, in_range ? at[4 * stride] : 0.0f}};
    }
    FN static Left  ones_left()  { return {{1, 1, 1, 1}}; }
    FN static Right ones_right() { return {{1, 1}}; }
    // Splits numbers into their first ten bits and the rest; the product of two rests is below float32's rounding.
    template <int N> FN static void split(const float (&x)[N], u32 (&high)[N], u32 (&low)[N]) {
        UNROLL
        for (int j = 0; j < N; ++j) {
            high[j] = bits_of(x[j]) & 0xFFFFE000u;
            low[j]  = bits_of(x[j] - from_bits(high[j]));
        }
    }
    FN static void add_product(float (&c)[4], const Left& a, const Right& b) {
        u32 a_high[4], a_low[4], b_high[2], b_low[2];
        split(a.x, a_high, a_low);
        split(b.x, b_high, b_low);
        product_tf32(c, a_low, b_high);
        product_tf32(c, a_high, b_low);
        product_tf32(c, a_high, b_high);
    }
};

struct Bf16 {
    static constexpr int  DEPTH = 16;
    static constexpr bool EXACT = false;
    using Stored                = u16;
    struct Left  { u32 x[4]; };
    struct Right { u32 x[2]; };

    FN static Stored stored(float x) {
        u16 y;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
        return y;
    }
    FN static u32 pair(float low, float high) {
        u32 y;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
        return y;
    }
    FN static void  store_pair(Stored* at, float x, float y) { *reinterpret_cast<u32*>(at) = pair(x, y); }
    FN static void  store_rounded(Stored* at, float x, float y) { store_pair(at, x, y); }
    FN static float rounded_once(float x) { return x; }  // store_pair rounds two numbers in one instruction
    // Thread t has depths 2t, 2t+1 and 2t+8, 2t+9 of a product, which are adjacent in packed weights.
    FN static constexpr int slot(int k) { return k % 8 / 2 * 4 + k / 8 * 2 + k % 2; }
    FN static constexpr int depth_slot(int k) { return k; }
    FN static void    write_pair(u32* words, int number, float x, float y) { words[number] = pair(x, y); }
    FN static float   low(u32 both)  { return from_bits(both << 16); }
    FN static float   high(u32 both) { return from_bits(both & 0xFFFF0000u); }
    FN static Wide<2> load_pair(const Stored* at) {
        const u32 both = *reinterpret_cast<const u32*>(at);
        return {{low(both), high(both)}};
    }
    FN static void    read_words(u32 (&words)[1], const Stored* at) { words[0] = *reinterpret_cast<const u32*>(at); }
    FN static Wide<2> pair_of(const u32 (&words)[1]) { return {{low(words[0]), high(words[0])}}; }
    FN static Left gather(const float (*c)[4]) {
        return {{pair(c[0][0], c[0][1]), pair(c[0][2], c[0][3]), pair(c[1][0], c[1][1]), pair(c[1][2], c[1][3])}};
    }
    FN static Right weight(const Stored* at) {
        const Wide<2> both = *reinterpret_cast<const Wide<2>*>(at);
        return {{bits_of(both.value[0]), bits_of(both.value[1])}};
    }
    FN static void load_transposed(u32 (&x)[4], const Stored* row) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(row)) : "memory");
    }
    FN static Left left_columns(const Stored* tile, int stride, int lane) {
        Left left;
        load_transposed(left.x, tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
        return left;
    }
    template <int N> FN static void right_columns(Right (&right)[N], const Stored* tile, int stride, int lane) {
        UNROLL
        for (int j = 0; j < N; j += 2) {
            // if N is odd, the last 8 columns have no partner: lanes 16 to 31 load them again, unused
            const int offset = j + 1 < N ? lane / 16 * 8 : 0;
            u32       x[4];
            load_transposed(x, tile + lane % 16 * stride + 8 * j + offset);
            right[j] = {{x[0], x[1]}};
            if (j + 1 < N) right[j + 1] = {{x[2], x[3]}};
        }
    }
    FN static Right right_from(const float* column, int stride, int lane, bool in_range) {
        const float* at = column + lane % 4 * 2 * stride;
        return {{in_range ? pair(at[0], at[stride]) : 0, in_range ? pair(at[8 * stride], at[9 * stride]) : 0}};
    }
    FN static Left  ones_left()  { return {{0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u}}; }
    FN static Right ones_right() { return {{0x3F803F80u, 0x3F803F80u}}; }
    FN static void  add_product(float (&c)[4], const Left& a, const Right& b) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
    }
};
