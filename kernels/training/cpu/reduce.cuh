// Adds the parts of a gradient.

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
