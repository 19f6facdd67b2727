// Small multilayer perceptrons of two hidden layers: a warp runs 16 rows through all layers in its registers.
//
// Generated before it: FEATURES, HIDDEN_1, HIDDEN_2, LOG_STD_LOW and _HIGH, MEANS (outputs of the actor's last layer),
// and ACTOR_OFFSETS and CRITIC_OFFSETS: the parameters' offsets in the flat buffer, in the layout of torch.nn.Linear
// (rows are outputs).

// Elements from row to row of a tile in shared memory: an odd multiple of 8, which avoids bank conflicts.
FN constexpr int stride_of(int columns) { return padded(columns + 8, 16) - 8; }

constexpr int INPUTS = padded(FEATURES, DEPTH);

// The index of a weight in the order of products' reads: DEPTH inputs of an output, then as many of the next output.
FN constexpr int packed_index(int in, int out, int outs) {
    return (in / DEPTH * outs + out) * DEPTH + Arithmetic::slot(in % DEPTH);
}

template <int OUTPUTS> struct Forward {
    static constexpr int OUTS = padded(OUTPUTS, 8);
    alignas(16) Stored first[INPUTS * HIDDEN_1];
    Stored second[HIDDEN_1 * HIDDEN_2];
    Stored third[HIDDEN_2 * OUTS];
    alignas(16) float bias_1[HIDDEN_1];
    float bias_2[HIDDEN_2];
    float bias_3[OUTS];
    float mean[INPUTS], inverse[INPUTS];
};

template <int OUTPUTS> struct Backward {
    static constexpr int OUTS = padded(OUTPUTS, DEPTH);
    alignas(16) Stored third[OUTS * HIDDEN_2];
    Stored second[HIDDEN_2 * HIDDEN_1];
};

// Copies a layer's weights from the flat buffer to packed order, for the forward pass and, unless `backward` is null,
// the transposed products of the backward pass. All are fetched before any is stored, so that the loads overlap.
template <int IN, int OUT> struct WeightLoader {
    // In one step the block copies 8 inputs of THREADS / 8 outputs: 8 adjacent threads read one sector of memory and
    // write to different banks. An address is the step's, a compile-time constant, plus the thread's.
    static constexpr int INS = 8, OUTS = THREADS / INS, ROUNDS = padded(OUT, OUTS) / OUTS;
    static constexpr int STEPS = padded(IN, DEPTH) / INS * ROUNDS;
    static_assert(OUTS % DEPTH == 0);
    float weight[STEPS];

    FN static constexpr int in_of(int step)  { return step / ROUNDS * INS; }
    FN static constexpr int out_of(int step) { return step % ROUNDS * OUTS; }
    // `real_outs` outputs have weights; the rest is zero.
    FN void fetch(const float* weights, int real_outs) {
        const int          in = thread_rank() % INS, out = thread_rank() / INS;
        const float* const thread_weights = weights + out * IN + in;
        UNROLL
        for (int step = 0; step < STEPS; ++step) {
            const bool in_range = in_of(step) + in < IN && out_of(step) + out < real_outs;
            weight[step]        = in_range ? thread_weights[out_of(step) * IN + in_of(step)] : 0.0f;
        }
    }
    FN void store(Stored* forward, int tile_outs, Stored* backward) const {
        const int     in = thread_rank() % INS, out = thread_rank() / INS;
        Stored* const forward_base  = forward + packed_index(in, out, tile_outs);
        Stored* const backward_base = backward + packed_index(out, in, IN);
        UNROLL
        for (int step = 0; step < STEPS; ++step) {
            const Stored stored = Arithmetic::stored(weight[step]);
            if (out_of(step) + out < tile_outs) {
                forward_base[packed_index(in_of(step), out_of(step), tile_outs)] = stored;
            }
            if (backward != nullptr && out_of(step) + out < padded(OUT, DEPTH)) {
                backward_base[packed_index(out_of(step), in_of(step), IN)] = stored;
            }
        }
    }
};

static_assert(HIDDEN_1 <= THREADS && HIDDEN_2 <= THREADS && INPUTS <= THREADS && PARAMETERS <= THREADS);

// Loads a network. The last layer has `rows` outputs; further outputs are log standard deviations, stored as biases.
template <int OUTPUTS>
FN void load(Forward<OUTPUTS>& net, Backward<OUTPUTS>* backward, const float* flat, const Offsets& at, int rows,
             const Scale& scale) {
    const int  j      = thread_rank();
    const bool scaled = scale.mean != nullptr && j < FEATURES;
    WeightLoader<FEATURES, HIDDEN_1> first;
    WeightLoader<HIDDEN_1, HIDDEN_2> second;
    WeightLoader<HIDDEN_2, OUTPUTS>  third;
    second.fetch(flat + at.weight_2, HIDDEN_2);
    first.fetch(flat + at.weight_1, HIDDEN_1);
    third.fetch(flat + at.weight_3, rows);
    const bool  stds   = rows <= j && j < OUTPUTS;
    const float bias_1 = j < HIDDEN_1 ? flat[at.bias_1 + j] : 0.0f;
    const float bias_2 = j < HIDDEN_2 ? flat[at.bias_2 + j] : 0.0f;
    const float extra  = stds ? clip(flat[at.log_std + j - rows], LOG_STD_LOW, LOG_STD_HIGH) : 0.0f;
    const float bias_3 = j < rows ? flat[at.bias_3 + j] : extra;
    const float mean   = scaled ? scale.mean[j] : 0.0f, inverse = scaled ? scale.inverse[j] : 1.0f;
    second.store(net.second, HIDDEN_2, backward == nullptr ? nullptr : backward->second);
    first.store(net.first, HIDDEN_1, nullptr);
    third.store(net.third, net.OUTS, backward == nullptr ? nullptr : backward->third);
    if (j < HIDDEN_1) net.bias_1[j] = bias_1;
    if (j < HIDDEN_2) net.bias_2[j] = bias_2;
    if (j < net.OUTS) net.bias_3[j] = bias_3;
    if (j < INPUTS) {
        net.mean[j]    = mean;
        net.inverse[j] = inverse;
    }
    block_barrier();
}

using InputRows = float[INPUTS / 8][4];

// Loads this thread's fragment of 16 rows of observations; zeros if an index is negative.
FN void fetch_rows(InputRows& x, const float* observations, int index_g, int index_h, int lane) {
    FOR_EACH_NUMBER(j, q, INPUTS / 8) {
        const int index = q < 2 ? index_g : index_h, column = 8 * j + lane % 4 * 2 + q % 2;
        const bool in_range = index >= 0 && column < FEATURES;
        x[j][q]             = in_range ? observations[Index(index) * FEATURES + column] : 0.0f;
    }
}

// Subtracts the net's means, multiplies by its inverse standard deviations and clips; nothing if there is no scale.
template <class Net> FN void normalise(InputRows& x, const Net& net, const Scale& scale, int lane) {
    if (scale.mean == nullptr) return;
    FOR_EACH_NUMBER(j, q, INPUTS / 8) {
        const int column = 8 * j + lane % 4 * 2 + q % 2;
        x[j][q]          = clip((x[j][q] - net.mean[column]) * net.inverse[column], -scale.limit, scale.limit);
    }
}

// c += rows * weights, for 16 rows of 8 K columns and packed weights in shared memory.
template <int N, int K> FN void multiply(float (&c)[N][4], const float (&rows)[K][4], const Stored* weights, int lane) {
    constexpr int steps = K * 8 / DEPTH;
    float         odd[4] = {};  // a second accumulator, so that consecutive products are independent
    UNROLL
    for (int step = 0; step < steps; ++step) {
        const auto left = Arithmetic::gather(rows + step * (DEPTH / 8));
        UNROLL
        for (int j = 0; j < N; ++j) {
            const auto right = Arithmetic::weight(weights + (step * N + j) * 8 * DEPTH + lane * (DEPTH / 4));
            Arithmetic::add_product(N == 1 && step % 2 == 1 ? odd : c[j], left, right);
        }
    }
    if (N == 1 && steps > 1) {
        UNROLL
        for (int q = 0; q < 4; ++q) c[0][q] += odd[q];
    }
}

// Writes a warp's accumulators, 16 rows of 8 N columns, to `rows` in shared memory, in the stored precision.
template <int N> FN void store_tile(Stored* rows, int stride, const float (&c)[N][4], int lane) {
    Stored* const at = rows + lane / 4 * stride + lane % 4 * 2;
    UNROLL
    for (int j = 0; j < N; ++j) {
        Arithmetic::store_pair(at + 8 * j, c[j][0], c[j][1]);
        Arithmetic::store_pair(at + 8 * stride + 8 * j, c[j][2], c[j][3]);
    }
}
