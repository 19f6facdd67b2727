// The kernel of a policy with a value that acts on a CPU. Before it: act.cuh.

// Writes actions and log-probabilities, and values if asked for.
KERNEL(kernel_act, SampleCall) {
    PolicyMemory<false> memory(call.flat, 0, AGENTS > 0 ? VALUE_NET : NETS);  // a central critic has no values here
    FOR_EACH_ENV(env, call.rows) act_on_tile(memory, call, env);
}
