// Action masks of single-agent environments whose rules define allow().

constexpr int FEW_CHOICES = 32;  // maximum number of choices whose mask is built in registers

// Writes the mask of a state to `row`: true, except where allow() sets false.
FN void mask_choices(const State& state, const Params& params, bool* row) {
    Mask mask(row, CHOICES);
    for (int choice = 0; choice < CHOICES; ++choice) mask[choice] = true;
    allow(state, params, mask);
}

// Writes the action masks of the tile's replicas to call.action_mask.
template <class Call, class Env> FN void store_masks(const Call& call, const Tile& tile, const Env& env) {
    const ParamBuffers params = call.params;
    FOR_EACH_LANE_ALONE(k, env) {
        const Index i   = env.index(k);
        bool* const row = call.action_mask + i * CHOICES;
        if (INDEXED && tile.ended[k]) {  // the episode is over, and the state's indices may be out of range
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

// Draws the tile's actions from each lane's random bits, among the choices that allow() leaves in its current state.
template <class Env>
FN void draw_actions(Tile& tile, const ParamBuffers& params, const Words (&random_bits)[LANES],
                     const u64 (&seeds)[LANES], const u32 (&episodes)[LANES], const Env& env) {
    FOR_EACH_LANE(k, env) {
        bool possible[CHOICES];
        mask_choices(tile.state.get(k), params.get(env.index(k)), possible);
        tile.action.draw_possible(k, random_bits[k], u32(tile.elapsed[k]), seeds[k], episodes[k], possible);
    }
}
