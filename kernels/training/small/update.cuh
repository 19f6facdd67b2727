// The gradient of the loss of a minibatch by all weights of actor and critic, in one launch and a sum.
//
// Some of the blocks have the actor, the others the critic. A block takes tiles of samples, and at the end
// writes its sums; step.cuh adds those of all blocks, in a fixed order. How a Learner goes forth and back: by_warps.cuh, or
// on Hopper by_groups.cuh.

struct SampleRow : Sample {
    int       next;  // place of the tile after
    InputRows x;
};

template <class Call> FN void fetch_inputs(SampleRow& sample, const Call& call, int lane) {
    const int place = sample.place;
    fetch_rows(sample.x, call.observations, from_lane(place, lane / 4), from_lane(place, lane / 4 + 8), lane);
}

// (What the dead saw may be no number: it must not meet even a zero.)
FN void silence(SampleRow& sample, int lane) {
    const int there = sample.alive != 0;
    if (!from_lane(there, lane / 4)) {
        UNROLL
        for (int j = 0; j < INPUTS / 8; ++j) sample.x[j][0] = sample.x[j][1] = 0;
    }
    if (!from_lane(there, lane / 4 + 8)) {
        UNROLL
        for (int j = 0; j < INPUTS / 8; ++j) sample.x[j][2] = sample.x[j][3] = 0;
    }
}

// A warp's part of its rows of the outputs' gradients.
template <int OUTPUTS, int N> FN void fetch_outputs(float (&by_out)[N][4], const float* outputs, int lane) {
    FOR_EACH_NUMBER(j, q, N) {
        const int column = 8 * j + lane % 4 * 2 + q % 2;
        by_out[j][q]     = column < OUTPUTS ? outputs[(lane / 4 + q / 2 * 8) * ROW_STRIDE + column] : 0.0f;
    }
}

// Which network a block has: known when this is compiled, or by the block's number, where nothing but the loss and places
// differs.
template <bool ACTS> struct Always {
    static constexpr bool acts    = ACTS;
    static constexpr int  OUTPUTS = ACTS ? PARAMETERS : 1;  // that there is room for
    FN static constexpr int outputs() { return OUTPUTS; }
};
struct Either {
    static constexpr int OUTPUTS = PARAMETERS;
    bool acts;
    FN int outputs() const { return acts ? PARAMETERS : 1; }
};

// The sample at hand. From here on `sample` is that of the tile after, whose observation is fetched when there is room.
template <class Role, class Call>
FN Sample go_on(SampleRow& sample, const Role& role, const Call& call, Index after_next) {
    const Sample now = sample;
    sample.place     = sample.next;
    sample.next      = place_of(call, after_next);
    fetch_facts(sample, call, role.acts, !role.acts);
    return now;
}

// Leaves the loss's gradient in a thread's `row` of outputs; `of_block` are those of the whole block. (Columns that a
// critic has room for, and no outputs, hold zeros already, as their weights are.)
template <class Role, class Judge>
FN void judge_by(const Role& role, Judge& judge, const Sample& sample, float* of_block, float* row) {
    if (role.acts) judge.policy(sample, of_block);
    else judge.value(sample, row);
}

// One network's gradient, of all tiles that a block takes.
template <class Role, class Call> struct Learner;

template <class Role, class Call>
FN void update_net(const Role& role, SampleRow& sample, const Call& call, int place, int worker, int workers) {
    const Places places = role.acts ? ACTOR_PLACES : CRITIC_PLACES;
    const int    rows   = role.acts ? MEANS : 1;
    fetch_facts(sample, call, role.acts, !role.acts);
    Learner<Role, Call> learner(role, call, places, rows);
    for (Index tile = worker; tile * TILE < call.rows; tile += workers) {
        learner.learn(sample, (tile + 2 * workers) * TILE + place);
    }
    learner.write(call.partials + Index(worker) * (call.parameters + SUMS), places, rows);
}

// `ALIKE`: updates of actor and critic are one program.
template <bool ALIKE, class Call> FN void update(const Call& call) {
    const int  actors = call.actors, block = block_number();
    const bool acts   = block < actors;
    const int  worker = acts ? block : block - actors, workers = acts ? actors : block_count() - actors;
    const int  place  = thread_rank() / WARP * WARP_ROWS + warp_lane() % WARP_ROWS;
    SampleRow  sample;
    sample.place = place_of(call, Index(worker) * TILE + place);
    sample.next  = place_of(call, Index(worker + workers) * TILE + place);
    fetch_inputs(sample, call, warp_lane());
    if constexpr (ALIKE) update_net(Either{acts}, sample, call, place, worker, workers);
    else if (acts) update_net(Always<true>(), sample, call, place, worker, workers);
    else update_net(Always<false>(), sample, call, place, worker, workers);
}
