// The gradient of a minibatch's loss by the weights of one network, warp by warp.
//
// Each warp of a block goes forth and back through the network with 16 samples, and leaves activations and the loss's
// derivatives in shared memory; then each adds the whole tile's share to the gradients of its slice of the weights, in
// registers.

constexpr int STRIDE_X = stride_of(FEATURES), STRIDE_1 = stride_of(HIDDEN_1), STRIDE_2 = stride_of(HIDDEN_2);
constexpr int STRIDE_BOTH = STRIDE_1 < STRIDE_2 ? STRIDE_2 : STRIDE_1;
constexpr int COLUMNS     = padded(FEATURES, 8);

// Of 16 rows of a layer's weights: how many a warp has.
constexpr int SLICES_1 = (HIDDEN_1 + TILE - 1) / TILE, SLICES_2 = (HIDDEN_2 + TILE - 1) / TILE;

template <int OUTPUTS> struct UpdateMemory {
    Forward<OUTPUTS>  net;
    Backward<OUTPUTS> back;
    alignas(16) Stored x[TILE * STRIDE_X];
    alignas(16) Stored hidden_1[TILE * STRIDE_1];
    alignas(16) Stored slope_2[TILE * STRIDE_2];  // the loss's derivatives by the sums of the second layer
    // The second layer's activations until the warp that has them is done with them, then the derivatives of the first.
    alignas(16) Stored both[TILE * STRIDE_BOTH];
    alignas(16) float outputs[THREADS * ROW_STRIDE];
    float sums[WARPS][SUMS];
};

constexpr u64 UPDATE_BYTES  = sizeof(UpdateMemory<PARAMETERS>);
constexpr bool ALIKE         = false;
constexpr int UPDATE_BLOCKS = 2 * (UPDATE_BYTES + BYTES_OF_BLOCK) <= BYTES_OF_PROCESSOR ? 2 : 1;

// c += left^T right over the tile's rows, for 16 columns of left; and by_bias += the sums of those.
template <int N>
FN void add_outer(float (&c)[N][4], float (&by_bias)[4], const Stored* left, int left_stride, const Stored* right,
                  int right_stride, int lane) {
    UNROLL
    for (int row = 0; row < TILE; row += DEPTH) {
        const auto         a = Arithmetic::left_columns(left + row * left_stride, left_stride, lane);
        Arithmetic::Right b[N];
        Arithmetic::right_columns(b, right + row * right_stride, right_stride, lane);
        Arithmetic::add_product(by_bias, a, Arithmetic::ones_right());
        UNROLL
        for (int j = 0; j < N; ++j) Arithmetic::add_product(c[j], a, b[j]);
    }
}

// Writes a slice of a layer's gradient.
template <int N>
FN void write_slice(float* weights, float* bias, int row, int columns, const float (&c)[N][4],
                    const float (&by_bias)[4], int lane) {
    UNROLL
    for (int q = 0; q < 4; ++q) {
        const int i = row + lane / 4 + q / 2 * 8;
        UNROLL
        for (int j = 0; j < N; ++j) {
            const int column = 8 * j + lane % 4 * 2 + q % 2;
            if (column < columns) weights[i * columns + column] = c[j][q];
        }
        if (lane % 4 == 0 && q % 2 == 0) bias[i] = by_bias[q];
    }
}

template <class Role, class Call> struct Learner {
    static constexpr int OUTPUTS = Role::OUTPUTS;
    static constexpr int OUTS = Forward<OUTPUTS>::OUTS, BACK_OUTS = Backward<OUTPUTS>::OUTS;
    const Role             role;
    UpdateMemory<OUTPUTS>& memory;
    const Call&            call;
    Judge<Call>            judge;
    Scale                  scale;
    int                    lane, warp;
    float by_1[SLICES_1][COLUMNS / 8][4] = {}, by_bias_1[SLICES_1][4] = {};
    float by_2[SLICES_2][HIDDEN_1 / 8][4] = {}, by_bias_2[SLICES_2][4] = {};
    float by_3[HIDDEN_2 / 16][OUTS / 8][4] = {}, by_bias_3[OUTS / 8][4] = {};  // of the warp's own samples

    FN Learner(const Role& role_, const Call& call_, const Places& places, int rows)
        : role(role_), memory(*reinterpret_cast<UpdateMemory<OUTPUTS>*>(staging)), call(call_), judge(call_),
          scale{call_.mean, call_.inverse, call_.limit}, lane(warp_lane()), warp(thread_rank() / WARP) {
        load<OUTPUTS>(memory.net, &memory.back, call.flat, places, rows, scale);
    }

    FN void learn(SampleRow& sample, Index after_next) {
        auto&         net     = memory.net;
        const int     row     = warp * WARP_ROWS;
        Stored* const mine    = memory.both + row * STRIDE_BOTH;
        float* const  outputs = memory.outputs + warp * WARP * ROW_STRIDE;
        silence(sample, lane);
        normalise(sample.x, net, scale, lane);
        const Sample now = go_on(sample, role, call, after_next);
        float y[HIDDEN_1 / 8][4], z[HIDDEN_2 / 8][4];
        begin(y, net.bias_1, lane);
        multiply(y, sample.x, net.first, lane);
        activate(y);
        block_barrier();  // all have done with the tile before
        store_inputs(sample.x);
        store_tile(memory.hidden_1 + row * STRIDE_1, STRIDE_1, y, lane);
        fetch_inputs(sample, call, lane);
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
        judge_by(role, judge, now, memory.outputs, outputs + lane * ROW_STRIDE);
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
        FOR_EACH_NUMBER(j, q, COLUMNS / 8) some[j][q] = x[j][q];
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

    // From the outputs' gradients to those of the sums that go into the activations.
    FN void go_back(const float (&y)[HIDDEN_1 / 8][4], const float (&z)[HIDDEN_2 / 8][4], Stored* mine,
                    const float* outputs) {
        float by_out[BACK_OUTS / 8][4], by_z[HIDDEN_2 / 8][4] = {}, by_y[HIDDEN_1 / 8][4] = {};
        fetch_outputs<OUTPUTS>(by_out, outputs, lane);
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
        judge.write(partial + call.parameters, memory.sums, role.acts, !role.acts, [] { block_barrier(); });
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
            FOR_EACH_NUMBER(j, q, OUTS / 8) {
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
        block_barrier();
        for (int e = thread_rank(); e < HIDDEN_2 * rows; e += THREADS) partial[at.weight_3 + e] = sum[e];
        for (int j = thread_rank(); j < OUTPUTS; j += THREADS) {
            partial[j < rows ? at.bias_3 + j : at.log_std + j - rows] = sum[bias_at + j];
        }
    }
};
