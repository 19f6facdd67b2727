// The outputs of wide perceptrons as functions.

template <int NET> FN void find_outputs(const OutputsCall& call, int worker, int workers) {
    const auto in_order = [](Index row) { return int(row); };
    run_wide<NET>(call, worker, workers, in_order, nullptr, nullptr,
                  [&](const Own<NET>& own, Outputs<NET>& c, Index row, int) {
        constexpr int last = LAYERS - 1;
        for_accumulators<NET, outs_of(NET, last) / 8, out_of(NET, last)>(
            own, call.rows, row / GROUP_ROWS,
            [&](int j, int q, Index place) { if (place >= 0) call.outputs[place] = c[j][q]; });
    });
}

KERNEL_OF_BLOCKS(kernel_outputs, OutputsCall, THREADS, 1) {
    const int first = NETS > 1 ? block_count() / 2 : block_count(), block = block_number();
    if (block < first) find_outputs<0>(call, block, first);
    else if constexpr (NETS > 1) find_outputs<NETS - 1>(call, block - first, block_count() - first);
}
