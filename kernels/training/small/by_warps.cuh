// The gradient of a minibatch's loss with respect to one network's weights, by warps.
//
// Each warp of a block runs 16 samples forward and backward, and stores activations and gradients in shared memory.
// Then each warp adds the products of the full tile to the gradients of its slices of the weights, in registers.

constexpr int STRIDE_X = stride_of(FEATURES), STRIDE_1 = stride_of(HIDDEN_1), STRIDE_2 = stride_of(HIDDEN_2);
constexpr int STRIDE_BOTH = STRIDE_1 < STRIDE_2 ? STRIDE_2 : STRIDE_1;
constexpr int COLUMNS     = padded(FEATURES, 8);

// The slices of 16 rows of a layer's weights per warp.
constexpr int SLICES_1 = (HIDDEN_1 + TILE - 1) / TILE, SLICES_2 = (HIDDEN_2 + TILE - 1) / TILE;

// Calls use(slice, row) for this warp's slices, numbered from 0, of a layer with `rows` outputs; `row` is the slice's
// first. SLICES: maximum per warp.
template <int SLICES, class Use> FN void for_each_slice(int rows, int warp, const Use& use) {
    UNROLL
    for (int slice = 0; slice < SLICES; ++slice) {
        const int row = (slice * WARPS + warp) * WARP_ROWS;
        if (row < rows) use(slice, row);
    }
}

template <int OUTPUTS> struct UpdateMemory {
    Forward<OUTPUTS>  net;
    Backward<OUTPUTS> back;
    alignas(16) Stored x[TILE * STRIDE_X];
    alignas(16) Stored hidden_1[TILE * STRIDE_1];
    alignas(16) Stored grad_z[TILE * STRIDE_2];  // gradients of the second layer's pre-activations
    // The second layer's activations; after a warp's backward pass the gradients of the first layer's pre-activations.
    alignas(16) Stored z_or_grad_y[TILE * STRIDE_BOTH];
    alignas(16) float outputs[THREADS * ROW_STRIDE];
    float sums[WARPS][SUMS];
};

constexpr u64 UPDATE_BYTES  = sizeof(UpdateMemory<PARAMETERS>);
constexpr bool ONE_PROGRAM  = false;
constexpr int UPDATE_BLOCKS = 2 * (UPDATE_BYTES + RESERVED_BLOCK_BYTES) <= PROCESSOR_SHARED_BYTES ? 2 : 1;

// c += left^T right over the tile's rows, for 16 columns of left, and grad_bias += the sums over rows of these columns.
template <int N>
FN void add_outer(float (&c)[N][4], float (&grad_bias)[4], const Stored* left, int left_stride, const Stored* right,
                  int right_stride, int lane) {
    UNROLL
    for (int row = 0; row < TILE; row += DEPTH) {
        const auto         a = Arithmetic::left_columns(left + row * left_stride, left_stride, lane);
        Arithmetic::Right b[N];
        Arithmetic::right_columns(b, right + row * right_stride, right_stride, lane);
        Arithmetic::add_product(grad_bias, a, Arithmetic::ones_right());
        UNROLL
        for (int j = 0; j < N; ++j) Arithmetic::add_product(c[j], a, b[j]);
    }
}

// Writes a slice of a layer's gradient, 16 rows from `row` on, with its biases.
template <int N>
FN void write_slice(float* weights, float* bias, int row, int columns, const float (&c)[N][4],
                    const float (&grad_bias)[4], int lane) {
    UNROLL
    for (int q = 0; q < 4; ++q) {
        const int i = row + lane / 4 + q / 2 * 8;
        UNROLL
        for (int j = 0; j < N; ++j) {
            const int column = 8 * j + lane % 4 * 2 + q % 2;
            if (column < columns) weights[i * columns + column] = c[j][q];
        }
        if (lane % 4 == 0 && q % 2 == 0) bias[i] = grad_bias[q];
    }
}

template <class Role, class Call> struct Learner {
    static constexpr bool IN_TURN = false;
    static constexpr int OUTPUTS = Role::OUTPUTS;
    static constexpr int OUTS = Forward<OUTPUTS>::OUTS, BACK_OUTS = Backward<OUTPUTS>::OUTS;
    const Role             role;
    UpdateMemory<OUTPUTS>& memory;
    const Call&            call;
    SampleLoss<Call>       loss;
    Scale                  scale;
    int                    lane, warp;
    float grad_1[SLICES_1][COLUMNS / 8][4] = {}, grad_bias_1[SLICES_1][4] = {};
    float grad_2[SLICES_2][HIDDEN_1 / 8][4] = {}, grad_bias_2[SLICES_2][4] = {};
    float grad_3[HIDDEN_2 / 16][OUTS / 8][4] = {}, grad_bias_3[OUTS / 8][4] = {};  // over the warp's samples

    FN Learner(const Role& role_, const Call& call_, const Offsets& offsets, int rows)
        : role(role_), memory(*reinterpret_cast<UpdateMemory<OUTPUTS>*>(staging)), call(call_), loss(call_),
          scale{call_.mean, call_.inverse, call_.limit}, lane(warp_lane()), warp(thread_rank() / WARP) {
        load<OUTPUTS>(memory.net, &memory.back, call.flat, offsets, rows, scale);
    }

    FN void add_tile(SampleRow& sample, Index after_next) {
        auto&         net     = memory.net;
        const int     row     = warp * WARP_ROWS;
        Stored* const warp_z  = memory.z_or_grad_y + row * STRIDE_BOTH;
        float* const  outputs = memory.outputs + warp * WARP * ROW_STRIDE;
        clear_inactive(sample, lane);
        normalise(sample.x, net, scale, lane);
        const Sample current = advance_sample(sample, role, call, after_next);
        float y[HIDDEN_1 / 8][4], z[HIDDEN_2 / 8][4];
        set_to_bias(y, net.bias_1, lane);
        multiply(y, sample.x, net.first, lane);
        activate(y);
        block_barrier();  // all warps have finished the previous tile
        store_inputs(sample.x);
        store_tile(memory.hidden_1 + row * STRIDE_1, STRIDE_1, y, lane);
        fetch_inputs(sample, call, lane);
        set_to_bias(z, net.bias_2, lane);
        multiply(z, y, net.second, lane);
        activate(z);
        store_tile(warp_z, STRIDE_BOTH, z, lane);
        {
            float out[OUTS / 8][4];
            set_to_bias(out, net.bias_3, lane);
            multiply(out, z, net.third, lane);
            store_outputs<OUTPUTS>(outputs, ROW_STRIDE, out, lane);
        }
        warp_barrier();
        add_loss(role, loss, current, memory.outputs, outputs + lane * ROW_STRIDE);
        warp_barrier();
        add_last_layer(warp_z, outputs);
        backward(y, z, warp_z, outputs);
        block_barrier();
        for_each_slice<SLICES_2>(HIDDEN_2, warp, [&](int s, int at) {
            add_outer(grad_2[s], grad_bias_2[s], memory.grad_z + at, STRIDE_2, memory.hidden_1, STRIDE_1, lane);
        });
        for_each_slice<SLICES_1>(HIDDEN_1, warp, [&](int s, int at) {
            add_outer(grad_1[s], grad_bias_1[s], memory.z_or_grad_y + at, STRIDE_BOTH, memory.x, STRIDE_X, lane);
        });
    }

    FN void store_inputs(const InputRows& x) {
        float stored[COLUMNS / 8][4];
        FOR_EACH_NUMBER(j, q, COLUMNS / 8) stored[j][q] = x[j][q];
        store_tile(memory.x + warp * WARP_ROWS * STRIDE_X, STRIDE_X, stored, lane);
    }

    // Adds to the last layer's gradient, from this warp's activations and outputs' gradients.
    FN void add_last_layer(const Stored* hidden, const float* outputs) {
        UNROLL
        for (int step = 0; step < WARP_ROWS; step += DEPTH) {
            Arithmetic::Right b[OUTS / 8];
            UNROLL
            for (int j = 0; j < OUTS / 8; ++j) {
                const int column = 8 * j + lane / 4;
                b[j] = Arithmetic::right_from(outputs + step * ROW_STRIDE + (column < OUTPUTS ? column : 0), ROW_STRIDE,
                                              lane, column < OUTPUTS);
                Arithmetic::add_product(grad_bias_3[j], Arithmetic::ones_left(), b[j]);
            }
            UNROLL
            for (int i = 0; i < HIDDEN_2 / 16; ++i) {
                const auto a = Arithmetic::left_columns(hidden + step * STRIDE_BOTH + 16 * i, STRIDE_BOTH, lane);
                UNROLL
                for (int j = 0; j < OUTS / 8; ++j) Arithmetic::add_product(grad_3[i][j], a, b[j]);
            }
        }
    }

    // From the outputs' gradients to the gradients of both layers' pre-activations.
    FN void backward(const float (&y)[HIDDEN_1 / 8][4], const float (&z)[HIDDEN_2 / 8][4], Stored* warp_z,
                    const float* outputs) {
        float grad_out[BACK_OUTS / 8][4], grad_z[HIDDEN_2 / 8][4] = {}, grad_y[HIDDEN_1 / 8][4] = {};
        fetch_outputs<OUTPUTS>(grad_out, outputs, lane);
        multiply(grad_z, grad_out, memory.back.third, lane);
        multiply_by_slope(grad_z, z);
        store_tile(memory.grad_z + warp * WARP_ROWS * STRIDE_2, STRIDE_2, grad_z, lane);
        multiply(grad_y, grad_z, memory.back.second, lane);
        multiply_by_slope(grad_y, y);
        warp_barrier();  // all threads have read the activations that these gradients replace
        store_tile(warp_z, STRIDE_BOTH, grad_y, lane);
    }

    FN void write(float* partial, const Offsets& at, int rows) {
        for_each_slice<SLICES_1>(HIDDEN_1, warp, [&](int s, int row) {
            write_slice(partial + at.weight_1, partial + at.bias_1, row, FEATURES, grad_1[s], grad_bias_1[s], lane);
        });
        for_each_slice<SLICES_2>(HIDDEN_2, warp, [&](int s, int row) {
            write_slice(partial + at.weight_2, partial + at.bias_2, row, HIDDEN_1, grad_2[s], grad_bias_2[s], lane);
        });
        write_last_layer(partial, at, rows);
        loss.write(partial + call.parameters, memory.sums, role.is_actor, !role.is_actor, [] { block_barrier(); });
    }

    // Writes the sums over warps, added in their order in the memory of the activations.
    FN void write_last_layer(float* partial, const Offsets& at, int rows) {
        constexpr int bias_at = HIDDEN_2 * OUTPUTS;
        constexpr u64 capacity = sizeof(memory.x) + sizeof(memory.hidden_1) + sizeof(memory.grad_z);
        static_assert((bias_at + OUTPUTS) * sizeof(float) <= capacity);
        float* const sum = reinterpret_cast<float*>(memory.x);
        for (int w = 0; w < WARPS; ++w) {
            block_barrier();
            if (w != warp) continue;
            FOR_EACH_NUMBER(j, q, OUTS / 8) {
                const int column = 8 * j + lane % 4 * 2 + q % 2;
                if (column >= OUTPUTS) continue;
                UNROLL
                for (int i = 0; i < HIDDEN_2 / 16; ++i) {
                    float& element = sum[column * HIDDEN_2 + 16 * i + lane / 4 + q / 2 * 8];
                    element        = (w == 0 ? 0.0f : element) + grad_3[i][j][q];
                }
                if (lane < 4 && q < 2) {
                    float& element = sum[bias_at + column];
                    element        = (w == 0 ? 0.0f : element) + grad_bias_3[j][q];
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
