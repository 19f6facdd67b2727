// The optimiser's step along a gradient, the temperature's, and the two kernels.

// Sums [count, rows] over rows. Not inlined, as code that runs once takes most of its time to be fetched.
static __device__ __noinline__ void sum_rows(float* totals, const float* sums, int count, int rows) {
    const int warp = thread_rank() / WARP, lane = thread_rank() % WARP;
    NO_UNROLL
    for (int s = warp; s < count; s += WARPS) {
        float sum = 0;
        _Pragma("unroll 8")
        for (int row = lane; row < rows; row += WARP) sum += sums[s * rows + row];
        sum = warp_sum(sum);
        if (lane == 0) totals[s] = sum;
    }
}

// Takes Adam's step, and moves `target` by tau. `squares` is this thread's part of the gradient's squared norm;
// meanwhile() runs while other blocks finish their parts.
template <class Call, class Meanwhile>
FN void step(const Call& call, float* target, float squares, u32* arrivals, const Meanwhile& meanwhile) {
    constexpr int AT_ONCE = 5;
    const int     count = int(call.count), stride = block_count() * THREADS;
    const int     begin = block_number() * THREADS + thread_rank();
    const i64     steps = *call.steps + 1;  // read before the first block writes it
    Moments       moments[AT_ONCE];
    float         targets[AT_ONCE];
    const auto    load = [&](int first) {
        UNROLL
        for (int k = 0; k < AT_ONCE; ++k) {
            const int i = first + k * stride;
            if (i >= count) break;
            moments[k] = {0.0f, call.means[i], call.squares[i], call.weights[i]};
            targets[k] = call.tau > 0 ? target[i] : 0.0f;
        }
    };
    squares = block_sum<THREADS>(squares);
    if (thread_rank() == 0) call.block_squares[block_number()] = squares;
    const u32 before = arrive_at_grid(arrivals);
    load(begin);
    const Rates rates = rates_of(call, steps);
    meanwhile();
    wait_for_grid(arrivals, before);
    const float   partial = thread_rank() < block_count() ? call.block_squares[thread_rank()] : 0.0f;
    const Outcome outcome = outcome_of(call, false, square_root(block_sum<THREADS>(partial)));
    NO_UNROLL
    for (int first = begin; first < count; first += AT_ONCE * stride) {
        if (first != begin) load(first);
        UNROLL
        for (int k = 0; k < AT_ONCE; ++k) {
            if (first + k * stride < count) moments[k].gradient = call.message[first + k * stride];
        }
        UNROLL
        for (int k = 0; k < AT_ONCE; ++k) {
            const int i = first + k * stride;
            if (i >= count) break;
            const float weight =
                outcome.active ? take_step(call, i, moments[k], outcome.gradient_factor, rates) : moments[k].weight;
            if (call.tau > 0) target[i] = targets[k] + call.tau * (weight - targets[k]);
        }
    }
    if (begin == 0) write_outcome(call, outcome, steps);
}

// The temperature as arguments for adam.cuh's functions: a network of one weight, the temperature's logarithm.
struct Temperature {
    const float* learning_rate;
    double       log_beta1, log_beta2;
    i64*         steps;
    int*         stop;
    float        max_norm, max_kl;
    Index        count;
    float        rate1, rate2, beta2, epsilon;
    float *      message, *weights, *means, *squares, *metrics, *norm;
};

// Adam's step of the temperature, by the block that has summed its gradient.
template <class Call> FN void temperature_step(const Call& call) {
    block_barrier();
    if (thread_rank() != 0) return;
    const Temperature temperature = {
        call.learning_rate, call.log_beta1, call.log_beta2, call.temperature_steps, nullptr, 0.0f, 0.0f, 1, call.rate1,
        call.rate2, call.beta2, call.epsilon, call.temperature_message, call.log_temperature, call.temperature_means,
        call.temperature_squares, nullptr, call.temperature_norm,
    };
    const i64     steps   = *temperature.steps + 1;
    const Moments moments = moments_of(temperature, 0);
    const Outcome outcome = outcome_of(temperature, false, elementary::abs(moments.gradient));
    if (outcome.active) take_step(temperature, 0, moments, outcome.gradient_factor, rates_of(temperature, steps));
    write_outcome(temperature, outcome, steps);
}

// Sums the blocks' parts of the actor's outputs, and adds the biases.
FN void sum_outputs(RowValues& values, const Net& actor) {
    cluster_barrier();
    NO_UNROLL
    for (int i = thread_rank(); i < ROWS * OUTPUTS; i += THREADS) {
        const float bias  = biases_of(actor, HIDDEN)[i % OUTPUTS];
        values.outputs[i] = bias + cluster_sum(values.outputs_part + i);
    }
    block_barrier();
}

// Sums the blocks' parts of the Q-values of `count` nets, first NETS critics, then their NETS targets; adds the biases.
FN void sum_q(RowValues& values, int count, const float* critics, const float* targets) {
    cluster_barrier();
    NO_UNROLL
    for (int i = thread_rank(); i < ROWS * count; i += THREADS) {
        const int n = i / ROWS, row = i % ROWS;
        const float bias = *biases_of({n < NETS ? critics : targets, n % NETS}, HIDDEN);
        values.q[n][row] = bias + cluster_sum(&values.q_part[n][row]);
    }
    block_barrier();
}

// Writes a row's action into the critics' inputs; returns its log-probability.
FN float write_action(float* inputs, const float* outputs, const float* normal, float noise, float noise_limit) {
    float log_prob = 0;
    NO_UNROLL
    for (int d = 0; d < WIDTH; ++d) {
        inputs[FEATURES + d] = action_element(outputs, normal, 0, d, noise, noise_limit, log_prob);
    }
    return log_prob;
}

// Writes a row's critic loss and its gradients with respect to the Q-values; each of 16 threads calls it for a row.
template <class Call>
FN void critic_loss(const Call& call, RowValues& values, int row, float log_prob, float temperature) {
    const int  r      = thread_rank(), rows = int(call.rows);
    const bool inside = row < rows, valid = inside && call.valid[row] != 0, writes = inside && cluster_rank() == 0;
    float      target = 0, loss = 0;
    if (valid) {
        const float* const next_q = &values.q[NETS][r];
        target = td_target(next_q, ROWS, temperature, log_prob, call.returns[row], call.discounts[row]);
    }
    FOR_EACH_NET(net, NETS) {
        const float error = valid ? values.q[net][r] - target : 0.0f;
        loss += 0.5f * error * error;
        values.grad_q[net][r] = error;
        if (writes) call.grad_q[Index(net) * rows + row] = error;
    }
    if (writes) {
        call.sums[Index(VALUE_LOSS) * rows + row] = loss;
        call.sums[Index(ALIVE) * rows + row]      = valid ? 1.0f : 0.0f;
    }
}

// Computes the gradient of the critics' loss for a batch, and takes their step, if this process is alone.
template <class Call> FN void update_critics(const Call& call) {
    RowValues&   values = row_values();
    const int    rows = int(call.rows), tiles = (rows + ROWS - 1) / ROWS, r = thread_rank();
    const float  temperature = temperature_of(call.log_temperature);
    u32* const   arrivals = reinterpret_cast<u32*>(call.arrivals);
    float* const inputs = input_tile(0), * const next_inputs = input_tile(1);
    const Index  net_size = Index(HIDDEN) * rows * MAX_WIDTH;
    ForwardPass  critics[NETS], targets[NETS], first_passes[1 + NETS];  // actor and first target share tiles
    first_passes[0] = {{call.next_actor, -1}, NETS * LAYER_TILES_OF_NET, OUTPUTS,
                       next_inputs,           slice_tile(NETS),          values.outputs_part};
    FOR_EACH_NET(net, NETS) {
        const int target = NETS + net;
        critics[net] = {{call.critics, net}, net * LAYER_TILES_OF_NET, 1, inputs, slice_tile(net), values.q_part[net]};
        targets[net] = {{call.targets, net}, target * LAYER_TILES_OF_NET, 1,
                        next_inputs,         slice_tile(target),          values.q_part[target]};
        first_passes[1 + net] = critics[net];
    }
    NO_UNROLL
    for (int tile = cluster_number(); tile < tiles; tile += cluster_count()) {
        const int first = tile * ROWS, row = first + r;
        float     log_prob = 0;
        if (tile >= cluster_count()) cluster_barrier();  // all blocks have read the last tile's parts
        load_tile(next_inputs, call.next_observations, FEATURES, nullptr, 0, first, rows);
        load_tile(inputs, call.observations, FEATURES, call.actions, WIDTH, first, rows);
        block_barrier();
        forward(first_passes);
        sum_outputs(values, first_passes[0].net);
        if (r < ROWS) {
            const float* const normal  = call.normal + Index(row < rows ? row : 0) * WIDTH;
            const float* const outputs = values.outputs + r * OUTPUTS;
            log_prob = write_action(next_inputs + r * INPUT_STRIDE, outputs, normal, call.noise, call.noise_limit);
        }
        block_barrier();
        forward(targets);
        sum_q(values, 2 * NETS, call.critics, call.targets);
        if (r < ROWS) critic_loss(call, values, row, log_prob, temperature);
        if (cluster_rank() == 0) {
            NO_UNROLL
            for (int i = r; i < ROWS * INPUTS; i += THREADS) {
                const int n = i / INPUTS, k = i % INPUTS;
                if (first + n < rows) call.inputs[Index(first + n) * INPUTS + k] = inputs[n * INPUT_STRIDE + k];
            }
        }
        block_barrier();
        BackwardPass passes[NETS];
        FOR_EACH_NET(net, NETS) {
            const ForwardPass& critic = critics[net], & target = targets[net];
            passes[net] = {critic.net, critic.first_tile, target.first_tile, target.last, critic.last};
            store_activations(call.activations + net * net_size, critic.first_tile, critic.last, first, rows);
        }
        backward_from_outputs<1>(passes, values.grad_q);
        block_barrier();
        backward<HIDDEN - 1, 0>(passes, [&](int l, int net, const float* grads) {
            store_slice(call.grads + Index(net * HIDDEN + l) * rows * MAX_WIDTH, grads, SLICE_STRIDE, l, first, rows);
        });
    }
    cluster_barrier();  // other blocks have read this one's shared memory
    wait_for_grid(arrivals, arrive_at_grid(arrivals));
    int   turn    = 0;
    float squares = 0;
    NO_UNROLL
    for (int net = 0; net < NETS; ++net) {
        squares += net_gradient({call.critics, net}, call.message, {call.inputs, INPUTS, INPUTS},
                                call.activations + net * net_size, call.grads + net * net_size,
                                {call.grad_q + Index(net) * rows, 1, 1}, rows, turn);
    }
    if (block_number() == turn) sum_rows(call.message + call.count, call.sums, SUMS, rows);
    if (call.alone) step(call, call.targets, squares, arrivals, [] {});
}

// Writes a row's actor loss and its gradients with respect to Q-values and temperature; each of 16 threads calls it.
template <class Call>
FN void actor_loss(const Call& call, RowValues& values, int row, bool valid, float log_prob, float temperature) {
    const int r = thread_rank(), rows = int(call.rows), critic = actors_critic(&values.q[0][r], ROWS);
    FOR_EACH_NET(net, NETS) values.grad_q[net][r] = valid && critic == net ? -1.0f : 0.0f;
    if (row >= rows || cluster_rank() != 0) return;
    const float loss = (STOCHASTIC ? temperature * log_prob : 0.0f) - values.q[critic][r];
    call.sums[Index(POLICY_LOSS) * rows + row] = valid ? loss : 0.0f;
    call.sums[Index(ENTROPY) * rows + row]     = valid && STOCHASTIC ? -log_prob : 0.0f;
    call.sums[Index(ALIVE) * rows + row]       = valid ? 1.0f : 0.0f;
    call.grad_temperature[row]                 = valid ? -(log_prob + call.target_entropy) : 0.0f;
}

// Adds this block's part of the gradients with respect to the actions. With several hidden layers it comes from this
// block's part of the gradients of all first-layer columns; with one, from the gradients of its slice.
FN void add_action_gradients(RowValues& values, const BackwardPass& pass) {
    constexpr bool SLICED  = HIDDEN == 1;
    constexpr int  COLUMNS = SLICED ? slice_width(0) : width_of(0), STRIDE = SLICED ? SLICE_STRIDE : LAYER_STRIDE;
    constexpr int  EACH    = (COLUMNS + WARP - 1) / WARP;
    const int      warp = thread_rank() / WARP, lane = thread_rank() % WARP;
    const float*   grads = pass.grads;
    if constexpr (!SLICED) {
        float* const tile = layer_tile(pass.first_tile);  // activations, overwritten by gradients
        backward_through<1>(pass.grads, pass.net, [&](int row, int column, float x) {
            tile[row * LAYER_STRIDE + column] = x * slope(tile[row * LAYER_STRIDE + column]);
        });
        grads = tile;
        block_barrier();
    }
    const float* const weights = weights_of(pass.net, 0) + (SLICED ? slice_begin(0) : 0) * INPUTS + FEATURES;
    NO_UNROLL
    for (int d = 0; d < WIDTH; ++d) {
        float weight[EACH];
        UNROLL
        for (int e = 0; e < EACH; ++e) {
            const int o = lane + e * WARP;
            weight[e]   = o < COLUMNS ? weights[o * INPUTS + d] : 0.0f;
        }
        NO_UNROLL
        for (int row = warp; row < ROWS; row += WARPS) {
            float sum = 0;
            UNROLL
            for (int e = 0; e < EACH; ++e) {
                const int o = lane + e * WARP;
                if (o < COLUMNS) sum += grads[row * STRIDE + o] * weight[e];
            }
            sum = warp_sum(sum);
            if (lane == 0) values.grad_actions_part[row * WIDTH + d] += sum;
        }
    }
}

// Writes the loss's gradients with respect to a row's outputs of the actor; each of 16 threads calls it for a row.
template <class Call>
FN void output_gradients(const Call& call, RowValues& values, const float* inputs, const float* normal, int row,
                         bool valid, float temperature) {
    const int    r = thread_rank(), rows = int(call.rows);
    float* const grads = values.grad_outputs[0] + r * OUTPUTS;
    NO_UNROLL
    for (int d = 0; d < WIDTH; ++d) {
        actor_gradient(grads, values.outputs + r * OUTPUTS, normal, inputs[r * INPUT_STRIDE + FEATURES + d],
                       values.grad_actions[r * WIDTH + d], temperature, 0, d);
    }
    NO_UNROLL
    for (int o = 0; o < OUTPUTS; ++o) {
        if (!valid) grads[o] = 0;
        if (row < rows && cluster_rank() == 0) call.grad_outputs[Index(row) * OUTPUTS + o] = grads[o];
    }
}

// Computes the gradients of actor and temperature for a batch; if this process trains alone, also takes their steps.
template <class Call> FN void update_actor(const Call& call) {
    RowValues&        values = row_values();
    const int         rows = int(call.rows), tiles = (rows + ROWS - 1) / ROWS, r = thread_rank();
    const float       temperature = temperature_of(call.log_temperature);
    u32* const        arrivals = reinterpret_cast<u32*>(call.arrivals);
    float* const      inputs = input_tile(0);
    const ForwardPass actor[1] = {{{call.actor, -1}, 0, OUTPUTS, inputs, slice_tile(0), values.outputs_part}};
    ForwardPass       critics[NETS];
    FOR_EACH_NET(net, NETS) {
        const int first_tile = (1 + net) * LAYER_TILES_OF_NET;
        critics[net] = {{call.critics, net}, first_tile, 1, inputs, slice_tile(1 + net), values.q_part[net]};
    }
    NO_UNROLL
    for (int tile = cluster_number(); tile < tiles; tile += cluster_count()) {
        const int          first = tile * ROWS, row = first + r;
        const float* const normal = call.normal + Index(row < rows ? row : 0) * WIDTH;
        const bool         valid  = r < ROWS && row < rows && call.valid[row] != 0;
        float              log_prob = 0;
        if (tile >= cluster_count()) cluster_barrier();  // all blocks have read the last tile's parts
        load_tile(inputs, call.observations, FEATURES, nullptr, 0, first, rows);
        block_barrier();
        forward(actor);
        sum_outputs(values, actor[0].net);
        if (r < ROWS) {
            log_prob = write_action(inputs + r * INPUT_STRIDE, values.outputs + r * OUTPUTS, normal, 0.0f, 0.0f);
        }
        block_barrier();
        forward(critics);
        sum_q(values, NETS, call.critics, call.critics);
        if (r < ROWS) actor_loss(call, values, row, valid, log_prob, temperature);
        NO_UNROLL
        for (int i = r; i < ROWS * WIDTH; i += THREADS) values.grad_actions_part[i] = 0;
        block_barrier();
        BackwardPass passes[NETS];
        FOR_EACH_NET(net, NETS) {
            const ForwardPass& critic = critics[net];
            const int          spare_tile = (1 + NETS) * LAYER_TILES_OF_NET + net;
            passes[net] = {critic.net, critic.first_tile, spare_tile, slice_tile(1 + NETS + net), critic.last};
        }
        backward_from_outputs<1>(passes, values.grad_q);
        block_barrier();
        if constexpr (HIDDEN > 1) backward<HIDDEN - 1, 1>(passes, [](int, int, const float*) {});
        FOR_EACH_NET(net, NETS) add_action_gradients(values, passes[net]);
        cluster_barrier();
        NO_UNROLL
        for (int i = r; i < ROWS * WIDTH; i += THREADS) {
            values.grad_actions[i] = cluster_sum(values.grad_actions_part + i);
        }
        block_barrier();
        if (r < ROWS) output_gradients(call, values, inputs, normal, row, valid, temperature);
        block_barrier();
        const BackwardPass actors[1] = {{actor[0].net, 0, LAYER_TILES_OF_NET, slice_tile(1 + NETS), actor[0].last}};
        backward_from_outputs<OUTPUTS>(actors, values.grad_outputs);
        block_barrier();
        store_activations(call.activations, 0, actor[0].last, first, rows);
        backward<HIDDEN - 1, 0>(actors, [&](int l, int, const float* grads) {
            store_slice(call.grads + Index(l) * rows * MAX_WIDTH, grads, SLICE_STRIDE, l, first, rows);
        });
    }
    cluster_barrier();  // other blocks have read this one's shared memory
    wait_for_grid(arrivals, arrive_at_grid(arrivals));
    int         turn    = 0;
    const float squares = net_gradient({call.actor, -1}, call.message, {call.observations, FEATURES, FEATURES},
                                       call.activations, call.grads, {call.grad_outputs, OUTPUTS, OUTPUTS}, rows, turn);
    if (block_number() == turn) sum_rows(call.message + call.count, call.sums, SUMS, rows);
    turn = (turn + 1) % block_count();
    if constexpr (STOCHASTIC) {
        if (block_number() == turn) {
            sum_rows(call.temperature_message, call.grad_temperature, 1, rows);
            sum_rows(call.temperature_message + 1 + ALIVE, call.sums + Index(ALIVE) * rows, 1, rows);
        }
    }
    if (!call.alone) return;
    step(call, call.target, squares, arrivals, [&] {
        if constexpr (STOCHASTIC) if (block_number() == turn) temperature_step(call);
    });
}
