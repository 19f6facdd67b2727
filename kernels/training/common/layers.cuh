// What perceptrons of all shapes have in common, where a warp's thread has its part of 16 rows in registers.
//
// Generated before it: WARPS of a block, Arithmetic (of tensor_core.cuh), ACTIVATION.

using Stored = Arithmetic::Stored;

constexpr int DEPTH   = Arithmetic::DEPTH;
constexpr int THREADS = WARPS * WARP;
constexpr int TILE    = WARPS * WARP_ROWS;  // rows that a block takes at a time

// Shared memory: of a block on Hopper at most, of a multiprocessor there, and what a block costs beside what it asks for.
constexpr int MOST_SHARED = 227 * 1024, BYTES_OF_PROCESSOR = 228 * 1024, BYTES_OF_BLOCK = 1024;

FN constexpr int padded(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

struct Scale { const float *mean, *inverse; float limit; };

// From shared memory each time: kept from tile to tile, what never changes would take the registers of what does.
FN Wide<2> read_anew(const float* at) {
    Wide<2> pair;
    asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(pair.value[0]), "=f"(pair.value[1])
                 : "r"(u32(__cvta_generic_to_shared(at))));
    return pair;
}

template <int N> FN void begin(float (&c)[N][4], const float* bias, int lane) {
    UNROLL
    for (int j = 0; j < N; ++j) {
        const Wide<2> pair = read_anew(bias + 8 * j + lane % 4 * 2);
        c[j][0] = c[j][2] = pair.value[0];
        c[j][1] = c[j][3] = pair.value[1];
    }
}

// Of a standard normal distribution: how much lies below x, and its density there.
struct Normal {
    float below, density;
    FN explicit Normal(float x) {  // (Abramowitz and Stegun, 7.1.26: within 1.5e-7)
        const float size = x < 0 ? -x : x, t = inverse_of(fma(0.231641888f, size, 1.0f));
        const float bell = exp_of_two(size * size * -0.72134752f);
        const float third = fma(t, fma(t, 0.530702715f, -0.726576014f), 0.710706871f);
        const float tail  = bell * t * fma(t, fma(t, third, -0.142248368f), 0.127414796f);
        below   = x > 0 ? 1.0f - tail : tail;
        density = 0.398942280f * bell;
    }
};
FN float sigmoid(float x) { return inverse_of(1.0f + exp_of_two(x * -1.44269504f)); }

FN float activated(float x) {
    if (ACTIVATION == SILU) return x * sigmoid(x);
    if (ACTIVATION == GELU) return x * Normal(x).below;
    if (ACTIVATION == RELU) return x > 0 ? x : 0.0f;
    if (ACTIVATION == ELU) return x > 0 ? x : exp_of_two(x * 1.44269504f) - 1.0f;
    if (!Arithmetic::EXACT) return steep_tanh(x);
    constexpr float two_over_ln2 = 2.88539008f;
    return fma(-2.0f, inverse_of(exp_of_two(x * two_over_ln2) + 1.0f), 1.0f);
}

// The activation's slope by its value, and by the sum it is of: from the values of silu and gelu it does not follow.
constexpr bool SLOPE_BY_VALUE = ACTIVATION != SILU && ACTIVATION != GELU;
FN float slope(float y) {
    if (ACTIVATION == RELU) return y > 0 ? 1.0f : 0.0f;
    if (ACTIVATION == ELU) return y > 0 ? 1.0f : y + 1.0f;
    return fma(-y, y, 1.0f);
}

FN float slope_at(float x) {
    if (SLOPE_BY_VALUE) return slope(activated(x));
    if (ACTIVATION == SILU) return sigmoid(x) * fma(x, 1.0f - sigmoid(x), 1.0f);
    return fma(x, Normal(x).density, Normal(x).below);
}

template <int N> FN void activate(float (&c)[N][4]) {
    FOR_EACH_NUMBER(j, q, N) c[j][q] = activated(c[j][q]);
}

// Times the slopes of the activations.
template <int N> FN void chain(float (&by)[N][4], const float (&values)[N][4]) {
    FOR_EACH_NUMBER(j, q, N) by[j][q] *= slope(values[j][q]);
}

// Writes the outputs of 16 rows as floats, from where whoever has a row reads it.
template <int OUTPUTS, int N> FN void store_outputs(float* rows, int stride, const float (&c)[N][4], int lane) {
    FOR_EACH_NUMBER(j, q, N) {
        const int column = 8 * j + lane % 4 * 2 + q % 2;
        if (column < OUTPUTS) rows[(lane / 4 + q / 2 * 8) * stride + column] = c[j][q];
    }
}

// The row of one thread, for functions that are written for tiles of replicas: a count below all rows tells Rows that
// there is nothing to copy, since the outputs are in place already.
struct OneRow {
    static constexpr Index count = -(Index(1) << 40);
    Index row;
    bool  wanted;
    FN Index index(int) const { return row; }
    FN bool  has(int) const { return wanted; }
};

// Rows of outputs of a block in shared memory, ROW_STRIDE floats a thread.
FN LocalMemory outputs_at(float* place) {
    LocalMemory memory(0);
    memory.at = reinterpret_cast<char*>(place);
    return memory;
}

// Raises what is kept to the largest of all threads' magnitudes, by their bits: those of NaN are above infinity's.
FN void raise_to(float* kept, u32 largest) {
    if (kept == nullptr) return;
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        largest = maximum(largest, from_lane_across(largest, distance));
    }
    if (warp_lane() == 0) raise(*reinterpret_cast<u32*>(kept), largest);
}
