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
        if (INDEXED && tile.ended[k]) {  // nothing will be done any more; and an index may be outside by now
            for (int choice = 0; choice < CHOICES; ++choice) row[choice] = true;
            continue;
        }
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

// Draws random actions among those that are possible.
template <class Env> FN void draw_all(Tile& tile, const ParamBuffers& params, const Words (&bits)[LANES], const u64 (&seeds)[LANES], const u32 (&episodes)[LANES], const Env& env) {
    FOR_EACH_LANE(k, env) {
        bool possible[CHOICES];
        mask_choices(tile.state.get(k), params.get(env.index(k)), possible);
        tile.action.draw_possible(k, bits[k], u32(tile.elapsed[k]), seeds[k], episodes[k], possible);
    }
}
