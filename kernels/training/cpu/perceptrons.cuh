// Forward and backward pass of one or more perceptrons of the same shape, on a CPU. Rows are processed in tiles of
// LANES.
//
// The forward pass of a tile saves lines of LANES numbers: one for each input, then one for each unit of each net and
// hidden layer. Gradients of pre-activations, the outputs' included, are such lines, too. A layer's weights are
// [outputs, inputs].
//
// Before it: vectors.cuh. Generated before it: NETS, LAYERS, INPUTS, OUTPUTS, LINES (per tile), FIRST_GRAD_INPUT and
// GRAD_INPUTS (the range of inputs with gradients), UNITS (outputs that are computed together); per layer inputs_of(l)
// and outputs_of(l); per net and layer weights_at(net, l), biases_at(net, l), line_of(net, l) (the first line of its
// gradients and outputs) and block_at(net, l) (its first of BLOCKS groups of UNITS outputs); activation(x), and slope(y)
// from the activation's output y.

typedef float Quad __attribute__((vector_size(16), aligned(4), may_alias));

constexpr int VECTORS = LANES / VECTOR;
static_assert(VECTORS % VECTORS_AT_ONCE == 0);

BEGIN_CONTRACTIONS

// Computes N lines from `line` on: products of `in` lines with weights, plus biases. Weights of adjacent outputs are
// `stride` apart, of adjacent inputs 1; if TRANSPOSED, vice versa.
template <int N, bool TRANSPOSED>
FN void multiply(float* to, const float* from, const float* weights, const float* biases, int line, int in,
                 int stride) {
    for (int v = 0; v < VECTORS; v += VECTORS_AT_ONCE) {
        Vector sum[N][VECTORS_AT_ONCE];
        UNROLL
        for (int n = 0; n < N; ++n) {
            UNROLL
            for (int t = 0; t < VECTORS_AT_ONCE; ++t) {
                sum[n][t] = Vector{} + (biases == nullptr ? 0.0f : biases[line + n]);
            }
        }
        for (int i = 0; i < in; ++i) {
            const Vector* const input = (const Vector*)(from + i * LANES) + v;
            UNROLL
            for (int n = 0; n < N; ++n) {
                const float weight = TRANSPOSED ? weights[i * stride + line + n] : weights[(line + n) * stride + i];
                UNROLL
                for (int t = 0; t < VECTORS_AT_ONCE; ++t) sum[n][t] += input[t] * weight;
            }
        }
        UNROLL
        for (int n = 0; n < N; ++n) {
            UNROLL
            for (int t = 0; t < VECTORS_AT_ONCE; ++t) ((Vector*)(to + (line + n) * LANES))[v + t] = sum[n][t];
        }
    }
}

template <bool TRANSPOSED>
NOINLINE void multiply_all(float* to, const float* from, const float* weights, const float* biases, int out, int in,
                         int stride) {
    int line = 0;
    for (; line + UNITS <= out; line += UNITS) multiply<UNITS, TRANSPOSED>(to, from, weights, biases, line, in, stride);
    for (; line < out; ++line) multiply<1, TRANSPOSED>(to, from, weights, biases, line, in, stride);
}

// Transposes a tile's rows, `stride` apart, to `width` lines: line i has element i of each row, then zeros.
template <class Env>
FN void to_lines(float* lines, const float* rows, int width, Index stride, const Env& env) {
    for (int i = 0; i < width; ++i) {
        for (int k = 0; k < LANES; ++k) lines[i * LANES + k] = k < env.lanes ? rows[env.index(k) * stride + i] : 0.0f;
    }
}

template <class Env> FN Index tile_of(const Env& env) { return env.index(0) / LANES; }

// Writes the outputs of all nets, and saves inputs and activations, as lines, for the backward pass.
KERNEL(kernel_forward, ForwardCall) {
    FOR_EACH_ENV(env, call.rows) {
        alignas(64) float last[OUTPUTS * LANES];
        float* const      saved = call.saved + tile_of(env) * (LINES * LANES);
        to_lines(saved, call.inputs, INPUTS, INPUTS, env);
        for (int net = 0; net < NETS; ++net) {
            const float* from = saved;
            for (int l = 0; l < LAYERS; ++l) {
                float* const to = l == LAYERS - 1 ? last : saved + line_of(net, l) * LANES;
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

// Writes the gradients of all pre-activations, as lines, and of the inputs, from the outputs' gradients.
KERNEL(kernel_backward, BackwardCall) {
    FOR_EACH_ENV(env, call.rows) {
        const float* const saved = call.saved + tile_of(env) * (LINES * LANES);
        float* const       grads = call.grads + tile_of(env) * (LINES * LANES);
        for (int net = 0; net < NETS; ++net) {
            float* const last = grads + line_of(net, LAYERS - 1) * LANES;
            to_lines(last, call.grad_outputs + net * OUTPUTS, OUTPUTS, NETS * OUTPUTS, env);
            for (int j = 0; call.curvatures != nullptr && j < OUTPUTS; ++j) {
                FOR_EACH_LANE_ALONE(k, env) {
                    const Index index = (env.index(k) * NETS + net) * OUTPUTS + j;
                    last[j * LANES + k] += call.curvatures[index] * call.outputs[index];
                }
            }
            for (int l = LAYERS - 1; l > 0; --l) {
                float* const       to      = grads + line_of(net, l - 1) * LANES;
                const float* const outputs = saved + line_of(net, l - 1) * LANES;
                multiply_all<true>(to, grads + line_of(net, l) * LANES, call.weights + weights_at(net, l), nullptr,
                                   inputs_of(l), outputs_of(l), inputs_of(l));
                OMP_SIMD(omp simd) for (int i = 0; i < inputs_of(l) * LANES; ++i) to[i] *= slope(outputs[i]);
            }
            if (call.grad_inputs == nullptr) continue;
            alignas(64) float first[(GRAD_INPUTS + 1) * LANES];
            multiply_all<true>(first, grads + line_of(net, 0) * LANES,
                               call.weights + weights_at(net, 0) + FIRST_GRAD_INPUT, nullptr, GRAD_INPUTS,
                               outputs_of(0), INPUTS);
            for (int j = 0; j < GRAD_INPUTS; ++j) {
                FOR_EACH_LANE_ALONE(k, env) {
                    call.grad_inputs[(env.index(k) * NETS + net) * GRAD_INPUTS + j] = first[j * LANES + k];
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

// Writes the gradients of N outputs' weights and biases, from `line` on: sums over all rows of gradient times input.
template <int N>
FN void weight_gradients(float* gradient, float* bias_gradient, const float* grads, const float* inputs, int line,
                         int in, Index tiles) {
    for (int i = 0; i < in; i += COLUMNS_AT_ONCE) {
        const int columns = in - i < COLUMNS_AT_ONCE ? in - i : COLUMNS_AT_ONCE;
        Vector    sum[N][COLUMNS_AT_ONCE] = {};
        for (Index tile = 0; tile < tiles; ++tile) {
            const float* const grad_lines  = grads + (tile * LINES + line) * LANES;
            const float* const input_lines = inputs + (tile * LINES + i) * LANES;
            for (int v = 0; v < VECTORS; ++v) {
                UNROLL
                for (int c = 0; c < COLUMNS_AT_ONCE; ++c) {
                    // (sums of columns beyond the last are not read)
                    const Vector input = ((const Vector*)(input_lines + (c < columns ? c : 0) * LANES))[v];
                    UNROLL
                    for (int n = 0; n < N; ++n) sum[n][c] += input * ((const Vector*)(grad_lines + n * LANES))[v];
                }
            }
        }
        UNROLL
        for (int n = 0; n < N; ++n) {
            UNROLL
            for (int c = 0; c < COLUMNS_AT_ONCE; ++c) {
                if (c < columns) gradient[(line + n) * in + i + c] = sum_of(sum[n][c]);
            }
        }
    }
    for (int n = 0; n < N; ++n) {
        Vector sum = {};
        for (Index tile = 0; tile < tiles; ++tile) {
            for (int v = 0; v < VECTORS; ++v) sum += ((const Vector*)(grads + (tile * LINES + line + n) * LANES))[v];
        }
        bias_gradient[line + n] = sum_of(sum);
    }
}

// Writes the gradients of weights and biases; each tile of the launch has a group of UNITS outputs of a layer.
KERNEL(kernel_gradient, GradientCall) {
    const Index tiles = (call.rows + LANES - 1) / LANES;
    FOR_EACH_ENV(env, BLOCKS * LANES) {
        const int block = int(tile_of(env));
        for (int net = 0; net < NETS; ++net) {
            for (int l = 0; l < LAYERS; ++l) {
                const int groups = (outputs_of(l) + UNITS - 1) / UNITS, group = block - block_at(net, l);
                if (group < 0 || group >= groups) continue;
                float* const       gradient      = call.gradient + weights_at(net, l);
                float* const       bias_gradient = call.gradient + biases_at(net, l);
                const float* const grads         = call.grads + line_of(net, l) * LANES;
                const float* const inputs        = call.saved + (l == 0 ? 0 : line_of(net, l - 1)) * LANES;
                int                line          = group * UNITS;
                if (line + UNITS <= outputs_of(l)) {
                    weight_gradients<UNITS>(gradient, bias_gradient, grads, inputs, line, inputs_of(l), tiles);
                    continue;
                }
                for (; line < outputs_of(l); ++line) {
                    weight_gradients<1>(gradient, bias_gradient, grads, inputs, line, inputs_of(l), tiles);
                }
            }
        }
    }
}

END_CONTRACTIONS
