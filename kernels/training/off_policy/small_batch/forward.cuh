// Forward passes of several networks side by side, for 16 rows: a thread waits once for the loads of all networks.

// One network's pass: the index of its first layer tile, its inputs, this block's slice of the last hidden layer and
// part of the outputs, [16, outs].
struct ForwardPass {
    Net          net;
    int          first_tile, outs;
    const float* inputs;
    float*       last;
    float*       outputs_part;
};

// Computes the activations of the first layers, in all columns, from `inputs`.
template <int COUNT> FN void first_layer(const ForwardPass (&passes)[COUNT]) {
    constexpr int TILES = width_of(0) / 64;
    const int     lane = thread_rank() % WARP, g = lane / 4, q = lane % 4, first = thread_rank() / WARP * TILES * 8;
    float         c[COUNT][TILES][4];
    FOR_EACH_NET(n, COUNT) {
        const float* const biases = biases_of(passes[n].net, 0) + first + 2 * q;
        FOR_EACH_NUMBER(j, x, TILES) c[n][j][x] = biases[8 * j + x % 2];
    }
    FOR_EACH_NET(n, COUNT) {
        const int          in      = inputs_of(passes[n].net, 0);
        const float* const weights = weights_of(passes[n].net, 0) + (first + g) * in;
        const float* const low     = passes[n].inputs + g * INPUT_STRIDE, * const high = low + 8 * INPUT_STRIDE;
        _Pragma("unroll 4")
        for (int begin = 0; begin < in; begin += 8) {
            const int k       = begin + q;
            const u32 left[4] = {rounded(low[k]), rounded(high[k]), rounded(low[k + 4]), rounded(high[k + 4])};
            UNROLL
            for (int j = 0; j < TILES; ++j) {
                const float* const row      = weights + 8 * j * in;
                const u32          right[2] = {k < in ? rounded(row[k]) : 0, k + 4 < in ? rounded(row[k + 4]) : 0};
                product_tf32(c[n][j], left, right);
            }
        }
    }
    FOR_EACH_NET(n, COUNT) {
        float* const tile = layer_tile(passes[n].first_tile) + first + 2 * q;
        FOR_EACH_NUMBER(j, x, TILES) tile[(g + x / 2 * 8) * LAYER_STRIDE + 8 * j + x % 2] = activation(c[n][j][x]);
    }
}

// Multiplies for this block's slice of layer L: a group of warps takes a part of the inputs, each of its warps eight
// columns. A thread's inputs are adjacent. Writes partial sums to shared memory, for finish_slice().
template <int L, int COUNT> FN void partial_products(const ForwardPass (&passes)[COUNT]) {
    constexpr int  IN = width_of(L - 1), TILES = slice_width(L) / 8, GROUPS = WARPS / TILES;
    constexpr int  STEPS = (IN / 16 + GROUPS - 1) / GROUPS;
    constexpr bool EVEN  = IN / 16 % GROUPS == 0;  // otherwise some groups' last step is beyond IN, and adds zeros
    const int      warp = thread_rank() / WARP, lane = thread_rank() % WARP, g = lane / 4, q = lane % 4;
    const auto     depth_of = [&](int step) { return (step * GROUPS + warp / TILES) * 16 + 4 * q; };
    float          c[COUNT][4] = {};
    if (warp >= GROUPS * TILES) return;
    FOR_EACH_NET(n, COUNT) {
        const float* const inputs  = layer_tile(passes[n].first_tile + L - 1) + g * LAYER_STRIDE;
        const float* const weights = weights_of(passes[n].net, L) + (slice_begin(L) + warp % TILES * 8 + g) * IN;
        Wide<4>            weight[STEPS] = {};
        UNROLL
        for (int step = 0; step < STEPS; ++step) {
            if (EVEN || depth_of(step) < IN) weight[step] = four(weights + depth_of(step));
        }
        UNROLL
        for (int step = 0; step < STEPS; ++step) {
            const int     k = EVEN ? depth_of(step) : minimum(depth_of(step), IN - 4);
            const Wide<4> low = four(inputs + k), high = four(inputs + 8 * LAYER_STRIDE + k);
            UNROLL
            for (int half = 0; half < 4; half += 2) {
                const u32 left[4]  = {rounded(low.value[half]), rounded(high.value[half]),
                                      rounded(low.value[half + 1]), rounded(high.value[half + 1])};
                const u32 right[2] = {rounded(weight[step].value[half]), rounded(weight[step].value[half + 1])};
                product_tf32(c[n], left, right);
            }
        }
    }
    FOR_EACH_NUMBER(n, x, COUNT) partial_sums(n)[warp * (ROWS * 8) + (g + x / 2 * 8) * 8 + 2 * q + x % 2] = c[n][x];
}

// Writes the activations of this block's slice of layer L, from the partial sums and the biases.
template <int L, int COUNT>
FN void finish_slice(const ForwardPass (&passes)[COUNT], const float (&biases)[COUNT][numbers_each(slice_width(L))]) {
    constexpr int  WIDE = slice_width(L), TILES = WIDE / 8, GROUPS = WARPS / TILES;
    constexpr bool LAST = L == HIDDEN - 1;
    FOR_EACH_NET(n, COUNT) {
        float* const tile = LAST ? passes[n].last : layer_tile(passes[n].first_tile + L) + slice_begin(L);
        UNROLL
        for (int j = 0; j < numbers_each(WIDE); ++j) {
            const int i = j * THREADS + thread_rank(), row = i / WIDE, k = i % WIDE;
            if (i >= ROWS * WIDE) break;
            float sum = biases[n][j];
            UNROLL
            for (int group = 0; group < GROUPS; ++group) {
                sum += partial_sums(n)[(group * TILES + k / 8) * (ROWS * 8) + row * 8 + k % 8];
            }
            tile[row * (LAST ? SLICE_STRIDE : LAYER_STRIDE) + k] = activation(sum);
        }
    }
}

constexpr int OUTPUT_LANES = 8;  // threads that share a sum of the output layer

// Output weights of this block's slice of the last hidden layers. A thread loads its first ones before the slice is
// computed.
template <int COUNT> struct OutputWeights {
    static constexpr int EACH = slice_width(HIDDEN - 1) / OUTPUT_LANES;
    float                of[COUNT][EACH];
    FN OutputWeights(const ForwardPass (&passes)[COUNT]) {
        FOR_EACH_NET(n, COUNT) load(of[n], passes[n], thread_rank() / OUTPUT_LANES);
    }
    static FN void load(float (&weights)[EACH], const ForwardPass& pass, int i) {
        const float* const row =
            weights_of(pass.net, HIDDEN) + i % pass.outs * width_of(HIDDEN - 1) + slice_begin(HIDDEN - 1);
        UNROLL
        for (int e = 0; e < EACH; ++e) weights[e] = row[thread_rank() % OUTPUT_LANES + e * OUTPUT_LANES];
    }
};

// Writes this block's part of the outputs: the product of its slice of the last hidden layer, without biases.
template <int COUNT> FN void partial_outputs(const ForwardPass (&passes)[COUNT], OutputWeights<COUNT>& weights) {
    constexpr int EACH = OutputWeights<COUNT>::EACH;
    const int     lane = thread_rank() % OUTPUT_LANES, begin = thread_rank() / OUTPUT_LANES;
    FOR_EACH_NET(n, COUNT) {
        NO_UNROLL
        for (int i = begin; i < ROWS * passes[n].outs; i += THREADS / OUTPUT_LANES) {
            float sum = 0;
            if (i != begin) OutputWeights<COUNT>::load(weights.of[n], passes[n], i);
            UNROLL
            for (int e = 0; e < EACH; ++e) {
                sum += passes[n].last[i / passes[n].outs * SLICE_STRIDE + lane + e * OUTPUT_LANES] * weights.of[n][e];
            }
            UNROLL
            for (int distance = OUTPUT_LANES / 2; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
            if (lane == 0) passes[n].outputs_part[i] = sum;
        }
    }
}

// Copies the slices of layer l that the cluster's other blocks computed into this block's tiles of the full layer.
template <int COUNT> FN void gather_slices(const ForwardPass (&passes)[COUNT], int l) {
    cluster_barrier();
    FOR_EACH_NET(n, COUNT) {
        NO_UNROLL
        for (int i = thread_rank(); i < ROWS * width_of(l); i += THREADS) {
            float* const at   = layer_tile(passes[n].first_tile + l) + i / width_of(l) * LAYER_STRIDE + i % width_of(l);
            const int    rank = i % width_of(l) / slice_width(l);
            if (rank != cluster_rank()) read_remote(*at, at, rank);
        }
    }
    cluster_barrier();  // all blocks have read: the tiles may be overwritten
}

// Runs all layers. Of the last hidden layer a block gets only its slice, of the others all columns.
template <int L = 0, int COUNT> FN void forward(const ForwardPass (&passes)[COUNT]) {
    constexpr bool LAST = L == HIDDEN - 1;
    if constexpr (L == 0) {
        first_layer(passes);
        block_barrier();
        if constexpr (LAST) {
            OutputWeights<COUNT> weights(passes);
            FOR_EACH_NET(n, COUNT) {
                NO_UNROLL
                for (int i = thread_rank(); i < ROWS * slice_width(0); i += THREADS) {
                    const int row = i / slice_width(0), k = i % slice_width(0);
                    passes[n].last[row * SLICE_STRIDE + k] =
                        layer_tile(passes[n].first_tile)[row * LAYER_STRIDE + slice_begin(0) + k];
                }
            }
            block_barrier();
            partial_outputs(passes, weights);
        }
    } else {
        constexpr int EACH = numbers_each(slice_width(L));
        float         biases[COUNT][EACH];
        FOR_EACH_NET(n, COUNT) {
            UNROLL
            for (int j = 0; j < EACH; ++j) {
                const int k  = (j * THREADS + thread_rank()) % slice_width(L);
                biases[n][j] = biases_of(passes[n].net, L)[slice_begin(L) + k];
            }
        }
        partial_products<L>(passes);
        block_barrier();
        if constexpr (LAST) {
            OutputWeights<COUNT> weights(passes);
            finish_slice<L>(passes, biases);
            block_barrier();
            partial_outputs(passes, weights);
        } else {
            finish_slice<L>(passes, biases);
            gather_slices(passes, L);
        }
    }
    if constexpr (!LAST) forward<L + 1>(passes);
}
