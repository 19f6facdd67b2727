// A tile of samples forth and back through wide perceptrons: all weights lie in a block's memory, and rows in registers.

template <int NET> using LearningRows = ResidentRows;

template <int NET> FN LearningRows<NET> begin_rows(const UpdateCall& call, const Scale& scale, u32) {
    return begin_resident<NET>(call, scale);
}

// From the derivatives by a layer's sums to those by the sums of the layer before, and so on.
template <int NET, int L, int STEPS_OF_ROWS, class Tile>
FN void go_back(const ResidentRows& own, const Left (&rows)[STEPS_OF_ROWS], const Tile& forth) {
    constexpr int N = in_of(NET, L) / 8;
    static_assert(STEPS_OF_ROWS * DEPTH == outs_of(NET, L));
    float c[N][4] = {};
    chain_layer<NET, L - 1>(c, own, forth, 0, [&](float (&sums)[N][4]) {
        const LinesAcross<outs_of(NET, L)> right(own.weights + packed_bytes(NET, L));
        own.multiply(sums, [&] {
            UNROLL
            for (int step = 0; step < STEPS_OF_ROWS; ++step) Product<8 * N>::add_across(sums, rows[step].x, right.at(step), true);
        });
    });
    if constexpr (L > 1) {
        Left before[8 * N / DEPTH];
        gather(before, c);
        go_back<NET, L - 1>(own, before, forth);
    }
}

// The samples at `place`, one for each of a warp's rows; `go_on()` fetches what is known ahead, `take_back(c, kept)` makes
// derivatives of the outputs.
template <int NET, class GoOn, class TakeBack>
FN void learn_tile(ResidentRows& own, const UpdateCall& call, const Scale& scale, Index unit, int place,
                   const GoOn& go_on, const TakeBack& take_back) {
    float                          inverses[LAYERS][2] = {};
    u32                            slopes[LAYERS][SLOPE_WORDS] = {};
    const Keeping<NET, UpdateCall> tile = {call, unit, inverses, slopes};
    InputsOfWarp                   x;
    load_inputs(x, own, call.observations, place);
    go_on();
    normalise_inputs(x, own, scale, {nullptr, 0});
    UNROLL
    for (int j = 0; j < WITH_ONE / 8; ++j) {
        UNROLL
        for (int q = 0; q < 4; ++q) {
            if (8 * j + own.lane % 4 * 2 + q % 2 == FEATURES) x[j][q] = 1.0f;  // by which no weight multiplies
        }
    }
    kept_tile<NET, 0>(call, unit).store_rounded(x);
    Left rows[WITH_ONE / DEPTH];
    gather(rows, x);
    go_forth<NET, 0>(own, rows, tile, [&](Outputs<NET>& c) {
        take_back(c, kept_tile<NET, 2 * LAYERS - 1>(call, unit));
        Left by_outputs[outs_of(NET, LAYERS - 1) / DEPTH];
        gather(by_outputs, c);
        go_back<NET, LAYERS - 1>(own, by_outputs, tile);
    });
}
