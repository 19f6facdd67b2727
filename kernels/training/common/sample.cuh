// Draws actions of rows of parameters.

KERNEL(kernel_sample, SampleCall) {
    const LocalMemory memory(STAGED_BYTES);
    if constexpr (BY_WARPS) {
        FOR_EACH_ENV_OF_A_WARP(env, call.rows) draw(call, memory, env);
    } else {
        FOR_EACH_ENV(env, call.rows) draw(call, memory, env);
    }
}
