// Acting and valuing with wide perceptrons: all layers, and the drawing of actions, in one launch.

// An action of each of a warp's rows, by its outputs.
template <class Warp, int N>
FN void act(const Warp& own, float (&c)[N][4], const WideActCall& call, const SampleCall& sample, Index row, int place) {
    const bool wanted = own.lane < WARP_ROWS && place >= 0;
    if (SHARED_TRUNK && call.values != nullptr) {
        own.store_values(c, MEANS);
        if (wanted) call.values[row] = own.values()[own.lane];
    }
    if constexpr (DISCRETE) {
        const Index first = row - own.lane % WARP_ROWS + own.lane / 4;
        float       log_prob[2];
        forbid(c, call.action_mask, place);
        draw_choices(sample, c, first, call.rows, log_prob);
        const int h = own.lane % 4;
        if (h < 2 && first + 8 * h < call.rows) call.log_probs[first + 8 * h] = h == 0 ? log_prob[0] : log_prob[1];
    } else {
        store_means(own, c, call.flat);
        const OneRow env = {row, wanted};
        const Rows   rows(outputs_at(outputs_of_block(own)), nullptr, nullptr, env);
        Total        total;
        draw_gaussians(total, sample, rows, env);
        if (wanted) call.log_probs[row] = total.log_prob[0];
    }
}

KERNEL_OF_BLOCKS(kernel_act, WideActCall, THREADS, 1) {
    const SampleCall sample = {call.rows,    call.first_row, call.stream,    call.turn,    nullptr,
                               call.actions, call.acted, call.log_probs, nullptr,      call.greedy, nullptr};
    const auto in_order = [](Index row) { return int(row); };
    u32        largest  = 0;
    const auto use      = [&](const Own<0>& own, Outputs<0>& c, Index row, int place) {
        act(own, c, call, sample, row, place);
    };
    run_wide<0>(call, block_number(), block_count(), in_order, call.largest == nullptr ? nullptr : &largest, call.alive, use);
    raise_to(call.largest, largest);
}

KERNEL_OF_BLOCKS(kernel_values, WideValuesCall, THREADS, 1) {
    u32        largest = 0;
    const auto find    = [&](Index row) { return int(call.places == nullptr ? row : call.places[row]); };
    const auto use     = [&](const Own<NETS - 1>& own, Outputs<NETS - 1>& c, Index row, int place) {
        own.store_values(c, SHARED_TRUNK ? MEANS : 0);
        if (own.lane < WARP_ROWS && place >= 0) call.values[row] = own.values()[own.lane];
    };
    run_wide<NETS - 1>(call, block_number(), block_count(), find, call.largest == nullptr ? nullptr : &largest, call.alive, use);
    raise_to(call.largest, largest);
}
