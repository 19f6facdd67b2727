// What is possible, of single-agent environments whose rules do not say: everything.

template <class Call, class Env> FN void mask_all(const Call&, const Tile&, const Env&) {}

// Draws random actions.
template <class Env> FN void draw_all(Tile& tile, const ParamBuffers&, const Words (&bits)[LANES], const u64 (&seeds)[LANES], const u32 (&episodes)[LANES], const Env& env) {
    FOR_EACH_LANE(k, env) tile.action.draw(k, bits[k], u32(tile.elapsed[k]), seeds[k], episodes[k]);
}
