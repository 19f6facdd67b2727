// The gradient of the loss of a minibatch by all weights of actor and critic, in one launch and a sum.
//
// The first half of the blocks has the actor, the second the critic. A block takes tiles of samples: each of its warps
// goes forth and back through the network with 16 of them, and leaves activations and the loss's derivatives in
// shared memory; then each warp adds the whole tile's share to the gradients of its slice of the weights, in registers.
// At the end each block writes its sums; network_reduce.cuh adds those of all blocks, in a fixed order.

// One network's gradient, of all tiles that a block takes.
template <bool ACTOR, int OUTPUTS> struct Learner {
    static constexpr int OUTS = Forward<OUTPUTS>::OUTS, BACK_OUTS = Backward<OUTPUTS>::OUTS;
    UpdateMemory<OUTPUTS>& memory;
    const UpdateCall&      call;
    int                    lane, warp;
    float by_1[SLICES_1][COLUMNS / 8][4] = {}, by_bias_1[SLICES_1][4] = {};
    float by_2[SLICES_2][HIDDEN_1 / 8][4] = {}, by_bias_2[SLICES_2][4] = {};
    float by_3[HIDDEN_2 / 16][OUTS / 8][4] = {}, by_bias_3[OUTS / 8][4] = {};  // of the warp's own samples
    float sums[SUMS] = {}, scalars[4];

    FN Learner(UpdateMemory<OUTPUTS>& memory_, const UpdateCall& call_)
        : memory(memory_), call(call_), lane(warp_lane()), warp(thread_rank() / WARP) {
        UNROLL
        for (int j = 0; j < 4; ++j) scalars[j] = call.scalars[j];
    }

    // Leaves the loss's gradient where the outputs were.
    FN void judge(const Sample& sample, float* outputs) {
        LossCall one;
        one.scalars      = scalars;
        one.clipped      = call.clipped;
        one.clips_values = call.clips_values;
        one.value_clip   = call.value_clip;
        one.value_weight = call.value_weight;
        one.returns      = &sample.target;
        one.old_values   = &sample.old_value;
        const bool alive = sample.alive != 0;
        if constexpr (ACTOR) {
            const OneRow env = {0, lane < WARP_ROWS};
            const Rows   rows(outputs_at(memory.outputs), nullptr, nullptr, env);
            float        none = 0, d_none, found[SUMS] = {};
            one.rows         = 1;
            one.clips_values = 0;
            one.returns = one.values = one.old_values = &none;
            one.actions    = sample.action;
            one.log_probs  = &sample.log_prob;
            one.advantages = &sample.advantage;
            one.d_values   = &d_none;
            one.sums       = found;
            Samples samples;
            samples.place[0]    = 0;
            samples.alive[0]    = alive;
            if (lane < WARP_ROWS) {
                if constexpr (DISCRETE) discrete_loss(samples, one, rows, env);
                else gaussian_loss(samples, one, rows, env);
                UNROLL
                for (int s = 0; s < SUMS; ++s) sums[s] += found[s];
            }
        } else if (lane < WARP_ROWS) {
            float* const value = outputs + lane * ROW_STRIDE;
            const Loss   loss  = value_loss(one, 0, *value);
            *value             = alive ? call.value_weight * loss.gradient : 0.0f;
            sums[VALUE_LOSS] += alive ? loss.value : 0.0f;
        }
    }

    FN void learn(Sample& sample, const Scale& scale, Index after_next) {
        auto&         net     = memory.net;
        const int     row     = warp * WARP_ROWS;
        Stored* const mine    = memory.both + row * STRIDE_BOTH;
        float* const  outputs = memory.outputs + warp * WARP * ROW_STRIDE;
        // (what the dead saw may be no number: it must not meet even a zero)
        const int there = sample.alive != 0;
        if (!from_lane(there, lane / 4)) {
            UNROLL
            for (int j = 0; j < INPUTS / 8; ++j) sample.x[j][0] = sample.x[j][1] = 0;
        }
        if (!from_lane(there, lane / 4 + 8)) {
            UNROLL
            for (int j = 0; j < INPUTS / 8; ++j) sample.x[j][2] = sample.x[j][3] = 0;
        }
        normalise(sample.x, net, scale, lane);
        float y[HIDDEN_1 / 8][4], z[HIDDEN_2 / 8][4];
        begin(y, net.bias_1, lane);
        multiply(y, sample.x, net.first, lane);
        activate(y);
        block_barrier();  // all have done with the tile before
        store_inputs(sample.x);
        store_tile(memory.hidden_1 + row * STRIDE_1, STRIDE_1, y, lane);
        const Sample now = sample;
        sample.place     = sample.next;
        sample.next      = place_of(call, after_next);
        fetch<ACTOR>(sample, call, lane);
        begin(z, net.bias_2, lane);
        multiply(z, y, net.second, lane);
        activate(z);
        store_tile(mine, STRIDE_BOTH, z, lane);
        {
            float out[OUTS / 8][4];
            begin(out, net.bias_3, lane);
            multiply(out, z, net.third, lane);
            store_outputs<OUTPUTS>(outputs, ROW_STRIDE, out, lane);
        }
        warp_barrier();
        judge(now, outputs);
        warp_barrier();
        add_last_layer(mine, outputs);
        go_back(y, z, mine, outputs);
        block_barrier();
        UNROLL
        for (int slice = 0; slice < SLICES_2; ++slice) {
            const int at = (slice * WARPS + warp) * WARP_ROWS;
            if (at < HIDDEN_2) {
                add_outer(by_2[slice], by_bias_2[slice], memory.slope_2 + at, STRIDE_2, memory.hidden_1, STRIDE_1,
                          lane);
            }
        }
        UNROLL
        for (int slice = 0; slice < SLICES_1; ++slice) {
            const int at = (slice * WARPS + warp) * WARP_ROWS;
            if (at < HIDDEN_1) {
                add_outer(by_1[slice], by_bias_1[slice], memory.both + at, STRIDE_BOTH, memory.x, STRIDE_X, lane);
            }
        }
    }

    FN void store_inputs(const InputRows& x) {
        float some[COLUMNS / 8][4];
        UNROLL
        for (int j = 0; j < COLUMNS / 8; ++j) {
            UNROLL
            for (int q = 0; q < 4; ++q) some[j][q] = x[j][q];
        }
        store_tile(memory.x + warp * WARP_ROWS * STRIDE_X, STRIDE_X, some, lane);
    }

    // Its gradient is the activations' times the outputs' of the same samples, which this warp has.
    FN void add_last_layer(const Stored* hidden, const float* outputs) {
        UNROLL
        for (int step = 0; step < WARP_ROWS; step += DEPTH) {
            Arithmetic::Right b[OUTS / 8];
            UNROLL
            for (int j = 0; j < OUTS / 8; ++j) {
                const int column = 8 * j + lane / 4;
                b[j] = Arithmetic::right_from(outputs + step * ROW_STRIDE + (column < OUTPUTS ? column : 0), ROW_STRIDE,
                                              lane, column < OUTPUTS);
                Arithmetic::add_product(by_bias_3[j], Arithmetic::ones_left(), b[j]);
            }
            UNROLL
            for (int i = 0; i < HIDDEN_2 / 16; ++i) {
                const auto a = Arithmetic::left_columns(hidden + step * STRIDE_BOTH + 16 * i, STRIDE_BOTH, lane);
                UNROLL
                for (int j = 0; j < OUTS / 8; ++j) Arithmetic::add_product(by_3[i][j], a, b[j]);
            }
        }
    }

    // Times the slopes of the activations.
    template <int N> FN static void chain(float (&by)[N][4], const float (&values)[N][4]) {
        UNROLL
        for (int j = 0; j < N; ++j) {
            UNROLL
            for (int q = 0; q < 4; ++q) by[j][q] *= slope(values[j][q]);
        }
    }

    // From the outputs' gradients to those of the sums that go into the activations.
    FN void go_back(const float (&y)[HIDDEN_1 / 8][4], const float (&z)[HIDDEN_2 / 8][4], Stored* mine,
                    const float* outputs) {
        float by_out[BACK_OUTS / 8][4], by_z[HIDDEN_2 / 8][4] = {}, by_y[HIDDEN_1 / 8][4] = {};
        UNROLL
        for (int j = 0; j < BACK_OUTS / 8; ++j) {
            UNROLL
            for (int q = 0; q < 4; ++q) {
                const int column = 8 * j + lane % 4 * 2 + q % 2;
                by_out[j][q]     = column < OUTPUTS ? outputs[(lane / 4 + q / 2 * 8) * ROW_STRIDE + column] : 0.0f;
            }
        }
        multiply(by_z, by_out, memory.back.third, lane);
        chain(by_z, z);
        store_tile(memory.slope_2 + warp * WARP_ROWS * STRIDE_2, STRIDE_2, by_z, lane);
        multiply(by_y, by_z, memory.back.second, lane);
        chain(by_y, y);
        warp_barrier();  // all have read the activations that these replace
        store_tile(mine, STRIDE_BOTH, by_y, lane);
    }

    FN void write(float* partial, const Places& at, int rows) {
        UNROLL
        for (int slice = 0; slice < SLICES_1; ++slice) {
            const int row = (slice * WARPS + warp) * WARP_ROWS;
            if (row < HIDDEN_1) {
                write_slice(partial + at.weight_1, partial + at.bias_1, row, FEATURES, by_1[slice], by_bias_1[slice],
                            lane);
            }
        }
        UNROLL
        for (int slice = 0; slice < SLICES_2; ++slice) {
            const int row = (slice * WARPS + warp) * WARP_ROWS;
            if (row < HIDDEN_2) {
                write_slice(partial + at.weight_2, partial + at.bias_2, row, HIDDEN_1, by_2[slice], by_bias_2[slice],
                            lane);
            }
        }
        write_last_layer(partial, at, rows);
        UNROLL
        for (int s = 0; s < SUMS; ++s) {
            const float sum = summed_over_warp(sums[s]);
            if (lane == 0) memory.sums[warp][s] = sum;
        }
        block_barrier();
        const int s = thread_rank();
        if (s < SUMS && (s != VALUE_LOSS) == ACTOR) {
            float sum = 0;
            UNROLL
            for (int w = 0; w < WARPS; ++w) sum += memory.sums[w][s];
            partial[call.parameters + s] = sum;
        }
    }

    // Warp after warp adds its own, where the activations were.
    FN void write_last_layer(float* partial, const Places& at, int rows) {
        constexpr int bias_at = HIDDEN_2 * OUTPUTS;
        constexpr u64 room = sizeof(memory.x) + sizeof(memory.hidden_1) + sizeof(memory.slope_2);
        static_assert((bias_at + OUTPUTS) * sizeof(float) <= room);
        float* const sum = reinterpret_cast<float*>(memory.x);
        for (int turn = 0; turn < WARPS; ++turn) {
            block_barrier();
            if (turn != warp) continue;
            UNROLL
            for (int j = 0; j < OUTS / 8; ++j) {
                UNROLL
                for (int q = 0; q < 4; ++q) {
                    const int column = 8 * j + lane % 4 * 2 + q % 2;
                    if (column >= OUTPUTS) continue;
                    UNROLL
                    for (int i = 0; i < HIDDEN_2 / 16; ++i) {
                        float& place = sum[column * HIDDEN_2 + 16 * i + lane / 4 + q / 2 * 8];
                        place        = (turn == 0 ? 0.0f : place) + by_3[i][j][q];
                    }
                    if (lane < 4 && q < 2) {
                        float& place = sum[bias_at + column];
                        place        = (turn == 0 ? 0.0f : place) + by_bias_3[j][q];
                    }
                }
            }
        }
        block_barrier();
        for (int e = thread_rank(); e < HIDDEN_2 * rows; e += THREADS) partial[at.weight_3 + e] = sum[e];
        for (int j = thread_rank(); j < OUTPUTS; j += THREADS) {
            partial[j < rows ? at.bias_3 + j : at.log_std + j - rows] = sum[bias_at + j];
        }
    }
};

template <bool ACTOR, int OUTPUTS> FN void update(const UpdateCall& call, const Places& places, int rows, int worker) {
    auto&       memory  = *reinterpret_cast<UpdateMemory<OUTPUTS>*>(staging);
    const int   workers = block_count() / 2;
    const Scale scale   = {call.mean, call.inverse, call.limit};
    const int   lane = warp_lane(), place = thread_rank() / WARP * WARP_ROWS + lane % WARP_ROWS;
    Sample      sample;
    sample.place = place_of(call, Index(worker) * TILE + place);
    sample.next  = place_of(call, Index(worker + workers) * TILE + place);
    fetch<ACTOR>(sample, call, lane);
    load<OUTPUTS>(memory.net, &memory.back, call.flat, places, rows, scale);
    Learner<ACTOR, OUTPUTS> learner(memory, call);
    for (Index tile = worker; tile * TILE < call.rows; tile += workers) {
        learner.learn(sample, scale, (tile + 2 * workers) * TILE + place);
    }
    learner.write(call.partials + Index(worker) * (call.parameters + SUMS), places, rows);
}

KERNEL_OF_BLOCKS(kernel_update, UpdateCall, THREADS, UPDATE_BLOCKS) {
    const int workers = block_count() / 2, block = block_number();
    if (block < workers) update<true, PARAMETERS>(call, ACTOR_PLACES, MEANS, block);
    else update<false, 1>(call, CRITIC_PLACES, 1, block - workers);
}
