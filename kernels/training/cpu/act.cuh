// A policy with a value on a CPU acts on a tile of rows.
//
// Generated before it: what network.cuh and distributions.cuh need; COUNT (weights), MEANS (outputs of the first net that
// parametrise actions), LOG_STD (place of the log standard deviations among the weights; -1: none) and their limits
// LOG_STD_LOW and LOG_STD_HIGH; VALUE_NET and VALUE_COLUMN.

template <bool LEARNS> struct PolicyMemory : Memory<LEARNS> {
    ScratchMemory scratch;

    // With the weights of the nets from `first_net` on, before `end_net`.
    FN explicit PolicyMemory(const float* flat, int first_net = 0, int end_net = NETS)
        : Memory<LEARNS>(nullptr), scratch(Memory<LEARNS>::bytes()) {
        static_cast<Memory<LEARNS>&>(*this) = Memory<LEARNS>(reinterpret_cast<float*>(scratch.at));
        this->load_weights(flat, first_net, end_net);
    }
    FN float value(int k) const {
        return this->activations[VALUE_NET][LAYERS - 1][k * padded(outputs_of(VALUE_NET, LAYERS - 1)) + VALUE_COLUMN];
    }
    // Transposes the parameters of the distributions to lines.
    FN void load_lines(const float* flat) {
        constexpr int row = padded(outputs_of(0, LAYERS - 1));
        for (int j = 0; j < PARAMETERS; ++j) {
            const float log_std = j < MEANS ? 0.0f : clip(flat[LOG_STD + j - MEANS], LOG_STD_LOW, LOG_STD_HIGH);
            for (int k = 0; k < LANES; ++k) {
                this->lines[j * LANES + k] = j < MEANS ? this->activations[0][LAYERS - 1][k * row + j] : log_std;
            }
        }
    }
};

// Writes actions and log-probabilities of a tile, and values if asked for.
template <class Env> FN void act_on_tile(PolicyMemory<false>& memory, const SampleCall& call, const Env& env) {
    memory.load_observations(call, env);
    memory.forward(call.flat, 0);
    if (call.values != nullptr) {
        if (VALUE_NET > 0) memory.forward(call.flat, VALUE_NET);
        for (int k = 0; k < env.lanes; ++k) call.values[env.index(k)] = memory.value(k);
    }
    memory.load_lines(call.flat);
    const Rows rows(memory.lines, env, call.action_mask);
    Total      total;
    if constexpr (DISCRETE) draw_choices(total, call, rows, env);
    else draw_gaussians(total, call, rows, env);
    for (int k = 0; k < env.lanes; ++k) call.log_probs[env.index(k)] = total.log_prob[k];
}

END_CONTRACTIONS
