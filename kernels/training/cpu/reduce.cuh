// Adds the parts of a gradient.

KERNEL(kernel_reduce, ReduceCall) {
    FOR_EACH_ENV(env, COUNT) {
        float sum[LANES] = {};
        for (int part = 0; part < call.parts; ++part) {
            const float* const numbers = call.partials + part * STRIDE;
            FOR_EACH_LANE(k, env) sum[k] += numbers[env.index(k)];
        }
        FOR_EACH_LANE(k, env) call.gradient[env.index(k)] = sum[k];
    }
}
