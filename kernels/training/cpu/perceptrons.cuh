// One or more perceptrons of the same form, forth and back, on a CPU. Rows go in tiles of LANES.
//
// What a tile leaves for the way back are lines of LANES numbers: its inputs, then for each net and hidden layer a line
// for each unit. The derivatives by what goes into layers' activations, those by the outputs among them, are such lines
// too. Weights are [outputs, inputs] of each layer.
//
// Generated before it: NETS, LAYERS, INPUTS, OUTPUTS, WIDEST, LINES (of a tile), BY_FIRST and BY (the inputs by which
// derivatives are wanted), and of layer l: inputs_of(l), outputs_of(l), and with a net weights_at(net, l),
// biases_at(net, l) and line_of(net, l), the last of the layer's first derivative and, of a hidden one, first output;
// BLOCKS and block_at(net, l): how many groups of UNITS outputs there are, and the first of a layer; activation(x), and
// slope(y) of an activation that gave y.

static_assert(!ON_GPU);

#if defined(__AVX512F__)
constexpr int VECTOR = 16, TOGETHER = 4, ACROSS = 4;
#elif defined(__AVX__)
constexpr int VECTOR = 8, TOGETHER = 2, ACROSS = 2;
#else
constexpr int VECTOR = 4, TOGETHER = 4, ACROSS = 4;
#endif
typedef float Vector __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));

typedef float Quad __attribute__((vector_size(16), aligned(4), may_alias));

constexpr int VECTORS = LANES / VECTOR;
static_assert(VECTORS % TOGETHER == 0);

#if defined(__clang__)
#pragma clang fp contract(fast)
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif
// N lines from `line` on: the products of `in` lines with weights, which lie `stride` apart for neighbouring outputs and
// 1 for neighbouring inputs, or the other way round.
template <int N, bool TURNED>
FN void multiply(float* to, const float* from, const float* weights, const float* biases, int line, int in, int stride) {
    for (int v = 0; v < VECTORS; v += TOGETHER) {
        Vector sum[N][TOGETHER];
        UNROLL
        for (int n = 0; n < N; ++n) {
            UNROLL
            for (int t = 0; t < TOGETHER; ++t) sum[n][t] = Vector{} + (biases == nullptr ? 0.0f : biases[line + n]);
        }
        for (int i = 0; i < in; ++i) {
            const Vector* const given = (const Vector*)(from + i * LANES) + v;
            UNROLL
            for (int n = 0; n < N; ++n) {
                const float weight = TURNED ? weights[i * stride + line + n] : weights[(line + n) * stride + i];
                UNROLL
                for (int t = 0; t < TOGETHER; ++t) sum[n][t] += given[t] * (Vector{} + weight);
            }
        }
        UNROLL
        for (int n = 0; n < N; ++n) {
            UNROLL
            for (int t = 0; t < TOGETHER; ++t) ((Vector*)(to + (line + n) * LANES))[v + t] = sum[n][t];
        }
    }
}

template <bool TURNED>
SELDOM void multiply_all(float* to, const float* from, const float* weights, const float* biases, int out, int in,
                         int stride) {
    int line = 0;
    for (; line + UNITS <= out; line += UNITS) multiply<UNITS, TURNED>(to, from, weights, biases, line, in, stride);
    for (; line < out; ++line) multiply<1, TURNED>(to, from, weights, biases, line, in, stride);
}

// A tile's numbers [rows, stride] as lines; what lies beyond the last row is zero.
template <class Env>
FN void to_lines(float* lines, const float* rows, int count, Index stride, const Env& env) {
    for (int i = 0; i < count; ++i) {
        for (int k = 0; k < LANES; ++k) lines[i * LANES + k] = k < env.lanes ? rows[env.index(k) * stride + i] : 0.0f;
    }
}

template <class Env> FN Index tile_of(const Env& env) { return env.index(0) / LANES; }

KERNEL(kernel_forth, ForthCall) {
    FOR_EACH_ENV(env, call.rows) {
        alignas(64) float last[OUTPUTS * LANES];
        float* const      kept = call.kept + tile_of(env) * (LINES * LANES);
        to_lines(kept, call.inputs, INPUTS, INPUTS, env);
        for (int net = 0; net < NETS; ++net) {
            const float* from = kept;
            for (int l = 0; l < LAYERS; ++l) {
                float* const to = l == LAYERS - 1 ? last : kept + line_of(net, l) * LANES;
                multiply_all<false>(to, from, call.weights + weights_at(net, l), call.weights + biases_at(net, l),
                                    outputs_of(l), inputs_of(l), inputs_of(l));
                if (l < LAYERS - 1) {
                    OMP_SIMD(omp simd) for (int i = 0; i < outputs_of(l) * LANES; ++i) to[i] = activation(to[i]);
                }
                from = to;
            }
            for (int j = 0; j < OUTPUTS; ++j) {
                FOR_EACH_LANE_ALONE(k, env) {
                    call.outputs[(env.index(k) * NETS + net) * OUTPUTS + j] = last[j * LANES + k];
                }
            }
        }
    }
}

KERNEL(kernel_back, BackCall) {
    FOR_EACH_ENV(env, call.rows) {
        const float* const kept = call.kept + tile_of(env) * (LINES * LANES);
        float* const       slopes = call.slopes + tile_of(env) * (LINES * LANES);
        for (int net = 0; net < NETS; ++net) {
            float* const last = slopes + line_of(net, LAYERS - 1) * LANES;
            to_lines(last, call.by_outputs + net * OUTPUTS, OUTPUTS, NETS * OUTPUTS, env);
            for (int j = 0; call.curvatures != nullptr && j < OUTPUTS; ++j) {
                FOR_EACH_LANE_ALONE(k, env) {
                    const Index place = (env.index(k) * NETS + net) * OUTPUTS + j;
                    last[j * LANES + k] += call.curvatures[place] * call.outputs[place];
                }
            }
            for (int l = LAYERS - 1; l > 0; --l) {
                float* const       to = slopes + line_of(net, l - 1) * LANES;
                const float* const gave = kept + line_of(net, l - 1) * LANES;
                multiply_all<true>(to, slopes + line_of(net, l) * LANES, call.weights + weights_at(net, l), nullptr,
                                   inputs_of(l), outputs_of(l), inputs_of(l));
                OMP_SIMD(omp simd) for (int i = 0; i < inputs_of(l) * LANES; ++i) to[i] *= slope(gave[i]);
            }
            if (call.by_inputs == nullptr) continue;
            alignas(64) float first[(BY + 1) * LANES];
            multiply_all<true>(first, slopes + line_of(net, 0) * LANES, call.weights + weights_at(net, 0) + BY_FIRST,
                               nullptr, BY, outputs_of(0), INPUTS);
            for (int j = 0; j < BY; ++j) {
                FOR_EACH_LANE_ALONE(k, env) {
                    call.by_inputs[(env.index(k) * NETS + net) * BY + j] = first[j * LANES + k];
                }
            }
        }
    }
}

FN float sum_of(const Vector& vector) {
    const Quad* const quads = (const Quad*)&vector;
    Quad              sum   = quads[0];
    UNROLL
    for (int q = 1; q < VECTOR / 4; ++q) sum += quads[q];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

// N outputs' weights from `line` on: sums over all rows of derivative times input.
template <int N>
FN void gather(float* gradient, float* of_biases, const float* slopes, const float* inputs, int line, int in, Index tiles) {
    for (int i = 0; i < in; i += ACROSS) {
        const int columns = in - i < ACROSS ? in - i : ACROSS;
        Vector    sum[N][ACROSS] = {};
        for (Index tile = 0; tile < tiles; ++tile) {
            const float* const by = slopes + (tile * LINES + line) * LANES;
            const float* const of = inputs + (tile * LINES + i) * LANES;
            for (int v = 0; v < VECTORS; ++v) {
                UNROLL
                for (int c = 0; c < ACROSS; ++c) {
                    // (of the columns beyond the last the sums are not read)
                    const Vector given = ((const Vector*)(of + (c < columns ? c : 0) * LANES))[v];
                    UNROLL
                    for (int n = 0; n < N; ++n) sum[n][c] += given * ((const Vector*)(by + n * LANES))[v];
                }
            }
        }
        UNROLL
        for (int n = 0; n < N; ++n) {
            UNROLL
            for (int c = 0; c < ACROSS; ++c) {
                if (c < columns) gradient[(line + n) * in + i + c] = sum_of(sum[n][c]);
            }
        }
    }
    for (int n = 0; n < N; ++n) {
        Vector sum = {};
        for (Index tile = 0; tile < tiles; ++tile) {
            for (int v = 0; v < VECTORS; ++v) sum += ((const Vector*)(slopes + (tile * LINES + line + n) * LANES))[v];
        }
        of_biases[line + n] = sum_of(sum);
    }
}

// A tile of the launch for each group of outputs of a layer.
KERNEL(kernel_gradient, GradientCall) {
    const Index tiles = (call.rows + LANES - 1) / LANES;
    FOR_EACH_ENV(env, BLOCKS * LANES) {
        const int block = int(tile_of(env));
        for (int net = 0; net < NETS; ++net) {
            for (int l = 0; l < LAYERS; ++l) {
                const int groups = (outputs_of(l) + UNITS - 1) / UNITS, group = block - block_at(net, l);
                if (group < 0 || group >= groups) continue;
                float* const       gradient = call.gradient + weights_at(net, l);
                float* const       of_biases = call.gradient + biases_at(net, l);
                const float* const slopes = call.slopes + line_of(net, l) * LANES;
                const float* const inputs = call.kept + (l == 0 ? 0 : line_of(net, l - 1)) * LANES;
                int                line = group * UNITS;
                if (line + UNITS <= outputs_of(l)) {
                    gather<UNITS>(gradient, of_biases, slopes, inputs, line, inputs_of(l), tiles);
                    continue;
                }
                for (; line < outputs_of(l); ++line) {
                    gather<1>(gradient, of_biases, slopes, inputs, line, inputs_of(l), tiles);
                }
            }
        }
    }
}
