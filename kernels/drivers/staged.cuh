// Observations that are one short row of floats: staged in the tile, then stored together, in coalesced stores.

// Writes the observation of lane k's state into the tile.
FN void observe_lane(Tile& tile, int k, const Params& params) {
    Observation observation;
    observe(tile.state.get(k), params, observation);
    UNROLL
    for (int j = 0; j < OBSERVATION_SIZE; ++j) tile.observation[j][k] = observation[j];
}

template <class Env> FN void observe_all(Tile& tile, const ParamBuffers& params, const Env& env) {
    FOR_EACH_LANE(k, env) observe_lane(tile, k, params.get(env.index(k)));
}

// Writes the tile's observations to rows `base` + i, i being the replicas' indices.
template <class Call, class Env>
FN void store_observations(const Call& call, const Tile& tile, Index base, const Env& env) {
    store_rows<OBSERVATION_SIZE>(call.observations + base * OBSERVATION_SIZE, tile.observation, env);
}

// Writes the final observation of replica i's episode into `record`, and into the user's array, if any. A template: in
// other autoreset modes a record has no such member.
template <class RecordT> FN void store_final(const StepCall& call, const Tile& tile, int k, Index i, RecordT& record) {
    if constexpr (AUTORESET == SAME_STEP) {
        UNROLL
        for (int j = 0; j < OBSERVATION_SIZE; ++j) {
            record.final_obs[j] = tile.observation[j][k];
            if (call.final_obs != nullptr) call.final_obs[i * OBSERVATION_SIZE + j] = tile.observation[j][k];
        }
    }
}

// Zeroes the final observation in replica i's record.
template <class Call> FN void clear_final_row(const Call& call, Index i) {
    if constexpr (AUTORESET == SAME_STEP) {
        UNROLL
        for (int j = 0; j < OBSERVATION_SIZE; ++j) call.buffers.records[i].final_obs[j] = 0;
    }
}
