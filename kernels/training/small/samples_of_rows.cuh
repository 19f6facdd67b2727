// Samples of update.cuh with their observations, fetched a tile ahead; and which network a block has.

struct SampleRow : Sample {
    int       next;  // place of the tile after
    InputRows x;
};

FN void fetch_inputs(SampleRow& sample, const UpdateCall& call, int lane) {
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
    UNROLL
    for (int j = 0; j < N; ++j) {
        UNROLL
        for (int q = 0; q < 4; ++q) {
            const int column = 8 * j + lane % 4 * 2 + q % 2;
            by_out[j][q]     = column < OUTPUTS ? outputs[(lane / 4 + q / 2 * 8) * ROW_STRIDE + column] : 0.0f;
        }
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
template <class Role> FN Sample go_on(SampleRow& sample, const Role& role, const UpdateCall& call, Index after_next) {
    const Sample now = sample;
    sample.place     = sample.next;
    sample.next      = place_of(call, after_next);
    fetch_facts(sample, call, role.acts, !role.acts);
    return now;
}

// Leaves the loss's gradient in a thread's `row` of outputs; `of_block` are those of the whole block. (Columns that a
// critic has room for, and no outputs, hold zeros already, as their weights are.)
template <class Role> FN void judge_by(const Role& role, Judge& judge, const Sample& sample, float* of_block, float* row) {
    if (role.acts) judge.policy(sample, of_block);
    else judge.value(sample, row);
}
