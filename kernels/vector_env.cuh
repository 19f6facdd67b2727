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

// One step of one replica; one whose episode is over stays as it is. The record is read only where the rules draw random
// numbers.
FN void advance_lane(Tile& tile, int k, const Record& record, const Params& params, int limit) {
    const int     ended  = tile.ended[k];
    const State   before = tile.state.get(k);
    State         after  = before;
    Random        random(&record.seed, &record.episode, STEP, 0, u32(tile.elapsed[k]));
    const Outcome outcome = step(after, params, tile.action.get(k), random);
    const int     elapsed = tile.elapsed[k] + (ended ? 0 : 1);
    const int     flags   = (outcome.terminated ? TERMINATED : 0) | (elapsed >= limit ? TRUNCATED : 0);
    tile.state.set(k, ended ? before : after);
    tile.elapsed[k]        = elapsed;
    tile.flags[k]          = ended ? ended : flags;
    tile.reward[k]         = ended ? real(0) : outcome.reward;
    tile.episode_return[k] = tile.episode_return[k] + tile.reward[k];
}

template <class Env>
FN void advance_all(Tile& tile, const Record* records, const ParamBuffers& params, int limit, const Env& env) {
    FOR_EACH_LANE(k, env) advance_lane(tile, k, records[k], params.get(env.first + k), limit);
}

FN State first_state(const Params& params, u64 seed, u32 episode) {
    State  state;
    Random random(&seed, &episode, RESET, 0, 0);
    reset(state, params, random);
    return state;
}

// Begins replica i's next episode, in memory.
FN void restart(const Buffers& buffers, const ParamBuffers& params, float* observations, Index i) {
    Record&      record = buffers.records[i];
    const Params p      = params.get(i);
    record.episode += 1;
    const State state = first_state(p, record.seed, record.episode);
    Observation observation;
    observe(state, p, observation);
    buffers.state.set(i, state);
    buffers.elapsed[i]        = 0;
    buffers.running_return[i] = 0;
    if (AUTORESET != SAME_STEP) buffers.ended[i] = 0;
    UNROLL
    for (int j = 0; j < OBSERVATION_SIZE; ++j) observations[i * OBSERVATION_SIZE + j] = observation[j];
}

template <class Env> FN void store_rewards_and_flags(const Tile& tile, real* rewards, u8* terminations, u8* truncations,
                                                     Index at, const Env& env) {
    FOR_EACH_LANE(k, env) {
        rewards[at + k]      = tile.reward[k];
        terminations[at + k] = u8(tile.flags[k] & TERMINATED);
        truncations[at + k]  = u8(tile.flags[k] >> 1);
    }
}

// Return and length of the episode that has just ended: in the replica's record, or in arrays of the user's.
template <class Call> FN void store_episode(const Call& call, Index i, real episode_return, int length) {
    call.episode_return[i * call.return_stride] = episode_return;
    call.episode_length[i * call.length_stride] = length;
}

// Zeroes the rows of final_obs that the step before wrote.
template <class Env> FN void clear_final(const StepCall& call, const Env& env) {
    int stale[LANES];
    FOR_EACH_LANE(k, env) stale[k] = call.buffers.finished[env.first + k];
    FOR_EACH_MARKED(k, stale, env) {
        UNROLL
        for (int j = 0; j < OBSERVATION_SIZE; ++j) call.final_obs[(env.first + k) * OBSERVATION_SIZE + j] = 0;
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

        int pending[LANES], finished[LANES], restarting[LANES];
        FOR_EACH_LANE(k, env) {
            pending[k]    = tile.ended[k];
            tile.ended[k] = AUTORESET == NEXT_STEP ? 0 : tile.ended[k];
        }
        advance_all(tile, buffers.records + env.first, call.params, call.limit, env);
        observe_all(tile, call.params, env);
        FOR_EACH_LANE(k, env) {
            const int skipped = AUTORESET == NEXT_STEP && pending[k];  // the step that restarts is none of the episode's
            tile.flags[k]     = skipped ? 0 : tile.flags[k];
            tile.reward[k]    = skipped ? real(0) : tile.reward[k];
            finished[k]       = tile.flags[k] != 0 && !pending[k];
            restarting[k]     = AUTORESET == SAME_STEP ? finished[k] : skipped;
            tile.ended[k]     = finished[k] ? tile.flags[k] : tile.ended[k];
        }
        if (AUTORESET == SAME_STEP && call.clear_final) clear_final(call, env);
        FOR_EACH_LANE(k, env) buffers.finished[env.first + k] = u8(finished[k]);
        store(tile, buffers, env);
        store_rows<OBSERVATION_SIZE>(call.observations, tile.observation, env);
        store_rewards_and_flags(tile, call.rewards, call.terminations, call.truncations, env.first, env);
        FOR_EACH_MARKED(k, finished, env) {
            const Index i = env.first + k;
            store_episode(call, i, tile.episode_return[k], tile.elapsed[k]);
            if (AUTORESET == SAME_STEP) {
                UNROLL
                for (int j = 0; j < OBSERVATION_SIZE; ++j)
                    call.final_obs[i * OBSERVATION_SIZE + j] = tile.observation[j][k];
            }
        }
        if (AUTORESET != DISABLED) {
            FOR_EACH_GATHERED(i, restarting, env) restart(buffers, call.params, call.observations, i);
        }
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

// Begins a new episode where the mask says so (or nowhere), and observes everywhere.
KERNEL(kernel_reset, ResetCall) {
    const Buffers& buffers = call.buffers;
    FOR_EACH_ENV(env, buffers.count) {
        Tile tile;
        int  chosen[LANES];
        load(tile, buffers, env);
        observe_all(tile, call.params, env);
        store_rows<OBSERVATION_SIZE>(call.observations, tile.observation, env);
        FOR_EACH_LANE(k, env) chosen[k] = !call.observe_only && (call.mask == nullptr || call.mask[env.first + k]);
        FOR_EACH_GATHERED(i, chosen, env) {
            if (call.reseed == nullptr ? call.reseed_all != 0 : call.reseed[i] != 0) {
                buffers.records[i].seed    = call.reseed == nullptr ? call.first_seed + u64(i) : call.new_seeds[i];
                buffers.records[i].episode = ~0u;
            }
            restart(buffers, call.params, call.observations, i);
        }
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
        Record records[LANES];
        if (AUTORESET != SAME_STEP) {
            FOR_EACH_LANE(k, env) {
                if (buffers.ended[env.first + k]) restart(buffers, call.params, call.observations, env.first + k);
            }
        }
        load(tile, buffers, env);
        FOR_EACH_LANE(k, env) {
            records[k]     = buffers.records[env.first + k];
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
                        action_bits[k] = random_words(records[k].seed, RANDOM_ACTION, 0, records[k].episode, elapsed / Actions::PER_BLOCK, 0);
                }
                FOR_EACH_LANE(k, env) tile.action.draw(k, action_bits[k], u32(tile.elapsed[k]));
                if (call.random_actions != nullptr)
                    FOR_EACH_LANE(k, env) tile.action.record(call.random_actions, at + k, k);
            }
            advance_all(tile, records, call.params, call.limit, env);

            int wanted = 0;
            NOTE_LANES(wanted, k, env) {
                const bool finished = tile.flags[k] != 0;
                wanted |= finished && !spare.ready[k] ? 1 : 0;
                sums.rewards[k]    += tile.reward[k];
                sums.episodes[k]   += finished ? 1 : 0;
                sums.terminated[k] += tile.flags[k] & TERMINATED;
                sums.truncated[k]  += tile.flags[k] >> 1;
                sums.returns[k]    += finished ? tile.episode_return[k] : real(0);
                sums.lengths[k]    += finished ? tile.elapsed[k] : 0;
                sums.last_return[k] = finished ? tile.episode_return[k] : sums.last_return[k];
                sums.last_length[k] = finished ? tile.elapsed[k] : sums.last_length[k];
            }
            if (any_lane(wanted != 0)) {
                FOR_EACH_LANE(k, env) {
                    if (spare.ready[k]) continue;
                    const u32 next = records[k].episode + 1;
                    spare.state.set(k, first_state(call.params.get(env.first + k), records[k].seed, next));
                    if (call.actions == nullptr)
                        spare.action_bits[k] = random_words(records[k].seed, RANDOM_ACTION, 0, next, 0, 0);
                    spare.ready[k] = 1;
                }
            }
            FOR_EACH_MARKED(k, tile.flags, env) {
                tile.state.set(k, spare.state.get(k));
                action_bits[k]         = spare.action_bits[k];
                spare.ready[k]         = 0;
                tile.elapsed[k]        = 0;
                tile.episode_return[k] = 0;
                records[k].episode += 1;
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
            buffers.records[i].episode = records[k].episode;
            call.reward_sum[i]    = sums.rewards[k];
            call.episodes[i]      = sums.episodes[k];
            call.terminated[i]    = sums.terminated[k];
            call.truncated[i]     = sums.truncated[k];
            call.return_sum[i]    = sums.returns[k];
            call.length_sum[i]    = sums.lengths[k];
            if (sums.episodes[k] != 0) store_episode(call, i, sums.last_return[k], sums.last_length[k]);
        }
    }
}
