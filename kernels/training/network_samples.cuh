// Samples of network_update.cuh with their observations, fetched a tile ahead.

struct SampleRow : Sample {
    int       next;  // place of the tile after
    InputRows x;
};

FN void fetch_inputs(SampleRow& sample, const UpdateCall& call, int lane) {
    const int place = sample.place;
    fetch_rows(sample.x, call.observations, from_lane(place, lane / 4), from_lane(place, lane / 4 + 8), lane);
}
template <bool ACTOR> FN void fetch(SampleRow& sample, const UpdateCall& call, int lane) {
    fetch_inputs(sample, call, lane);
    fetch_facts<ACTOR, !ACTOR>(sample, call);
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
