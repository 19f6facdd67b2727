// The driver of single-agent environments, many steps a launch. State and episode stay in registers (on a CPU: in the
// first-level cache) from the first step to the last.

// The start of each lane's next episode, made for the whole tile (on a GPU: the whole warp) when any lane needs one:
// episodes end at different times, and to make each start on its own would stall the other lanes every time.
struct Spare {
    States state;
    Words  action_bits[LANES];
    int    ready[LANES];
    SpareParams params;
};

// Functions, since compilers do not vectorise a loop with structs of its own; of actions for all lanes, since none stores
// every fourth word under a mask: what a lane has already is made again, the same.
FN void prepare(Spare& spare, int k, const ParamBuffers& params, Index i, u64 seed, u32 episode) {
    const Key key = {seed, episode};
    spare.state.set(k, first_state(spare_params(spare.params, k, params, i, key), key));
    spare.ready[k] = 1;
}
FN void prepare_actions(Spare& spare, int k, u64 seed, u32 episode) {
    spare.action_bits[k] = random_words(seed, RANDOM_ACTION, 0, episode, 0, 0);
}

// Of the episodes that ended, and of all rewards.
struct Sums {
    real rewards[LANES], returns[LANES], episode_return[LANES];
    int  episodes[LANES], terminated[LANES], truncated[LANES], lengths[LANES], episode_length[LANES];
};

// The episodes under way. With the fields in another order, or in one struct with Spare and Sums, rollouts took up to 8
// registers more.
struct Episodes {
    int limits[LANES];  // steps at which they are truncated
    u32 numbers[LANES];
    u64 seeds[LANES];
};

// Many steps in one launch. An episode that ends is followed at once by the next, but where nothing restarts by itself:
// there a replica stays where its episode ended.
constexpr bool STAYS = AUTORESET == DISABLED;

// Threads that a multiprocessor should hold: what they wait for is hidden behind one another's work, and compilers take
// more registers than pay.
constexpr int ROLLOUT_THREADS = sizeof(real) == 4 ? 768 : 256;

// The actions of a step to come, which arrive while this one is computed.
constexpr int STEPS_AHEAD = 2;
template <class Env> FN void fetch_actions_ahead(const RolloutCall& call, int t, const Env& env) {
    if (!ON_GPU || unsigned(t) + STEPS_AHEAD >= unsigned(call.steps)) return;
    const Index base  = Index(t + STEPS_AHEAD) * call.buffers.count;
    const int   bytes = call.action_kind == UINT8 ? 1 : call.action_kind == INT64 || call.action_kind == FLOAT64 ? 8 : 4;
    FOR_EACH_LANE(k, env)
        fetch_ahead(static_cast<const char*>(call.actions) + (base + env.index(k)) * (Actions::SIZE * bytes));
}

// Takes up the replicas' episodes, and clears what the rollout counts. An episode that had ended before is followed by the
// next, as at every later end.
template <class Env>
FN void begin_rollout(const RolloutCall& call, Tile& tile, Episodes& episodes, Sums& sums, Spare& spare,
                      const ParamBuffers& params, u32 staggered, const Env& env) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_LANE(k, env) {
        episodes.seeds[k]   = buffers.seeds[env.index(k)];
        episodes.numbers[k] = buffers.episodes[env.index(k)];
        spare.ready[k]      = 0;
        sums.rewards[k] = sums.returns[k] = sums.episode_return[k] = 0;
        sums.episodes[k] = sums.terminated[k] = sums.truncated[k] = sums.lengths[k] = sums.episode_length[k] = 0;
    }
    if (!STAYS) forget_offsets(buffers, staggered, tile.ended, env);
    FOR_EACH_LANE(k, env) episodes.limits[k] = limit_of(buffers, staggered, env.index(k), call.limit);
    if (STAYS) return;
    FOR_EACH_MARKED(k, tile.ended, env) {
        episodes.numbers[k] += 1;
        const Key key = {episodes.seeds[k], episodes.numbers[k]};
        restart(tile, k, begin_params(params, env.index(k), key), key);
    }
}

// Takes the actions of step t, which lie from `base` on, and reports those that are invalid.
template <class Env> FN void take_given_actions(const RolloutCall& call, Tile& tile, int t, Index base, const Env& env) {
    fetch_actions_ahead(call, t, env);
    const bool clean = tile.action.load(call.actions, call.action_kind, base, env);
    if (!clean) report_all(tile, call.buffers, call.actions, call.action_kind, base, call.launch, false, env);
}

// Draws the actions of step t, and records them where the user asks for them. One call of Philox has the bits of several
// steps, so that it is made only where an episode has used up those of the call before.
template <class Env>
FN void draw_random_actions(const RolloutCall& call, Tile& tile, Words (&action_bits)[LANES], const Episodes& episodes,
                            const ParamBuffers& params, int t, Index base, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const u32 elapsed = u32(tile.elapsed[k]);
        if (t == 0 || (elapsed % Actions::PER_BLOCK == 0 && elapsed != 0))
            action_bits[k] = random_words(episodes.seeds[k], RANDOM_ACTION, 0, episodes.numbers[k],
                                          elapsed / Actions::PER_BLOCK, 0);
    }
    draw_all(tile, params, action_bits, episodes.seeds, episodes.numbers, env);
    if (call.random_actions != nullptr)
        FOR_EACH_LANE(k, env) tile.action.record(call.random_actions, base + env.index(k), k);
}

// Advances the replicas, but for those that stay at an end.
template <class Env>
FN void advance_tile(Tile& tile, const Episodes& episodes, const ParamBuffers& params, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const int pending = STAYS ? tile.ended[k] : 0;  // (no Key here: see prepare())
        advance_lane(tile, k, {episodes.seeds[k], episodes.numbers[k]}, params.get(env.index(k)), episodes.limits[k], pending);
    }
    add_to_totals(tile, params, tile.ended, env);
}

// Adds a step to the sums, and notes whose episode it ended, which the tile's flags say unless replicas stay at an end.
// Returns whether an episode ended whose next has no start yet.
template <class Env>
FN bool add_up_step(const Tile& tile, const Spare& spare, Sums& sums, int (&finished_now)[LANES], const Env& env) {
    int wanted = 0;
    NOTE_LANES(wanted, k, env) {
        const bool finished = tile.flags[k] != 0 && !(STAYS && tile.ended[k] != 0);
        if (STAYS) finished_now[k] = finished;
        wanted |= finished && !spare.ready[k] ? 1 : 0;
        sums.rewards[k]    += tile.reward[k];
        sums.episodes[k]   += finished ? 1 : 0;
        sums.terminated[k] += finished ? tile.flags[k] & TERMINATED : 0;
        sums.truncated[k]  += finished ? tile.flags[k] >> 1 : 0;
        if (!STATISTICS) continue;
        sums.returns[k]    += finished ? tile.running_return[k] : real(0);
        sums.lengths[k]    += finished ? tile.elapsed[k] : 0;
        sums.episode_return[k] = finished ? tile.running_return[k] : sums.episode_return[k];
        sums.episode_length[k] = finished ? tile.elapsed[k] : sums.episode_length[k];
    }
    return wanted != 0;
}

// Makes starts for all lanes that have none: see Spare. Where parameters take long to draw, for those that ended alone.
template <class Env>
FN void prepare_starts(const RolloutCall& call, const Tile& tile, Spare& spare, const Episodes& episodes,
                       const ParamBuffers& params, const Env& env) {
    FOR_EACH_LANE(k, env) {
        if (spare.ready[k] || (!ahead() && tile.flags[k] == 0)) continue;
        prepare(spare, k, params, env.index(k), episodes.seeds[k], episodes.numbers[k] + 1);
    }
    if (call.actions == nullptr)
        FOR_EACH_LANE(k, env) prepare_actions(spare, k, episodes.seeds[k], episodes.numbers[k] + 1);
}

// Ends the episodes that are over: hands out their metrics, and begins the next ones from their starts, or stays.
template <class Env>
FN void end_episodes(const RolloutCall& call, Tile& tile, Spare& spare, Episodes& episodes, Words (&action_bits)[LANES],
                     const ParamBuffers& params, const int (&finished_now)[LANES], const Env& env) {
    const auto& marks = STAYS ? finished_now : tile.flags;
    FOR_EACH_MARKED(k, marks, env) {
        put_metrics(call, tile, k, env.index(k));
        if (STAYS) {
            tile.ended[k] = tile.flags[k];
            continue;
        }
        begin_totals(tile, k);
        tile.state.set(k, spare.state.get(k));
        keep_params(params, env.index(k), spare.params, k);
        action_bits[k]         = spare.action_bits[k];
        spare.ready[k]         = 0;
        tile.elapsed[k]        = 0;
        tile.running_return[k] = 0;
        episodes.limits[k]     = call.limit;
        episodes.numbers[k] += 1;
    }
}

// Writes the observations that follow a step, those of the first replica to row `base`.
template <class Env> FN void hand_out_observations(const RolloutCall& call, Tile& tile, Index base, const Env& env) {
    observe_all(tile, call.params, env);
    deliver(call, tile, base, env);
}

// Writes the sums, and the return and length of each replica's last episode.
template <class Env> FN void store_sums(const RolloutCall& call, const Episodes& episodes, const Sums& sums, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const Index i            = env.index(k);
        call.buffers.episodes[i] = episodes.numbers[k];
        call.reward_sum[i]       = sums.rewards[k];
        call.episodes[i]         = sums.episodes[k];
        call.terminated[i]       = sums.terminated[k];
        call.truncated[i]        = sums.truncated[k];
        if (!STATISTICS) continue;
        call.return_sum[i] = sums.returns[k];
        call.length_sum[i] = sums.lengths[k];
        if (sums.episodes[k] != 0) keep_episode(call.buffers.records[i], sums.episode_return[k], sums.episode_length[k]);
    }
}

KERNEL_OF_BLOCKS(kernel_rollout, RolloutCall, ROLLOUT_THREADS, 1) {
    const Buffers& buffers = call.buffers;
    const Index    count   = buffers.count;
    FOR_EACH_ENV(env, count) {
        Tile     tile;
        Spare    spare;
        Sums     sums;
        Words    action_bits[LANES];  // of which random actions are made
        Episodes episodes;
        const ParamBuffers params = call.params;  // a copy: no store can change it
        load(tile, buffers, env);
        const u32 staggered = now(buffers.staggered);
        begin_rollout(call, tile, episodes, sums, spare, params, staggered, env);
        for (int t = 0; t < call.steps; ++t) {
            const Index base = Index(t) * count;
            if (call.actions != nullptr) take_given_actions(call, tile, t, base, env);
            else draw_random_actions(call, tile, action_bits, episodes, params, t, base, env);
            advance_tile(tile, episodes, params, env);
            int        finished_now[LANES];
            const bool wanted = add_up_step(tile, spare, sums, finished_now, env);
            if (!STAYS && any_lane(wanted)) prepare_starts(call, tile, spare, episodes, params, env);
            end_episodes(call, tile, spare, episodes, action_bits, params, finished_now, env);
            if (call.per_step) {
                hand_out_observations(call, tile, base, env);
                store_rewards_and_flags(tile, call.rewards, call.terminations, call.truncations, base, env);
            }
        }
        if (!call.per_step) hand_out_observations(call, tile, 0, env);
        mask_all(call, tile, env);
        store(tile, buffers, env);
        if (!STAYS) forget_offsets(buffers, staggered, sums.episodes, env);
        store_sums(call, episodes, sums, env);
    }
}
