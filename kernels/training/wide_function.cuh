// Wide perceptrons as functions, one or two in a launch: where their outputs lie.

// Calls `each(j, q, place)` for the accumulators of a warp's outputs: where each lies among those of all rows and nets, or -1.
template <int NET, class Own, class Each> FN void for_outputs(const Own& own, Index rows, Index unit, const Each& each) {
    constexpr int N = outs_of(NET, LAYERS - 1) / 8, OUTS = out_of(NET, LAYERS - 1);
    const Index   first = unit * GROUP_ROWS + own.warp * WARP_ROWS + own.lane / 4;
    UNROLL
    for (int j = 0; j < N; ++j) {
        UNROLL
        for (int q = 0; q < 4; ++q) {
            const int   column = 8 * j + own.lane % 4 * 2 + q % 2;
            const Index row    = first + q / 2 * 8;
            each(j, q, row < rows && column < OUTS ? (row * NETS + NET) * OUTS + column : Index(-1));
        }
    }
}
