// Samples of network_update.cuh with their observations, fetched a tile ahead.

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

// Leaves the loss's gradient where a thread's row of outputs was, whose block's begin at `of_block`. (Those that a critic
// does not have are zeros already, by their weights.)
template <class Role> FN void judge_by(const Role& role, Judge& judge, const Sample& sample, float* of_block, float* row) {
    if (role.acts) judge.policy(sample, of_block);
    else judge.value(sample, row);
}
