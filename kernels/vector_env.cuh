// The driver of single-agent environments: advance, end, restart, observe. The rules come from the environment's header;
// State(s), Params, Action(s), Observation, Buffers and the Calls are generated from its Python spec.

// How an episode ends: two bits that are never merged into one.
constexpr int TERMINATED = 1, TRUNCATED = 2;

// One tile of replicas: registers on a GPU, first-level cache on a CPU.
struct Tile {
    States  state;
    Actions action;
    real    reward[LANES];
    real    episode_return[LANES];  // so far, in the episode under way
    int     elapsed[LANES];         // steps of it
    int     ended[LANES];           // flags of an episode that was over before this step
    int     flags[LANES];           // how this step ended it
    float   observation[OBSERVATION_SIZE][LANES];
};

// Keeps the offence of the earliest launch, and of that launch's lowest replica: `record[0]` names launch and kind,
// `record[1]` replica and step.
FN void report(u64* record, u64 launch, u32 kind, Index replica, int step) {
    const u64 name  = launch << 2 | kind;
    const u64 owner = swap_if_equal(&record[0], 0, name);
    if (owner == 0 || owner == name) lower(&record[1], u64(replica) << 31 | u64(step));
}

template <class Env> FN void report_all(const Tile& tile, const Buffers& buffers, const void* actions, int kind,
                                        Index at, u64 launch, bool frozen_too, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const u32 offence = tile.ended[k] ? (frozen_too ? EPISODE_OVER : NO_OFFENCE)
                                          : tile.action.offence(actions, kind, at + k);
        if (offence != NO_OFFENCE) report(buffers.offence, launch, offence, env.first + k, tile.elapsed[k]);
    }
}

template <class Env> FN void load(Tile& tile, const Buffers& buffers, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const Index i = env.first + k;
        tile.state.load(k, buffers.state, i);
        tile.episode_return[k] = buffers.running_return[i];
        tile.elapsed[k]        = buffers.elapsed[i];
        tile.ended[k]          = AUTORESET == SAME_STEP ? 0 : int(buffers.ended[i]);
    }
}

template <class Env> FN void store(const Tile& tile, const Buffers& buffers, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const Index i = env.first + k;
        tile.state.store(k, buffers.state, i);
        buffers.running_return[i] = tile.episode_return[k];
        buffers.elapsed[i]        = tile.elapsed[k];
        if (AUTORESET != SAME_STEP) buffers.ended[i] = u8(tile.ended[k]);
    }
}

FN void set_observation(Tile& tile, int k, const Observation& observation) {
    UNROLL
    for (int j = 0; j < OBSERVATION_SIZE; ++j) tile.observation[j][k] = observation[j];
}

FN void observe_lane(Tile& tile, int k, const Params& params) {
    Observation observation;
    observe(tile.state.get(k), params, observation);
    set_observation(tile, k, observation);
}

template <class Env> FN void observe_all(Tile& tile, const ParamBuffers& params, const Env& env) {
    FOR_EACH_LANE(k, env) observe_lane(tile, k, params.get(env.first + k));
}

// One step of one replica; one whose episode is over stays as it is. Seed and episode are read only where the rules draw
// random numbers.
FN void advance_lane(Tile& tile, int k, const u64* seed, const u32* episode, const Params& params, int limit) {
    const int     ended  = tile.ended[k];
    const State   before = tile.state.get(k);
    State         after  = before;
    Random        random(seed, episode, STEP, 0, u32(tile.elapsed[k]));
    const Outcome outcome = step(after, params, tile.action.get(k), random);
    const int     elapsed = tile.elapsed[k] + (ended ? 0 : 1);
    const int     flags   = (outcome.terminated ? TERMINATED : 0) | (elapsed >= limit ? TRUNCATED : 0);
    tile.state.set(k, ended ? before : after);
    tile.elapsed[k]        = elapsed;
    tile.flags[k]          = ended ? ended : flags;
    tile.reward[k]         = ended ? real(0) : outcome.reward;
    tile.episode_return[k] = tile.episode_return[k] + tile.reward[k];
}

template <class Env> FN void advance_all(Tile& tile, const u64* seeds, const u32* episodes, const ParamBuffers& params,
                                         int limit, const Env& env) {
    FOR_EACH_LANE(k, env) advance_lane(tile, k, seeds + k, episodes + k, params.get(env.first + k), limit);
}

FN State first_state(const Params& params, const u64& seed, const u32& episode) {
    State  state;
    Random random(&seed, &episode, RESET, 0, 0);
    reset(state, params, random);
    return state;
}

// Begins the next episode of lane k.
template <class Env>
FN void restart(Tile& tile, int k, const Buffers& buffers, const ParamBuffers& params, const Env& env) {
    const Index  i       = env.first + k;
    const u32    episode = buffers.episodes[i] + 1;
    const Params p       = params.get(i);
    const State  state   = first_state(p, buffers.seeds[i], episode);
    Observation  observation;
    observe(state, p, observation);
    set_observation(tile, k, observation);
    tile.state.set(k, state);
    tile.elapsed[k]        = 0;
    tile.episode_return[k] = 0;
    tile.ended[k]          = 0;
    buffers.episodes[i]    = episode;
}

template <class Env> FN void store_rewards_and_flags(const Tile& tile, real* rewards, u8* terminations, u8* truncations,
                                                     Index at, const Env& env) {
    FOR_EACH_LANE(k, env) {
        rewards[at + k]      = tile.reward[k];
        terminations[at + k] = u8(tile.flags[k] & TERMINATED);
        truncations[at + k]  = u8(tile.flags[k] >> 1);
    }
}

KERNEL(kernel_step, StepCall) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_ENV(env, buffers.count) {
        Tile tile;
        load(tile, buffers, env);
        const bool clean  = tile.action.load(call.actions, call.action_kind, env.first, env);
        const bool strict = AUTORESET == DISABLED && call.report_frozen;
        if (!clean || strict)
            report_all(tile, buffers, call.actions, call.action_kind, env.first, call.launch, strict, env);

        int pending[LANES], touched[LANES];
        FOR_EACH_LANE(k, env) {
            pending[k]    = tile.ended[k];
            tile.ended[k] = AUTORESET == NEXT_STEP ? 0 : tile.ended[k];
        }
        advance_all(tile, buffers.seeds + env.first, buffers.episodes + env.first, call.params, call.limit, env);
        observe_all(tile, call.params, env);
        FOR_EACH_LANE(k, env) {
            const Index i        = env.first + k;
            const int   finished = tile.flags[k] != 0 && !pending[k];
            touched[k]           = tile.flags[k] | pending[k] | (AUTORESET == SAME_STEP && call.clear_final ? buffers.finished[i] : 0);
            buffers.finished[i]  = u8(finished);
        }
        FOR_EACH_MARKED(k, touched, env) {
            const Index i         = env.first + k;
            float*      final_obs = call.final_obs + i * OBSERVATION_SIZE;
            if (AUTORESET == NEXT_STEP && pending[k]) {
                restart(tile, k, buffers, call.params, env);
                tile.reward[k] = 0;
                tile.flags[k]  = 0;
            } else if (tile.flags[k] && !pending[k]) {
                call.episode_return[i] = tile.episode_return[k];
                call.episode_length[i] = tile.elapsed[k];
                tile.ended[k]          = tile.flags[k];
                if (AUTORESET == SAME_STEP) {
                    UNROLL
                    for (int j = 0; j < OBSERVATION_SIZE; ++j) final_obs[j] = tile.observation[j][k];
                    restart(tile, k, buffers, call.params, env);
                }
            } else if (AUTORESET == SAME_STEP) {
                UNROLL
                for (int j = 0; j < OBSERVATION_SIZE; ++j) final_obs[j] = 0;
            }
        }
        store(tile, buffers, env);
        store_rows<OBSERVATION_SIZE>(call.observations, tile.observation, env);
        store_rewards_and_flags(tile, call.rewards, call.terminations, call.truncations, env.first, env);
    }
}

// Looks at the actions of a step before anything changes.
KERNEL(kernel_inspect, StepCall) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_ENV(env, buffers.count) {
        Tile tile;
        load(tile, buffers, env);
        const bool clean  = tile.action.load(call.actions, call.action_kind, env.first, env);
        const bool strict = AUTORESET == DISABLED && call.report_frozen;
        if (!clean || strict)
            report_all(tile, buffers, call.actions, call.action_kind, env.first, call.launch, strict, env);
    }
}

// Begins a new episode where the mask says so, and observes everywhere.
KERNEL(kernel_reset, ResetCall) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_ENV(env, buffers.count) {
        Tile tile;
        load(tile, buffers, env);
        observe_all(tile, call.params, env);
        FOR_EACH_LANE(k, env) {
            const Index i = env.first + k;
            if (call.mask != nullptr && !call.mask[i]) continue;
            if (call.reseed == nullptr ? call.reseed_all != 0 : call.reseed[i] != 0) {
                buffers.seeds[i]    = call.reseed == nullptr ? call.first_seed + u64(i) : call.new_seeds[i];
                buffers.episodes[i] = ~0u;
            }
            restart(tile, k, buffers, call.params, env);
        }
        store(tile, buffers, env);
        store_rows<OBSERVATION_SIZE>(call.observations, tile.observation, env);
    }
}

KERNEL(kernel_observe, ResetCall) {
    FOR_EACH_ENV(env, call.buffers.count) {
        Tile tile;
        load(tile, call.buffers, env);
        observe_all(tile, call.params, env);
        store_rows<OBSERVATION_SIZE>(call.observations, tile.observation, env);
    }
}

// The start of each lane's next episode, made for the whole tile (on a GPU: the whole warp) when any lane needs one:
// episodes end at different times, and to make each start on its own would stall the other lanes every time.
struct Spare {
    States state;
    Words  action_bits[LANES];
    int    ready[LANES];
};

struct Sums {
    real rewards[LANES], returns[LANES], last_return[LANES];
    int  episodes[LANES], terminated[LANES], truncated[LANES], lengths[LANES], last_length[LANES];
};

// Many steps in one launch. An episode that ends is followed at once by the next.
KERNEL(kernel_rollout, RolloutCall) {
    const Buffers& buffers = call.buffers;
    const Index    count   = buffers.count;
    FOR_EACH_ENV(env, count) {
        Tile  tile;
        Spare spare;
        Sums  sums;
        Words action_bits[LANES];
        u64   seeds[LANES];
        u32   episodes[LANES];
        load(tile, buffers, env);
        FOR_EACH_LANE(k, env) {
            if (tile.ended[k]) restart(tile, k, buffers, call.params, env);
        }
        FOR_EACH_LANE(k, env) {
            seeds[k]       = buffers.seeds[env.first + k];
            episodes[k]    = buffers.episodes[env.first + k];
            spare.ready[k] = 0;
            tile.ended[k]  = 0;
            sums.rewards[k] = sums.returns[k] = sums.last_return[k] = 0;
            sums.episodes[k] = sums.terminated[k] = sums.truncated[k] = sums.lengths[k] = sums.last_length[k] = 0;
        }
        for (int t = 0; t < call.steps; ++t) {
            const Index at = Index(t) * count + env.first;
            if (call.actions != nullptr) {
                const bool clean = tile.action.load(call.actions, call.action_kind, at, env);
                if (!clean) report_all(tile, buffers, call.actions, call.action_kind, at, call.launch, false, env);
            } else {
                FOR_EACH_LANE(k, env) {
                    const u32 elapsed = u32(tile.elapsed[k]);
                    if (t == 0 || (elapsed % Actions::PER_BLOCK == 0 && elapsed != 0))
                        action_bits[k] = random_words(seeds[k], RANDOM_ACTION, 0, episodes[k], elapsed / Actions::PER_BLOCK, 0);
                }
                FOR_EACH_LANE(k, env) tile.action.draw(k, action_bits[k], u32(tile.elapsed[k]));
                if (call.random_actions != nullptr)
                    FOR_EACH_LANE(k, env) tile.action.record(call.random_actions, at + k, k);
            }
            advance_all(tile, seeds, episodes, call.params, call.limit, env);

            bool wanted = false;
            FOR_EACH_LANE(k, env) {
                const bool finished = tile.flags[k] != 0;
                wanted |= finished && !spare.ready[k];
                sums.rewards[k]    += tile.reward[k];
                sums.episodes[k]   += finished ? 1 : 0;
                sums.terminated[k] += tile.flags[k] & TERMINATED;
                sums.truncated[k]  += tile.flags[k] >> 1;
                sums.returns[k]    += finished ? tile.episode_return[k] : real(0);
                sums.lengths[k]    += finished ? tile.elapsed[k] : 0;
                sums.last_return[k] = finished ? tile.episode_return[k] : sums.last_return[k];
                sums.last_length[k] = finished ? tile.elapsed[k] : sums.last_length[k];
            }
            if (any_lane(wanted)) {
                FOR_EACH_LANE(k, env) {
                    if (spare.ready[k]) continue;
                    const u32 next = episodes[k] + 1;
                    spare.state.set(k, first_state(call.params.get(env.first + k), seeds[k], next));
                    if (call.actions == nullptr)
                        spare.action_bits[k] = random_words(seeds[k], RANDOM_ACTION, 0, next, 0, 0);
                    spare.ready[k] = 1;
                }
            }
            FOR_EACH_MARKED(k, tile.flags, env) {
                tile.state.set(k, spare.state.get(k));
                action_bits[k]         = spare.action_bits[k];
                spare.ready[k]         = 0;
                tile.elapsed[k]        = 0;
                tile.episode_return[k] = 0;
                episodes[k] += 1;
            }
            if (call.per_step) {
                observe_all(tile, call.params, env);
                store_rows<OBSERVATION_SIZE>(call.observations + Index(t) * count * OBSERVATION_SIZE, tile.observation, env);
                store_rewards_and_flags(tile, call.rewards, call.terminations, call.truncations, at, env);
            }
        }
        if (!call.per_step) {
            observe_all(tile, call.params, env);
            store_rows<OBSERVATION_SIZE>(call.observations, tile.observation, env);
        }
        store(tile, buffers, env);
        FOR_EACH_LANE(k, env) {
            const Index i         = env.first + k;
            buffers.episodes[i]   = episodes[k];
            call.reward_sum[i]    = sums.rewards[k];
            call.episodes[i]      = sums.episodes[k];
            call.terminated[i]    = sums.terminated[k];
            call.truncated[i]     = sums.truncated[k];
            call.return_sum[i]    = sums.returns[k];
            call.length_sum[i]    = sums.lengths[k];
            if (sums.episodes[k] != 0) {
                call.episode_return[i] = sums.last_return[k];
                call.episode_length[i] = sums.last_length[k];
            }
        }
    }
}
