// A policy's trunk with memory: a first layer and a GRU, over sequences of steps. CUDA only.
//
// y = activation(W x + b), h' = n + z (h - n), where r = sigmoid(W_ir y + W_hr h), z = sigmoid(W_iz y + W_hz h) and
// n = tanh(W_in y + r (W_hn h)); all of these products have biases. h is zero where an episode starts.
//
// A team of warps takes 16 rows through all steps. Each warp has 16 units: their states are in its registers, in the
// layout of tensor_core.cuh, and the team exchanges factors of products through shared memory. There are also the
// weights, in the order of the products' reads. Loops over products are not unrolled fully: it would be slower.
//
// Generated before it: FEATURES, HIDDEN (y's columns), UNITS (h's columns), IS_TANH (otherwise relu) and WARPS.

#define UNROLL_BY_2 _Pragma("unroll 2")
#define UNROLL_BY_4 _Pragma("unroll 4")

using Arithmetic = Tf32;
using Left       = Arithmetic::Left;

constexpr int THREADS = WARPS * WARP;
constexpr int INPUTS  = (FEATURES + 7) / 8 * 8;
constexpr int OWN     = 2;  // groups of 8 units of a warp
constexpr int TEAM    = UNITS / 8 / OWN, TEAMS = WARPS / TEAM;
constexpr int OWN_Y   = HIDDEN / 8 / TEAM;  // groups of 8 columns of y of a warp
static_assert(WARPS % TEAM == 0 && OWN_Y > 0);

enum Gate : int { RESET_GATE, UPDATE_GATE, NEW_GATE, GATES, NEW_FROM_STATE = GATES, BIASES };
// Columns of the matrices from whose product the weights' gradients follow, and of the sums of the biases' gradients.
constexpr int GRADIENT_COLUMNS = BIASES * UNITS, FACTOR_COLUMNS = HIDDEN + UNITS;
constexpr int SUM_COLUMNS      = GRADIENT_COLUMNS + HIDDEN;

// Factors of products that a team's warps exchange: a thread's, of groups of 8 columns.
template <int COLUMNS> struct Exchange {
    alignas(16) u32 words[COLUMNS / 8][WARP][4];
    FN void put(int group, const Left& left) {
        *reinterpret_cast<Wide<4>*>(words[group][warp_lane()]) = {
            {from_bits(left.x[0]), from_bits(left.x[1]), from_bits(left.x[2]), from_bits(left.x[3])}};
    }
    FN Left get(int group) const {
        const Wide<4> four = *reinterpret_cast<const Wide<4>*>(words[group][warp_lane()]);
        return {{bits_of(four.value[0]), bits_of(four.value[1]), bits_of(four.value[2]), bits_of(four.value[3])}};
    }
};

struct Weights {
    alignas(16) float first[INPUTS * HIDDEN];
    float of_input[GATES][HIDDEN * UNITS], of_state[GATES][UNITS * UNITS];
    float bias_1[HIDDEN], bias[BIASES][UNITS];
};
struct TransposedWeights {
    alignas(16) float of_input[GATES][UNITS * HIDDEN];
    float of_state[GATES][UNITS * UNITS];
};
struct Inputs {
    Exchange<HIDDEN> y;
    Exchange<UNITS>  states;
};
struct ForwardMemory {
    Weights weights;
    Inputs  inputs[TEAMS][2];  // of even and of odd steps
};
struct BackwardMemory {
    Weights           weights;
    TransposedWeights transposed;
    Inputs            inputs[TEAMS];
    Exchange<UNITS>   gradients[TEAMS][BIASES];
};

FN int  team_of_block()   { return thread_rank() / WARP / TEAM; }
FN int  member_of_team()  { return thread_rank() / WARP % TEAM; }
FN void team_barrier() {
    asm volatile("bar.sync %0, %1;" ::"r"(team_of_block() + 1), "n"(TEAM * WARP) : "memory");
}

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

// Loads a thread's numbers of 8 N columns from `column` on, of rows of `stride` floats; zeros if they do not exist.
template <int N>
FN void load_rows(float (&c)[N][4], const float* from, int stride, int column, const TwoRows& rows) {
    FOR_BOTH_ROWS(h) {
        const float* const at = from + rows.row[h] * stride + column + first_column();
        UNROLL
        for (int j = 0; j < N; ++j) {
            const Wide<2> pair = rows.exists[h] ? *reinterpret_cast<const Wide<2>*>(at + 8 * j) : Wide<2>{};
            c[j][2 * h]        = pair.value[0];
            c[j][2 * h + 1]    = pair.value[1];
        }
    }
}
template <int N> FN void store_rows(float* to, int stride, int column, const float (&c)[N][4], const TwoRows& rows) {
    FOR_BOTH_ROWS(h) {
        float* const at = to + rows.row[h] * stride + column + first_column();
        UNROLL
        for (int j = 0; j < N; ++j) {
            if (rows.exists[h]) *reinterpret_cast<Wide<2>*>(at + 8 * j) = {{c[j][2 * h], c[j][2 * h + 1]}};
        }
    }
}

// Inputs of a step, for a thread's two rows: observations, and whether an episode starts.
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
// c += left (8 columns, group `step` of the depth) times packed weights, the groups of columns from `from` on of OUTS.
template <int OUTS, int N>
FN void add_product(float (&c)[N][4], const Left& left, const float* weights, int step, int from = 0) {
    UNROLL
    for (int j = 0; j < N; ++j) {
        const float* const at = weights + ((step * (OUTS / 8) + from + j) * 8 + warp_lane() / 4) * 8;
        Arithmetic::add_product(c[j], left, Arithmetic::weight(at + first_column()));
    }
}

FN float sigmoid(float x) { return fma(0.5f, approximate_tanh(0.5f * x), 0.5f); }

// A warp's columns of y.
FN void first_layer(float (&y)[OWN_Y][4], const Weights& weights, const StepInputs& inputs) {
    Left      x[INPUTS / 8];
    const int from = member_of_team() * OWN_Y;
    gather(x, inputs.x);
    set_to_bias(y, weights.bias_1 + 8 * from, warp_lane());
    UNROLL
    for (int step = 0; step < INPUTS / 8; ++step) add_product<HIDDEN>(y, x[step], weights.first, step, from);
    FOR_EACH_NUMBER(j, q, OWN_Y) y[j][q] = IS_TANH ? approximate_tanh(y[j][q]) : fast_maximum(y[j][q], 0.0f);
}

// The gates of a warp's units, and the products of the state that the reset gate scales.
struct Gates {
    float reset[OWN][4], update[OWN][4], next[OWN][4], of_state[OWN][4];

    FN Gates(const Weights& weights, const Inputs& inputs) {
        const int from = member_of_team() * OWN, lane = warp_lane();
        set_to_bias(reset, weights.bias[RESET_GATE] + 8 * from, lane);
        set_to_bias(update, weights.bias[UPDATE_GATE] + 8 * from, lane);
        set_to_bias(next, weights.bias[NEW_GATE] + 8 * from, lane);
        set_to_bias(of_state, weights.bias[NEW_FROM_STATE] + 8 * from, lane);
        UNROLL_BY_4
        for (int step = 0; step < HIDDEN / 8; ++step) {  // gates in turn: their products are independent
            const Left y = inputs.y.get(step);
            add_product<UNITS>(reset, y, weights.of_input[RESET_GATE], step, from);
            add_product<UNITS>(update, y, weights.of_input[UPDATE_GATE], step, from);
            add_product<UNITS>(next, y, weights.of_input[NEW_GATE], step, from);
        }
        UNROLL_BY_4
        for (int step = 0; step < UNITS / 8; ++step) {
            const Left h = inputs.states.get(step);
            add_product<UNITS>(reset, h, weights.of_state[RESET_GATE], step, from);
            add_product<UNITS>(update, h, weights.of_state[UPDATE_GATE], step, from);
            add_product<UNITS>(of_state, h, weights.of_state[NEW_GATE], step, from);
        }
        FOR_EACH_NUMBER(j, q, OWN) {
            reset[j][q]  = sigmoid(reset[j][q]);
            update[j][q] = sigmoid(update[j][q]);
            next[j][q]   = approximate_tanh(fma(reset[j][q], of_state[j][q], next[j][q]));
        }
    }
};

// Calls use(tile) with this team's tiles of 16 rows. Few tiles are spread over the blocks.
template <class Call, class Use> FN void for_each_tile(const Call& call, const Use& use) {
    const Index tiles = (call.rows + WARP_ROWS - 1) / WARP_ROWS, apart = Index(block_count()) * TEAMS;
    for (Index tile = block_number() + team_of_block() * block_count(); tile < tiles; tile += apart) use(tile);
}

template <int COLUMNS, int N> FN void put(Exchange<COLUMNS>& to, const float (&c)[N][4]) {
    UNROLL
    for (int j = 0; j < N; ++j) to.put(member_of_team() * N + j, Arithmetic::gather(c + j));
}

// Writes the states after all steps.
template <class Call> FN void forward(const Call& call) {
    auto&     memory = *reinterpret_cast<ForwardMemory*>(staging);
    const int column = member_of_team() * OWN * 8;
    load(memory.weights, nullptr, call);
    for_each_tile(call, [&](Index tile) {
        const TwoRows rows(tile, call.rows);
        float         h[OWN][4], y[OWN_Y][4];
        StepInputs    inputs, next;
        load_rows(h, call.state, UNITS, column, rows);
        next.load(call, 0, rows);
        team_barrier();  // all have read the states of the previous tile
        for (Index step = 0; step < call.steps; ++step) {
            auto& exchanged = memory.inputs[team_of_block()][step % 2];
            inputs          = next;
            clear_started(h, inputs.starts);
            put(exchanged.states, h);
            if (step + 1 < call.steps) next.load(call, step + 1, rows);
            first_layer(y, memory.weights, inputs);
            put(exchanged.y, y);
            team_barrier();
            const Gates gates(memory.weights, exchanged);
            FOR_EACH_NUMBER(j, q, OWN) h[j][q] = fma(gates.update[j][q], h[j][q] - gates.next[j][q], gates.next[j][q]);
            store_rows(call.outputs + step * call.rows * UNITS, UNITS, column, h, rows);
        }
    });
}

// Sums over a team's rows of the gradients of a warp's columns.
template <int N> struct ColumnSums {
    float of[N][2] = {};
    FN void add(const float (&c)[N][4]) {
        UNROLL
        for (int j = 0; j < N; ++j) {
            of[j][0] += c[j][0] + c[j][2];
            of[j][1] += c[j][1] + c[j][3];
        }
    }
    FN void write(float* columns) const {
        UNROLL
        for (int j = 0; j < N; ++j) {
            UNROLL
            for (int p = 0; p < 2; ++p) {
                float sum = of[j][p];
                UNROLL
                for (int distance = WARP / 2; distance >= 4; distance /= 2) sum += shuffle_xor(sum, distance);
                if (warp_lane() < 4) columns[8 * j + first_column() + p] = sum;
            }
        }
    }
};

// Inputs of the backward pass of a step.
struct StepBefore {
    StepInputs inputs;
    float      h[OWN][4], grad[OWN][4];  // the state before it, and the gradient of the state after it

    template <class Call> FN void load(const Call& call, Index step, const TwoRows& rows, int column) {
        inputs.load(call, step, rows);
        const Index  first  = step * call.rows * UNITS;
        const float* before = step == 0 ? call.state : call.outputs + first - call.rows * UNITS;
        load_rows(h, before, UNITS, column, rows);
        load_rows(grad, call.grad_outputs + first, UNITS, column, rows);
    }
};

// Backpropagation through all steps, from the gradients of their outputs. Computes the gates again.
template <class Call> FN void backward(const Call& call) {
    auto&       memory     = *reinterpret_cast<BackwardMemory*>(staging);
    const auto& transposed = memory.transposed;
    const int   team = team_of_block(), member = member_of_team(), column = member * OWN * 8;
    auto&       inputs    = memory.inputs[team];
    auto&       exchanged = memory.gradients[team];
    ColumnSums<OWN>   sums[BIASES];
    ColumnSums<OWN_Y> sums_y;
    load(memory.weights, &memory.transposed, call);
    for_each_tile(call, [&](Index tile) {
        const TwoRows rows(tile, call.rows);
        float         grad_h[OWN][4] = {};  // of the state after the step, from later steps
        StepBefore    now, next;
        next.load(call, call.steps - 1, rows, column);
        for (Index step = call.steps - 1; step >= 0; --step) {
            const Index  first     = step * call.rows;
            float* const gradients = call.gradients + first * GRADIENT_COLUMNS;
            float* const factors   = call.factors + first * FACTOR_COLUMNS;
            now                    = next;
            clear_started(now.h, now.inputs.starts);
            put(inputs.states, now.h);
            if (step > 0) next.load(call, step - 1, rows, column);
            float y[OWN_Y][4];
            first_layer(y, memory.weights, now.inputs);
            put(inputs.y, y);
            team_barrier();  // all have put their inputs, and read the gradients of the later step
            store_rows(factors, FACTOR_COLUMNS, HIDDEN + column, now.h, rows);
            store_rows(factors, FACTOR_COLUMNS, member * OWN_Y * 8, y, rows);
            Gates gates(memory.weights, inputs);
            FOR_EACH_NUMBER(j, q, OWN) {
                const float z = gates.update[j][q], n = gates.next[j][q], r = gates.reset[j][q];
                const float grad     = grad_h[j][q] + now.grad[j][q], grad_n = grad * (1.0f - z) * fma(-n, n, 1.0f);
                grad_h[j][q]         = grad * z;
                gates.update[j][q]   = grad * (now.h[j][q] - n) * z * (1.0f - z);
                gates.next[j][q]     = grad_n;
                gates.reset[j][q]    = grad_n * gates.of_state[j][q] * r * (1.0f - r);
                gates.of_state[j][q] = grad_n * r;
            }
            const auto use = [&](Gate gate, const float (&grad)[OWN][4]) {
                store_rows(gradients, GRADIENT_COLUMNS, gate * UNITS + column, grad, rows);
                sums[gate].add(grad);
                put(exchanged[gate], grad);
            };
            use(RESET_GATE, gates.reset);
            use(UPDATE_GATE, gates.update);
            use(NEW_GATE, gates.next);
            use(NEW_FROM_STATE, gates.of_state);
            team_barrier();  // all have put their gradients, and read the inputs
            float grad_before[GATES][OWN][4] = {}, grad_y[GATES][OWN_Y][4] = {};
            UNROLL_BY_2
            for (int group = 0; group < UNITS / 8; ++group) {
                UNROLL
                for (int gate = 0; gate < GATES; ++gate) {
                    const Left left = exchanged[gate].get(group);
                    const Left of_h = gate == NEW_GATE ? exchanged[NEW_FROM_STATE].get(group) : left;
                    add_product<UNITS>(grad_before[gate], of_h, transposed.of_state[gate], group, member * OWN);
                    add_product<HIDDEN>(grad_y[gate], left, transposed.of_input[gate], group, member * OWN_Y);
                }
            }
            FOR_EACH_NUMBER(j, q, OWN) {
                const float sum = grad_before[0][j][q] + grad_before[1][j][q] + grad_before[2][j][q];
                grad_h[j][q]    = now.inputs.starts[q / 2] ? 0.0f : grad_h[j][q] + sum;
            }
            FOR_EACH_NUMBER(j, q, OWN_Y) {
                const float out = y[j][q], sum = grad_y[0][j][q] + grad_y[1][j][q] + grad_y[2][j][q];
                grad_y[0][j][q] = IS_TANH ? sum * fma(-out, out, 1.0f) : out > 0 ? sum : 0.0f;
            }
            sums_y.add(grad_y[0]);
            store_rows(call.grad_first + first * HIDDEN, HIDDEN, member * OWN_Y * 8, grad_y[0], rows);
        }
    });
    float* const of_team = call.sums + (block_number() * TEAMS + team) * SUM_COLUMNS;
    UNROLL
    for (int gate = 0; gate < BIASES; ++gate) sums[gate].write(of_team + gate * UNITS + column);
    sums_y.write(of_team + GRADIENT_COLUMNS + member * OWN_Y * 8);
}
