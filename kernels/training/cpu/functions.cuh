// Outputs of the first net on a CPU, and the gradient of its weights from gradients of its outputs. Before it: act.cuh.

KERNEL(kernel_outputs, OutputsCall) {
    PolicyMemory<false> memory(call.flat);
    FOR_EACH_ENV(env, call.rows) {
        memory.load_observations(call, env);
        memory.forward(call.flat, 0);
        for (int k = 0; k < env.lanes; ++k) {
            const float* const row = memory.activations[0][LAYERS - 1] + k * padded(MEANS);
            for (int j = 0; j < MEANS; ++j) call.outputs[env.index(k) * MEANS + j] = row[j];
        }
    }
}

// Writes partial sums of the gradient.
KERNEL(kernel_backward, BackwardCall) {
    PolicyMemory<true> memory(call.flat);
    sum_parts(call, range_first, range_end, [&](const RangeTile& env, float* gradient) {
        memory.load_observations(call, env);
        memory.forward(call.flat, 0);
        memory.add_gradient(call.flat, gradient, 0, [&](int k, int j) {
            return k < env.lanes ? call.grad_outputs[env.index(k) * MEANS + j] : 0.0f;
        });
    });
}
