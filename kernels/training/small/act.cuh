// Acting and valuing: what a warp makes of 16 rows of observations with a network in its block's memory, and the actions
// that it draws.

template <int OUTPUTS> struct ActMemory {
    Forward<OUTPUTS> net;
    alignas(16) float outputs[THREADS * ROW_STRIDE];
};

// Leaves the outputs of a warp's 16 rows, ROW_STRIDE floats each.
template <int OUTPUTS>
FN void go_forth(const Forward<OUTPUTS>& net, InputRows& x, const Scale& scale, float* outputs, int lane) {
    normalise(x, net, scale, lane);
    float y[HIDDEN_1 / 8][4], z[HIDDEN_2 / 8][4], out[Forward<OUTPUTS>::OUTS / 8][4];
    begin(y, net.bias_1, lane);
    multiply(y, x, net.first, lane);
    activate(y);
    begin(z, net.bias_2, lane);
    multiply(z, y, net.second, lane);
    activate(z);
    begin(out, net.bias_3, lane);
    multiply(out, z, net.third, lane);
    store_outputs<OUTPUTS>(outputs, ROW_STRIDE, out, lane);
    warp_barrier();
}

// Draws the action of a thread's row from its outputs.
template <class Call> FN void draw_action(const Call& call, float* outputs_of_block, Index row, bool wanted) {
    const SampleCall sample = {call.rows,    call.first_row, call.stream,    call.turn,    nullptr,
                               call.actions, call.acted, call.log_probs, nullptr,      call.greedy, nullptr};
    const OneRow env = {row, wanted};
    const Rows   rows(outputs_at(outputs_of_block), nullptr, nullptr, env);
    Total        total;
    if constexpr (DISCRETE) draw_choices(total, sample, rows, env);
    else draw_gaussians(total, sample, rows, env);
    if (wanted) call.log_probs[row] = total.log_prob[0];
}

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

template <class Call> FN void act(const Call& call) {
    const auto find = [](Index row) { return int(row); };
    const auto see  = [](const InputRows&, int, int) {};
    const auto use  = [&](float* block, const float*, Index row, bool wanted) { draw_action(call, block, row, wanted); };
    run_network<PARAMETERS>(call, ACTOR_PLACES, MEANS, find, see, use);
}

template <class Call> FN void values(const Call& call) {
    u32        largest = 0;
    const auto find    = [&](Index row) { return int(call.places == nullptr ? row : call.places[row]); };
    const auto counts  = [&](int place) { return place >= 0 && (call.alive == nullptr || call.alive[place] != 0); };
    const auto see     = [&](const InputRows& x, int place_g, int place_h) {
        if (call.largest == nullptr) return;
        const bool counts_g = counts(place_g), counts_h = counts(place_h);
        FOR_EACH_NUMBER(j, q, INPUTS / 8) {
            const u32 magnitude = bits_of(x[j][q]) & ~(1u << 31);
            largest             = (q < 2 ? counts_g : counts_h) ? maximum(largest, magnitude) : largest;
        }
    };
    const auto use = [&](float*, const float* outputs, Index row, bool wanted) {
        if (wanted) call.values[row] = outputs[0];
    };
    run_network<1>(call, CRITIC_PLACES, 1, find, see, use);
    raise_to(call.largest, largest);
}
