// A tile of single-agent replicas, and what its drivers do with it: load, advance, restart, store. The rules come from
// the environment's header; State(s), Params, Action(s), Observation, Record, Buffers and the Calls are generated from
// its Python spec. How observations get out is in staged.cuh or direct.cuh, of which the spec's space chooses one; what is
// possible, in masks.cuh or unmasked.cuh; what is measured of episodes, in tile_metrics.cuh or unmeasured.cuh.

// How an episode ends: two bits that are never merged into one.
constexpr int TERMINATED = 1, TRUNCATED = 2;

// One tile of replicas: registers on a GPU, first-level cache on a CPU.
struct Tile {
    States  state;
    Actions action;
    real    reward[LANES];
    real    running_return[LANES];  // so far, in the episode under way
    int     elapsed[LANES];         // steps of it
    int     ended[LANES];           // flags of an episode that was over before this step
    int     flags[LANES];           // how this step ended it
    Totals  totals;                 // of metrics, in the episode under way
    ObservationTile observation;    // on its way out
};

FN void observe_lane(Tile& tile, int k, const Params& params);  // see staged.cuh and direct.cuh

// See tile_metrics.cuh and unmeasured.cuh.
FN void load_totals(Tile& tile, int k, const Buffers& buffers, Index i);
FN void store_totals(const Tile& tile, int k, const Buffers& buffers, Index i);
FN void begin_totals(Tile& tile, int k);

template <class Env> FN void report_all(const Tile& tile, const Buffers& buffers, const void* actions, int kind,
                                        Index base, u64 launch, bool frozen_too, const Env& env) {
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

// The replicas' seeds. Where they count up from the first one's, as after a reset of all with one seed, they follow from
// that, and where an episode ends none is fetched.
struct Seeds {
    const u64* own;
    u64        first;
    bool       counted;

    FN explicit Seeds(const Buffers& buffers) : own(buffers.seeds), first(*own), counted(*buffers.counted != 0) {}
    FN u64 operator[](Index i) const { return counted ? first + u64(i) : own[i]; }
};

// What the rules make of a step. Where they have something to index, those of a `pending` replica are not asked:
// an index may be outside by then. Elsewhere they are, since what they say is dropped, and a branch would cost more.
FN Outcome step_if_alive(State& state, const Params& params, const Action& action, Random& random, [[maybe_unused]] bool pending) {
    if constexpr (INDEXED && AUTORESET != SAME_STEP) {
        if (pending) return {0, false};
    }
    return step(state, params, action, random);
}

// One step of one replica; one whose episode has ended stays as it is. `pending`: the episode has ended, or this step will begin the next.
FN void advance_lane(Tile& tile, int k, const Key& key, const Params& params, int limit, int pending) {
    const int     ended  = tile.ended[k];
    const State   before = tile.state.get(k);
    State         after  = before;
    Random        random(&key.seed, &key.episode, STEP, 0, u32(tile.elapsed[k]));
    const Outcome outcome = step_if_alive(after, params, tile.action.get(k), random, pending != 0);
    const int     elapsed = tile.elapsed[k] + (ended ? 0 : 1);
    const int     flags   = (outcome.terminated ? TERMINATED : 0) | (elapsed >= limit ? TRUNCATED : 0);
    tile.state.set(k, ended ? before : after);
    tile.elapsed[k]        = elapsed;
    tile.flags[k]          = ended ? ended : flags;
    tile.reward[k]         = ended ? real(0) : outcome.reward;
    if (STATISTICS) tile.running_return[k] = tile.running_return[k] + tile.reward[k];
}

// Beside the loop that restarts, which an atomic in it would slow down.
template <class Env>
FN void forget_offsets(const Buffers& buffers, u32 staggered, const int (&restarted)[LANES], const Env& env) {
    if (staggered != 0) FOR_EACH_MARKED(k, restarted, env) forget_offset(buffers, staggered, env.index(k));
}

FN State first_state(const Params& params, const Key& key) {
    State  state;
    Random random(&key.seed, &key.episode, RESET, 0, 0);
    reset(state, params, random);
    return state;
}

// Begins the episode of lane k that its key names.
FN void restart(Tile& tile, int k, const Params& params, const Key& key) {
    tile.state.set(k, first_state(params, key));
    observe_lane(tile, k, params);
    tile.elapsed[k]        = 0;
    tile.running_return[k] = 0;
    tile.ended[k]          = 0;
    begin_totals(tile, k);
}

// What is kept of the episode that ended last. A template, for without statistics a record has no place for it.
template <class Kept> FN void keep_episode(Kept& record, [[maybe_unused]] real episode_return, [[maybe_unused]] int length) {
    if constexpr (STATISTICS) {
        record.episode_return = episode_return;
        record.episode_length = length;
    }
}

template <class Env> FN void store_rewards_and_flags(const Tile& tile, real* rewards, u8* terminations, u8* truncations,
                                                     Index base, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const Index at   = base + env.index(k);
        hand_out(rewards + at, tile.reward[k]);
        hand_out(terminations + at, u8(tile.flags[k] & TERMINATED));
        hand_out(truncations + at, u8(tile.flags[k] >> 1));
    }
}
