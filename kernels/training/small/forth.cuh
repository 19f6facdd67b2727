// What a warp makes of 16 rows of observations with a network in its block's memory, and the actions that it draws.

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
FN void draw_action(const ActCall& call, float* outputs_of_block, Index row, bool wanted) {
    const SampleCall sample = {call.rows,    call.first_row, call.stream,    call.turn,    nullptr,
                               call.actions, call.acted, call.log_probs, nullptr,      call.greedy, nullptr};
    const OneRow env = {row, wanted};
    const Rows   rows(outputs_at(outputs_of_block), nullptr, nullptr, env);
    Total        total;
    if constexpr (DISCRETE) draw_choices(total, sample, rows, env);
    else draw_gaussians(total, sample, rows, env);
    if (wanted) call.log_probs[row] = total.log_prob[0];
}
