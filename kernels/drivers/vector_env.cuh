// The driver of single-agent environments with one step per launch.

STEP_KERNEL(kernel_step, StepCall) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_ENV_ALTERNATING(env, buffers.count, call.launch) {
        Tile tile;
        u32  episodes[LANES];
        int  finished[LANES];
        const u32   staggered = load_count(buffers.staggered);
        const Seeds seeds(buffers);
        // On a GPU, loaded with the other inputs: nearly every warp has an episode that ends, and would wait again.
        if (ON_GPU) FOR_EACH_LANE(k, env) episodes[k] = buffers.episodes[env.index(k)];
        load(tile, buffers, env);
        load_actions(call, tile, env);
        advance_tile(call, tile, seeds, episodes, staggered, finished, env);
        store(tile, buffers, env);
        store_results(call, tile, finished, env);
    }
}

// Reports a step's invalid actions, and actions after an episode's end if `report_frozen`, before any state changes.
KERNEL(kernel_inspect, StepCall) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_ENV(env, buffers.count) {
        Tile tile;
        load(tile, buffers, env);
        load_actions(call, tile, env);
    }
}

// Starts new episodes in the masked replicas (all without a mask; none with observe_only), and observes all replicas.
KERNEL(kernel_reset, ResetCall) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_ENV(env, buffers.count) {
        Tile tile;
        int  chosen[LANES];
        load(tile, buffers, env);
        FOR_EACH_LANE(k, env) chosen[k] = !call.observe_only && (call.mask == nullptr || call.mask[env.index(k)]);
        if constexpr (INDEXED) {  // states before the first reset may have indices out of range
            FOR_EACH_LANE_ALONE(k, env) if (!chosen[k]) observe_lane(tile, k, call.params.get(env.index(k)));
        } else {
            observe_all(tile, call.params, env);
        }
        FOR_EACH_MARKED(k, chosen, env) {
            const Index i   = env.index(k);
            Key         key = {buffers.seeds[i], buffers.episodes[i]};
            if (call.reseed == nullptr ? call.reseed_all != 0 : call.reseed[i] != 0)
                key = {call.reseed == nullptr ? call.first_seed + u64(i) : call.new_seeds[i], NEVER_BEGUN};
            key.episode += 1;
            buffers.seeds[i]    = key.seed;
            buffers.episodes[i] = key.episode;
            restart(tile, k, begin_params(call.params, i, key), key);
        }
        const bool reseeding = !call.observe_only && (call.reseed != nullptr || call.reseed_all != 0);
        if (reseeding && env.index(0) == 0) *buffers.counted = call.reseed == nullptr && call.mask == nullptr;
        clear_offsets(buffers, load_count(buffers.staggered), chosen, env);
        store(tile, buffers, env);
        store_observations(call, tile, 0, env);
        store_masks(call, tile, env);
    }
}
