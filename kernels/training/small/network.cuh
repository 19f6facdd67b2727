// Small multilayer perceptrons, two hidden layers wide: a warp takes 16 rows through all layers in its registers.
//
// Generated before it: FEATURES, HIDDEN_1, HIDDEN_2, LOG_STD_LOW and _HIGH, MEANS (outputs of the actor's last layer),
// and ACTOR_PLACES and CRITIC_PLACES: where the parameters lie in the flat buffer, as torch.nn.Linear lays
// them out (rows are outputs).

// Elements from row to row of a tile in shared memory: an odd multiple of 8, so that a warp's accesses, along or across
// rows, meet in no bank.
FN constexpr int stride_of(int columns) { return padded(columns + 8, 16) - 8; }

constexpr int INPUTS = padded(FEATURES, DEPTH);

// Weights are packed in the order in which products want them: all of DEPTH inputs for one output, output by output.
FN constexpr int packed_place(int in, int out, int outs) {
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

// A layer's weights on their way from the flat buffer to where they are packed: for the way forth and, unless `back` is
// null, for products with its transpose. All are fetched before any is stored, so that their latencies are one.
template <int IN, int OUT> struct Layer {
    // A turn of the block takes 8 inputs of 16 outputs: a sector of memory for 8 neighbouring threads, different banks.
    // Its places are those of the turn's first, known when this is compiled, plus those of the thread.
    static constexpr int INS = 8, OUTS = THREADS / INS, ROUNDS = padded(OUT, OUTS) / OUTS;
    static constexpr int TURNS = padded(IN, DEPTH) / INS * ROUNDS;
    static_assert(OUTS % DEPTH == 0);
    float weight[TURNS];

    FN static constexpr int in_of(int turn)  { return turn / ROUNDS * INS; }
    FN static constexpr int out_of(int turn) { return turn % ROUNDS * OUTS; }
    FN void fetch(const float* weights, int rows) {
        const int          in = thread_rank() % INS, out = thread_rank() / INS;
        const float* const mine = weights + out * IN + in;
        UNROLL
        for (int turn = 0; turn < TURNS; ++turn) {
            const bool there = in_of(turn) + in < IN && out_of(turn) + out < rows;
            weight[turn]     = there ? mine[out_of(turn) * IN + in_of(turn)] : 0.0f;
        }
    }
    FN void store(Stored* forth, int outs, Stored* back) const {
        const int     in = thread_rank() % INS, out = thread_rank() / INS;
        Stored* const forth_mine = forth + packed_place(in, out, outs);
        Stored* const back_mine  = back + packed_place(out, in, IN);
        UNROLL
        for (int turn = 0; turn < TURNS; ++turn) {
            const Stored stored = Arithmetic::stored(weight[turn]);
            if (out_of(turn) + out < outs) forth_mine[packed_place(in_of(turn), out_of(turn), outs)] = stored;
            if (back != nullptr && out_of(turn) + out < padded(OUT, DEPTH)) {
                back_mine[packed_place(out_of(turn), in_of(turn), IN)] = stored;
            }
        }
    }
};

static_assert(HIDDEN_1 <= THREADS && HIDDEN_2 <= THREADS && INPUTS <= THREADS && PARAMETERS <= THREADS);

// Loads a network. Outputs from `rows` on are what no observation changes: the logarithms of deviations.
template <int OUTPUTS>
FN void load(Forward<OUTPUTS>& net, Backward<OUTPUTS>* back, const float* flat, const Places& at, int rows,
             const Scale& scale) {
    const int  j      = thread_rank();
    const bool scaled = scale.mean != nullptr && j < FEATURES;
    Layer<FEATURES, HIDDEN_1> first;
    Layer<HIDDEN_1, HIDDEN_2> second;
    Layer<HIDDEN_2, OUTPUTS>  third;
    second.fetch(flat + at.weight_2, HIDDEN_2);
    first.fetch(flat + at.weight_1, HIDDEN_1);
    third.fetch(flat + at.weight_3, rows);
    const float bias_1 = j < HIDDEN_1 ? flat[at.bias_1 + j] : 0.0f;
    const float bias_2 = j < HIDDEN_2 ? flat[at.bias_2 + j] : 0.0f;
    const float apart  = rows <= j && j < OUTPUTS ? clip(flat[at.log_std + j - rows], LOG_STD_LOW, LOG_STD_HIGH) : 0.0f;
    const float bias_3 = j < rows ? flat[at.bias_3 + j] : apart;
    const float mean   = scaled ? scale.mean[j] : 0.0f, inverse = scaled ? scale.inverse[j] : 1.0f;
    second.store(net.second, HIDDEN_2, back == nullptr ? nullptr : back->second);
    first.store(net.first, HIDDEN_1, nullptr);
    third.store(net.third, net.OUTS, back == nullptr ? nullptr : back->third);
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

// This thread's part of 16 rows of observations; zeros for a row below 0.
FN void fetch_rows(InputRows& x, const float* observations, int place_g, int place_h, int lane) {
    FOR_EACH_NUMBER(j, q, INPUTS / 8) {
        const int place = q < 2 ? place_g : place_h, column = 8 * j + lane % 4 * 2 + q % 2;
        const bool there = place >= 0 && column < FEATURES;
        x[j][q]          = there ? observations[Index(place) * FEATURES + column] : 0.0f;
    }
}

template <class Net> FN void normalise(InputRows& x, const Net& net, const Scale& scale, int lane) {
    if (scale.mean == nullptr) return;
    FOR_EACH_NUMBER(j, q, INPUTS / 8) {
        const int column = 8 * j + lane % 4 * 2 + q % 2;
        x[j][q]          = clip((x[j][q] - net.mean[column]) * net.inverse[column], -scale.limit, scale.limit);
    }
}

// c += rows * weights, for rows of 8 K columns.
template <int N, int K> FN void multiply(float (&c)[N][4], const float (&rows)[K][4], const Stored* weights, int lane) {
    constexpr int steps = K * 8 / DEPTH;
    float         other[4] = {};  // so that products into one accumulator need not wait for one another
    UNROLL
    for (int step = 0; step < steps; ++step) {
        const auto left = Arithmetic::gather(rows + step * (DEPTH / 8));
        UNROLL
        for (int j = 0; j < N; ++j) {
            const auto right = Arithmetic::weight(weights + (step * N + j) * 8 * DEPTH + lane * (DEPTH / 4));
            Arithmetic::add_product(N == 1 && step % 2 == 1 ? other : c[j], left, right);
        }
    }
    if (N == 1 && steps > 1) {
        UNROLL
        for (int q = 0; q < 4; ++q) c[0][q] += other[q];
    }
}

// Writes 16 rows into a tile.
template <int N> FN void store_tile(Stored* rows, int stride, const float (&c)[N][4], int lane) {
    Stored* const at = rows + lane / 4 * stride + lane % 4 * 2;
    UNROLL
    for (int j = 0; j < N; ++j) {
        Arithmetic::store_pair(at + 8 * j, c[j][0], c[j][1]);
        Arithmetic::store_pair(at + 8 * stride + 8 * j, c[j][2], c[j][3]);
    }
}
