// A policy's trunk with memory: a first layer and a GRU, over sequences of steps. CUDA only.
//
// y = activation(W x + b), h' = n + z (h - n), where r = sigmoid(W_ir y + W_hr h), z = sigmoid(W_iz y + W_hz h) and
// n = tanh(W_in y + r (W_hn h)); all of these products have biases. h is zero where an episode starts.
//
// A team of warps takes tiles of 16 rows through all steps. A warp has 8 units: their states and weights are in its
// registers, in the layout of tensor_core.cuh, and the team exchanges factors of products through shared memory. The
// transposed weights of `backward` are in shared memory, too: no registers are left for them.
//
// Generated before it: FEATURES, HIDDEN (y's columns), UNITS (h's columns), IS_TANH (otherwise relu) and WARPS.

using Arithmetic = Tf32;
using Left       = Arithmetic::Left;
using Right      = Arithmetic::Right;

constexpr int THREADS = WARPS * WARP;
constexpr int INPUTS  = (FEATURES + 7) / 8 * 8;
constexpr int OWN     = 1;  // groups of 8 units of a warp
constexpr int TEAM    = UNITS / 8 / OWN, TEAMS = WARPS / TEAM;
constexpr int OWN_Y   = HIDDEN > 8 * TEAM ? HIDDEN / 8 / TEAM : 1;  // groups of 8 columns of y of a warp
static_assert(WARPS % TEAM == 0);
constexpr int TILES = 2;  // that a team takes through `forward` at once, if there are as many; otherwise one
static_assert(TILES <= 2);  // a rest of several tiles would be left out
// Groups of 8 rows of transposed weights in an iteration of a loop: with more, registers spill.
constexpr int GROUPS_AT_ONCE = HIDDEN > UNITS ? 1 : 4;

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

struct Inputs {
    Exchange<HIDDEN> y;
    Exchange<UNITS>  states;
};
using ForwardMemory = Inputs[TEAMS][2][TILES];  // of even and of odd steps; a team's place is always the same
struct BackwardMemory {  // the transposed weights
    alignas(16) float of_input[GATES][UNITS * HIDDEN];
    float           of_state[GATES][UNITS * UNITS];
    Inputs          inputs[TEAMS];
    Exchange<UNITS> gradients[TEAMS][BIASES];
};

FN int  team_of_block()   { return thread_rank() / WARP / TEAM; }
FN int  member_of_team()  { return thread_rank() / WARP % TEAM; }
// The first group of a warp's columns of y. Warps of a team that are left over compute columns of others again.
FN int  group_of_y()      { return member_of_team() * OWN_Y % (HIDDEN / 8); }
FN bool has_own_y()       { return member_of_team() * OWN_Y < HIDDEN / 8; }
FN void team_barrier() {
    asm volatile("bar.sync %0, %1;" ::"r"(team_of_block() + 1), "n"(TEAM * WARP) : "memory");
}

FN int first_column() { return warp_lane() % 4 * 2; }

// A warp's columns of the weights [OUT, IN] and of the biases, as a thread needs them for products: in registers, so
// that all indices must be compile-time constants.
struct Weights {
    Right first[INPUTS / 8][OWN_Y], of_input[HIDDEN / 8][GATES][OWN], of_state[UNITS / 8][GATES][OWN];
    float bias_1[OWN_Y][2], bias[BIASES][OWN][2];

    template <int IN, int N> FN static void load(Right (&right)[N], const float* weights, int step, int group) {
        UNROLL
        for (int j = 0; j < N; ++j) {
            const float* const row = weights + (8 * (group + j) + warp_lane() / 4) * IN;
            UNROLL
            for (int p = 0; p < 2; ++p) {
                const int in  = 8 * step + first_column() + p;
                right[j].x[p] = in < IN ? Arithmetic::rounded(row[in]) : 0;
            }
        }
    }

    template <class Call> FN explicit Weights(const Call& call) {
        const int group = member_of_team() * OWN, group_y = group_of_y();
        UNROLL
        for (int step = 0; step < INPUTS / 8; ++step) load<FEATURES>(first[step], call.weight_1, step, group_y);
        UNROLL
        for (int gate = 0; gate < GATES; ++gate) {
            const int group_of_gate = gate * UNITS / 8 + group;
            UNROLL
            for (int step = 0; step < HIDDEN / 8; ++step)
                load<HIDDEN>(of_input[step][gate], call.weight_ih, step, group_of_gate);
            UNROLL
            for (int step = 0; step < UNITS / 8; ++step)
                load<UNITS>(of_state[step][gate], call.weight_hh, step, group_of_gate);
        }
        UNROLL
        for (int p = 0; p < 2; ++p) {
            UNROLL
            for (int j = 0; j < OWN_Y; ++j) bias_1[j][p] = call.bias_1[8 * (group_y + j) + first_column() + p];
            UNROLL
            for (int j = 0; j < OWN; ++j) {
                const int          unit     = 8 * (group + j) + first_column() + p;
                const float* const of_input = call.bias_ih + unit;
                const float* const of_state = call.bias_hh + unit;
                bias[RESET_GATE][j][p]      = of_input[RESET_GATE * UNITS] + of_state[RESET_GATE * UNITS];
                bias[UPDATE_GATE][j][p]     = of_input[UPDATE_GATE * UNITS] + of_state[UPDATE_GATE * UNITS];
                bias[NEW_GATE][j][p]        = of_input[NEW_GATE * UNITS];
                bias[NEW_FROM_STATE][j][p]  = of_state[NEW_GATE * UNITS];
            }
        }
    }
};

// Copies a matrix [OUT, IN] in the order in which products with its transpose read it: 8 outputs of an input, then as
// many of the next input. All threads call it.
template <int OUT, int IN> FN void transpose(float (&to)[OUT * IN], const float* weights) {
    constexpr int each = OUT * IN / THREADS;
    float         loaded[each];
    UNROLL
    for (int k = 0; k < each; ++k) {
        const int e = k * THREADS + thread_rank();
        loaded[k]   = weights[(e / (8 * IN) * 8 + e % 8) * IN + e / 8 % IN];
    }
    UNROLL
    for (int k = 0; k < each; ++k) to[k * THREADS + thread_rank()] = Arithmetic::stored(loaded[k]);
}

// A thread's two of a warp's 16 rows.
struct TwoRows {
    Index row[2];
    bool  exists[2];
    TwoRows() = default;
    FN TwoRows(Index tile, Index rows) {
        FOR_BOTH_ROWS(h) {
            row[h]    = tile * WARP_ROWS + warp_lane() / 4 + 8 * h;
            exists[h] = row[h] < rows;
        }
    }
};

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
// c += left (8 columns of the depth) times weights, of N groups of columns.
template <int N> FN void add_product(float (&c)[N][4], const Left& left, const Right (&right)[N]) {
    UNROLL
    for (int j = 0; j < N; ++j) Arithmetic::add_product(c[j], left, right[j]);
}
// The same with transposed weights of OUTS columns, of which the first is that of group `from`.
template <int OUTS, int N>
FN void add_product(float (&c)[N][4], const Left& left, const float* weights, int step, int from) {
    UNROLL
    for (int j = 0; j < N; ++j) {
        const float* const at = weights + ((step * (OUTS / 8) + from + j) * 8 + warp_lane() / 4) * 8;
        Arithmetic::add_product(c[j], left, Arithmetic::weight(at + first_column()));
    }
}
template <int N> FN void set_to(float (&c)[N][4], const float (&bias)[N][2]) {
    FOR_EACH_NUMBER(j, q, N) c[j][q] = bias[j][q % 2];
}

FN float sigmoid(float x) { return fma(0.5f, approximate_tanh(0.5f * x), 0.5f); }

// A warp's columns of y.
FN void first_layer(float (&y)[OWN_Y][4], const Weights& weights, const StepInputs& inputs) {
    set_to(y, weights.bias_1);
    UNROLL
    for (int step = 0; step < INPUTS / 8; ++step)
        add_product(y, Arithmetic::gather(inputs.x + step), weights.first[step]);
    FOR_EACH_NUMBER(j, q, OWN_Y) y[j][q] = IS_TANH ? approximate_tanh(y[j][q]) : fast_maximum(y[j][q], 0.0f);
}

// The gates of a warp's units, and the products of the state that the reset gate scales.
struct Gates {
    float reset[OWN][4], update[OWN][4], candidate[OWN][4], of_state[OWN][4];

    // Computes the gates of N tiles. Successive products are of different tiles or gates: they are independent.
    template <int N> FN static void compute(Gates (&gates)[N], const Weights& weights, const Inputs* inputs) {
        UNROLL
        for (int t = 0; t < N; ++t) {
            set_to(gates[t].reset, weights.bias[RESET_GATE]);
            set_to(gates[t].update, weights.bias[UPDATE_GATE]);
            set_to(gates[t].candidate, weights.bias[NEW_GATE]);
            set_to(gates[t].of_state, weights.bias[NEW_FROM_STATE]);
        }
        const auto add = [&](const Left (&left)[N], const Right (&right)[GATES][OWN], float (Gates::*of_new)[OWN][4]) {
            UNROLL
            for (int t = 0; t < N; ++t) add_product(gates[t].reset, left[t], right[RESET_GATE]);
            UNROLL
            for (int t = 0; t < N; ++t) add_product(gates[t].update, left[t], right[UPDATE_GATE]);
            UNROLL
            for (int t = 0; t < N; ++t) add_product(gates[t].*of_new, left[t], right[NEW_GATE]);
        };
        Left left[N];
        UNROLL
        for (int step = 0; step < UNITS / 8; ++step) {
            UNROLL
            for (int t = 0; t < N; ++t) left[t] = inputs[t].states.get(step);
            add(left, weights.of_state[step], &Gates::of_state);
        }
        UNROLL
        for (int step = 0; step < HIDDEN / 8; ++step) {
            UNROLL
            for (int t = 0; t < N; ++t) left[t] = inputs[t].y.get(step);
            add(left, weights.of_input[step], &Gates::candidate);
        }
        UNROLL
        for (int t = 0; t < N; ++t) {
            FOR_EACH_NUMBER(j, q, OWN) {
                Gates& of       = gates[t];
                of.reset[j][q]  = sigmoid(of.reset[j][q]);
                of.update[j][q] = sigmoid(of.update[j][q]);
                of.candidate[j][q] = approximate_tanh(fma(of.reset[j][q], of.of_state[j][q], of.candidate[j][q]));
            }
        }
    }
};

// A team's tiles of 16 rows. Few tiles are spread over the blocks.
struct TeamTiles {
    Index first, apart, end;
    FN explicit TeamTiles(Index rows)
        : first(block_number() + team_of_block() * block_count()), apart(Index(block_count()) * TEAMS),
          end((rows + WARP_ROWS - 1) / WARP_ROWS) {}
};

template <int COLUMNS, int N> FN void put(Exchange<COLUMNS>& to, const float (&c)[N][4]) {
    UNROLL
    for (int j = 0; j < N; ++j) to.put(member_of_team() * N + j, Arithmetic::gather(c + j));
}

// Takes a team's next AT_ONCE tiles through all steps: writes the states.
template <int AT_ONCE, class Call> FN void forward(const Call& call, const Weights& weights, Index tile, Index apart) {
    auto& memory = *reinterpret_cast<ForwardMemory*>(staging);
    struct {
        TwoRows    rows;
        float      h[OWN][4];
        StepInputs inputs;
    } tiles[AT_ONCE];
    const int column = member_of_team() * OWN * 8;
    UNROLL
    for (int t = 0; t < AT_ONCE; ++t) {
        tiles[t].rows = TwoRows(tile + t * apart, call.rows);
        load_rows(tiles[t].h, call.state, UNITS, column, tiles[t].rows);
        tiles[t].inputs.load(call, 0, tiles[t].rows);
    }
    team_barrier();  // all have read the states of the previous tiles
    for (Index step = 0; step < call.steps; ++step) {
        auto& exchanged = memory[team_of_block()][step % 2];
        UNROLL
        for (int t = 0; t < AT_ONCE; ++t) {
            float y[OWN_Y][4];
            clear_started(tiles[t].h, tiles[t].inputs.starts);
            put(exchanged[t].states, tiles[t].h);
            first_layer(y, weights, tiles[t].inputs);
            if (has_own_y()) put(exchanged[t].y, y);
            tiles[t].inputs.load(call, step + 1 < call.steps ? step + 1 : step, tiles[t].rows);  // a branch is slower
        }
        team_barrier();
        Gates gates[AT_ONCE];
        Gates::compute(gates, weights, exchanged);
        UNROLL
        for (int t = 0; t < AT_ONCE; ++t) {
            auto& h = tiles[t].h;
            FOR_EACH_NUMBER(j, q, OWN) {
                const float n = gates[t].candidate[j][q];
                h[j][q]       = fma(gates[t].update[j][q], h[j][q] - n, n);
            }
            store_rows(call.outputs + step * call.rows * UNITS, UNITS, column, h, tiles[t].rows);
        }
    }
}
template <class Call> FN void forward(const Call& call) {
    const Weights   weights(call);
    const TeamTiles tiles(call.rows);
    for (Index tile = tiles.first; tile < tiles.end; tile += TILES * tiles.apart) {
        if (tile + (TILES - 1) * tiles.apart < tiles.end) forward<TILES>(call, weights, tile, tiles.apart);
        else forward<1>(call, weights, tile, tiles.apart);
    }
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
    const int   team = team_of_block(), member = member_of_team(), column = member * OWN * 8, column_y = group_of_y() * 8;
    auto&       inputs    = memory.inputs[team];
    auto&       exchanged = memory.gradients[team];
    ColumnSums<OWN>   sums[BIASES];
    ColumnSums<OWN_Y> sums_y;
    const Weights     weights(call);
    const TeamTiles   tiles(call.rows);
    for (int gate = 0; gate < GATES; ++gate) {
        transpose<UNITS, HIDDEN>(memory.of_input[gate], call.weight_ih + gate * UNITS * HIDDEN);
        transpose<UNITS, UNITS>(memory.of_state[gate], call.weight_hh + gate * UNITS * UNITS);
    }
    block_barrier();
    for (Index tile = tiles.first; tile < tiles.end; tile += tiles.apart) {
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
            next.load(call, step > 0 ? step - 1 : 0, rows, column);
            float y[OWN_Y][4];
            first_layer(y, weights, now.inputs);
            if (has_own_y()) put(inputs.y, y);
            team_barrier();  // all have put their inputs, and read the gradients of the later step
            store_rows(factors, FACTOR_COLUMNS, HIDDEN + column, now.h, rows);
            if (has_own_y()) store_rows(factors, FACTOR_COLUMNS, column_y, y, rows);
            Gates all_gates[1];
            Gates::compute(all_gates, weights, &inputs);
            Gates& gates = all_gates[0];
            FOR_EACH_NUMBER(j, q, OWN) {
                const float z = gates.update[j][q], n = gates.candidate[j][q], r = gates.reset[j][q];
                const float grad     = grad_h[j][q] + now.grad[j][q], grad_n = grad * (1.0f - z) * fma(-n, n, 1.0f);
                grad_h[j][q]         = grad * z;
                gates.update[j][q]   = grad * (now.h[j][q] - n) * z * (1.0f - z);
                gates.candidate[j][q] = grad_n;
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
            use(NEW_GATE, gates.candidate);
            use(NEW_FROM_STATE, gates.of_state);
            team_barrier();  // all have put their gradients, and read the inputs
            float grad_before[GATES][OWN][4] = {}, grad_y[GATES][OWN_Y][4] = {};
            _Pragma("unroll GROUPS_AT_ONCE")
            for (int group = 0; group < UNITS / 8; ++group) {
                UNROLL
                for (int gate = 0; gate < GATES; ++gate) {
                    const Left left = exchanged[gate].get(group);
                    const Left of_h = gate == NEW_GATE ? exchanged[NEW_FROM_STATE].get(group) : left;
                    add_product<UNITS>(grad_before[gate], of_h, memory.of_state[gate], group, member * OWN);
                    add_product<HIDDEN>(grad_y[gate], left, memory.of_input[gate], group, group_of_y());
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
            if (has_own_y()) store_rows(call.grad_first + first * HIDDEN, HIDDEN, column_y, grad_y[0], rows);
        }
    }
    float* const of_team = call.sums + (block_number() * TEAMS + team) * SUM_COLUMNS;
    UNROLL
    for (int gate = 0; gate < BIASES; ++gate) sums[gate].write(of_team + gate * UNITS + column);
    if (has_own_y()) sums_y.write(of_team + GRADIENT_COLUMNS + column_y);
}
