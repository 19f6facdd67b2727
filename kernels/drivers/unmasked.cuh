// Single-agent environments without action masks: all actions are possible.

template <class Call, class Env> FN void store_masks(const Call&, const Tile&, const Env&) {}

// Draws the tile's actions from each lane's random bits.
template <class Env>
FN void draw_actions(Tile& tile, const ParamBuffers&, const Words (&random_bits)[LANES], const u64 (&seeds)[LANES],
                     const u32 (&episodes)[LANES], const Env& env) {
    FOR_EACH_LANE(k, env) tile.action.draw(k, random_bits[k], u32(tile.elapsed[k]), seeds[k], episodes[k]);
}
