// A tile of single-agent replicas, and the operations of its drivers: load, advance, restart, store. The rules come
// from the environment's header; State(s), Params, Action(s), Observation, Record, Buffers and the Call structs are
// generated from its Python spec, which also selects how observations are written (staged.cuh or direct.cuh), action
// masks (masks.cuh or unmasked.cuh) and metrics (tile_metrics.cuh or unmeasured.cuh).

// How an episode ends: two separate bits.
constexpr int TERMINATED = 1, TRUNCATED = 2;

// One tile of replicas: registers on a GPU, L1 cache on a CPU.
struct Tile {
    States  state;
    Actions action;
    real    reward[LANES];
    real    running_return[LANES];  // of the current episode so far
    int     elapsed[LANES];         // steps of the current episode
    int     ended[LANES];           // flags of an episode that was over before this step
    int     flags[LANES];           // flags of an episode that this step ended
    Totals  totals;                 // running totals of metrics in the current episode
    ObservationTile observation;    // staged
};

FN void observe_lane(Tile& tile, int k, const Params& params);  // see staged.cuh and direct.cuh

// See tile_metrics.cuh and unmeasured.cuh.
FN void load_totals(Tile& tile, int k, const Buffers& buffers, Index i);
FN void store_totals(const Tile& tile, int k, const Buffers& buffers, Index i);
FN void reset_totals(Tile& tile, int k);

template <class Env>
FN void report_invalid_actions(const Tile& tile, const Buffers& buffers, const void* actions, int kind, Index base,
                               u64 launch, bool frozen_too, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const u32 offence = tile.ended[k] ? (frozen_too ? EPISODE_OVER : NO_OFFENCE)
                                          : tile.action.offence(actions, kind, base + env.index(k));
        if (offence != NO_OFFENCE) report(buffers.offence, launch, offence, u64(env.index(k)) << 31 | u64(tile.elapsed[k]));
    }
}

template <class Env> FN void load(Tile& tile, const Buffers& buffers, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const Index i = env.index(k);
        tile.state.load(k, buffers.state, i, buffers.count);
        tile.running_return[k] = STATISTICS ? buffers.running_return[i] : real(0);
        tile.elapsed[k]        = buffers.elapsed[i];
        tile.ended[k]          = AUTORESET == SAME_STEP ? 0 : int(buffers.ended[i]);
        load_totals(tile, k, buffers, i);
    }
}

template <class Env> FN void store(const Tile& tile, const Buffers& buffers, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const Index i = env.index(k);
        tile.state.store(k, buffers.state, i, buffers.count);
        if (STATISTICS) buffers.running_return[i] = tile.running_return[k];
        buffers.elapsed[i]        = tile.elapsed[k];
        if (AUTORESET != SAME_STEP) buffers.ended[i] = u8(tile.ended[k]);
        store_totals(tile, k, buffers, i);
    }
}

// The replicas' seeds. After a reset of all replicas with one seed they are consecutive: they are computed from the
// first one, so that the end of an episode loads none.
struct Seeds {
    const u64* seeds;
    u64        first;
    bool       consecutive;

    FN explicit Seeds(const Buffers& buffers)
        : seeds(buffers.seeds), first(*seeds), consecutive(*buffers.counted != 0) {}
    FN u64 operator[](Index i) const { return consecutive ? first + u64(i) : seeds[i]; }
};

// Calls the rules' step(). If the state has indices, not for a `pending` replica, whose indices may be out of range;
// otherwise for all replicas, as the result is dropped and a branch would cost more.
FN Outcome step_unless_pending(State& state, const Params& params, const Action& action, Random& random,
                               [[maybe_unused]] bool pending) {
    if constexpr (INDEXED && AUTORESET != SAME_STEP) {
        if (pending) return {0, false};
    }
    return step(state, params, action, random);
}

// One step of one replica; after the end of its episode it stays as it is. `pending`: the episode has ended, or this
// step will start the next one.
FN void advance_lane(Tile& tile, int k, const Key& key, const Params& params, int limit, int pending) {
    const int     ended  = tile.ended[k];
    const State   before = tile.state.get(k);
    State         after  = before;
    Random        random(&key.seed, &key.episode, STEP, 0, u32(tile.elapsed[k]));
    const Outcome outcome = step_unless_pending(after, params, tile.action.get(k), random, pending != 0);
    const int     elapsed = tile.elapsed[k] + (ended ? 0 : 1);
    const int     flags   = (outcome.terminated ? TERMINATED : 0) | (elapsed >= limit ? TRUNCATED : 0);
    tile.state.set(k, ended ? before : after);
    tile.elapsed[k]        = elapsed;
    tile.flags[k]          = ended ? ended : flags;
    tile.reward[k]         = ended ? real(0) : outcome.reward;
    if (STATISTICS) tile.running_return[k] = tile.running_return[k] + tile.reward[k];
}

// A separate loop, as its atomics would slow down the loop that restarts.
template <class Env>
FN void clear_offsets(const Buffers& buffers, u32 staggered, const int (&restarted)[LANES], const Env& env) {
    if (staggered != 0) FOR_EACH_MARKED(k, restarted, env) clear_offset(buffers, staggered, env.index(k));
}

FN State first_state(const Params& params, const Key& key) {
    State  state;
    Random random(&key.seed, &key.episode, RESET, 0, 0);
    reset(state, params, random);
    return state;
}

// Starts the episode of lane k that the key identifies.
FN void restart(Tile& tile, int k, const Params& params, const Key& key) {
    tile.state.set(k, first_state(params, key));
    observe_lane(tile, k, params);
    tile.elapsed[k]        = 0;
    tile.running_return[k] = 0;
    tile.ended[k]          = 0;
    reset_totals(tile, k);
}

// Writes return and length of the last episode. A template, as without statistics a record has no such members.
template <class RecordT>
FN void store_episode_statistics(RecordT& record, [[maybe_unused]] real episode_return, [[maybe_unused]] int length) {
    if constexpr (STATISTICS) {
        record.episode_return = episode_return;
        record.episode_length = length;
    }
}

template <class Env> FN void store_rewards_and_flags(const Tile& tile, real* rewards, u8* terminations, u8* truncations,
                                                     Index base, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const Index at   = base + env.index(k);
        store_streaming(rewards + at, tile.reward[k]);
        store_streaming(terminations + at, u8(tile.flags[k] & TERMINATED));
        store_streaming(truncations + at, u8(tile.flags[k] >> 1));
    }
}
