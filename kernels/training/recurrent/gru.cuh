// A policy's trunk with memory: a first layer and a GRU, over sequences of steps. CUDA only.
//
// y = activation(W x + b), h' = n + z (h - n), where r = sigmoid(W_ir y + W_hr h), z = sigmoid(W_iz y + W_hz h) and
// n = tanh(W_in y + r (W_hn h)); all of these products have biases. h is zero where an episode starts.
//
// A warp takes 16 rows through all steps, and waits for no other warp: their state is in its registers, in the layout of
// tensor_core.cuh. The weights are in shared memory, in the order in which products read them.
//
// Generated before it: FEATURES, HIDDEN (y's columns), UNITS (h's columns), IS_TANH (otherwise relu) and WARPS.

using Arithmetic = Tf32;
using Left       = Arithmetic::Left;

constexpr int THREADS = WARPS * WARP;
constexpr int INPUTS  = (FEATURES + 7) / 8 * 8;
constexpr int PART    = 2;  // groups of 8 units that are computed at once
constexpr int PARTS   = UNITS / 8 / PART;

enum Gate : int { RESET_GATE, UPDATE_GATE, NEW_GATE, GATES, NEW_FROM_STATE = GATES, BIASES };
// Columns of the matrices from whose product the weights' gradients follow: the gradients of all sums of products, and
// the factors of the weights.
constexpr int GRADIENT_COLUMNS = BIASES * UNITS + HIDDEN;
constexpr int FACTOR_COLUMNS   = (HIDDEN + UNITS + FEATURES + 1 + 7) / 8 * 8;

struct Weights {
    alignas(16) float first[INPUTS * HIDDEN];
    float of_input[GATES][HIDDEN * UNITS], of_state[GATES][UNITS * UNITS];
    float bias_1[HIDDEN], bias[BIASES][UNITS];
};
struct TransposedWeights {
    alignas(16) float of_input[GATES][UNITS * HIDDEN];
    float of_state[GATES][UNITS * UNITS];
};
struct BackwardMemory {
    Weights           weights;
    TransposedWeights transposed;
};

// The place of a weight in the order of products' reads: 8 inputs of an output, then as many of the next output.
FN constexpr int place_of(int in, int out, int outs) { return (in / 8 * outs + out) * 8 + in % 8; }

// Copies a matrix [OUT, IN]; also its transpose, unless that is null. All threads call it.
template <int IN, int OUT> FN void pack(float* packed, float* transposed, const float* weights) {
    constexpr int padded = (IN + 7) / 8 * 8, at_once = 16;
    for (int first = thread_rank(); first < padded * OUT; first += at_once * THREADS) {
        float loaded[at_once];
        UNROLL
        for (int k = 0; k < at_once; ++k) {
            const int e = first + k * THREADS, in = e % padded, out = e / padded;
            loaded[k]   = out < OUT && in < IN ? weights[out * IN + in] : 0.0f;
        }
        UNROLL
        for (int k = 0; k < at_once; ++k) {
            const int e = first + k * THREADS, in = e % padded, out = e / padded;
            if (out >= OUT) continue;
            packed[place_of(in, out, OUT)] = Arithmetic::stored(loaded[k]);
            if (transposed != nullptr) transposed[place_of(out, in, IN)] = Arithmetic::stored(loaded[k]);
        }
    }
}

template <class Call> FN void load(Weights& to, TransposedWeights* transposed, const Call& call) {
    pack<FEATURES, HIDDEN>(to.first, nullptr, call.weight_1);
    for (int gate = 0; gate < GATES; ++gate) {
        const bool both = transposed != nullptr;
        pack<HIDDEN, UNITS>(to.of_input[gate], both ? transposed->of_input[gate] : nullptr,
                            call.weight_ih + gate * UNITS * HIDDEN);
        pack<UNITS, UNITS>(to.of_state[gate], both ? transposed->of_state[gate] : nullptr,
                           call.weight_hh + gate * UNITS * UNITS);
    }
    for (int j = thread_rank(); j < HIDDEN; j += THREADS) to.bias_1[j] = call.bias_1[j];
    for (int j = thread_rank(); j < UNITS; j += THREADS) {
        const float* const of_input = call.bias_ih + j;
        const float* const of_state = call.bias_hh + j;
        to.bias[RESET_GATE][j]          = of_input[RESET_GATE * UNITS] + of_state[RESET_GATE * UNITS];
        to.bias[UPDATE_GATE][j]         = of_input[UPDATE_GATE * UNITS] + of_state[UPDATE_GATE * UNITS];
        to.bias[NEW_GATE][j]            = of_input[NEW_GATE * UNITS];
        to.bias[NEW_FROM_STATE][j] = of_state[NEW_GATE * UNITS];
    }
    block_barrier();
}

// A thread's two of a warp's 16 rows.
struct TwoRows {
    Index row[2];
    bool  exists[2];
    FN TwoRows(Index tile, Index rows) {
        FOR_BOTH_ROWS(h) {
            row[h]    = tile * WARP_ROWS + warp_lane() / 4 + 8 * h;
            exists[h] = row[h] < rows;
        }
    }
};

FN int first_column() { return warp_lane() % 4 * 2; }

// Loads a thread's numbers of rows of 8 N floats; zeros for rows that do not exist.
template <int N> FN void load_rows(float (&c)[N][4], const float* from, const TwoRows& rows) {
    FOR_BOTH_ROWS(h) {
        const float* const at = from + rows.row[h] * (8 * N) + first_column();
        UNROLL
        for (int j = 0; j < N; ++j) {
            const Wide<2> pair = rows.exists[h] ? *reinterpret_cast<const Wide<2>*>(at + 8 * j) : Wide<2>{};
            c[j][2 * h]        = pair.value[0];
            c[j][2 * h + 1]    = pair.value[1];
        }
    }
}
// Stores numbers of 8 N columns from `column` on, in rows of `stride` floats.
template <int N> FN void store_rows(float* to, int stride, int column, const float (&c)[N][4], const TwoRows& rows) {
    FOR_BOTH_ROWS(h) {
        float* const at = to + rows.row[h] * stride + column + first_column();
        UNROLL
        for (int j = 0; j < N; ++j) {
            if (rows.exists[h]) *reinterpret_cast<Wide<2>*>(at + 8 * j) = {{c[j][2 * h], c[j][2 * h + 1]}};
        }
    }
}

// What a step of two rows reads: observations, and whether an episode starts.
struct StepInputs {
    float x[INPUTS / 8][4];
    bool  starts[2];

    template <class Call> FN void load(const Call& call, Index step, const TwoRows& rows) {
        FOR_EACH_NUMBER(j, q, INPUTS / 8) {
            const int   column = 8 * j + first_column() + q % 2;
            const Index row    = step * call.rows + rows.row[q / 2];
            x[j][q] = rows.exists[q / 2] && column < FEATURES ? call.observations[row * FEATURES + column] : 0.0f;
        }
        FOR_BOTH_ROWS(h) starts[h] = rows.exists[h] && call.starts[step * call.rows + rows.row[h]] != 0;
    }
};

template <int N> FN void clear_started(float (&c)[N][4], const bool (&starts)[2]) {
    FOR_EACH_NUMBER(j, q, N) c[j][q] = starts[q / 2] ? 0.0f : c[j][q];
}
template <int N> FN void gather(Left (&left)[N], const float (&c)[N][4]) {
    UNROLL
    for (int j = 0; j < N; ++j) left[j] = Arithmetic::gather(c + j);
}
// The number that gather() has put into a factor, rounded.
FN float gathered(const Left& left, int q) { return from_bits(left.x[q == 1 ? 2 : q == 2 ? 1 : q]); }

// c += left times the packed weights of 8 N columns, from group `from` of OUTS on.
template <int OUTS, int N, int K>
FN void add_products(float (&c)[N][4], const Left (&left)[K], const float* weights, int from = 0) {
    UNROLL
    for (int step = 0; step < K; ++step) {
        UNROLL
        for (int j = 0; j < N; ++j) {
            const float* const at = weights + ((step * (OUTS / 8) + from + j) * 8 + warp_lane() / 4) * 8;
            Arithmetic::add_product(c[j], left[step], Arithmetic::weight(at + first_column()));
        }
    }
}
FN float sigmoid(float x) { return fma(0.5f, approximate_tanh(0.5f * x), 0.5f); }

FN void first_layer(Left (&left)[HIDDEN / 8], const Weights& weights, const StepInputs& inputs) {
    Left  x[INPUTS / 8];
    float y[HIDDEN / 8][4];
    gather(x, inputs.x);
    set_to_bias(y, weights.bias_1, warp_lane());
    add_products<HIDDEN>(y, x, weights.first);
    FOR_EACH_NUMBER(j, q, HIDDEN / 8) y[j][q] = IS_TANH ? approximate_tanh(y[j][q]) : fast_maximum(y[j][q], 0.0f);
    gather(left, y);
}

// The gates of a part of the units, and the products of the state that the reset gate scales.
struct Gates {
    float reset[PART][4], update[PART][4], next[PART][4], of_state[PART][4];

    FN Gates(const Weights& weights, const Left (&y)[HIDDEN / 8], const Left (&h)[UNITS / 8], int part) {
        const int from = part * PART, lane = warp_lane();
        set_to_bias(reset, weights.bias[RESET_GATE] + 8 * from, lane);
        set_to_bias(update, weights.bias[UPDATE_GATE] + 8 * from, lane);
        set_to_bias(next, weights.bias[NEW_GATE] + 8 * from, lane);
        set_to_bias(of_state, weights.bias[NEW_FROM_STATE] + 8 * from, lane);
        add_products<UNITS>(reset, y, weights.of_input[RESET_GATE], from);
        add_products<UNITS>(update, y, weights.of_input[UPDATE_GATE], from);
        add_products<UNITS>(next, y, weights.of_input[NEW_GATE], from);
        add_products<UNITS>(reset, h, weights.of_state[RESET_GATE], from);
        add_products<UNITS>(update, h, weights.of_state[UPDATE_GATE], from);
        add_products<UNITS>(of_state, h, weights.of_state[NEW_GATE], from);
        FOR_EACH_NUMBER(j, q, PART) {
            reset[j][q]  = sigmoid(reset[j][q]);
            update[j][q] = sigmoid(update[j][q]);
            next[j][q]   = approximate_tanh(fma(reset[j][q], of_state[j][q], next[j][q]));
        }
    }
};

// Calls use(tile) with this warp's tiles of 16 rows. Few tiles are spread over the blocks.
template <class Call, class Use> FN void for_each_tile(const Call& call, const Use& use) {
    const Index tiles = (call.rows + WARP_ROWS - 1) / WARP_ROWS, apart = Index(block_count()) * WARPS;
    for (Index tile = block_number() + thread_rank() / WARP * block_count(); tile < tiles; tile += apart) use(tile);
}

// Writes the states after all steps.
template <class Call> FN void forward(const Call& call) {
    auto& weights = *reinterpret_cast<Weights*>(staging);
    load(weights, nullptr, call);
    for_each_tile(call, [&](Index tile) {
        const TwoRows rows(tile, call.rows);
        float         h[UNITS / 8][4];
        StepInputs    inputs, next;
        load_rows(h, call.state, rows);
        next.load(call, 0, rows);
        for (Index step = 0; step < call.steps; ++step) {
            inputs = next;
            if (step + 1 < call.steps) next.load(call, step + 1, rows);
            Left y[HIDDEN / 8], before[UNITS / 8];
            first_layer(y, weights, inputs);
            clear_started(h, inputs.starts);
            gather(before, h);
            UNROLL
            for (int part = 0; part < PARTS; ++part) {
                const Gates gates(weights, y, before, part);
                FOR_EACH_NUMBER(j, q, PART) {
                    float& unit = h[part * PART + j][q];
                    unit        = fma(gates.update[j][q], unit - gates.next[j][q], gates.next[j][q]);
                }
            }
            store_rows(call.outputs + step * call.rows * UNITS, UNITS, 0, h, rows);
        }
    });
}

// Stores the factors of a step's weights besides the state: y, the observations, and a one for the biases.
FN void store_factors(float* factors, const Left (&y)[HIDDEN / 8], const StepInputs& inputs, const TwoRows& rows) {
    float numbers[HIDDEN / 8][4];
    FOR_EACH_NUMBER(j, q, HIDDEN / 8) numbers[j][q] = gathered(y[j], q);
    store_rows(factors, FACTOR_COLUMNS, 0, numbers, rows);
    FOR_EACH_NUMBER(j, q, INPUTS / 8) {
        const int    column = 8 * j + first_column() + q % 2;
        float* const at     = factors + rows.row[q / 2] * FACTOR_COLUMNS + HIDDEN + UNITS;
        if (rows.exists[q / 2] && column < FEATURES) at[column] = inputs.x[j][q];
        if (rows.exists[q / 2] && column == 0) at[FEATURES] = 1.0f;
    }
}

// Backpropagation through all steps, from the gradients of their outputs. Computes the gates again.
template <class Call> FN void backward(const Call& call) {
    auto&       memory     = *reinterpret_cast<BackwardMemory*>(staging);
    const auto& transposed = memory.transposed;
    load(memory.weights, &memory.transposed, call);
    for_each_tile(call, [&](Index tile) {
        const TwoRows rows(tile, call.rows);
        float         grad_h[UNITS / 8][4] = {};  // of the state after the step
        for (Index step = call.steps - 1; step >= 0; --step) {
            const Index first = step * call.rows;
            float*      gradients = call.gradients + first * GRADIENT_COLUMNS;
            float*      factors   = call.factors + first * FACTOR_COLUMNS;
            StepInputs  inputs;
            Left        y[HIDDEN / 8], before[UNITS / 8];
            inputs.load(call, step, rows);
            {
                float h[UNITS / 8][4];
                load_rows(h, step == 0 ? call.state : call.outputs + (first - call.rows) * UNITS, rows);
                clear_started(h, inputs.starts);
                gather(before, h);
                store_rows(factors, FACTOR_COLUMNS, HIDDEN, h, rows);
                load_rows(h, call.grad_outputs + first * UNITS, rows);
                FOR_EACH_NUMBER(j, q, UNITS / 8) grad_h[j][q] += h[j][q];
            }
            first_layer(y, memory.weights, inputs);
            store_factors(factors, y, inputs, rows);
            float grad_before[UNITS / 8][4] = {}, grad_y[HIDDEN / 8][4] = {};
            UNROLL
            for (int part = 0; part < PARTS; ++part) {
                Gates gates(memory.weights, y, before, part);
                FOR_EACH_NUMBER(j, q, PART) {
                    const int   unit = part * PART + j;
                    const float grad = grad_h[unit][q], z = gates.update[j][q], n = gates.next[j][q];
                    const float r = gates.reset[j][q];
                    grad_before[unit][q] += grad * z;
                    const float grad_n = grad * (1.0f - z) * fma(-n, n, 1.0f);
                    gates.update[j][q]   = grad * (gathered(before[unit], q) - n) * z * (1.0f - z);
                    gates.next[j][q]     = grad_n;
                    gates.reset[j][q]    = grad_n * gates.of_state[j][q] * r * (1.0f - r);
                    gates.of_state[j][q] = grad_n * r;
                }
                const int column = part * PART * 8;
                store_rows(gradients, GRADIENT_COLUMNS, RESET_GATE * UNITS + column, gates.reset, rows);
                store_rows(gradients, GRADIENT_COLUMNS, UPDATE_GATE * UNITS + column, gates.update, rows);
                store_rows(gradients, GRADIENT_COLUMNS, NEW_GATE * UNITS + column, gates.next, rows);
                store_rows(gradients, GRADIENT_COLUMNS, NEW_FROM_STATE * UNITS + column, gates.of_state, rows);
                Left left[PART];
                gather(left, gates.reset);
                add_products<UNITS>(grad_before, left, transposed.of_state[RESET_GATE] + column * UNITS);
                add_products<HIDDEN>(grad_y, left, transposed.of_input[RESET_GATE] + column * HIDDEN);
                gather(left, gates.update);
                add_products<UNITS>(grad_before, left, transposed.of_state[UPDATE_GATE] + column * UNITS);
                add_products<HIDDEN>(grad_y, left, transposed.of_input[UPDATE_GATE] + column * HIDDEN);
                gather(left, gates.of_state);
                add_products<UNITS>(grad_before, left, transposed.of_state[NEW_GATE] + column * UNITS);
                gather(left, gates.next);
                add_products<HIDDEN>(grad_y, left, transposed.of_input[NEW_GATE] + column * HIDDEN);
            }
            FOR_EACH_NUMBER(j, q, HIDDEN / 8) {
                const float out = gathered(y[j], q);
                grad_y[j][q]    = IS_TANH ? grad_y[j][q] * fma(-out, out, 1.0f) : out > 0 ? grad_y[j][q] : 0.0f;
            }
            store_rows(gradients, GRADIENT_COLUMNS, BIASES * UNITS, grad_y, rows);
            FOR_EACH_NUMBER(j, q, UNITS / 8) grad_h[j][q] = inputs.starts[q / 2] ? 0.0f : grad_before[j][q];
        }
    });
}
