// The backward pass of wide perceptrons, and the tiles that it saves for gradient.cuh.
//
// For each unit of 64 samples an update saves, transposed: the inputs, the activations of hidden layers, and the
// gradients of all layers' pre-activations. gradient.cuh multiplies them. Without gradients of weights, only what the
// backward pass needs is saved; relu's slopes, one bit each, stay in registers.

// The offset of the outputs' gradients in the rows' memory: a box's come after its outputs.
template <class Net>
constexpr u32 GRAD_OFFSET = Net::HAS_POLICY && !DISCRETE ? Layout<typename Net::Shape>::OUTPUTS_BYTES : 0;

// Whether the gradient of the weights is needed.
template <class Net, class Call> FN bool saves_for_gradient(const Call& call) {
    if constexpr (Net::FUNCTIONS) return call.weights != 0;
    else return true;
}
// Whether the gradient with respect to the inputs is needed.
template <class Net, class Call> FN bool reaches_inputs(const Call& call) {
    if constexpr (Net::FUNCTIONS) return call.grad_inputs != nullptr;
    else return false;
}

template <class Net> constexpr bool SLOPE_IS_BIT = ACTIVATION == RELU && !Net::NORM;
template <class Net> constexpr int  SLOPE_WORDS  = SLOPE_IS_BIT<Net> ? 4 : 1;  // of a thread's slopes of a layer

template <class Net, int NUMBER> using SavedTile = GroupTile<Net::saved_lines(NUMBER), GROUP_ROWS>;
template <class Net, int NUMBER, class Call>
FN SavedTile<Net, NUMBER>& saved_tile(const Call& call, Index unit, int ahead = 0) {
    return *reinterpret_cast<SavedTile<Net, NUMBER>*>(saved_unit<Net>(call, NUMBER, unit, ahead));
}

// Writes one layer's entry of an array. All entries are selected: a runtime index would move the array to local memory.
template <class T, int LAYERS, int N> FN void set_layer(T (&all)[LAYERS][N], int layer, const T (&of_layer)[N]) {
    UNROLL
    for (int l = 0; l < LAYERS; ++l) {
        UNROLL
        for (int i = 0; i < N; ++i) all[l][i] = l == layer ? of_layer[i] : all[l][i];
    }
}
// Reads one layer's entry of an array, by selections among all entries.
template <class T, int LAYERS, int N> FN void get_layer(T (&of_layer)[N], const T (&all)[LAYERS][N], int layer) {
    UNROLL
    for (int l = 0; l < LAYERS; ++l) {
        UNROLL
        for (int i = 0; i < N; ++i) of_layer[i] = l == layer ? all[l][i] : of_layer[i];
    }
}

// Saves a tile of samples during the forward pass.
template <class Net, class Call> struct TrainingTile {
    const Call& call;
    Index       unit;
    float (&inverses)[Net::LAYERS][2];
    u32 (&slopes)[Net::LAYERS][SLOPE_WORDS<Net>];

    template <int L, int N> FN void save_sums(const float (&c)[N][4], const float (&inverse)[2], int ahead) const {
        if (Net::NORM || !SLOPE_FROM_OUTPUT) {
            auto& saved = saved_tile<Net, Net::LAYERS + L>(call, unit, ahead);
            saved.store_pairs(c, [](Stored* at, float x, float y) {
                Arithmetic::store_pair(at, Net::NORM ? x : slope_at(x), Net::NORM ? y : slope_at(y));
            });
        }
        if (Net::NORM) set_layer(inverses, L + ahead, inverse);
    }
    template <int L, int N> FN void save_activations(const float (&c)[N][4], int ahead) const {
        if constexpr (SLOPE_IS_BIT<Net>) {
            u32 words[SLOPE_WORDS<Net>] = {};  // one for each 64 columns; the first column's bit is the highest
            UNROLL
            for (int word = 0; word < SLOPE_WORDS<Net>; ++word) {
                UNROLL
                for (int j = 8 * word; 8 * word < N && j < 8 * word + 8; ++j) {
                    UNROLL
                    for (int q = 0; q < 4; ++q) words[word] = __funnelshift_l(bits_of(0.0f - c[j][q]), words[word], 1);
                }
                asm volatile("" : "+r"(words[word]));  // computed here, not where they are used
            }
            set_layer(slopes, L + ahead, words);
        }
        if (saves_for_gradient<Net>(call) || (SLOPE_FROM_OUTPUT && !Net::NORM && !SLOPE_IS_BIT<Net>)) {
            saved_tile<Net, 1 + L>(call, unit, ahead).store_rounded(c);
        }
    }
};

// 8 COUNT columns of a saved tile (activations or slopes), reloaded to registers as packed words.
template <int COUNT> struct SavedFragment {
    static constexpr int WORDS = sizeof(Stored) / 2;
    u32 words[COUNT][2][WORDS];
    template <class Tile> FN void fetch(const Tile& tile, int from) {
        UNROLL
        for (int p = 0; p < 2; ++p) {
            const Stored* const first = tile.thread_pairs(p);
            UNROLL
            for (int j = 0; j < COUNT; ++j) {
                Arithmetic::read_words(words[j][p], first + (from + j) * 8 * Tile::PIECE_ELEMENTS);
            }
        }
    }
    FN float at(int j, int p, int h) const { return Arithmetic::pair_of(words[j][p]).value[h]; }
    template <int N> FN void multiply_slopes(float (&grad)[N][4], int from) const {
        FOR_EACH_NUMBER(j, q, COUNT) {
            const float saved = at(j, q % 2, q / 2);
            grad[from + j][q] *= SLOPE_FROM_OUTPUT ? slope(saved) : saved;
        }
    }
};

// The column, of 32, whose sum this thread gets from sum_columns().
FN int summed_column() {
    return warp_lane() / 4 % 2 * 16 + warp_lane() / 8 % 2 * 8 + warp_lane() % 4 * 2 + warp_lane() / 16;
}
// Sums 32 columns, x's eight in each thread, over a warp's rows; returns the sum of column summed_column().
FN float sum_columns(float (&x)[4][2]) {
    float half[4], pair[2];
    UNROLL
    for (int i = 0; i < 4; ++i) {
        const bool upper = warp_lane() / 4 % 2 != 0;
        const float low = x[i / 2][i % 2], high = x[2 + i / 2][i % 2];
        half[i] = (upper ? high : low) + shuffle_xor(upper ? low : high, 4);
    }
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const bool upper = warp_lane() / 8 % 2 != 0;
        pair[i] = (upper ? half[2 + i] : half[i]) + shuffle_xor(upper ? half[i] : half[2 + i], 8);
    }
    const bool upper = warp_lane() / 16 != 0;
    return (upper ? pair[1] : pair[0]) + shuffle_xor(upper ? pair[0] : pair[1], 16);
}

// Turns gradients of activations into gradients of pre-activations, with layer normalisation. `tile` has the normalised
// pre-activations. Adds the gradients of gains to the warp's `sums`, and of shifts NORM_COLUMNS later.
template <class Net, int N, class Tile>
FN void norm_backward(float (&c)[N][4], const Tile& tile, const float (&inverse)[2], const float* gains,
                      const float* shifts, float* sums) {
    constexpr int BATCH = 4;
    SavedFragment<BATCH> x;
    float                mean[2] = {}, product[2] = {};
    UNROLL
    for (int from = 0; from < N; from += BATCH) {
        asm volatile("" ::: "memory");
        x.fetch(tile, from);
        UNROLL
        for (int j = 0; j < BATCH; ++j) {
            const int     column = 8 * (from + j) + warp_lane() % 4 * 2;
            const Wide<2> gain = reload_pair(gains + column), shift = reload_pair(shifts + column);
            UNROLL
            for (int q = 0; q < 4; ++q) {
                c[from + j][q] *= slope_at(fma(x.at(j, q % 2, q / 2), gain.value[q % 2], shift.value[q % 2]));
            }
        }
    }
    UNROLL
    for (int from = 0; from < N; from += BATCH) {
        float grad_gain[BATCH][2] = {}, grad_shift[BATCH][2] = {};
        asm volatile("" ::: "memory");
        x.fetch(tile, from);
        float* const at          = sums + 8 * from + summed_column();
        const float  previous[2] = {at[0], at[Net::NORM_COLUMNS]};
        UNROLL
        for (int j = 0; j < BATCH; ++j) {
            const int     column = 8 * (from + j) + warp_lane() % 4 * 2;
            const Wide<2> gain = reload_pair(gains + column), shift = reload_pair(shifts + column);
            UNROLL
            for (int q = 0; q < 4; ++q) {
                const int   p = q % 2, h = q / 2;
                const float saved = x.at(j, p, h);
                float&      grad  = c[from + j][q];
                grad_shift[j][p] += grad;
                grad_gain[j][p] = fma(grad, saved, grad_gain[j][p]);
                grad *= gain.value[p];
                mean[h] += grad;
                product[h] = fma(grad, saved, product[h]);
            }
        }
        at[0]                 = previous[0] + sum_columns(grad_gain);
        at[Net::NORM_COLUMNS] = previous[1] + sum_columns(grad_shift);
    }
    FOR_BOTH_ROWS(h) {
        mean[h]    = row_sum(mean[h]) * (1.0f / float(8 * N));
        product[h] = row_sum(product[h]) * (1.0f / float(8 * N));
    }
    UNROLL
    for (int from = 0; from < N; from += BATCH) {
        asm volatile("" ::: "memory");
        x.fetch(tile, from);
        FOR_EACH_NUMBER(j, q, BATCH) {
            const int h = q / 2;
            float&    grad = c[from + j][q];
            grad = inverse[h] * (grad - mean[h] - x.at(j, q % 2, h) * product[h]);
        }
    }
}

// A warp's sums of the gradients of gains and shifts; `warp` counts in the block.
template <class Net, class Call> FN float* norm_sums(const Call& call, int warp = thread_rank() / WARP) {
    return call.norm_sums + (block_number() * Index(WARPS) + warp) * (2 * Net::NORM_COLUMNS);
}

// Sets c to the gradients of the pre-activations of layer FIRST + ahead, and saves them; multiply(c) adds the gradients
// of the layer's activations to c, which is zero.
template <class Net, int FIRST, int N, class Runner, class Tile, class Multiply>
FN void layer_backward(float (&c)[N][4], const Runner& runner, const Tile& tile, int ahead, const Multiply& multiply) {
    constexpr int BATCH = N / int(sizeof(Stored));
    if constexpr (Net::NORM) {
        const int at = Net::bias_offset(FIRST) + ahead * 8 * N;
        float     inverse[2] = {};
        get_layer(inverse, tile.inverses, FIRST + ahead);
        multiply(c);
        norm_backward<Net>(c, saved_tile<Net, Net::LAYERS + FIRST>(tile.call, tile.unit, ahead), inverse,
                           runner.vectors.gains + at, runner.vectors.shifts + at, norm_sums<Net>(tile.call) + at);
    } else if constexpr (SLOPE_IS_BIT<Net>) {
        u32 slopes[SLOPE_WORDS<Net>] = {};
        multiply(c);
        get_layer(slopes, tile.slopes, FIRST + ahead);
        FOR_EACH_NUMBER(j, q, N) {
            if ((slopes[j / 8] >> (31 - (j % 8 * 4 + q)) & 1) == 0) c[j][q] = 0;
        }
    } else {
        constexpr int NUMBER = FIRST + (SLOPE_FROM_OUTPUT ? 1 : Net::LAYERS);
        const auto&   slopes = saved_tile<Net, NUMBER>(tile.call, tile.unit, ahead);
        SavedFragment<BATCH> slopes_batch;  // as many words as fit in registers with the accumulators
        slopes_batch.fetch(slopes, 0);
        multiply(c);
        slopes_batch.multiply_slopes(c, 0);
        UNROLL
        for (int from = BATCH; from < N; from += BATCH) {
            asm volatile("" ::: "memory");
            slopes_batch.fetch(slopes, from);
            slopes_batch.multiply_slopes(c, from);
        }
    }
    round_once(c);
    if (saves_for_gradient<Net>(tile.call)) {
        saved_tile<Net, Net::LAYERS + FIRST>(tile.call, tile.unit, ahead).store_rounded(c);
    }
}

template <class Net, class Call> struct TrainingRows : TrainingTile<Net, Call> {
    static constexpr bool            SHARES_CODE = true;
    const Inputs<SavedTile<Net, 0>>& inputs;

    FN TrainingRows(const TrainingTile<Net, Call>& tile, const Inputs<SavedTile<Net, 0>>& inputs_)
        : TrainingTile<Net, Call>(tile), inputs(inputs_) {}
    template <int FROM, class Runner> FN void load(Runner& runner) const {
        runner.template load_inputs<true, FROM>(inputs);
    }
};

// Writes the gradients of a unit's inputs; the rows are the gradients of the first layer's pre-activations.
template <class Net, class Runner, class Call> FN void input_gradient(Runner& runner, const Call& call, Index unit) {
    constexpr int N = padded(Net::GRAD_INPUTS, 16) / 8;
    float         c[N][4] = {};
    runner.template multiply<Net::padded_outs(0)>(c);
    for_accumulators<Net, N, Net::GRAD_INPUTS>(runner, call.rows, unit, [&](int j, int q, Index index) {
        if (index >= 0) call.grad_inputs[index] = c[j][q];
    });
    group_barrier();
}

// Runs the backward pass from layer L, whose pre-activation gradients are the rows, to the first layer or the inputs.
template <class Net, int L, class Runner, class Tile> FN void backward(Runner& runner, const Tile& tile) {
    constexpr int N = Net::in_of(L) / 8, FIRST = Net::same_width_begin(L - 1);
    constexpr u32 offset = L == Net::LAST ? GRAD_OFFSET<Net> : 0;
    NO_UNROLL
    for (int ahead = L - 1 - FIRST; ahead >= 0; --ahead) {  // to layer FIRST + ahead
        float c[N][4] = {};
        layer_backward<Net, FIRST>(c, runner, tile, ahead, [&](float (&sums)[N][4]) {
            const bool first = ahead == L - 1 - FIRST;
            runner.template multiply<Net::padded_outs(L)>(sums, !first, first ? offset : 0);
        });
        group_barrier();  // all products with the rows are done
        if (FIRST + ahead == 0 && (Net::GRAD_INPUTS == 0 || !reaches_inputs<Net>(tile.call))) return;
        runner.store(c);
        publish();
        group_barrier();
    }
    if constexpr (FIRST > 0) backward<Net, FIRST>(runner, tile);
    else if constexpr (Net::GRAD_INPUTS > 0) input_gradient<Net>(runner, tile.call, tile.unit);
}

// Runs a unit of 64 samples forward and backward, and saves it for gradient.cuh. `sample_index` is the sample of the
// thread's row, negative for none; `scale` normalises observations. prefetch() loads the next samples;
// loss_backward(c, saved) turns the outputs into their gradients, and stores them as the rows.
template <class Stream, class Call, class Prefetch, class LossBackward>
FN void train_tile(StreamedRows<Stream>& runner, const Call& call, const Scale& scale, Index unit, int sample_index,
                   const Prefetch& prefetch, const LossBackward& loss_backward) {
    using Net = typename Stream::NetType;
    float inverses[Net::LAYERS][2] = {};
    u32   slopes[Net::LAYERS][SLOPE_WORDS<Net>] = {};
    const Inputs<SavedTile<Net, 0>> inputs = {
        call.observations, sample_index, scale,
        saves_for_gradient<Net>(call) ? &saved_tile<Net, 0>(call, unit) : nullptr, {nullptr, 0}};
    const TrainingRows<Net, Call> tile({call, unit, inverses, slopes}, inputs);
    runner.template load_inputs<true, 0>(inputs);
    prefetch();
    publish();
    group_barrier();
    forward<Net, 0>(runner, tile, [&](Outputs<Net>& c) {
        loss_backward(c, saved_tile<Net, 2 * Net::LAYERS - 1>(call, unit));
    });
    publish();
    group_barrier();
    backward<Net, Net::LAYERS - 1>(runner, tile);
}

// --- with all weights in shared memory, and rows in registers ---

// The matrix descriptor of a layer's packed weights, of LINES outputs, as the backward pass's transposed right factor.
template <int LINES> struct TransposedLines {
    static_assert(LINES > 0 && LINE == 128);
    u32 low;
    FN explicit TransposedLines(u32 address) : low(u32(LINES * LINE / 16) << 16 | (address & 0x3FFFF) / 16) {}
    FN u64 at(int step) const { return u64(1u << 30 | 8 * LINE / 16) << 32 | (low + u32(step * DEPTH * LINE / 16)); }
};

// Runs the backward pass from layer L, whose pre-activation gradients are `rows`, to the first layer.
template <class Net, int L, int STEPS_OF_ROWS, class Tile>
FN void backward(const ResidentRows<Net>& runner, const Left (&rows)[STEPS_OF_ROWS], const Tile& tile) {
    constexpr int N = Net::in_of(L) / 8;
    static_assert(STEPS_OF_ROWS * DEPTH == Net::padded_outs(L));
    float c[N][4] = {};
    layer_backward<Net, L - 1>(c, runner, tile, 0, [&](float (&sums)[N][4]) {
        const TransposedLines<Net::padded_outs(L)> right(runner.weights + Net::packed_bytes(L));
        runner.multiply(sums, [&] {
            UNROLL
            for (int step = 0; step < STEPS_OF_ROWS; ++step) {
                Product<8 * N>::add_across(sums, rows[step].x, right.at(step), true);
            }
        });
    });
    if constexpr (L > 1) {
        Left previous[8 * N / DEPTH];
        gather(previous, c);
        backward<Net, L - 1>(runner, previous, tile);
    }
}

// Runs a unit of 64 samples forward and backward with resident weights, and saves it for gradient.cuh; the rows stay in
// registers.
template <class Net, class Call, class Prefetch, class LossBackward>
FN void train_tile(ResidentRows<Net>& runner, const Call& call, const Scale& scale, Index unit, int sample_index,
                   const Prefetch& prefetch, const LossBackward& loss_backward) {
    float                    inverses[Net::LAYERS][2] = {};
    u32                      slopes[Net::LAYERS][SLOPE_WORDS<Net>] = {};
    const TrainingTile<Net, Call> tile = {call, unit, inverses, slopes};
    InputFragment<Net> x;
    load_inputs(x, runner, call.observations, sample_index);
    prefetch();
    normalise_inputs(x, runner, scale, {nullptr, 0});
    FOR_EACH_NUMBER(j, q, PADDED_INPUTS<Net> / 8) {
        if (8 * j + runner.lane % 4 * 2 + q % 2 == Net::FEATURES) x[j][q] = 1.0f;  // ones, whose weights are zero
    }
    saved_tile<Net, 0>(call, unit).store_rounded(x);
    Left rows[PADDED_INPUTS<Net> / DEPTH];
    gather(rows, x);
    forward<Net, 0>(runner, rows, tile, [&](Outputs<Net>& c) {
        loss_backward(c, saved_tile<Net, 2 * Net::LAYERS - 1>(call, unit));
        Left grad_outputs[Net::padded_outs(Net::LAYERS - 1) / DEPTH];
        gather(grad_outputs, c);
        backward<Net, Net::LAYERS - 1>(runner, grad_outputs, tile);
    });
}

// Loads an update's vectors and weights to shared memory; returns ResidentRows or StreamedRows for this warpgroup.
template <class Net, class Call> FN auto start_rows(const Call& call, const Scale& scale, u32 tiles) {
    if constexpr (RESIDENT<typename Net::Shape>) {
        return load_resident<Net>(call, scale);
    } else {
        const bool with_inputs = Net::GRAD_INPUTS == 0 || reaches_inputs<Net>(call);
        using Stream = WeightStream<Net, Net::STEPS>;
        return StreamedRows<Stream>(start_network<Net, Net::STEPS>(call, scale, tiles, with_inputs));
    }
}
