// The driver of single-agent environments with many steps per launch. The state stays in registers (on a CPU: in L1).

// The start of each lane's next episode. When an episode ends in a lane that has none ready, the full tile (on a GPU:
// the full warp) computes them: episodes end at different times, and each start alone would stall the other lanes.
struct NextStart {
    States state;
    Words  action_bits[LANES];
    int    ready[LANES];
    NextParams params;
};

// Computes lane k's next parameters and first state. (A function: loops that declare structs do not vectorise.)
FN void prepare(NextStart& next, int k, const ParamBuffers& params, const DrawNumbers& numbers, Index i, u64 seed,
                u32 episode) {
    const Key key = {seed, episode};
    next.state.set(k, first_state(next_params(next.params, k, params, numbers, i, key), key));
    next.ready[k] = 1;
}
// Computes the random bits of the next episode's first actions: for all lanes, as compilers do not vectorise masked
// stores of every fourth word; lanes that are ready get the same words again.
FN void prepare_actions(NextStart& next, int k, u64 seed, u32 episode) {
    next.action_bits[k] = random_words(seed, RANDOM_ACTION, 0, episode, 0, 0);
}

// Sums of all rewards, and over the episodes that ended; return and length of the last episode that ended.
struct Sums {
    real rewards[LANES], returns[LANES], episode_return[LANES];
    int  episodes[LANES], terminated[LANES], truncated[LANES], lengths[LANES], episode_length[LANES];
};

// The current episodes. (In another order, or in one struct with NextStart and Sums, they take up to 8 more registers.)
struct Episodes {
    int limits[LANES];  // the steps at which they are truncated
    u32 numbers[LANES];
    u64 seeds[LANES];
};

// A rollout starts the next episode in the step that ends one or, without autoreset, leaves the replica as it is.
constexpr bool NO_AUTORESET = AUTORESET == DISABLED;

// Threads that a multiprocessor should hold, to hide latency: without this bound compilers use too many registers.
constexpr int ROLLOUT_THREADS = sizeof(real) == 4 ? 768 : 256;

constexpr int STEPS_AHEAD = 2;

// Prefetches the actions of the step that is STEPS_AHEAD after step t, on a GPU.
template <class Env> FN void prefetch_actions(const RolloutCall& call, int t, const Env& env) {
    if (!ON_GPU || unsigned(t) + STEPS_AHEAD >= unsigned(call.steps)) return;
    const Index base  = Index(t + STEPS_AHEAD) * call.buffers.count;
    const int   bytes = call.action_kind == UINT8 ? 1 : call.action_kind == INT64 || call.action_kind == FLOAT64 ? 8 : 4;
    FOR_EACH_LANE(k, env)
        prefetch(static_cast<const char*>(call.actions) + (base + env.index(k)) * (Actions::SIZE * bytes));
}

// Loads the replicas' episodes, zeroes the sums and, with autoreset, restarts replicas whose episode is over.
template <class Env>
FN void start_rollout(const RolloutCall& call, Tile& tile, Episodes& episodes, Sums& sums, NextStart& next,
                      const ParamBuffers& params, u32 staggered, const Env& env) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_LANE(k, env) {
        episodes.seeds[k]   = buffers.seeds[env.index(k)];
        episodes.numbers[k] = buffers.episodes[env.index(k)];
        next.ready[k]       = 0;
        sums.rewards[k] = sums.returns[k] = sums.episode_return[k] = 0;
        sums.episodes[k] = sums.terminated[k] = sums.truncated[k] = sums.lengths[k] = sums.episode_length[k] = 0;
    }
    if (!NO_AUTORESET) clear_offsets(buffers, staggered, tile.ended, env);
    FOR_EACH_LANE(k, env) episodes.limits[k] = limit_of(buffers, staggered, env.index(k), call.limit);
    if (NO_AUTORESET) return;
    FOR_EACH_MARKED(k, tile.ended, env) {
        episodes.numbers[k] += 1;
        const Key key = {episodes.seeds[k], episodes.numbers[k]};
        restart(tile, k, begin_params(params, env.index(k), key), key);
    }
}

// Loads the actions of step t, from index `base` on, and reports invalid ones.
template <class Env>
FN void load_rollout_actions(const RolloutCall& call, Tile& tile, int t, Index base, const Env& env) {
    prefetch_actions(call, t, env);
    if (!tile.action.load(call.actions, call.action_kind, base, env))
        report_invalid_actions(tile, call.buffers, call.actions, call.action_kind, base, call.launch, false, env);
}

// Draws the actions of step t into the tile, and records them if the user asks for it. One Philox block has the bits of
// several steps, so a new one is computed only after an episode has used up the previous one. `base`: index of the
// step's first action in the records.
template <class Env>
FN void draw_random_actions(const RolloutCall& call, Tile& tile, Words (&action_bits)[LANES], const Episodes& episodes,
                            const ParamBuffers& params, int t, Index base, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const u32 elapsed = u32(tile.elapsed[k]);
        if (t == 0 || (elapsed % Actions::PER_BLOCK == 0 && elapsed != 0))
            action_bits[k] = random_words(episodes.seeds[k], RANDOM_ACTION, 0, episodes.numbers[k],
                                          elapsed / Actions::PER_BLOCK, 0);
    }
    draw_actions(tile, params, action_bits, episodes.seeds, episodes.numbers, env);
    if (call.random_actions != nullptr)
        FOR_EACH_LANE(k, env) tile.action.record(call.random_actions, base + env.index(k), k);
}

// Advances the replicas by one step, except those whose episode is over without autoreset.
template <class Env>
FN void advance_tile(Tile& tile, const Episodes& episodes, const ParamBuffers& params, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const int pending = NO_AUTORESET ? tile.ended[k] : 0;  // (a variable of type Key would prevent vectorisation)
        advance_lane(tile, k, {episodes.seeds[k], episodes.numbers[k]}, params.get(env.index(k)), episodes.limits[k], pending);
    }
    add_to_totals(tile, params, tile.ended, env);
}

// Adds a step to the sums; without autoreset, also sets which episodes finished in it: otherwise the tile's flags tell.
// Returns whether an episode ended whose next start is not ready.
template <class Env>
FN bool accumulate_step(const Tile& tile, const NextStart& next, Sums& sums, int (&finished_now)[LANES],
                        const Env& env) {
    int needed = 0;
    FOR_EACH_LANE_OR(needed, k, env) {
        const bool finished = tile.flags[k] != 0 && !(NO_AUTORESET && tile.ended[k] != 0);
        if (NO_AUTORESET) finished_now[k] = finished;
        needed |= finished && !next.ready[k] ? 1 : 0;
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
    return needed != 0;
}

// Computes the next start in lanes that have none ready; if drawing parameters is slow, only where an episode ended.
template <class Env>
FN void prepare_starts(const RolloutCall& call, const Tile& tile, NextStart& next, const Episodes& episodes,
                       const ParamBuffers& params, const Env& env) {
    const DrawNumbers numbers = load_numbers(params);  // in the loop they would keep compilers from vectorising it
    FOR_EACH_LANE(k, env) {
        if (next.ready[k] || (!draws_ahead() && tile.flags[k] == 0)) continue;
        prepare(next, k, params, numbers, env.index(k), episodes.seeds[k], episodes.numbers[k] + 1);
    }
    if (call.actions == nullptr)
        FOR_EACH_LANE(k, env) prepare_actions(next, k, episodes.seeds[k], episodes.numbers[k] + 1);
}

// Ends finished episodes: stores their metrics, and starts the next ones from `next`, unless autoreset is disabled.
template <class Env>
FN void end_episodes(const RolloutCall& call, Tile& tile, NextStart& next, Episodes& episodes,
                     Words (&action_bits)[LANES], const ParamBuffers& params, const int (&finished_now)[LANES],
                     const Env& env) {
    const auto& marks = NO_AUTORESET ? finished_now : tile.flags;
    FOR_EACH_MARKED(k, marks, env) {
        store_rollout_metrics(call, tile, k, env.index(k));
        if (NO_AUTORESET) {
            tile.ended[k] = tile.flags[k];
            continue;
        }
        reset_totals(tile, k);
        tile.state.set(k, next.state.get(k));
        store_params(params, env.index(k), next.params, k);
        action_bits[k]         = next.action_bits[k];
        next.ready[k]          = 0;
        tile.elapsed[k]        = 0;
        tile.running_return[k] = 0;
        episodes.limits[k]     = call.limit;
        episodes.numbers[k] += 1;
    }
}

// Writes the observations after a step, starting at row `base`.
template <class Env> FN void store_step_observations(const RolloutCall& call, Tile& tile, Index base, const Env& env) {
    observe_all(tile, call.params, env);
    store_observations(call, tile, base, env);
}

// Writes the sums, the episode numbers, and the return and length of each replica's last episode.
template <class Env>
FN void store_sums(const RolloutCall& call, const Episodes& episodes, const Sums& sums, const Env& env) {
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
        if (sums.episodes[k] != 0)
            store_episode_statistics(call.buffers.records[i], sums.episode_return[k], sums.episode_length[k]);
    }
}

// Takes call.steps steps with the given or random actions. Writes each step's results, or only the last observations.
KERNEL_OF_BLOCKS(kernel_rollout, RolloutCall, ROLLOUT_THREADS, 1) {
    const Buffers& buffers = call.buffers;
    const Index    count   = buffers.count;
    FOR_EACH_ENV(env, count) {
        Tile      tile;
        NextStart next;
        Sums      sums;
        Words     action_bits[LANES];  // the random bits of random actions
        Episodes  episodes;
        const ParamBuffers params = call.params;  // a copy, which no store can alias
        load(tile, buffers, env);
        const u32 staggered = load_count(buffers.staggered);
        start_rollout(call, tile, episodes, sums, next, params, staggered, env);
        for (int t = 0; t < call.steps; ++t) {
            const Index base = Index(t) * count;
            if (call.actions != nullptr) load_rollout_actions(call, tile, t, base, env);
            else draw_random_actions(call, tile, action_bits, episodes, params, t, base, env);
            advance_tile(tile, episodes, params, env);
            int        finished_now[LANES];
            const bool needed = accumulate_step(tile, next, sums, finished_now, env);
            if (!NO_AUTORESET && warp_any(needed)) prepare_starts(call, tile, next, episodes, params, env);
            end_episodes(call, tile, next, episodes, action_bits, params, finished_now, env);
            if (call.per_step) {
                store_step_observations(call, tile, base, env);
                store_rewards_and_flags(tile, call.rewards, call.terminations, call.truncations, base, env);
            }
        }
        if (!call.per_step) store_step_observations(call, tile, 0, env);
        store_masks(call, tile, env);
        store(tile, buffers, env);
        if (!NO_AUTORESET) clear_offsets(buffers, staggered, sums.episodes, env);
        store_sums(call, episodes, sums, env);
    }
}
