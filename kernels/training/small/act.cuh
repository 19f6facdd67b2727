// Acting and valuing: a whole perceptron, and for the actor the drawing of actions, in one launch.

static_assert(sizeof(ActMemory<PARAMETERS>) <= SHARED_BYTES && sizeof(ActMemory<1>) <= SHARED_BYTES);

// Runs `use` on each tile's outputs: those of row `lane` of a warp lie at its outputs + lane * ROW_STRIDE. A row's
// observation is where `find` says, or nowhere if that is below 0; what a thread has of those of rows g and h it shows to
// `see` first.
template <int OUTPUTS, class Call, class Find, class See, class Use>
FN void run_network(const Call& call, const Places& places, int rows_of_last_layer, const Find& find, const See& see,
                    const Use& use) {
    auto&       memory = *reinterpret_cast<ActMemory<OUTPUTS>*>(staging);
    auto&       net    = memory.net;
    const Scale scale  = {call.mean, call.inverse, call.limit};
    load<OUTPUTS>(net, nullptr, call.flat, places, rows_of_last_layer, scale);
    const int    lane    = warp_lane(), warp = thread_rank() / WARP;
    float* const outputs = memory.outputs + warp * WARP * ROW_STRIDE;
    for (Index tile = block_number(); tile * TILE < call.rows; tile += block_count()) {
        const Index first = tile * TILE + warp * WARP_ROWS, g = first + lane / 4, h = g + 8;
        const int   place_g = g < call.rows ? find(g) : -1, place_h = h < call.rows ? find(h) : -1;
        if (warp_marks(place_g >= 0 || place_h >= 0) == 0) continue;
        InputRows x;
        fetch_rows(x, call.observations, place_g, place_h, lane);
        see(x, place_g, place_h);
        go_forth(net, x, scale, outputs, lane);
        const Index row = first + lane;
        use(memory.outputs, outputs + lane * ROW_STRIDE, row, lane < WARP_ROWS && row < call.rows);
        warp_barrier();
    }
}

KERNEL_OF_BLOCKS(kernel_act, ActCall, THREADS, 1) {
    const auto find = [](Index row) { return int(row); };
    const auto see  = [](const InputRows&, int, int) {};
    const auto use  = [&](float* block, const float*, Index row, bool wanted) { draw_action(call, block, row, wanted); };
    run_network<PARAMETERS>(call, ACTOR_PLACES, MEANS, find, see, use);
}

KERNEL_OF_BLOCKS(kernel_values, ValuesCall, THREADS, 1) {
    u32        largest = 0;
    const auto find    = [&](Index row) { return int(call.places == nullptr ? row : call.places[row]); };
    const auto counts  = [&](int place) { return place >= 0 && (call.alive == nullptr || call.alive[place] != 0); };
    const auto see     = [&](const InputRows& x, int place_g, int place_h) {
        if (call.largest == nullptr) return;
        const bool counts_g = counts(place_g), counts_h = counts(place_h);
        UNROLL
        for (int j = 0; j < INPUTS / 8; ++j) {
            UNROLL
            for (int q = 0; q < 4; ++q) {
                const u32 magnitude = bits_of(x[j][q]) & ~(1u << 31);
                largest             = (q < 2 ? counts_g : counts_h) ? maximum(largest, magnitude) : largest;
            }
        }
    };
    const auto use = [&](float*, const float* outputs, Index row, bool wanted) {
        if (wanted) call.values[row] = outputs[0];
    };
    run_network<1>(call, CRITIC_PLACES, 1, find, see, use);
    raise_to(call.largest, largest);
}
