// A policy acts in single-agent environments for a full horizon, in one launch: a tile of replicas at a time, whose state
// and observations stay in the cache.
//
// Before it: in the namespace `acting` the policy, with act.cuh; then the environment, with one_step.cuh, and
// advance.cuh.

KERNEL(kernel_act_and_step, ActAndStepCall) {
    acting::PolicyMemory<false> memory(call.act.flat);
    const Buffers& buffers   = call.step.buffers;
    const u32      staggered = load_count(buffers.staggered);
    const Seeds    seeds(buffers);
    FOR_EACH_ENV(env, buffers.count) {
        StepCall           step = call.step;
        acting::SampleCall act  = call.act;
        Tile tile;
        u32  episodes[LANES];
        int  finished[LANES];
        FOR_EACH_LANE(k, env) episodes[k] = buffers.episodes[env.index(k)];
        load(tile, buffers, env);
        for (int t = 0; t < call.horizon; ++t) {
            acting::act_on_tile(memory, act, env);
            step.actions = acting::DISCRETE ? static_cast<const void*>(act.actions) : act.acted;
            load_actions(step, tile, env);
            advance_tile(step, tile, seeds, episodes, staggered, finished, env);
            act.observations = step.observations;
            store_results(step, tile, finished, env);
            advance(step, act, buffers.count);
            act.values += buffers.count;
        }
        store(tile, buffers, env);
    }
}
