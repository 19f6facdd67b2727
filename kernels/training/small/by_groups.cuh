// The gradient of a minibatch's loss by the weights of one network, warpgroup by warpgroup: on Hopper.
//
// A warpgroup goes forth and back through the network with 64 samples, a row of activations never leaving its thread's
// registers, and leaves activations and the loss's derivatives in shared memory, transposed: there their products, which
// are the weights' gradients, are added up in registers while the next layer is worked on.

constexpr int GROUPS  = THREADS / GROUP;
constexpr int X_LINES = padded(FEATURES + 1, 8), Y_LINES = HIDDEN_1 + 8;  // with a line of ones, for the biases
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

// A warpgroup's own.
template <int OUTPUTS> struct GroupSamples {
    GroupTile<X_LINES, GROUP_ROWS>         x;
    GroupTile<Y_LINES, GROUP_ROWS>         y;
    GroupTile<HIDDEN_2, GROUP_ROWS>        z;  // and then the derivatives by the first layer's sums
    GroupTile<HIDDEN_2, GROUP_ROWS>        by_z;
    GroupTile<padded(OUTPUTS, 8), GROUP_ROWS> by_out;
};

template <int OUTPUTS, int GROUPS> struct GroupMemory {
    GroupNet<OUTPUTS>     net;
    GroupSamples<OUTPUTS> samples[GROUPS];
    alignas(16) float outputs[GROUPS * GROUP * ROW_STRIDE];
    float sums[GROUPS * GROUP / WARP][SUMS], by_bias_3[GROUPS * GROUP / WARP][OUTPUTS];
    u32   roots[GROUPS + 1];

    FN static GroupMemory& of_block() { return *reinterpret_cast<GroupMemory*>(memory_of_block(alignof(GroupMemory))); }
};

// Of a block of so many warpgroups; of three, each thread has 168 registers, which long heads and inputs exceed.
FN constexpr u64 bytes_of_groups(int groups) {
    if (groups == 1) return sizeof(GroupMemory<PARAMETERS, 1>) + 1024;
    return (groups == 2 ? sizeof(GroupMemory<PARAMETERS, 2>) : sizeof(GroupMemory<PARAMETERS, 3>)) + 1024;
}
FN constexpr int most_groups() {
    int groups = PARAMETERS <= 8 && FEATURES < 32 ? 3 : 2;
    while (groups > 0 && bytes_of_groups(groups) > MOST_SHARED) --groups;
    return groups;
}
constexpr int UPDATE_BLOCKS = 1;

// Whether updates of actor and critic are one program: it is compiled in half the time, and faster in TF32, slower in bf16.
constexpr bool ALIKE = GroupNet<PARAMETERS>::OUTS == GroupNet<1>::OUTS && sizeof(Stored) == sizeof(float);

// Fills a layer's factors, and zeros where they are padded.
template <int IN, int OUT, class Forth, class Back>
FN void load_layer(Forth& forth, int outs, Back* back, const float* weights, int rows) {
    constexpr int ins = padded(IN, DEPTH), count = ins * padded(OUT, DEPTH);
    _Pragma("unroll 8")
    for (int e = thread_rank(); e < count; e += THREADS) {
        const int    in = e % ins, out = e / ins;
        const Stored weight = Arithmetic::stored(in < IN && out < rows ? weights[out * IN + in] : 0.0f);
        if (out < outs) *forth.at(out, Arithmetic::depth_slot(in)) = weight;
        if (back != nullptr && in < IN) *back->at(in, Arithmetic::depth_slot(out)) = weight;
    }
}

template <int OUTPUTS>
FN void load(GroupNet<OUTPUTS>& net, const float* flat, const Places& at, int rows, int outputs, const Scale& scale) {
    load_layer<FEATURES, HIDDEN_1>(net.first, HIDDEN_1, static_cast<GroupTile<8, DEPTH>*>(nullptr),
                                   flat + at.weight_1, HIDDEN_1);
    load_layer<HIDDEN_1, HIDDEN_2>(net.second, HIDDEN_2, &net.second_back, flat + at.weight_2, HIDDEN_2);
    load_layer<HIDDEN_2, OUTPUTS>(net.third, net.OUTS, &net.third_back, flat + at.weight_3, rows);
    const int j = thread_rank();
    if (j < HIDDEN_1) net.bias_1[j] = flat[at.bias_1 + j];
    if (j < HIDDEN_2) net.bias_2[j] = flat[at.bias_2 + j];
    if (j < net.OUTS) {
        const bool apart = rows <= j && j < outputs;
        net.bias_3[j]    = j < rows ? flat[at.bias_3 + j]
                           : apart  ? clip(flat[at.log_std + j - rows], LOG_STD_LOW, LOG_STD_HIGH)
                                    : 0.0f;
    }
    if (j < INPUTS) {
        const bool scaled = scale.mean != nullptr && j < FEATURES;
        net.mean[j]       = scaled ? scale.mean[j] : 0.0f;
        net.inverse[j]    = scaled ? scale.inverse[j] : 1.0f;
    }
}

// Behind a layer's inputs there is a line of ones, whose column is
// the biases'.
template <class Role, class Call> struct Learner {
    static constexpr int OUTPUTS = Role::OUTPUTS;
    static constexpr int OUTS = GroupNet<OUTPUTS>::OUTS, BACK_OUTS = GroupNet<OUTPUTS>::BACK_OUTS;
    static constexpr int STEPS_1 = HIDDEN_1 / DEPTH, STEPS_2 = HIDDEN_2 / DEPTH;
    const Role             role;
    using Memory = GroupMemory<OUTPUTS, GROUPS>;
    static_assert(sizeof(GroupMemory<1, GROUPS>) <= sizeof(GroupMemory<PARAMETERS, GROUPS>));
    Memory&                memory;
    GroupSamples<OUTPUTS>& own;
    const Call&            call;
    Judge<Call>            judge;
    Scale                  scale;
    Root                   of_net, of_own;
    int                    lane, warp;
    float by_1[X_LINES / 8][4] = {}, by_2[Y_LINES / 8][4] = {}, by_3[OUTS / 8][4] = {}, by_bias_3[OUTPUTS] = {};

    FN Learner(const Role& role_, const Call& call_, const Places& places, int rows)
        : role(role_), memory(Memory::of_block()), own(memory.samples[group_of_block()]), call(call_),
          judge(call_), scale{call_.mean, call_.inverse, call_.limit},
          of_net(&memory.net, &memory.net, memory.roots + GROUPS),
          of_own(memory.samples, &own, memory.roots + group_of_block()), lane(warp_lane()), warp(thread_rank() / WARP) {
        load<OUTPUTS>(memory.net, call.flat, places, rows, role.outputs(), scale);
        for (int e = thread_rank() % GROUP; e < 8 * GROUP_ROWS; e += GROUP) {  // ones, where no sample writes
            const int    line = e / GROUP_ROWS, row = e % GROUP_ROWS;
            const Stored mark = Arithmetic::stored(line == 0 ? 1.0f : 0.0f);
            *own.y.at(HIDDEN_1 + line, row) = mark;
            if (X_LINES - 8 >= INPUTS) *own.x.at(X_LINES - 8 + line, row) = mark;
            *own.by_out.at(OUTS - 8 + line, row) = Arithmetic::stored(0.0f);
        }
        publish();
        block_barrier();
    }

    FN void learn(SampleRow& sample, Index after_next) {
        const auto&  net     = memory.net;
        const auto&  form    = memory.samples[0];
        float* const outputs = memory.outputs + warp * WARP * ROW_STRIDE;
        of_net.recall(memory.roots + GROUPS);
        of_own.recall(memory.roots + group_of_block());
        silence(sample, lane);
        normalise(sample.x, net, scale, lane);
        const Sample now = go_on(sample, role, call, after_next);
        Left from_y[STEPS_1], from_z[STEPS_2];
        {
            Left from_x[INPUTS / DEPTH];
            gather(from_x, sample.x);
            settle(from_x);
            float y[HIDDEN_1 / 8][4];
            begin(y, net.bias_1, lane);
            finish<0>();  // of the tile before: beside the next ones the compiler would have each wait for the one before
            multiply_now(y, from_x, net.first);
            activate(y);
            group_barrier();  // all have done with the tile before
            store_inputs(sample.x);
            fetch_inputs(sample, call, lane);
            own.y.store_rows(y);
            gather(from_y, y);
            settle(from_y);
        }
        {
            float z[HIDDEN_2 / 8][4];
            begin(z, net.bias_2, lane);
            multiply_now(z, from_y, net.second);
            activate(z);
            own.z.store_rows(z);
            gather(from_z, z);
            settle(from_z);
        }
        {
            float out[OUTS / 8][4];
            begin(out, net.bias_3, lane);
            multiply_now(out, from_z, net.third);
            store_outputs<OUTPUTS>(outputs, ROW_STRIDE, out, lane);
        }
        warp_barrier();
        judge_by(role, judge, now, memory.outputs, outputs + lane * ROW_STRIDE);
        warp_barrier();
        if (lane < WARP_ROWS) {
            const int row = own.by_out.row_slot(warp % 4 * WARP_ROWS + lane);
            UNROLL
            for (int j = 0; j < OUTPUTS; ++j) {
                const float by_one = outputs[lane * ROW_STRIDE + j];
                by_bias_3[j] += by_one;
                *own.by_out.at(j, row) = Arithmetic::stored(by_one);
            }
        }
        Left from_by_z[STEPS_2];
        {
            float by_out[BACK_OUTS / 8][4], by_z[HIDDEN_2 / 8][4];
            fetch_outputs<OUTPUTS>(by_out, outputs, lane);
            Left from_by_out[BACK_OUTS / DEPTH];
            gather(from_by_out, by_out);
            settle(from_by_out);
            publish();
            group_barrier();
            begin_products();
            multiply_rows(by_z, from_by_out, net.third_back, of_net, false);
            commit_products();
            multiply_tiles(by_3, form.z, form.by_out, of_own);
            commit_products();
            float z[HIDDEN_2 / 8][4];
            own.z.load_rows(z);
            finish<1>();
            settle(by_z);
            chain(by_z, z);
            own.by_z.store_rows(by_z);
            gather(from_by_z, by_z);
            settle(from_by_z);
            finish<0>();  // z is read by no one any more, once all are here
            settle(by_3);
        }
        publish();
        group_barrier();
        float by_y[HIDDEN_1 / 8][4], y[HIDDEN_1 / 8][4];
        begin_products();
        multiply_rows(by_y, from_by_z, net.second_back, of_net, false);
        commit_products();
        multiply_tiles(by_2, form.by_z, form.y, of_own);
        commit_products();
        finish<1>();
        settle(by_y);
        own.y.load_rows(y);
        chain(by_y, y);
        own.z.store_rows(by_y);
        publish();
        group_barrier();
        begin_products();
        multiply_tiles(by_1, form.z, form.x, of_own);
        commit_products();
    }

    template <int N, int STEPS, class Right>
    FN void multiply_now(float (&c)[N][4], const Left (&rows)[STEPS], const Right& right) const {
        settle(c);
        begin_products();
        multiply_rows(c, rows, right, of_net);
        commit_products();
        finish<0>();
        settle(c);
    }

    FN void store_inputs(const InputRows& x) {
        float with_ones[INPUTS / 8][4];
        FOR_EACH_NUMBER(j, q, INPUTS / 8) {
            with_ones[j][q] = 8 * j + lane % 4 * 2 + q % 2 == FEATURES ? 1.0f : x[j][q];
        }
        constexpr int stored = INPUTS < X_LINES ? INPUTS : X_LINES;
        float some[stored / 8][4];
        FOR_EACH_NUMBER(j, q, stored / 8) some[j][q] = with_ones[j][q];
        own.x.store_rows(some);
    }

    FN void write(float* partial, const Places& at, int rows) {
        finish<0>();
        settle(by_1);
        settle(by_2);
        add_up();
        if (group_of_block() == GROUPS - 1) {
            write_product(partial + at.weight_1, partial + at.bias_1, FEATURES, by_1);
            write_product(partial + at.weight_2, partial + at.bias_2, HIDDEN_1, by_2);
            each_of(by_3, [&](float sum, int row, int column) {
                if (column < rows) partial[at.weight_3 + column * HIDDEN_2 + row] = sum;
            });
        }
        UNROLL
        for (int j = 0; j < OUTPUTS; ++j) {
            const float sum = summed_over_warp(by_bias_3[j]);
            if (lane == 0) memory.by_bias_3[warp][j] = sum;
        }
        judge.write(partial + call.parameters, memory.sums, role.acts, !role.acts, [] { block_barrier(); });
        const int j = thread_rank();
        if (j < role.outputs()) {
            float sum = 0;
            for (int w = 0; w < WARPS; ++w) sum += memory.by_bias_3[w][j];
            partial[j < rows ? at.bias_3 + j : at.log_std + j - rows] = sum;
        }
    }

    // The last warpgroup gets the sums over all.
    FN void add_up() {
        static_assert((X_LINES + Y_LINES + OUTS) / 2 * GROUP * sizeof(float) <= sizeof(memory.samples));
        float* const room = reinterpret_cast<float*>(memory.samples) + thread_rank() % GROUP;
        for (int turn = 0; turn < GROUPS; ++turn) {
            block_barrier();
            if (turn != group_of_block()) continue;
            pass_on(by_1, room, turn);
            pass_on(by_2, room + X_LINES / 2 * GROUP, turn);
            pass_on(by_3, room + (X_LINES + Y_LINES) / 2 * GROUP, turn);
        }
    }
    template <int N> FN static void pass_on(float (&c)[N][4], float* room, int turn) {
        FOR_EACH_NUMBER(j, q, N) {
            float& place = room[(4 * j + q) * GROUP];
            if (turn > 0) c[j][q] += place;
            if (turn < GROUPS - 1) place = c[j][q];
        }
    }

    template <int N, class Use> FN void each_of(const float (&c)[N][4], const Use& use) const {
        FOR_EACH_NUMBER(j, q, N) {
            use(c[j][q], warp % 4 * WARP_ROWS + lane / 4 + q / 2 * 8, 8 * j + lane % 4 * 2 + q % 2);
        }
    }
    template <int N> FN void write_product(float* weights, float* bias, int columns, const float (&c)[N][4]) const {
        each_of(c, [&](float sum, int row, int column) {
            if (column < columns) weights[row * columns + column] = sum;
            if (column == columns) bias[row] = sum;
        });
    }
};
