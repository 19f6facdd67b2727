// A step of a tile of single-agent replicas: load actions, advance, end and restart episodes, observe, store results.

// Zeroes the final observations that the previous step wrote.
template <class Env> FN void clear_final(const StepCall& call, const Env& env) {
    int stale[LANES];
    FOR_EACH_LANE(k, env) stale[k] = call.buffers.finished[env.index(k)];
    FOR_EACH_MARKED(k, stale, env) clear_final_row(call, env.index(k));
}

// The record of replica i's episode, which lane k has just ended; also writes it to the user's arrays, if any. Callers
// store it as a unit, to write full sectors: a partly written sector must be read first.
FN Record episode_record(const StepCall& call, const Tile& tile, int k, Index i) {
    Record record = {};
    store_episode_statistics(record, tile.running_return[k], tile.elapsed[k]);
    if (STATISTICS && call.episode_return != nullptr) call.episode_return[i] = tile.running_return[k];
    if (STATISTICS && call.episode_length != nullptr) call.episode_length[i] = tile.elapsed[k];
    if (AUTORESET == SAME_STEP) store_final(call, tile, k, i, record);
    store_episode_metrics(call, tile, k, i, record);
    return record;
}

// Loads the tile's actions, and reports invalid ones.
template <class Env> FN void load_actions(const StepCall& call, Tile& tile, const Env& env) {
    const bool valid     = tile.action.load(call.actions, call.action_kind, 0, env);
    const bool ended_too = AUTORESET == DISABLED && call.report_frozen;
    if (!valid || ended_too)
        report_invalid_actions(tile, call.buffers, call.actions, call.action_kind, 0, call.launch, ended_too, env);
}

// Advances the replicas by one step, stores the records of ended episodes, starts the next ones, and sets `finished`.
// `episodes`: on a GPU, the current episodes' numbers; `staggered`: the number of replicas with an offset.
template <class Env>
FN void advance_tile(const StepCall& call, Tile& tile, const Seeds& seeds, u32 (&episodes)[LANES], u32 staggered,
                     int (&finished)[LANES], const Env& env) {
    const Buffers& buffers = call.buffers;
    int pending[LANES], restarting[LANES], touched[LANES], limits[LANES];
    FOR_EACH_LANE(k, env) {
        limits[k]     = limit_of(buffers, staggered, env.index(k), call.limit);  // after the wait for actions
        pending[k]    = tile.ended[k];
        tile.ended[k] = AUTORESET == NEXT_STEP ? 0 : tile.ended[k];
    }
    const ParamBuffers params = call.params;  // a copy, which no store can alias, so that its loads leave the loop
    FOR_EACH_LANE(k, env) {
        const Index i = env.index(k);
        advance_lane(tile, k, {seeds[i], buffers.episodes[i]}, params.get(i), limits[k], pending[k]);
    }
    add_to_totals(tile, call.params, pending, env);
    store_metrics_so_far(call, tile, pending, env);
    observe_all(tile, call.params, env);
    FOR_EACH_LANE(k, env) {
        const int skipped = AUTORESET == NEXT_STEP && pending[k];  // a step that only restarts
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
        if (finished[k]) buffers.records[i] = episode_record(call, tile, k, i);
        if (AUTORESET == DISABLED || !restarting[k]) continue;
        const Key key = {seeds[i], (ON_GPU ? episodes[k] : buffers.episodes[i]) + 1};
        buffers.episodes[i] = episodes[k] = key.episode;
        restart(tile, k, begin_params(params, i, key), key);
    }
    if (AUTORESET != DISABLED) clear_offsets(buffers, staggered, restarting, env);
}

// Writes the step's observations, masks, rewards, terminations and truncations, and which episodes finished.
template <class Env>
FN void store_results(const StepCall& call, const Tile& tile, const int (&finished)[LANES], const Env& env) {
    store_observations(call, tile, 0, env);
    store_masks(call, tile, env);
    store_rewards_and_flags(tile, call.rewards, call.terminations, call.truncations, 0, env);
    FOR_EACH_LANE(k, env) store_streaming(call.buffers.finished + env.index(k), u8(finished[k]));
}
