// The gradient of a minibatch's loss with respect to one network's weights, by warpgroups, on Hopper.
//
// A warpgroup runs 64 samples forward and backward, with activations in registers. It stores activations and gradients
// in shared memory, transposed; their products, the weights' gradients, accumulate in registers while the next layer is
// computed.

constexpr int GROUPS  = THREADS / GROUP;
constexpr int X_LINES = padded(FEATURES + 1, 8), Y_LINES = HIDDEN_1 + 8;  // with a line of ones
static_assert(HIDDEN_1 == GROUP_ROWS && HIDDEN_2 == GROUP_ROWS);

template <int OUTPUTS> struct GroupNet {
    static constexpr int OUTS = padded(OUTPUTS, 8), BACK_OUTS = padded(OUTPUTS, DEPTH);
    GroupTile<HIDDEN_1, INPUTS>    first;
    GroupTile<HIDDEN_2, HIDDEN_1>  second;
    GroupTile<HIDDEN_1, HIDDEN_2>  second_back;
    GroupTile<OUTS, HIDDEN_2>      third;
    GroupTile<HIDDEN_2, BACK_OUTS> third_back;
    alignas(16) float bias_1[HIDDEN_1];
    float bias_2[HIDDEN_2];
    float bias_3[OUTS];
    float mean[INPUTS], inverse[INPUTS];
};

// A warpgroup's tiles: inputs x, hidden layers' activations y and z, gradients of z's pre-activations and of outputs.
template <int OUTPUTS> struct GroupSamples {
    GroupTile<X_LINES, GROUP_ROWS>         x;
    GroupTile<Y_LINES, GROUP_ROWS>         y;
    GroupTile<HIDDEN_2, GROUP_ROWS>        z;  // reused for the gradients of the first layer's pre-activations
    GroupTile<HIDDEN_2, GROUP_ROWS>        grad_z;
    GroupTile<padded(OUTPUTS, 8), GROUP_ROWS> grad_out;
};

template <int OUTPUTS, int GROUPS> struct GroupMemory {
    GroupNet<OUTPUTS>     net;
    GroupSamples<OUTPUTS> samples[GROUPS];
    alignas(16) float outputs[GROUPS * GROUP * ROW_STRIDE];
    float sums[GROUPS * GROUP / WARP][SUMS], grad_bias_3[GROUPS * GROUP / WARP][OUTPUTS];
    u32   bases[GROUPS + 1];

    FN static GroupMemory& of_block() {
        return *reinterpret_cast<GroupMemory*>(aligned_shared_memory(alignof(GroupMemory)));
    }
};

// Shared memory of a block of one to three warpgroups, with room for the alignment.
FN constexpr u64 bytes_of_groups(int groups) {
    if (groups == 1) return sizeof(GroupMemory<PARAMETERS, 1>) + 1024;
    return (groups == 2 ? sizeof(GroupMemory<PARAMETERS, 2>) : sizeof(GroupMemory<PARAMETERS, 3>)) + 1024;
}
// Maximum warpgroups of a block. With three, a thread has 168 registers, too few for long heads and inputs.
FN constexpr int max_groups() {
    int groups = PARAMETERS <= 8 && FEATURES < 32 ? 3 : 2;
    while (groups > 0 && bytes_of_groups(groups) > MAX_SHARED_BYTES) --groups;
    return groups;
}
constexpr int UPDATE_BLOCKS = 1;

// Accumulators are numbered fragments of 8 columns.
constexpr int FRAGMENTS_1 = X_LINES / 8, FRAGMENTS_2 = FRAGMENTS_1 + Y_LINES / 8;
constexpr int FRAGMENTS   = FRAGMENTS_2 + GroupNet<PARAMETERS>::OUTS / 8;

constexpr int HALF        = (FRAGMENTS + 1) / 2;  // fragments that a warpgroup of two sums over both

// Warpgroups of a block that can be several workers in turn: two, if a half fits into two of a warpgroup's tiles and
// its sums into registers (8 fragments are 32); 0: none.
constexpr bool HALF_FITS = HALF * 4 * GROUP * sizeof(float) <= 2 * sizeof(GroupSamples<1>::z) && HALF <= 8;
constexpr int  IN_TURN_GROUPS = HALF_FITS ? 2 : 0;

// Whether actor and critic run the same code: it compiles in half the time, and is faster in TF32 but slower in bf16.
constexpr bool ONE_PROGRAM = GroupNet<PARAMETERS>::OUTS == GroupNet<1>::OUTS && sizeof(Stored) == sizeof(float);

// A layer's weights, an OUT x IN matrix, on their way into the tiles of both passes. `real_outs` outputs have weights,
// `tile_outs` fit the forward tile; the rest is zero.
template <int IN, int OUT> struct LayerWeights {
    static constexpr int INS = padded(IN, DEPTH), COUNT = INS * padded(OUT, DEPTH);
    float weights[(COUNT + THREADS - 1) / THREADS];

    FN LayerWeights(const float* from, int real_outs) {
        for_each([&](float& weight, int in, int out) {
            weight = in < IN && out < real_outs ? from[out * IN + in] : 0.0f;
        });
    }
    template <class ForwardTile, class BackwardTile>
    FN void store(ForwardTile& forward, int tile_outs, BackwardTile* backward) {
        for_each([&](float weight, int in, int out) {
            const Stored stored = Arithmetic::stored(weight);
            if (out < tile_outs) *forward.at(out, Arithmetic::depth_slot(in)) = stored;
            if (backward != nullptr && in < IN) *backward->at(in, Arithmetic::depth_slot(out)) = stored;
        });
    }
    template <class Use> FN void for_each(const Use& use) {
        UNROLL
        for (int k = 0; k * THREADS < COUNT; ++k) {
            const int e = k * THREADS + thread_rank();
            if (e < COUNT) use(weights[k], e % INS, e / INS);
        }
    }
};

// Loads a network. The last layer has `rows` outputs; the other `outputs` are log standard deviations, as biases.
template <int OUTPUTS>
FN void load(GroupNet<OUTPUTS>& net, const float* flat, const Offsets& at, int rows, int outputs, const Scale& scale) {
    LayerWeights<FEATURES, HIDDEN_1> first(flat + at.weight_1, HIDDEN_1);  // all loads before any store
    LayerWeights<HIDDEN_1, HIDDEN_2> second(flat + at.weight_2, HIDDEN_2);
    LayerWeights<HIDDEN_2, OUTPUTS>  third(flat + at.weight_3, rows);
    first.store(net.first, HIDDEN_1, static_cast<GroupTile<8, DEPTH>*>(nullptr));
    second.store(net.second, HIDDEN_2, &net.second_back);
    third.store(net.third, net.OUTS, &net.third_back);
    const int j = thread_rank();
    if (j < HIDDEN_1) net.bias_1[j] = flat[at.bias_1 + j];
    if (j < HIDDEN_2) net.bias_2[j] = flat[at.bias_2 + j];
    if (j < net.OUTS) {
        const bool stds = rows <= j && j < outputs;
        net.bias_3[j]   = j < rows ? flat[at.bias_3 + j]
                          : stds   ? clip(flat[at.log_std + j - rows], LOG_STD_LOW, LOG_STD_HIGH)
                                    : 0.0f;
    }
    if (j < INPUTS) {
        const bool scaled = scale.mean != nullptr && j < FEATURES;
        net.mean[j]       = scaled ? scale.mean[j] : 0.0f;
        net.inverse[j]    = scaled ? scale.inverse[j] : 1.0f;
    }
}

// The inputs of a layer end with a line of ones, whose column of the gradient is the gradient of the biases.
template <class Role, class Call> struct Learner {
    static constexpr bool IN_TURN = SEVERAL && GROUPS == IN_TURN_GROUPS;
    static constexpr int OUTPUTS = Role::OUTPUTS;
    static constexpr int OUTS = GroupNet<OUTPUTS>::OUTS, BACK_OUTS = GroupNet<OUTPUTS>::BACK_OUTS;
    static constexpr int STEPS_1 = HIDDEN_1 / DEPTH, STEPS_2 = HIDDEN_2 / DEPTH;
    const Role             role;
    using Memory = GroupMemory<OUTPUTS, GROUPS>;
    static_assert(sizeof(GroupMemory<1, GROUPS>) <= sizeof(GroupMemory<PARAMETERS, GROUPS>));
    Memory&                memory;
    GroupSamples<OUTPUTS>& tiles;
    const Call&            call;
    SampleLoss<Call>       loss;
    Scale                  scale;
    TileBase               net_base, tiles_base;
    int                    lane, warp;
    float sums[IN_TURN ? HALF : 1][4] = {}, sum_of_bias = 0, sum_of_loss = 0;  // over workers in turn
    float grad_1[X_LINES / 8][4] = {}, grad_2[Y_LINES / 8][4] = {}, grad_3[OUTS / 8][4] = {}, grad_bias_3[OUTPUTS] = {};

    FN Learner(const Role& role_, const Call& call_, const Offsets& offsets, int rows)
        : role(role_), memory(Memory::of_block()), tiles(memory.samples[group_of_block()]), call(call_),
          loss(call_), scale{call_.mean, call_.inverse, call_.limit},
          net_base(&memory.net, &memory.net, memory.bases + GROUPS),
          tiles_base(memory.samples, &tiles, memory.bases + group_of_block()), lane(warp_lane()),
          warp(thread_rank() / WARP) {
        load<OUTPUTS>(memory.net, call.flat, offsets, rows, role.outputs(), scale);
        for (int e = thread_rank() % GROUP; e < 8 * GROUP_ROWS; e += GROUP) {  // ones and padding, for all tiles
            const int    line  = e / GROUP_ROWS, row = e % GROUP_ROWS;
            const Stored value = Arithmetic::stored(line == 0 ? 1.0f : 0.0f);
            *tiles.y.at(HIDDEN_1 + line, row) = value;
            if (X_LINES - 8 >= INPUTS) *tiles.x.at(X_LINES - 8 + line, row) = value;
            *tiles.grad_out.at(OUTS - 8 + line, row) = Arithmetic::stored(0.0f);
        }
        publish();
        block_barrier();
    }

    // Starts the next worker, of several in turn. (Before the first too: otherwise ptxas would serialise the products.)
    FN void begin() {
        block_barrier();  // the other warpgroup has read what this one gave it of the previous worker's sums
        for_each_fragment([](int, float (&c)[4]) {
            UNROLL
            for (int q = 0; q < 4; ++q) c[q] = 0;
        });
        fence_registers(grad_1);
        fence_registers(grad_2);
        fence_registers(grad_3);
        UNROLL
        for (int j = 0; j < OUTPUTS; ++j) grad_bias_3[j] = 0;
        loss.clear();
    }

    FN void add_tile(SampleRow& sample, Index after_next) {
        const auto&  net     = memory.net;
        const auto&  layout  = memory.samples[0];
        float* const outputs = memory.outputs + warp * WARP * ROW_STRIDE;
        net_base.reload(memory.bases + GROUPS);
        tiles_base.reload(memory.bases + group_of_block());
        clear_inactive(sample, lane);
        normalise(sample.x, net, scale, lane);
        const Sample current = advance_sample(sample, role, call, after_next);
        Left left_y[STEPS_1], left_z[STEPS_2];
        {
            Left left_x[INPUTS / DEPTH];
            gather(left_x, sample.x);
            fence_registers(left_x);
            float y[HIDDEN_1 / 8][4];
            set_to_bias(y, net.bias_1, lane);
            wait_products<0>();  // of the previous tile; else the compiler serialises them with the next products
            multiply_now(y, left_x, net.first);
            activate(y);
            group_barrier();  // all warps have finished the previous tile
            store_inputs(sample.x);
            fetch_inputs(sample, call, lane);
            tiles.y.store_rows(y);
            gather(left_y, y);
            fence_registers(left_y);
        }
        {
            float z[HIDDEN_2 / 8][4];
            set_to_bias(z, net.bias_2, lane);
            multiply_now(z, left_y, net.second);
            activate(z);
            tiles.z.store_rows(z);
            gather(left_z, z);
            fence_registers(left_z);
        }
        {
            float out[OUTS / 8][4];
            set_to_bias(out, net.bias_3, lane);
            multiply_now(out, left_z, net.third);
            store_outputs<OUTPUTS>(outputs, ROW_STRIDE, out, lane);
        }
        warp_barrier();
        add_loss(role, loss, current, memory.outputs, outputs + lane * ROW_STRIDE);
        warp_barrier();
        if (lane < WARP_ROWS) {
            const int row = tiles.grad_out.row_slot(warp % 4 * WARP_ROWS + lane);
            UNROLL
            for (int j = 0; j < OUTPUTS; ++j) {
                const float grad = outputs[lane * ROW_STRIDE + j];
                grad_bias_3[j] += grad;
                *tiles.grad_out.at(j, row) = Arithmetic::stored(grad);
            }
        }
        Left left_grad_z[STEPS_2];
        {
            float grad_out[BACK_OUTS / 8][4], grad_z[HIDDEN_2 / 8][4];
            fetch_outputs<OUTPUTS>(grad_out, outputs, lane);
            Left left_grad_out[BACK_OUTS / DEPTH];
            gather(left_grad_out, grad_out);
            fence_registers(left_grad_out);
            publish();
            group_barrier();
            start_products();
            multiply_rows(grad_z, left_grad_out, net.third_back, net_base, false);
            commit_products();
            multiply_tiles(grad_3, layout.z, layout.grad_out, tiles_base);
            commit_products();
            float z[HIDDEN_2 / 8][4];
            tiles.z.load_rows(z);
            wait_products<1>();
            fence_registers(grad_z);
            multiply_by_slope(grad_z, z);
            tiles.grad_z.store_rows(grad_z);
            gather(left_grad_z, grad_z);
            fence_registers(left_grad_z);
            wait_products<0>();  // after the next barrier z, which these products read, is overwritten
            fence_registers(grad_3);
        }
        publish();
        group_barrier();
        float grad_y[HIDDEN_1 / 8][4], y[HIDDEN_1 / 8][4];
        start_products();
        multiply_rows(grad_y, left_grad_z, net.second_back, net_base, false);
        commit_products();
        multiply_tiles(grad_2, layout.grad_z, layout.y, tiles_base);
        commit_products();
        wait_products<1>();
        fence_registers(grad_y);
        tiles.y.load_rows(y);
        multiply_by_slope(grad_y, y);
        tiles.z.store_rows(grad_y);
        publish();
        group_barrier();
        start_products();
        multiply_tiles(grad_1, layout.z, layout.x, tiles_base);
        commit_products();
    }

    template <int N, int STEPS, class Right>
    FN void multiply_now(float (&c)[N][4], const Left (&rows)[STEPS], const Right& right) const {
        fence_registers(c);
        start_products();
        multiply_rows(c, rows, right, net_base);
        commit_products();
        wait_products<0>();
        fence_registers(c);
    }

    FN void store_inputs(const InputRows& x) {
        constexpr int groups = (INPUTS < X_LINES ? INPUTS : X_LINES) / 8;
        float with_ones[groups][4];
        FOR_EACH_NUMBER(j, q, groups) with_ones[j][q] = 8 * j + lane % 4 * 2 + q % 2 == FEATURES ? 1.0f : x[j][q];
        tiles.x.store_rows(with_ones);
    }

    FN void write(float* partial, const Offsets& at, int rows) {
        wait_products<0>();
        fence_registers(grad_1);
        fence_registers(grad_2);
        sum_over_groups();
        if (group_of_block() == GROUPS - 1) {
            for_each_fragment([&](int f, const float (&c)[4]) {
                UNROLL
                for (int q = 0; q < 4; ++q) {
                    const int place = place_of(f, q, at, rows);
                    if (place >= 0) partial[place] = c[q];
                }
            });
        }
        sum_over_warps([&](int s, float sum) { partial[call.parameters + s] = sum; },
                       [&](int j, float sum) { partial[place_of_bias(j, at, rows)] = sum; });
    }

    // Adds the sums of both warpgroups, in the order of write(), and adds the result to the sums of earlier workers.
    FN void add_to_sums() {
        wait_products<0>();
        fence_registers(grad_1);
        fence_registers(grad_2);
        group_barrier();  // the group's products have read the tiles z and grad_z, which the exchanged sums replace
        const int    group = group_of_block(), thread = thread_rank() % GROUP;
        float* const given = reinterpret_cast<float*>(&memory.samples[group].z) + thread;
        float* const taken = reinterpret_cast<float*>(&memory.samples[1 - group].z) + thread;
        for_each_fragment([&](int f, const float (&c)[4]) {
            UNROLL
            for (int q = 0; q < 4; ++q) {
                if (f % 2 != group) given[(f / 2 * 4 + q) * GROUP] = c[q];
            }
        });
        sum_over_warps([&](int, float sum) { sum_of_loss += sum; }, [&](int, float sum) { sum_of_bias += sum; });
        for_each_fragment([&](int f, const float (&c)[4]) {
            UNROLL
            for (int q = 0; q < 4; ++q) {
                if (f % 2 == group) sums[f / 2][q] += c[q] + taken[(f / 2 * 4 + q) * GROUP];
            }
        });
    }

    // Writes the sums of all workers since the last call; not for the `first` time: adds them.
    FN void write_sums(float* partial, const Offsets& at, int rows, bool first) {
        const auto put = [&](int place, float& sum) {
            partial[place] = first ? sum : partial[place] + sum;
            sum            = 0;
        };
        FOR_EACH_NUMBER(half, q, HALF) {
            const int f = 2 * half + group_of_block(), place = f < FRAGMENTS ? place_of(f, q, at, rows) : -1;
            if (place >= 0) put(place, sums[half][q]);
        }
        const int j = thread_rank();
        if (j < role.outputs()) put(place_of_bias(j, at, rows), sum_of_bias);
        if (j < SUMS && (j == VALUE_LOSS) != role.is_actor) put(call.parameters + j, sum_of_loss);
    }

    // Calls use_loss(s, sum) with the loss's sums over warps, and use_bias(j, sum) with the last layer's biases.
    template <class UseLoss, class UseBias> FN void sum_over_warps(const UseLoss& use_loss, const UseBias& use_bias) {
        UNROLL
        for (int j = 0; j < OUTPUTS; ++j) {
            const float sum = warp_sum(grad_bias_3[j]);
            if (lane == 0) memory.grad_bias_3[warp][j] = sum;
        }
        loss.sum_over_warps(memory.sums, role.is_actor, !role.is_actor, [] { block_barrier(); }, use_loss);
        const int j = thread_rank();
        if (j < role.outputs()) {
            float sum = 0;
            for (int w = 0; w < WARPS; ++w) sum += memory.grad_bias_3[w][j];
            use_bias(j, sum);
        }
    }

    // Sums gradients over warpgroups, in their order, in the memory of the samples; the last warpgroup has the sums.
    FN void sum_over_groups() {
        static_assert((X_LINES + Y_LINES + OUTS) / 2 * GROUP * sizeof(float) <= sizeof(memory.samples));
        float* const scratch = reinterpret_cast<float*>(memory.samples) + thread_rank() % GROUP;
        for (int g = 0; g < GROUPS; ++g) {
            block_barrier();
            if (g != group_of_block()) continue;
            for_each_fragment([&](int f, float (&c)[4]) {
                UNROLL
                for (int q = 0; q < 4; ++q) {
                    float& element = scratch[(4 * f + q) * GROUP];
                    if (g > 0) c[q] += element;
                    if (g < GROUPS - 1) element = c[q];
                }
            });
        }
    }

    // Calls use(fragment, c) with the thread's accumulators of each fragment.
    template <class Use> FN void for_each_fragment(const Use& use) {
        UNROLL
        for (int j = 0; j < X_LINES / 8; ++j) use(j, grad_1[j]);
        UNROLL
        for (int j = 0; j < Y_LINES / 8; ++j) use(FRAGMENTS_1 + j, grad_2[j]);
        UNROLL
        for (int j = 0; j < OUTS / 8; ++j) use(FRAGMENTS_2 + j, grad_3[j]);
    }

    // The parameter whose gradient is in the thread's accumulator q of a fragment; -1: none.
    FN int place_of(int fragment, int q, const Offsets& at, int rows) const {
        const int row = warp % 4 * WARP_ROWS + lane / 4 + q / 2 * 8, column = lane % 4 * 2 + q % 2;
        if (fragment < FRAGMENTS_1) return place_in(FEATURES, at.weight_1, at.bias_1, row, 8 * fragment + column);
        const int of_2 = 8 * (fragment - FRAGMENTS_1) + column, of_3 = 8 * (fragment - FRAGMENTS_2) + column;
        if (fragment < FRAGMENTS_2) return place_in(HIDDEN_1, at.weight_2, at.bias_2, row, of_2);
        return of_3 < rows ? at.weight_3 + of_3 * HIDDEN_2 + row : -1;
    }
    FN static int place_in(int columns, int weights, int bias, int row, int column) {
        return column < columns ? weights + row * columns + column : column == columns ? bias + row : -1;
    }
    FN static int place_of_bias(int j, const Offsets& at, int rows) {
        return j < rows ? at.bias_3 + j : at.log_std + j - rows;
    }
};
