// Acting and values: a warp runs a network, whose weights are in shared memory, on 16 rows of observations at a time,
// and each of its first 16 threads draws an action or writes a value.

template <int OUTPUTS> struct ActMemory {
    Forward<OUTPUTS> net;
    alignas(16) float outputs[THREADS * ROW_STRIDE];
};

// Writes the outputs of a warp's 16 rows, ROW_STRIDE floats each.
template <int OUTPUTS>
FN void forward(const Forward<OUTPUTS>& net, InputRows& x, const Scale& scale, float* outputs, int lane) {
    normalise(x, net, scale, lane);
    float y[HIDDEN_1 / 8][4], z[HIDDEN_2 / 8][4], out[Forward<OUTPUTS>::OUTS / 8][4];
    set_to_bias(y, net.bias_1, lane);
    multiply(y, x, net.first, lane);
    activate(y);
    set_to_bias(z, net.bias_2, lane);
    multiply(z, y, net.second, lane);
    activate(z);
    set_to_bias(out, net.bias_3, lane);
    multiply(out, z, net.third, lane);
    store_outputs<OUTPUTS>(outputs, ROW_STRIDE, out, lane);
    warp_barrier();
}

// Draws the action of a thread's row from its outputs, and writes action and log-probability.
template <class Call> FN void draw_action(const Call& call, float* block_outputs, Index row, bool active) {
    const SampleCall sample = {call.rows,    call.first_row, call.stream,    call.turn,    nullptr,
                               call.actions, call.acted, call.log_probs, nullptr,      call.greedy, nullptr};
    const OneRow env = {row, active};
    const Rows   rows(outputs_at(block_outputs), nullptr, nullptr, env);
    Total        total;
    if constexpr (DISCRETE) draw_choices(total, sample, rows, env);
    else draw_gaussians(total, sample, rows, env);
    if (active) call.log_probs[row] = total.log_prob[0];
}

// Runs the network on all rows. index_of(row): index of a row's observation, -1 for none; inspect(x, index_g, index_h)
// gets a thread's fragment of observations, use_outputs(block's outputs, thread's outputs, row, active) the outputs.
template <int OUTPUTS, class Call, class IndexOf, class Inspect, class UseOutputs>
FN void run_network(const Call& call, const Offsets& offsets, int rows_of_last_layer, const IndexOf& index_of,
                    const Inspect& inspect, const UseOutputs& use_outputs) {
    auto&       memory = *reinterpret_cast<ActMemory<OUTPUTS>*>(staging);
    auto&       net    = memory.net;
    const Scale scale  = {call.mean, call.inverse, call.limit};
    load<OUTPUTS>(net, nullptr, call.flat, offsets, rows_of_last_layer, scale);
    const int    lane    = warp_lane(), warp = thread_rank() / WARP;
    float* const outputs = memory.outputs + warp * WARP * ROW_STRIDE;
    for (Index tile = block_number(); tile * TILE < call.rows; tile += block_count()) {
        const Index first = tile * TILE + warp * WARP_ROWS, g = first + lane / 4, h = g + 8;
        const int   index_g = g < call.rows ? index_of(g) : -1, index_h = h < call.rows ? index_of(h) : -1;
        if (warp_ballot(index_g >= 0 || index_h >= 0) == 0) continue;
        InputRows x;
        fetch_rows(x, call.observations, index_g, index_h, lane);
        inspect(x, index_g, index_h);
        forward(net, x, scale, outputs, lane);
        const Index row = first + lane;
        use_outputs(memory.outputs, outputs + lane * ROW_STRIDE, row, lane < WARP_ROWS && row < call.rows);
        warp_barrier();
    }
}

// Draws an action for every row (greedy: takes the most likely), without masks; writes actions and log-probabilities.
template <class Call> FN void act(const Call& call) {
    const auto index_of    = [](Index row) { return int(row); };
    const auto inspect     = [](const InputRows&, int, int) {};
    const auto use_outputs = [&](float* block, const float*, Index row, bool active) {
        draw_action(call, block, row, active);
    };
    run_network<PARAMETERS>(call, ACTOR_OFFSETS, MEANS, index_of, inspect, use_outputs);
}

// Writes the critic's value of every row; raises `largest` to the largest magnitude in active agents' observations.
template <class Call> FN void values(const Call& call) {
    u32        largest  = 0;
    const auto index_of = [&](Index row) { return int(call.indices == nullptr ? row : call.indices[row]); };
    const auto counts   = [&](int index) { return index >= 0 && (call.alive == nullptr || call.alive[index] != 0); };
    const auto inspect  = [&](const InputRows& x, int index_g, int index_h) {
        if (call.largest == nullptr) return;
        const bool counts_g = counts(index_g), counts_h = counts(index_h);
        FOR_EACH_NUMBER(j, q, INPUTS / 8) {
            const u32 magnitude = bits_of(x[j][q]) & ~(1u << 31);
            largest             = (q < 2 ? counts_g : counts_h) ? maximum(largest, magnitude) : largest;
        }
    };
    const auto use_outputs = [&](float*, const float* outputs, Index row, bool active) {
        if (active) call.values[row] = outputs[0];
    };
    run_network<1>(call, CRITIC_OFFSETS, 1, index_of, inspect, use_outputs);
    raise_maximum(call.largest, largest);
}
