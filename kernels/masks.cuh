// What is possible in the state that is observed, of single-agent environments whose rules say so.

constexpr int FEW_CHOICES = 32;  // so many are gathered in registers before they are written

// All choices are, but for those that the rules forbid.
FN void mask_choices(const State& state, const Params& params, bool* row) {
    Mask mask(row, CHOICES);
    for (int choice = 0; choice < CHOICES; ++choice) mask[choice] = true;
    allow(state, params, mask);
}

template <class Call, class Env> FN void mask_all(const Call& call, const Tile& tile, const Env& env) {
    const ParamBuffers params = call.params;
    FOR_EACH_LANE_ALONE(k, env) {
        const Index i   = env.index(k);
        bool* const row = call.action_mask + i * CHOICES;
        if constexpr (CHOICES <= FEW_CHOICES) {
            bool possible[CHOICES];
            mask_choices(tile.state.get(k), params.get(i), possible);
            UNROLL
            for (int choice = 0; choice < CHOICES; ++choice) row[choice] = possible[choice];
        } else {
            mask_choices(tile.state.get(k), params.get(i), row);
        }
    }
}

// Draws a random action among those that are possible.
FN void draw_action(Tile& tile, int k, const Params& params, const Words& bits) {
    bool possible[CHOICES];
    mask_choices(tile.state.get(k), params, possible);
    tile.action.draw_possible(k, bits, u32(tile.elapsed[k]), possible);
}
