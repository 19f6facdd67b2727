// Observations that are one short row of floats: kept with the tile, then written out together, so that neighbouring
// threads write neighbouring words.

FN void set_observation(Tile& tile, int k, const Observation& observation) {
    UNROLL
    for (int j = 0; j < OBSERVATION_SIZE; ++j) tile.observation[j][k] = observation[j];
}

FN void observe_lane(Tile& tile, int k, const Params& params) {
    Observation observation;
    observe(tile.state.get(k), params, observation);
    set_observation(tile, k, observation);
}

template <class Env> FN void observe_all(Tile& tile, const ParamBuffers& params, const Env& env) {
    FOR_EACH_LANE(k, env) observe_lane(tile, k, params.get(env.index(k)));
}

// Writes the tile's observations, those of the first replica to row `base`.
template <class Call, class Env> FN void deliver(const Call& call, const Tile& tile, Index base, const Env& env) {
    store_rows<OBSERVATION_SIZE>(call.observations + base * OBSERVATION_SIZE, tile.observation, env);
}

// The observation that ended the episode of replica i: into its record, and into an array of the user's, if any.
// A template, for in other modes a record has no place for it.
template <class Kept> FN void keep_final(const StepCall& call, const Tile& tile, int k, Index i, Kept& record) {
    if constexpr (AUTORESET == SAME_STEP) {
        UNROLL
        for (int j = 0; j < OBSERVATION_SIZE; ++j) {
            record.final_obs[j] = tile.observation[j][k];
            if (call.final_obs != nullptr) call.final_obs[i * OBSERVATION_SIZE + j] = tile.observation[j][k];
        }
    }
}

// Zeroes what keep_final() wrote of replica i.
template <class Call> FN void clear_kept(const Call& call, Index i) {
    if constexpr (AUTORESET == SAME_STEP) {
        UNROLL
        for (int j = 0; j < OBSERVATION_SIZE; ++j) call.buffers.records[i].final_obs[j] = 0;
    }
}
