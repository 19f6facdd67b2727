// What is possible, of single-agent environments whose rules do not say: everything.

template <class Call, class Env> FN void mask_all(const Call&, const Tile&, const Env&) {}

FN void draw_action(Tile& tile, int k, const Params&, const Words& bits) {
    tile.action.draw(k, bits, u32(tile.elapsed[k]));
}
