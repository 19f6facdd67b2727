// Kernels of a policy with a value on a CPU: values, and the gradient of a minibatch.

// Writes the values of all rows, or of those at `indices`, except negative ones.
KERNEL(kernel_values, ValuesCall) {
    PolicyMemory<false> memory(call.flat, VALUE_NET);
    FOR_EACH_ENV(env, call.rows) {
        const auto index = [&](int k) {
            return k >= env.lanes ? Index(-1) : call.indices == nullptr ? env.index(k) : call.indices[env.index(k)];
        };
        bool any = false;
        for (int k = 0; k < env.lanes; ++k) any |= index(k) >= 0;
        if (!any) continue;
        if constexpr (AGENTS > 0) memory.load_central(call, env.lanes, index);
        else memory.load_observations(call, env.lanes, index);
        memory.forward(call.flat, VALUE_NET);
        for (int k = 0; k < env.lanes; ++k) {
            if (index(k) >= 0) call.values[env.index(k)] = memory.value(k);
        }
    }
}

// Writes partial sums of the gradient.
KERNEL(kernel_update, LossCall) {
    PolicyMemory<true> memory(call.flat);
    sum_parts(call, range_first, range_end, [&](const RangeTile& env, float* gradient) {
        LossSamples samples;
        find_samples(samples, call, env);
        const auto index = [&](int k) { return k < env.lanes && samples.alive[k] ? samples.index[k] : Index(-1); };
        memory.load_observations(call, env.lanes, index);
        if constexpr (AGENTS > 0) memory.load_central(call, env.lanes, index);
        for (int net = 0; net < NETS; ++net) memory.forward(call.flat, net);
        for (int k = 0; k < env.lanes; ++k) call.values[env.index(k)] = memory.value(k);
        memory.load_lines(call.flat);
        const Rows rows(memory.lines, env, call.action_mask, call.indices);
        if constexpr (DISCRETE) discrete_loss(samples, call, rows, env);
        else gaussian_loss(samples, call, rows, env);
        rows.replace_forbidden(0.0f, env);
        for (int net = 0; net < NETS; ++net) {
            memory.add_gradient(call.flat, gradient, net, [&](int k, int j) {
                const bool of_value = net == VALUE_NET && j == VALUE_COLUMN;
                if (k >= env.lanes || (!of_value && (net > 0 || j >= MEANS))) return 0.0f;
                return of_value ? call.grad_values[env.index(k)] : memory.lines[j * LANES + k];
            });
        }
        for (int j = MEANS; j < PARAMETERS; ++j) {
            for (int k = 0; k < env.lanes; ++k) gradient[LOG_STD + j - MEANS] += memory.lines[j * LANES + k];
        }
    });
}
