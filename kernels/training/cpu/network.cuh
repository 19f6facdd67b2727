// Perceptrons of a policy on a CPU: forward and backward pass over tiles of LANES rows.
//
// Rows of numbers are padded with zeros to a multiple of VECTOR columns, so that one product serves all layers, forward
// and backward: vectors run across columns, and each number of the left factor multiplies a vector of the right one.
//
// Generated before it: COUNT (weights), NETS, LAYERS, FEATURES (of an observation); per net and layer inputs_of(net, l),
// outputs_of(net, l), weights_at(net, l), biases_at(net, l), gains_at(net, l), shifts_at(net, l) (-1: no layer
// normalisation); activation(x), and slope(x, y) of it at x with the output y; SLOPE_OF_INPUT, whether slope reads only
// x. AGENTS that share a row of a central critic, of CENTRAL features (0: the critic has the actor's observations);
// VALUE_NET, the critic.

FN constexpr int padded(int columns) { return (columns + VECTOR - 1) / VECTOR * VECTOR; }

constexpr bool NORMALISES = gains_at(0, 0) >= 0;
constexpr bool KEPT       = SLOPE_OF_INPUT || NORMALISES;  // whether the backward pass needs pre_activations

// One factor of a product: element (r, k) is at[r * row + k * step].
struct Left { const float* at; Index row, step; };

// Sets, or ADDs to, R rows and C vectors of columns of the product of `left` and the rows `right`, plus biases.
template <bool ADD, int R, int C>
FN void multiply_block(float* to, Index to_row, const Left& left, const float* right, Index right_row, int depth,
                       const float* biases) {
    Vector sum[R][C];
    UNROLL
    for (int r = 0; r < R; ++r) {
        UNROLL
        for (int c = 0; c < C; ++c) {
            sum[r][c] = ADD ? ((const Vector*)(to + r * to_row))[c] : biases == nullptr ? Vector{} : ((const Vector*)biases)[c];
        }
    }
    const float* factors = left.at;
    for (int k = 0; k < depth; ++k, factors += left.step, right += right_row) {
        Vector columns[C];
        UNROLL
        for (int c = 0; c < C; ++c) {
            columns[c] = ((const Vector*)right)[c];
            KEEP_IN_REGISTER(columns[c]);
        }
        UNROLL
        for (int r = 0; r < R; ++r) {
            const float factor = factors[r * left.row];
            UNROLL
            for (int c = 0; c < C; ++c) sum[r][c] += columns[c] * factor;
        }
    }
    UNROLL
    for (int r = 0; r < R; ++r) {
        UNROLL
        for (int c = 0; c < C; ++c) ((Vector*)(to + r * to_row))[c] = sum[r][c];
    }
}

template <bool ADD, int C>
FN void multiply_columns(float* to, Index to_row, Left left, const float* right, Index right_row, int rows, int depth,
                         const float* biases) {
    constexpr int R = ACCUMULATORS / C;
    int r = 0;
    for (; r + R <= rows; r += R, to += R * to_row, left.at += R * left.row) {
        multiply_block<ADD, R, C>(to, to_row, left, right, right_row, depth, biases);
    }
    for (; r < rows; ++r, to += to_row, left.at += left.row) {
        multiply_block<ADD, 1, C>(to, to_row, left, right, right_row, depth, biases);
    }
}

// The product of `rows` rows and `columns` columns, rounded up to vectors.
template <bool ADD>
NOINLINE void multiply(float* to, Index to_row, Left left, const float* right, Index right_row, int rows, int columns,
                       int depth, const float* biases) {
    int c = 0;
    for (; c + WIDE * VECTOR <= padded(columns); c += WIDE * VECTOR) {
        multiply_columns<ADD, WIDE>(to + c, to_row, left, right + c, right_row, rows, depth, biases ? biases + c : nullptr);
    }
    for (; c < columns; c += VECTOR) {
        multiply_columns<ADD, 1>(to + c, to_row, left, right + c, right_row, rows, depth, biases ? biases + c : nullptr);
    }
}

// Numbers of a thread: weights in padded rows, and the rows of a tile.
template <bool LEARNS> struct Memory {
    float* weights_by_input[NETS][LAYERS];   // [inputs, outputs], for the forward pass
    float* weights_by_output[NETS][LAYERS];  // [outputs, inputs], for the backward pass
    float* biases[NETS][LAYERS];
    float* observations[NETS];
    float* activations[NETS][LAYERS];      // and the outputs of the last layer
    float* pre_activations[NETS][LAYERS];  // if KEPT; with layer normalisation, the normalised sums
    float* inverse_stds[NETS][LAYERS];     // of layer normalisation
    float* grads[2];
    float* lines;  // the policy's outputs, [PARAMETERS, LANES]
    int    rows;   // of the tile, rounded up: products take several at once
    float* end;

    FN float* take(Index count) {
        float* const start = end;
        end += padded(int(count));
        return start;
    }
    // Places the arrays from `start` on; with null it only counts.
    FN explicit Memory(float* start) : rows(0), end(start) {
        int widest = 0;
        for (int net = 0; net < NETS; ++net) {
            for (int l = 0; l < LAYERS; ++l) {
                const int in = inputs_of(net, l), out = outputs_of(net, l);
                weights_by_input[net][l]  = take(in * padded(out));
                weights_by_output[net][l] = LEARNS && l > 0 ? take(out * padded(in)) : nullptr;
                biases[net][l]            = take(out);
                activations[net][l]       = take(LANES * padded(out));
                pre_activations[net][l]   = KEPT && l < LAYERS - 1 ? take(LANES * padded(out)) : nullptr;
                inverse_stds[net][l]      = take(LANES);
                widest                    = maximum(widest, maximum(in, out));
            }
        }
        for (int net = 0; net < NETS; ++net) {
            const bool shares = net > 0 && AGENTS == 0;
            observations[net] = shares ? observations[0] : take(LANES * padded(inputs_of(net, 0)));
        }
        for (float*& each : grads) each = take(LEARNS ? LANES * padded(widest) : 0);
        lines = take(PARAMETERS * LANES);
    }
    static Index bytes() { return Index(reinterpret_cast<u64>(Memory(nullptr).end)); }

    FN void load_weights(const float* flat, int first_net, int end_net) {
        for (int net = first_net; net < end_net; ++net) {
            for (int l = 0; l < LAYERS; ++l) {
                const int          in = inputs_of(net, l), out = outputs_of(net, l);
                const float* const from = flat + weights_at(net, l);
                for (int j = 0; j < padded(out); ++j) {
                    biases[net][l][j] = j < out ? flat[biases_at(net, l) + j] : 0.0f;
                    for (int i = 0; i < in; ++i) weights_by_input[net][l][i * padded(out) + j] = j < out ? from[j * in + i] : 0.0f;
                }
                for (int j = 0; LEARNS && l > 0 && j < out; ++j) {
                    for (int i = 0; i < padded(in); ++i) weights_by_output[net][l][j * padded(in) + i] = i < in ? from[j * in + i] : 0.0f;
                }
            }
        }
    }
    // Copies the observations of a tile's rows, normalised if call.mean is given; row k is `row(k)` of them, negative:
    // zeros.
    template <class Call, class Row> FN void load_observations(const Call& call, int lanes, Row row) {
        rows = minimum(LANES, (lanes + 3) / 4 * 4);
        for (int k = 0; k < rows; ++k) {
            const Index        from    = row(k);
            const float* const numbers = call.observations + from * FEATURES;
            load_row(0, k, numbers, from < 0 ? 0 : FEATURES, call.mean, call.inverse, call.limit);
        }
    }
    // The same of a central critic: the features that the agent of a row shares with its group, and its number.
    template <class Call, class Row> FN void load_central(const Call& call, int lanes, Row row) {
        rows = minimum(LANES, (lanes + 3) / 4 * 4);
        for (int k = 0; k < rows; ++k) {
            const Index        from    = row(k), group = from < 0 ? 0 : from / AGENTS;
            const float* const numbers = call.central + group * CENTRAL;
            float* const       to      = load_row(VALUE_NET, k, numbers, from < 0 ? 0 : CENTRAL, call.central_mean,
                                                  call.central_inverse, call.limit);
            if (AGENTS > 1 && from >= 0) to[CENTRAL + from % AGENTS] = 1;
        }
    }
    // Copies the first numbers of a net's row k, normalised if a mean is given, and zeros up to its end.
    FN float* load_row(int net, int k, const float* numbers, int count, const float* mean, const float* inverse,
                       float limit) {
        const int    end = padded(inputs_of(net, 0));
        float* const to  = observations[net] + k * end;
        for (int i = 0; i < count; ++i) to[i] = numbers[i];
        for (int i = 0; mean != nullptr && i < count; ++i) to[i] = clip((to[i] - mean[i]) * inverse[i], -limit, limit);
        for (int i = count; i < end; ++i) to[i] = 0;
        return to;
    }
    // Copies the observations of the rows of `env`.
    template <class Call, class Env> FN void load_observations(const Call& call, const Env& env) {
        load_observations(call, env.lanes, [&](int k) { return k < env.lanes ? env.index(k) : Index(-1); });
    }
    FN const float* outputs_before(int net, int l) const { return l == 0 ? observations[net] : activations[net][l - 1]; }

    __attribute__((noinline)) void forward(const float* flat, int net) {
        for (int l = 0; l < LAYERS; ++l) {
            const int    in = inputs_of(net, l), out = outputs_of(net, l), row = padded(out);
            float* const to = activations[net][l];
            multiply<false>(to, row, {outputs_before(net, l), padded(in), 1}, weights_by_input[net][l], row, rows, out, in,
                            biases[net][l]);
            if (l == LAYERS - 1) return;
            if (NORMALISES) normalise(flat, net, l);
            for (int i = 0; !NORMALISES && KEPT && i < rows * row; ++i) pre_activations[net][l][i] = to[i];
            OMP_SIMD(omp simd) for (int i = 0; i < rows * row; ++i) to[i] = activation(to[i]);
        }
    }
    // Layer normalisation of a hidden layer's sums, in place; keeps the normalised sums.
    FN void normalise(const float* flat, int net, int l) {
        const int          out = outputs_of(net, l);
        const float *const gains = flat + gains_at(net, l), *const shifts = flat + shifts_at(net, l);
        for (int k = 0; k < rows; ++k) {
            float *const row = activations[net][l] + k * padded(out), *const kept = pre_activations[net][l] + k * padded(out);
            float        mean = 0, square = 0;
            OMP_SIMD(omp simd reduction(+:mean)) for (int j = 0; j < out; ++j) mean += row[j];
            mean /= float(out);
            OMP_SIMD(omp simd reduction(+:square)) for (int j = 0; j < out; ++j) square += (row[j] - mean) * (row[j] - mean);
            const float scale  = 1.0f / square_root(square / float(out) + 1e-5f);
            inverse_stds[net][l][k] = scale;
            OMP_SIMD(omp simd) for (int j = 0; j < out; ++j) {
                kept[j] = (row[j] - mean) * scale;
                row[j]  = kept[j] * gains[j] + shifts[j];
            }
        }
    }
    // Multiplies gradients by the slopes of the activations of layer l.
    FN void multiply_by_slopes(const float* flat, float* grads, int net, int l) {
        const float* const y   = activations[net][l];
        const float* const x   = KEPT ? pre_activations[net][l] : y;
        const int          out = outputs_of(net, l), row = padded(out);
        if (!(NORMALISES && SLOPE_OF_INPUT)) {
            OMP_SIMD(omp simd) for (int i = 0; i < rows * row; ++i) grads[i] *= slope(x[i], y[i]);
            return;
        }
        const float *const gains = flat + gains_at(net, l), *const shifts = flat + shifts_at(net, l);
        for (int first = 0; first < rows * row; first += row) {
            OMP_SIMD(omp simd) for (int j = 0; j < out; ++j) {
                grads[first + j] *= slope(x[first + j] * gains[j] + shifts[j], y[first + j]);
            }
        }
    }
    // Adds the gradient of layer normalisation's gains and shifts; turns gradients of its outputs into its inputs'.
    FN void learn_normalisation(const float* flat, float* gradient, float* grads, int net, int l) {
        const int          out = outputs_of(net, l);
        const float* const gains = flat + gains_at(net, l);
        float *const       grad_gains = gradient + gains_at(net, l), *const grad_shifts = gradient + shifts_at(net, l);
        for (int k = 0; k < rows; ++k) {
            const float* const x = pre_activations[net][l] + k * padded(out);
            float* const       grad = grads + k * padded(out);
            float              mean = 0, product = 0;
            OMP_SIMD(omp simd reduction(+:mean, product)) for (int j = 0; j < out; ++j) {
                grad_gains[j] += grad[j] * x[j];
                grad_shifts[j] += grad[j];
                mean += grad[j] * gains[j];
                product += grad[j] * gains[j] * x[j];
            }
            mean /= float(out);
            product /= float(out);
            const float scale = inverse_stds[net][l][k];
            OMP_SIMD(omp simd) for (int j = 0; j < out; ++j) grad[j] = scale * (grad[j] * gains[j] - mean - x[j] * product);
        }
    }
    // Adds the gradient of a net's weights to `gradient`; of_output(k, j) is the gradient of row k's output j.
    template <class OfOutput> FN void add_gradient(const float* flat, float* gradient, int net, OfOutput of_output) {
        const int outs = outputs_of(net, LAYERS - 1), row = padded(outs);
        for (int k = 0; k < rows; ++k) {
            for (int j = 0; j < row; ++j) grads[0][k * row + j] = j < outs ? of_output(k, j) : 0.0f;
        }
        backward(flat, gradient, net);
    }
    __attribute__((noinline)) void backward(const float* flat, float* gradient, int net) {
        float *grad = grads[0], *next = grads[1];
        for (int l = LAYERS - 1; l >= 0; --l) {
            const int in = inputs_of(net, l), out = outputs_of(net, l), row = padded(out);
            if (NORMALISES && l < LAYERS - 1) learn_normalisation(flat, gradient, grad, net, l);
            multiply<true>(gradient + weights_at(net, l), in, {grad, 1, row}, outputs_before(net, l), padded(in), out, in,
                           rows, nullptr);
            for (int j = 0; j < out; j += VECTOR) {
                Vector* const bias = (Vector*)(gradient + biases_at(net, l) + j);
                Vector        sum  = *bias;
                for (int k = 0; k < rows; ++k) sum += *(const Vector*)(grad + k * row + j);
                *bias = sum;
            }
            if (l == 0) return;
            multiply<false>(next, padded(in), {grad, row, 1}, weights_by_output[net][l], padded(in), rows, in, out, nullptr);
            multiply_by_slopes(flat, next, net, l - 1);
            float* const swapped = grad;
            grad = next;
            next = swapped;
        }
    }
};

constexpr Index STRIDE = COUNT + VECTOR;  // of partial sums: products write up to a vector beyond the weights

// Writes a thread's share of the `parts` partial sums of the gradient. The share follows from the thread's rows, first_row
// to end_row - 1, so that each sum has one thread. Sum number `part` is over the tiles part, part + parts, part + 2 parts
// and so on, whatever thread computes it; learn(env, gradient) adds a tile.
template <class Call, class Learn> FN void sum_parts(const Call& call, Index first_row, Index end_row, Learn learn) {
    const Index tiles = (call.rows + LANES - 1) / LANES;
    const Index start = (first_row / LANES * call.parts + tiles - 1) / tiles;
    const Index end   = ((end_row + LANES - 1) / LANES * call.parts + tiles - 1) / tiles;
    for (Index part = start; part < end; ++part) {
        float* const gradient = call.partials + part * STRIDE;
        for (Index i = 0; i < STRIDE; ++i) gradient[i] = 0;
        for (Index tile = part; tile < tiles; tile += call.parts) {
            RangeTile env(tile * LANES, minimum((tile + 1) * LANES, call.rows));
            env.more();
            learn(env, gradient);
        }
    }
}
