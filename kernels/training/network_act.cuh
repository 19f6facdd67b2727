// Acting and valuing: a whole perceptron, and for the actor the drawing of actions, in one launch.

template <int OUTPUTS> struct ActMemory {
    Forward<OUTPUTS> net;
    alignas(16) float outputs[THREADS * ROW_STRIDE];
};

static_assert(sizeof(ActMemory<PARAMETERS>) <= SHARED_BYTES && sizeof(ActMemory<1>) <= SHARED_BYTES);

// Runs `use` on each tile's outputs: those of row `lane` of a warp lie at its outputs + lane * ROW_STRIDE.
template <int OUTPUTS, class Call, class Use>
FN void run_network(const Call& call, const Places& places, int rows_of_last_layer, const Use& use) {
    auto&       memory = *reinterpret_cast<ActMemory<OUTPUTS>*>(staging);
    auto&       net    = memory.net;
    const Scale scale  = {call.mean, call.inverse, call.limit};
    load<OUTPUTS>(net, nullptr, call.flat, places, rows_of_last_layer, scale);
    const int    lane    = warp_lane(), warp = thread_rank() / WARP;
    float* const outputs = memory.outputs + warp * WARP * ROW_STRIDE;
    for (Index tile = block_number(); tile * TILE < call.rows; tile += block_count()) {
        const Index first = tile * TILE + warp * WARP_ROWS, g = first + lane / 4, h = g + 8;
        InputRows   x;
        fetch_rows(x, call.observations, g < call.rows ? int(g) : -1, h < call.rows ? int(h) : -1, lane);
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
        const Index row = first + lane;
        use(memory.outputs, outputs + lane * ROW_STRIDE, row, lane < WARP_ROWS && row < call.rows);
        warp_barrier();
    }
}

KERNEL_OF_BLOCKS(kernel_act, ActCall, THREADS, 1) {
    const SampleCall sample = {call.rows,    call.first_row, call.stream,    call.turn,    nullptr,
                               call.actions, call.acted, call.log_probs, nullptr,      call.greedy, nullptr};
    run_network<PARAMETERS>(call, ACTOR_PLACES, MEANS, [&](float* block, const float*, Index row, bool wanted) {
        const OneRow env = {row, wanted};
        const Rows   rows(outputs_at(block), nullptr, nullptr, env);
        Total        total;
        if constexpr (DISCRETE) draw_choices(total, sample, rows, env);
        else draw_gaussians(total, sample, rows, env);
        if (wanted) call.log_probs[row] = total.log_prob[0];
    });
}

KERNEL_OF_BLOCKS(kernel_values, ValuesCall, THREADS, 1) {
    run_network<1>(call, CRITIC_PLACES, 1, [&](float*, const float* outputs, Index row, bool wanted) {
        if (wanted) call.values[row] = outputs[0];
    });
}
