// Metrics of single-agent replicas. Metrics without a running total are computed only when an episode ends.

struct MetricValues { real of[METRICS]; };

// The metrics that the rules' measure() writes for a state.
FN MetricValues measured(const State& state, const Params& params) {
    MetricValues values = {};
    Metrics      metrics(values.of);
    measure(state, params, metrics);
    return values;
}

FN void load_totals(Tile& tile, int k, const Buffers& buffers, Index i) {
    FOR_EACH_TOTAL(m) tile.totals.of[total_of(m)][k] = buffers.totals[total_of(m) * buffers.count + i];
}

FN void store_totals(const Tile& tile, int k, const Buffers& buffers, Index i) {
    FOR_EACH_TOTAL(m) buffers.totals[total_of(m) * buffers.count + i] = tile.totals.of[total_of(m)][k];
}

FN void reset_totals(Tile& tile, int k) {
    FOR_EACH_TOTAL(m) tile.totals.of[total_of(m)][k] = first_total(m);
}

// Adds the current state's metrics to the totals, except in `idle` replicas, which took no step.
template <class Env>
FN void add_to_totals(Tile& tile, const ParamBuffers& params, const int (&idle)[LANES], const Env& env) {
    if constexpr (TOTALS > 0) {
        FOR_EACH_LANE(k, env) {
            if (INDEXED && idle[k]) continue;
            const MetricValues now = measured(tile.state.get(k), params.get(env.index(k)));
            FOR_EACH_TOTAL(m) {
                real& total = tile.totals.of[total_of(m)][k];
                total       = idle[k] ? total : with_step(m, total, now.of[m]);
            }
        }
    }
}

// The metrics of lane k's episode, as if it ended now.
FN MetricValues episode_metrics(const Tile& tile, int k, const Params& params) {
    MetricValues values = measured(tile.state.get(k), params);
    FOR_EACH_TOTAL(m) values.of[m] = episode_metric(m, values.of[m], tile.totals.of[total_of(m)][k], tile.elapsed[k]);
    return values;
}

// Writes the metrics of the current episodes after a step, in builds that check metrics.
template <class Call, class Env>
FN void store_metrics_so_far(const Call& call, const Tile& tile, const int (&pending)[LANES], const Env& env) {
    if constexpr (RUNNING_METRICS) FOR_EACH_LANE_ALONE(k, env) {
        if (pending[k]) continue;
        const Index        i      = env.index(k);
        const MetricValues values = episode_metrics(tile, k, call.params.get(i));
        FOR_EACH_METRIC(m) call.buffers.running_metrics[i * METRICS + m] = values.of[m];
    }
}

// Writes the metrics of replica i's episode, which ended, into `record`, and into the user's array, if any.
FN void store_episode_metrics(const StepCall& call, const Tile& tile, int k, Index i, Record& record) {
    const MetricValues values = episode_metrics(tile, k, call.params.get(i));
    FOR_EACH_METRIC(m) {
        record.metrics[m] = values.of[m];
        if (call.episode_metrics != nullptr) call.episode_metrics[i * METRICS + m] = values.of[m];
    }
}

// Moves the pointer to the next step's row, in arrays with a row per step.
FN void advance_metrics_row(StepCall& call, Index count) {
    if (call.episode_metrics != nullptr) call.episode_metrics += count * METRICS;
}

// Writes the metrics of replica i's ended episode into its record: until the rollout's end, they would take registers.
FN void store_rollout_metrics(const RolloutCall& call, const Tile& tile, int k, Index i) {
    const MetricValues values = episode_metrics(tile, k, call.params.get(i));
    Record& record = call.buffers.records[opaque_index(i)];
    FOR_EACH_METRIC(m) record.metrics[m] = values.of[m];
}
