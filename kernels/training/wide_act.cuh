// Acting and valuing with wide perceptrons: all layers, and the drawing of actions, in one launch.

template <int NET, class Call, class Use> FN void run_wide(const Call& call, const Use& use) {
    auto&       memory = WideMemory::of_block();
    const Scale scale  = {call.mean, call.inverse, call.limit};
    const Index tiles  = (call.rows + GROUP_TILE - 1) / GROUP_TILE;
    load_facts<NET>(memory, call.flat, scale);
    if (fills_ring()) {
        give_registers();
        stream<NET, STEPS_FORTH>(memory, call.packed, tiles, block_number(), block_count());
    } else {
        take_registers();
        Rowwise own(memory);
        for (Index tile = block_number(); tile < tiles; tile += block_count()) {
            const Index first = tile * GROUP_TILE + own.group * GROUP_ROWS, row = first + own.warp * WARP_ROWS + own.lane % 16;
            const int   place = row < call.rows ? int(row) : -1;
            own.load_inputs<false>(call.observations, place, scale, static_cast<GroupTile<8, DEPTH>*>(nullptr));
            publish();
            group_barrier();
            go_forth<NET, 0>(own, Nothing(), [&](const float (&c)[outs_of(NET, LAYERS - 1) / 8][4]) {
                own.store_results<NET>(c, own.outputs_of_warp(), call.flat);
                use(own, row, place >= 0);
                group_barrier();
            });
        }
    }
}

KERNEL_OF_BLOCKS(kernel_act, WideActCall, THREADS, 1) {
    const SampleCall sample = {call.rows,    call.first_row, call.stream,    call.turn,    nullptr,
                               call.actions, call.acted, call.log_probs, nullptr,      call.greedy, nullptr};
    run_wide<0>(call, [&](Rowwise& own, Index row, bool wanted) {
        own.forbid(call.action_mask, row, wanted);
        const OneRow env = {row, wanted && (BY_PAIRS || own.lane < WARP_ROWS)};
        const Rows   rows(outputs_at(own.outputs_of_block()), nullptr, nullptr, env);
        Total        total;
        if constexpr (DISCRETE) draw_choices(total, sample, rows, env);
        else draw_gaussians(total, sample, rows, env);
        if (!wanted || own.lane >= WARP_ROWS) return;
        call.log_probs[row] = total.log_prob[0];
        if (call.values != nullptr) call.values[row] = own.values()[own.lane];
    });
}

KERNEL_OF_BLOCKS(kernel_values, WideValuesCall, THREADS, 1) {
    run_wide<NETS - 1>(call, [&](Rowwise& own, Index row, bool wanted) {
        if (wanted && own.lane < WARP_ROWS) call.values[row] = own.values()[own.lane];
    });
}
