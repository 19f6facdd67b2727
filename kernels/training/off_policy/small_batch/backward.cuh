// Backward passes of several networks side by side, for 16 rows; and the gradients of their weights over all rows.

// One network's pass: the indices of its first layer tile and of a tile to overwrite; `grads`, the gradients of the
// pre-activations of this block's slice; `last`, the slice of the last hidden layer's activations.
struct BackwardPass {
    Net    net;
    int    first_tile, spare_tile;
    float* grads, * last;
};

// Writes the gradients of the last hidden layers' pre-activations to `grads`, from the outputs' gradients [16, OUTS].
template <int OUTS, int COUNT>
FN void backward_from_outputs(const BackwardPass (&passes)[COUNT], const float (&grad_outputs)[COUNT][ROWS * OUTS]) {
    constexpr int IN = width_of(HIDDEN - 1), WIDE = slice_width(HIDDEN - 1), EACH = numbers_each(WIDE);
    float         sums[COUNT][EACH] = {};
    FOR_EACH_NET(n, COUNT) {
        const float* const weights = weights_of(passes[n].net, HIDDEN) + slice_begin(HIDDEN - 1);
        UNROLL
        for (int j = 0; j < EACH; ++j) {
            const int i = j * THREADS + thread_rank(), row = minimum(i / WIDE, ROWS - 1), k = i % WIDE;
            _Pragma("unroll 4")
            for (int o = 0; o < OUTS; ++o) sums[n][j] += grad_outputs[n][row * OUTS + o] * weights[o * IN + k];
        }
    }
    FOR_EACH_NET(n, COUNT) {
        UNROLL
        for (int j = 0; j < EACH; ++j) {
            const int i = j * THREADS + thread_rank(), at = i / WIDE * SLICE_STRIDE + i % WIDE;
            if (i < ROWS * WIDE) passes[n].grads[at] = sums[n][j] * slope(passes[n].last[at]);
        }
    }
}

// Calls each(row, column, value) with this block's part of the gradients of layer L's inputs; `grads`: of its slice.
template <int L, class Each> FN void backward_through(const float* grads, const Net& net, const Each& each) {
    constexpr int      IN = width_of(L - 1), WIDE = slice_width(L);
    const int          warp = thread_rank() / WARP, lane = thread_rank() % WARP, g = lane / 4, q = lane % 4;
    const float* const weights = weights_of(net, L) + slice_begin(L) * IN;
    NO_UNROLL
    for (int first = 32 * warp; first < IN; first += 32 * WARPS) {
        float c[4][4] = {};
        UNROLL
        for (int begin = 0; begin < WIDE; begin += 8) {
            const int          k     = begin + q;
            const float* const upper = grads + g * SLICE_STRIDE + k, * const lower = upper + 8 * SLICE_STRIDE;
            const u32     left[4] = {rounded(upper[0]), rounded(lower[0]), rounded(upper[4]), rounded(lower[4])};
            const Wide<4> low  = four(weights + k * IN + first + 4 * g);
            const Wide<4> high = four(weights + (k + 4) * IN + first + 4 * g);
            UNROLL
            for (int t = 0; t < 4; ++t) {
                const u32 right[2] = {rounded(low.value[t]), rounded(high.value[t])};
                product_tf32(c[t], left, right);
            }
        }
        FOR_EACH_NUMBER(t, x, 4) each(g + x / 2 * 8, first + 8 * q + x % 2 * 4 + t, c[t][x]);
    }
}

// Runs the backward pass from layer L down to layer LAST; calls use(l, net, gradients of its pre-activations) for each.
template <int L, int LAST, int COUNT, class Use> FN void backward(const BackwardPass (&passes)[COUNT], const Use& use) {
    FOR_EACH_NET(n, COUNT) use(L, n, passes[n].grads);
    if constexpr (L > LAST) {
        FOR_EACH_NET(n, COUNT) {
            float* const tile  = layer_tile(passes[n].spare_tile);
            const auto   write = [&](int row, int column, float x) { tile[row * LAYER_STRIDE + column] = x; };
            backward_through<L>(passes[n].grads, passes[n].net, write);
        }
        cluster_barrier();
        constexpr int FOURS = slice_width(L - 1) / 4;
        NO_UNROLL
        for (int i = thread_rank(); i < COUNT * ROWS * FOURS; i += THREADS) {
            const int n = i / (ROWS * FOURS), row = i / FOURS % ROWS, k = i % FOURS * 4;
            const int at = row * LAYER_STRIDE + slice_begin(L - 1) + k;
            int       spare_tile = passes[0].spare_tile, first_tile = passes[0].first_tile;
            float*    grads = passes[0].grads;
            UNROLL
            for (int other = 1; other < COUNT; ++other) {  // indexed by a variable, passes would be in local memory
                if (n != other) continue;
                spare_tile = passes[other].spare_tile, first_tile = passes[other].first_tile;
                grads = passes[other].grads;
            }
            Wide<4>       grad = cluster_sum_of_four(layer_tile(spare_tile) + at);
            const Wide<4> y    = four(layer_tile(first_tile + L - 1) + at);
            UNROLL
            for (int e = 0; e < 4; ++e) grad.value[e] *= slope(y.value[e]);
            *reinterpret_cast<Wide<4>*>(grads + row * SLICE_STRIDE + k) = grad;
        }
        if constexpr (L > LAST + 1) cluster_barrier();  // all blocks have read: the tiles may be overwritten
        else block_barrier();
        backward<L - 1, LAST>(passes, use);
    }
}

// Blocks of eight columns are swapped, so that four adjacent rows use different banks.
template <int COLUMNS> FN int staged_index(int row, int column) { return row * COLUMNS + (column ^ row % 4 * 8); }

// Starts an asynchronous copy of four numbers, or of zeros if not `valid`, to shared memory.
FN void load_four(float* to, const float* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
FN void await_loads() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Rows of activations or gradients in memory.
struct Factor {
    const float* rows;
    int          stride, columns;

    // Copies STAGED_ROWS rows of COLUMNS columns to shared memory. Rows past `count` become zero; columns beyond
    // `columns` stay undefined: nothing reads the gradients computed from them.
    template <int COLUMNS> FN void stage(float* staged, int first_column, int first_row, int count) const {
        if (stride == MAX_WIDTH) {
            constexpr int FOURS = COLUMNS / 4, AT_ONCE = THREADS / FOURS;
            const int     column = thread_rank() % FOURS * 4, first = thread_rank() / FOURS;
            const float*  at = rows + Index(first_row) * MAX_WIDTH + first_column + column;
            _Pragma("unroll 4")
            for (int row = first; row < STAGED_ROWS; row += AT_ONCE) {
                const bool valid = first_row + row < count;
                load_four(staged + staged_index<COLUMNS>(row, column), valid ? at + row * MAX_WIDTH : rows, valid);
            }
        } else {
            static_assert(STAGED_ROWS == THREADS);
            const int          row = thread_rank(), end = minimum(COLUMNS, columns - first_column);
            const float* const at  = rows + Index(first_row + row) * columns + first_column;
            _Pragma("unroll 4")
            for (int k = 0; k < end; ++k) {
                staged[staged_index<COLUMNS>(row, k)] = first_row + row < count ? at[k] : 0.0f;
            }
        }
    }
};

// Writes the gradients of a tile of MAX_OUTPUTS x TILE_INPUTS weights, `grads` times `inputs` summed over rows;
// the first column of tiles also the biases' gradients. Returns this thread's part of the sum of their squares.
FN float gradient_tile(float* weights, float* biases, const Factor& grads, const Factor& inputs, int tile, int rows) {
    float* const staged_grads  = staging;
    float* const staged_inputs = staging + STAGED_ROWS * MAX_OUTPUTS;
    const int    outs = grads.columns, ins = inputs.columns, across = (ins + TILE_INPUTS - 1) / TILE_INPUTS;
    const int    first_out = tile / across * MAX_OUTPUTS, first_in = tile % across * TILE_INPUTS;
    const int    r = thread_rank(), warp = r / WARP, lane = r % WARP, g = lane / 4, q = lane % 4;
    const int    m = warp / 2 * 16, n = warp % 2 * 16;
    float        c[2][4] = {}, bias = 0, squares = 0;
    NO_UNROLL
    for (int first = 0; first < rows; first += STAGED_ROWS) {
        block_barrier();
        grads.template stage<MAX_OUTPUTS>(staged_grads, first_out, first, rows);
        inputs.template stage<TILE_INPUTS>(staged_inputs, first_in, first, rows);
        await_loads();
        block_barrier();
        _Pragma("unroll 4")
        for (int row = q; row < STAGED_ROWS; row += 8) {
            constexpr int      DOWN = 4 * MAX_OUTPUTS;
            const float* const low  = staged_grads + staged_index<MAX_OUTPUTS>(row, m + g);
            const float* const high = staged_grads + staged_index<MAX_OUTPUTS>(row, m + g + 8);
            const u32 left[4] = {rounded(low[0]), rounded(high[0]), rounded(low[DOWN]), rounded(high[DOWN])};
            UNROLL
            for (int j = 0; j < 2; ++j) {
                const float* const at       = staged_inputs + staged_index<TILE_INPUTS>(row, n + 8 * j + g);
                const u32          right[2] = {rounded(at[0]), rounded(at[4 * TILE_INPUTS])};
                product_tf32(c[j], left, right);
            }
        }
        if (first_in == 0) {
            constexpr int EACH = STAGED_ROWS * MAX_OUTPUTS / THREADS;
            _Pragma("unroll 8")
            for (int row = r / MAX_OUTPUTS * EACH; row < (r / MAX_OUTPUTS + 1) * EACH; ++row) {
                bias += staged_grads[staged_index<MAX_OUTPUTS>(row, r % MAX_OUTPUTS)];
            }
        }
    }
    FOR_EACH_NUMBER(j, x, 2) {
        const int o = first_out + m + g + x / 2 * 8, i = first_in + n + 8 * j + 2 * q + x % 2;
        if (o < outs && i < ins) {
            weights[o * ins + i] = c[j][x];
            squares += c[j][x] * c[j][x];
        }
    }
    if (first_in != 0) return squares;
    block_barrier();
    staging[r] = bias;
    block_barrier();
    if (r < MAX_OUTPUTS && first_out + r < outs) {
        float sum = 0;
        NO_UNROLL
        for (int part = 0; part < THREADS / MAX_OUTPUTS; ++part) sum += staging[part * MAX_OUTPUTS + r];
        biases[first_out + r] = sum;
        squares += sum * sum;
    }
    return squares;
}

// Writes the gradient of a net's parameters; returns this thread's part of its squared norm. Blocks take tiles in turn:
// `turn` is the first tile's block, and becomes the block after the last tile's. `activations` and `grads` are
// [HIDDEN, rows, MAX_WIDTH].
FN float net_gradient(const Net& net, float* gradient, const Factor& inputs, const float* activations,
                      const float* grads, const Factor& grad_outputs, int rows, int& turn) {
    float squares = 0;
    NO_UNROLL
    for (int l = 0; l <= HIDDEN; ++l) {
        const Index  layer = Index(rows) * MAX_WIDTH;
        const Factor left  = l < HIDDEN ? Factor{grads + l * layer, MAX_WIDTH, width_of(l)} : grad_outputs;
        const Factor right = l > 0 ? Factor{activations + (l - 1) * layer, MAX_WIDTH, width_of(l - 1)} : inputs;
        const int    across = (right.columns + TILE_INPUTS - 1) / TILE_INPUTS, blocks = block_count();
        const int    tiles  = (left.columns + MAX_OUTPUTS - 1) / MAX_OUTPUTS * across;
        NO_UNROLL
        for (int tile = (block_number() + blocks - turn) % blocks; tile < tiles; tile += blocks) {
            squares += gradient_tile(gradient + (weights_of(net, l) - net.flat),
                                     gradient + (biases_of(net, l) - net.flat), left, right, tile, rows);
        }
        turn = (turn + tiles) % blocks;
    }
    return squares;
}
