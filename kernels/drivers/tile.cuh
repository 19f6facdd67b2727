// A tile of single-agent replicas, and the operations of its drivers: load, advance, restart, store. State(s), Params,
// Action(s), Observation, Record, Buffers and the Call structs are generated from the spec.

constexpr int TERMINATED = 1, TRUNCATED = 2;  // how an episode ends: two separate bits

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

// Defined in staged.cuh or direct.cuh, and in tile_metrics.cuh or unmeasured.cuh.
FN void observe_lane(Tile& tile, int k, const Params& params);
FN void load_totals(Tile& tile, int k, const Buffers& buffers, Index i);
FN void store_totals(const Tile& tile, int k, const Buffers& buffers, Index i);
FN void reset_totals(Tile& tile, int k);

// Records invalid actions in current episodes and, if `ended_too`, every action after an episode's end.
template <class Env>
FN void report_invalid_actions(const Tile& tile, const Buffers& buffers, const void* actions, int kind, Index base,
                               u64 launch, bool ended_too, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const u32 offence = tile.ended[k] ? (ended_too ? EPISODE_OVER : NO_OFFENCE)
                                          : tile.action.offence(actions, kind, base + env.index(k));
        const u64 position = u64(env.index(k)) << 31 | u64(tile.elapsed[k]);
        if (offence != NO_OFFENCE) report(buffers.offence, launch, offence, position);
    }
}

// Loads the replicas' state, current return and length, and totals of metrics; not their actions.
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

// Writes the replicas' state, current return and length, and totals of metrics to the buffers.
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

// The replicas' seeds. After a reset with one seed they are consecutive, so that the end of an episode loads none.
struct Seeds {
    const u64* seeds;
    u64        first;
    bool       consecutive;

    FN explicit Seeds(const Buffers& buffers)
        : seeds(buffers.seeds), first(*seeds), consecutive(*buffers.counted != 0) {}
    FN u64 operator[](Index i) const { return consecutive ? first + u64(i) : seeds[i]; }
};

// Calls the rules' step(), which updates `state`, and returns reward and termination. If the state has indices, not for
// a `pending` replica, whose indices may be out of range; otherwise always, as a branch would cost more.
FN Outcome step_unless_pending(State& state, const Params& params, const Action& action, Random& random,
                               [[maybe_unused]] bool pending) {
    if constexpr (INDEXED && AUTORESET != SAME_STEP) {
        if (pending) return {0, false};
    }
    return step(state, params, action, random);
}

// Advances lane k by one step, which sets its reward and flags; if its episode is over, the state stays as it is.
// `pending`: the episode is over, or this step only starts the next one.
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

// Clears the time limit's offset of restarted replicas; a separate loop, as its atomics would slow down other loops.
template <class Env>
FN void clear_offsets(const Buffers& buffers, u32 staggered, const int (&restarted)[LANES], const Env& env) {
    if (staggered != 0) FOR_EACH_MARKED(k, restarted, env) clear_offset(buffers, staggered, env.index(k));
}

// The state after the rules' reset(), with the random numbers of the key's episode.
FN State first_state(const Params& params, const Key& key) {
    State  state;
    Random random(&key.seed, &key.episode, RESET, 0, 0);
    reset(state, params, random);
    return state;
}

// Sets lane k to the start of the key's episode: first state and observation, no return, length or totals.
FN void restart(Tile& tile, int k, const Params& params, const Key& key) {
    tile.state.set(k, first_state(params, key));
    observe_lane(tile, k, params);
    tile.elapsed[k]        = 0;
    tile.running_return[k] = 0;
    tile.ended[k]          = 0;
    reset_totals(tile, k);
}

// Writes an ended episode's return and length into `record`. A template: without statistics it has no such members.
template <class RecordT>
FN void store_episode_statistics(RecordT& record, [[maybe_unused]] real episode_return, [[maybe_unused]] int length) {
    if constexpr (STATISTICS) {
        record.episode_return = episode_return;
        record.episode_length = length;
    }
}

// Writes the tile's rewards, terminations and truncations, from index `base` on.
// The arrays are arguments: stores of bytes may alias the launch's arguments, and a CPU would load the pointers again for
// each lane, which made a step of CartPole 20 % slower.
template <class Env>
FN void store_rewards_and_flags(const Tile& tile, real* rewards, u8* terminations, u8* truncations, Index base,
                                const Env& env) {
    FOR_EACH_LANE(k, env) {
        const Index at = base + env.index(k);
        store_streaming(rewards + at, tile.reward[k]);
        store_streaming(terminations + at, u8(tile.flags[k] & TERMINATED));
        store_streaming(truncations + at, u8(tile.flags[k] >> 1));
    }
}
