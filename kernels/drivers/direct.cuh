// Observations of any size, in one or several arrays: the rules write them into global memory, after the replica's
// restart. Observation, observed_rows(), final_rows() and clear_final_row() are generated.

FN void observe_lane(Tile&, int, const Params&) {}
template <class Env> FN void observe_all(Tile&, const ParamBuffers&, const Env&) {}

// Writes the tile's observations to rows `base` + i, i being the replicas' indices.
template <class Call, class Env>
FN void store_observations(const Call& call, const Tile& tile, Index base, const Env& env) {
    const ParamBuffers params = call.params;
    FOR_EACH_LANE_ALONE(k, env) {
        const Index i = env.index(k);
        Observation rows = observed_rows(call, base + i);
        observe(tile.state.get(k), params.get(i), rows);
    }
}

// Writes the final observation of replica i's episode.
FN void store_final(const StepCall& call, const Tile& tile, int k, Index i, Record&) {
    Observation rows = final_rows(call, i);
    observe(tile.state.get(k), call.params.get(i), rows);
}
