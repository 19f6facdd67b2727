// Acting and valuing with wide perceptrons: all layers, and the drawing of actions, in one launch.

// A row's observation is where `find` says, or nowhere if that is below 0.
template <int NET, class Call, class Find, class Use>
FN void run_wide(const Call& call, const Find& find, u32* largest, const u8* alive, const Use& use) {
    auto&       memory = WideMemory::of_block();
    const Scale scale  = {call.mean, call.inverse, call.limit};
    const Index tiles  = (call.rows + GROUP_TILE - 1) / GROUP_TILE, every = block_count();
    const auto  weights = begin_network<NET, STEPS_FORTH>(memory, call, scale, (tiles - block_number() + every - 1) / every);
    Rowwise<Weights<NET, STEPS_FORTH>> own(memory, weights);
    const auto place_of = [&](Index row) { return row < call.rows ? find(row) : -1; };
    const Index begin   = own.group * GROUP_ROWS + own.warp * WARP_ROWS + own.lane % WARP_ROWS;
    int         place   = place_of(block_number() * Index(GROUP_TILE) + begin);
    for (Index tile = block_number(); tile < tiles; tile += every) {
        const Index row    = tile * GROUP_TILE + begin;
        const int   counts = place >= 0 && (alive == nullptr || alive[place] != 0), now = place;
        own.template load_inputs<false>(call.observations, place, scale, static_cast<GroupTile<8, DEPTH>*>(nullptr),
                                        {largest, counts});
        place = place_of(row + every * GROUP_TILE);
        publish();
        group_barrier();
        go_forth<NET, 0>(own, Nothing(), [&](float (&c)[outs_of(NET, LAYERS - 1) / 8][4]) {
            use(own, c, row, now);
            group_barrier();
        });
    }
}

using Forth   = Weights<0, STEPS_FORTH>;
using Valuing = Weights<NETS - 1, STEPS_FORTH>;
using Outputs = float[outs_of(0, LAYERS - 1) / 8][4];

KERNEL_OF_BLOCKS(kernel_act, WideActCall, THREADS, 1) {
    const SampleCall sample = {call.rows,    call.first_row, call.stream,    call.turn,    nullptr,
                               call.actions, call.acted, call.log_probs, nullptr,      call.greedy, nullptr};
    const auto in_order = [](Index row) { return int(row); };
    u32        largest  = 0;
    const auto use      = [&](Rowwise<Forth>& own, Outputs& c, Index row, int place) {
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
            own.store_means(c, own.outputs_of_warp(), call.flat);
            const OneRow env = {row, wanted};
            const Rows   rows(outputs_at(own.outputs_of_block()), nullptr, nullptr, env);
            Total        total;
            draw_gaussians(total, sample, rows, env);
            if (wanted) call.log_probs[row] = total.log_prob[0];
        }
    };
    run_wide<0>(call, in_order, call.largest == nullptr ? nullptr : &largest, call.alive, use);
    raise_to(call.largest, largest);
}

KERNEL_OF_BLOCKS(kernel_values, WideValuesCall, THREADS, 1) {
    u32        largest = 0;
    const auto find    = [&](Index row) { return int(call.places == nullptr ? row : call.places[row]); };
    const auto use     = [&](Rowwise<Valuing>& own, float (&c)[outs_of(NETS - 1, LAYERS - 1) / 8][4], Index row, int place) {
        own.store_values(c, SHARED_TRUNK ? MEANS : 0);
        if (own.lane < WARP_ROWS && place >= 0) call.values[row] = own.values()[own.lane];
    };
    run_wide<NETS - 1>(call, find, call.largest == nullptr ? nullptr : &largest, call.alive, use);
    raise_to(call.largest, largest);
}
