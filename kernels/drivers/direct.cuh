// Observations of any size and several arrays: the rules write straight into a replica's rows, once it is known which
// state they are of. Observation, observed_rows(), final_rows() and clear_kept() are generated.

FN void observe_lane(Tile&, int, const Params&) {}
template <class Env> FN void observe_all(Tile&, const ParamBuffers&, const Env&) {}

// Writes the tile's observations, those of the first replica to row `base`.
template <class Call, class Env> FN void deliver(const Call& call, const Tile& tile, Index base, const Env& env) {
    const ParamBuffers params = call.params;
    FOR_EACH_LANE_ALONE(k, env) {
        const Index i = env.index(k);
        Observation rows = observed_rows(call, base + i);
        observe(tile.state.get(k), params.get(i), rows);
    }
}

// The observation that ended the episode of replica i.
FN void keep_final(const StepCall& call, const Tile& tile, int k, Index i, Record&) {
    Observation rows = final_rows(call, i);
    observe(tile.state.get(k), call.params.get(i), rows);
}
