// Layers of perceptrons, for all shapes: activations and their slopes, on fragments of 16 rows in a warp's registers.
//
// Generated before it: WARPS per block, Arithmetic (of tensor_core.cuh), ACTIVATION.

using Stored = Arithmetic::Stored;

constexpr int DEPTH   = Arithmetic::DEPTH;
constexpr int THREADS = WARPS * WARP;
constexpr int TILE    = WARPS * WARP_ROWS;  // rows that a block processes at a time

// Shared memory on Hopper: the maximum of a block, the total of a multiprocessor, and CUDA's reserve for each block.
constexpr int MAX_SHARED_BYTES = 227 * 1024, PROCESSOR_SHARED_BYTES = 228 * 1024, RESERVED_BLOCK_BYTES = 1024;

FN constexpr int padded(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

struct Scale { const float *mean, *inverse; float limit; };

// The standard normal distribution at x: cumulative probability and density.
struct Normal {
    float cumulative, density;
    FN explicit Normal(float x) {  // (Abramowitz and Stegun, 7.1.26: within 1.5e-7)
        const float magnitude = x < 0 ? -x : x, t = approximate_reciprocal(fma(0.231641888f, magnitude, 1.0f));
        const float bell      = approximate_exp2(magnitude * magnitude * -0.72134752f);
        const float third = fma(t, fma(t, 0.530702715f, -0.726576014f), 0.710706871f);
        const float tail  = bell * t * fma(t, fma(t, third, -0.142248368f), 0.127414796f);
        cumulative = x > 0 ? 1.0f - tail : tail;
        density    = 0.398942280f * bell;
    }
};
FN float sigmoid(float x) { return approximate_reciprocal(1.0f + approximate_exp2(x * -1.44269504f)); }

// The network's activation at x; tanh is approximate, unless the arithmetic is EXACT.
FN float activated(float x) {
    if (ACTIVATION == SILU) return x * sigmoid(x);
    if (ACTIVATION == GELU) return x * Normal(x).cumulative;
    if (ACTIVATION == RELU) return x > 0 ? x : 0.0f;
    if (ACTIVATION == ELU) return x > 0 ? x : approximate_exp2(x * 1.44269504f) - 1.0f;
    if (!Arithmetic::EXACT) return approximate_tanh(x);
    constexpr float two_over_ln2 = 2.88539008f;
    return fma(-2.0f, approximate_reciprocal(approximate_exp2(x * two_over_ln2) + 1.0f), 1.0f);
}

constexpr bool SLOPE_FROM_OUTPUT = ACTIVATION != SILU && ACTIVATION != GELU;
// The slope of tanh, relu or elu from its output y. (silu and gelu have two inputs with the same output.)
FN float slope(float y) {
    if (ACTIVATION == RELU) return y > 0 ? 1.0f : 0.0f;
    if (ACTIVATION == ELU) return y > 0 ? 1.0f : y + 1.0f;
    return fma(-y, y, 1.0f);
}
// The slope of any activation from its input x.
FN float slope_at(float x) {
    if (SLOPE_FROM_OUTPUT) return slope(activated(x));
    if (ACTIVATION == SILU) return sigmoid(x) * fma(x, 1.0f - sigmoid(x), 1.0f);
    return fma(x, Normal(x).density, Normal(x).cumulative);
}

template <int N> FN void activate(float (&c)[N][4]) {
    FOR_EACH_NUMBER(j, q, N) c[j][q] = activated(c[j][q]);
}

// Multiplies gradients by the slopes of the activations.
template <int N> FN void multiply_by_slope(float (&grad)[N][4], const float (&outputs)[N][4]) {
    FOR_EACH_NUMBER(j, q, N) grad[j][q] *= slope(outputs[j][q]);
}

// Writes accumulators of 16 rows as rows of floats, so that one thread can read a full row.
template <int OUTPUTS, int N> FN void store_outputs(float* rows, int stride, const float (&c)[N][4], int lane) {
    FOR_EACH_NUMBER(j, q, N) {
        const int column = 8 * j + lane % 4 * 2 + q % 2;
        if (column < OUTPUTS) rows[(lane / 4 + q / 2 * 8) * stride + column] = c[j][q];
    }
}

// The row of one thread, for functions that take a tile of replicas. The count is below all rows, so that Rows copies
// nothing: the outputs are in shared memory already.
struct OneRow {
    static constexpr Index count = -(Index(1) << 40);
    Index row;
    bool  active;
    FN Index index(int) const { return row; }
    FN bool  has(int) const { return active; }
};

// A block's outputs in shared memory, ROW_STRIDE floats per thread, in the form that Rows takes.
FN ScratchMemory outputs_at(float* outputs) {
    ScratchMemory memory(0);
    memory.at = reinterpret_cast<char*>(outputs);
    return memory;
}

// Raises `*target` to the largest magnitude of the warp, comparing bits: NaN counts as larger than infinity.
FN void raise_maximum(float* target, u32 largest) {
    if (target == nullptr) return;
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        largest = maximum(largest, shuffle_xor(largest, distance));
    }
    if (warp_lane() == 0) raise(*reinterpret_cast<u32*>(target), largest);
}
