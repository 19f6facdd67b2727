// Kernels of a policy with a value on a CPU: acting, values, and the gradient of a minibatch.

constexpr Index STRIDE = COUNT + VECTOR;  // of partial sums; products write up to a vector beyond the weights

// Writes actions and log-probabilities, and values if asked for.
KERNEL(kernel_act, SampleCall) {
    PolicyMemory<false> memory(call.flat);
    FOR_EACH_ENV(env, call.rows) act_on_tile(memory, call, env);
}

// Writes the values of all rows, or of those at `indices`, except negative ones.
KERNEL(kernel_values, ValuesCall) {
    PolicyMemory<false> memory(call.flat);
    FOR_EACH_ENV(env, call.rows) {
        const auto index = [&](int k) {
            return k >= env.lanes ? Index(-1) : call.indices == nullptr ? env.index(k) : call.indices[env.index(k)];
        };
        memory.load_observations(call, index);
        memory.run(call.flat, VALUE_NET);
        for (int k = 0; k < env.lanes; ++k) {
            if (index(k) >= 0) call.values[env.index(k)] = memory.value(k);
        }
    }
}

// Writes partial sums of the gradient: each tile of the launch has a part, with every `parts`-th tile of the rows.
KERNEL(kernel_update, LossCall) {
    PolicyMemory<true> memory(call.flat);
    FOR_EACH_ENV(part_env, call.parts * LANES) {
        const Index  part = part_env.index(0) / LANES;
        float* const gradient = call.partials + part * STRIDE;
        for (Index i = 0; i < STRIDE; ++i) gradient[i] = 0;
        for (Index first = part * LANES; first < call.rows; first += call.parts * LANES) {
            RangeTile env(first, minimum(first + LANES, call.rows));
            env.more();
            LossSamples samples;
            find_samples(samples, call, env);
            memory.load_observations(call, [&](int k) {
                return k < env.lanes && samples.alive[k] ? samples.index[k] : Index(-1);
            });
            for (int net = 0; net < NETS; ++net) memory.run(call.flat, net);
            for (int k = 0; k < env.lanes; ++k) call.values[env.index(k)] = memory.value(k);
            memory.load_lines(call.flat);
            const Rows rows(memory.lines, env, call.action_mask, call.indices);
            if constexpr (DISCRETE) discrete_loss(samples, call, rows, env);
            else gaussian_loss(samples, call, rows, env);
            rows.replace_forbidden(0.0f, env);
            for (int net = 0; net < NETS; ++net) {
                const int row = padded(outputs_of(net, LAYERS - 1));
                for (int i = 0; i < LANES * row; ++i) memory.grads[0][i] = 0;
                for (int k = 0; k < env.lanes; ++k) {
                    float* const grads = memory.grads[0] + k * row;
                    for (int j = 0; net == 0 && j < MEANS; ++j) grads[j] = memory.lines[j * LANES + k];
                    if (net == VALUE_NET) grads[VALUE_COLUMN] = call.grad_values[env.index(k)];
                }
                memory.learn(call.flat, gradient, net);
            }
            for (int j = MEANS; j < PARAMETERS; ++j) {
                for (int k = 0; k < env.lanes; ++k) gradient[LOG_STD + j - MEANS] += memory.lines[j * LANES + k];
            }
        }
    }
}

// Adds the parts of the gradient.
KERNEL(kernel_reduce, ReduceCall) {
    FOR_EACH_ENV(env, COUNT) {
        FOR_EACH_LANE(k, env) {
            const Index i   = env.index(k);
            float       sum = 0;
            for (int part = 0; part < call.parts; ++part) sum += call.partials[part * STRIDE + i];
            call.gradient[i] = sum;
        }
    }
}
