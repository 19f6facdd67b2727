// A step of a tile of single-agent replicas: look at the actions, advance, end, restart, observe, hand out.

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

// Takes the tile's actions, and reports those that are invalid.
template <class Env> FN void take_actions(const StepCall& call, Tile& tile, const Env& env) {
    const bool clean  = tile.action.load(call.actions, call.action_kind, 0, env);
    const bool strict = AUTORESET == DISABLED && call.report_frozen;
    if (!clean || strict)
        report_all(tile, call.buffers, call.actions, call.action_kind, 0, call.launch, strict, env);
}

// Advances the replicas, begins the episodes that follow, and leaves in `finished` whose episode ended. On a GPU,
// `episodes` are the numbers of those under way.
template <class Env>
FN void advance_tile(const StepCall& call, Tile& tile, const Seeds& seeds, u32 (&episodes)[LANES], u32 staggered,
                     int (&finished)[LANES], const Env& env) {
    const Buffers& buffers = call.buffers;
    int pending[LANES], restarting[LANES], touched[LANES], limits[LANES];
    FOR_EACH_LANE(k, env) {
        limits[k]     = limit_of(buffers, staggered, env.index(k), call.limit);  // here: actions have been waited for
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
        buffers.episodes[i] = episodes[k] = key.episode;
        restart(tile, k, begin_params(params, i, key), key);
    }
    if (AUTORESET != DISABLED) forget_offsets(buffers, staggered, restarting, env);
}

// Writes what the step gave.
template <class Env>
FN void hand_out_results(const StepCall& call, const Tile& tile, const int (&finished)[LANES], const Env& env) {
    deliver(call, tile, 0, env);
    mask_all(call, tile, env);
    store_rewards_and_flags(tile, call.rewards, call.terminations, call.truncations, 0, env);
    FOR_EACH_LANE(k, env) hand_out(call.buffers.finished + env.index(k), u8(finished[k]));
}
