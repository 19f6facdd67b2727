// The loss of actor and critic by rows of parameters and values, and its gradient.

KERNEL(kernel_loss, LossCall) {
    const LocalMemory memory(STAGED_BYTES);
    if constexpr (BY_WARPS) {
        FOR_EACH_ENV_OF_A_WARP(env, call.rows) work_out(call, memory, env);
    } else {
        FOR_EACH_ENV(env, call.rows) work_out(call, memory, env);
    }
}
