// The driver of single-agent environments, one step a launch: look at the actions, advance, end, restart, observe.

// Zeroes the final observations that the step before wrote.
template <class Env> FN void clear_final(const StepCall& call, const Env& env) {
    int stale[LANES];
    FOR_EACH_LANE(k, env) stale[k] = call.buffers.finished[env.index(k)];
    FOR_EACH_MARKED(k, stale, env) clear_kept(call, env.index(k));
}

// The record of a replica whose episode has just ended: whole, so that it goes out in whole sectors of memory, for a
// sector that is written in part has to be read first. Into arrays of the user's too, where there are any.
FN Record concluded(const StepCall& call, const Tile& tile, int k, Index i) {
    Record record = {};
    keep_episode(record, tile.running_return[k], tile.elapsed[k]);
    if (STATISTICS && call.episode_return != nullptr) call.episode_return[i] = tile.running_return[k];
    if (STATISTICS && call.episode_length != nullptr) call.episode_length[i] = tile.elapsed[k];
    if (AUTORESET == SAME_STEP) keep_final(call, tile, k, i, record);
    keep_metrics(call, tile, k, i, record);
    return record;
}

STEP_KERNEL(kernel_step, StepCall) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_ENV_IN_TURN(env, buffers.count, call.launch) {
        Tile tile;
        u32  episodes[LANES];
        const u32   staggered = now(buffers.staggered);
        const Seeds seeds(buffers);
        // On a GPU with all else that is read: nearly every warp has an end, and would wait for memory once more.
        if (ON_GPU) FOR_EACH_LANE(k, env) episodes[k] = buffers.episodes[env.index(k)];
        load(tile, buffers, env);
        const bool clean  = tile.action.load(call.actions, call.action_kind, 0, env);
        const bool strict = AUTORESET == DISABLED && call.report_frozen;
        if (!clean || strict)
            report_all(tile, buffers, call.actions, call.action_kind, 0, call.launch, strict, env);

        int pending[LANES], finished[LANES], restarting[LANES], touched[LANES], limits[LANES];
        FOR_EACH_LANE(k, env) {
            limits[k]     = limit_of(buffers, staggered, env.index(k), call.limit);  // here, as actions have been waited for
            pending[k]    = tile.ended[k];
            tile.ended[k] = AUTORESET == NEXT_STEP ? 0 : tile.ended[k];
        }
        const ParamBuffers params = call.params;  // a copy: no store can change it, so what it implies leaves the loop
        FOR_EACH_LANE(k, env) {
            const Index i = env.index(k);
            advance_lane(tile, k, {seeds[i], buffers.episodes[i]}, params.get(i), limits[k], pending[k]);
        }
        add_to_totals(tile, call.params, pending, env);
        tell_metrics(call, tile, pending, env);
        observe_all(tile, call.params, env);
        FOR_EACH_LANE(k, env) {
            const int skipped = AUTORESET == NEXT_STEP && pending[k];  // the step that restarts is none of the episode's
            tile.flags[k]     = skipped ? 0 : tile.flags[k];
            tile.reward[k]    = skipped ? real(0) : tile.reward[k];
            finished[k]       = tile.flags[k] != 0 && !pending[k];
            restarting[k]     = AUTORESET == SAME_STEP ? finished[k] : skipped;
            touched[k]        = finished[k] | restarting[k];
            tile.ended[k]     = finished[k] ? tile.flags[k] : tile.ended[k];
        }
        if (AUTORESET == SAME_STEP && call.clear_final) clear_final(call, env);
        FOR_EACH_MARKED(k, touched, env) {
            const Index i = env.index(k);
            if (finished[k]) buffers.records[i] = concluded(call, tile, k, i);
            if (AUTORESET == DISABLED || !restarting[k]) continue;
            const Key key = {seeds[i], (ON_GPU ? episodes[k] : buffers.episodes[i]) + 1};
            buffers.episodes[i] = key.episode;
            restart(tile, k, begin_params(params, i, key), key);
        }
        if (AUTORESET != DISABLED) forget_offsets(buffers, staggered, restarting, env);
        store(tile, buffers, env);
        deliver(call, tile, 0, env);
        mask_all(call, tile, env);
        store_rewards_and_flags(tile, call.rewards, call.terminations, call.truncations, 0, env);
        FOR_EACH_LANE(k, env) hand_out(buffers.finished + env.index(k), u8(finished[k]));
    }
}

// Looks at the actions of a step before anything changes.
KERNEL(kernel_inspect, StepCall) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_ENV(env, buffers.count) {
        Tile tile;
        load(tile, buffers, env);
        const bool clean  = tile.action.load(call.actions, call.action_kind, 0, env);
        const bool strict = AUTORESET == DISABLED && call.report_frozen;
        if (!clean || strict)
            report_all(tile, buffers, call.actions, call.action_kind, 0, call.launch, strict, env);
    }
}

// Begins a new episode where the mask says so (or nowhere), and observes everywhere.
KERNEL(kernel_reset, ResetCall) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_ENV(env, buffers.count) {
        Tile tile;
        int  chosen[LANES];
        load(tile, buffers, env);
        FOR_EACH_LANE(k, env) chosen[k] = !call.observe_only && (call.mask == nullptr || call.mask[env.index(k)]);
        if constexpr (INDEXED) {  // what restarts may never have begun, and have indices that are outside
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
        forget_offsets(buffers, now(buffers.staggered), chosen, env);
        store(tile, buffers, env);
        deliver(call, tile, 0, env);
        mask_all(call, tile, env);
    }
}
