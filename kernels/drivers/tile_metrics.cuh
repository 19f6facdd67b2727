// Metrics of single-agent replicas. Those of the last step are computed where an episode ends, and nowhere else.

struct MetricValues { real of[METRICS]; };

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

FN void begin_totals(Tile& tile, int k) {
    FOR_EACH_TOTAL(m) tile.totals.of[total_of(m)][k] = first_total(m);
}

// Adds the step that has been taken to the totals, but where none was: in `idle` replicas.
template <class Env> FN void add_to_totals(Tile& tile, const ParamBuffers& params, const int (&idle)[LANES], const Env& env) {
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

// The metrics of an episode that has just ended, or would.
FN MetricValues concluded_metrics(const Tile& tile, int k, const Params& params) {
    MetricValues values = measured(tile.state.get(k), params);
    FOR_EACH_TOTAL(m) values.of[m] = of_episode(m, values.of[m], tile.totals.of[total_of(m)][k], tile.elapsed[k]);
    return values;
}

// What they come to so far, of the replicas that have taken a step, where a build tells it.
template <class Call, class Env> FN void tell_metrics(const Call& call, const Tile& tile, const int (&pending)[LANES], const Env& env) {
    if constexpr (RUNNING_METRICS) FOR_EACH_LANE_ALONE(k, env) {
        if (pending[k]) continue;
        const Index        i      = env.index(k);
        const MetricValues values = concluded_metrics(tile, k, call.params.get(i));
        FOR_EACH_METRIC(m) call.buffers.running_metrics[i * METRICS + m] = values.of[m];
    }
}

FN void keep_metrics(const StepCall& call, const Tile& tile, int k, Index i, Record& record) {
    const MetricValues values = concluded_metrics(tile, k, call.params.get(i));
    FOR_EACH_METRIC(m) {
        record.metrics[m] = values.of[m];
        if (call.episode_metrics != nullptr) call.episode_metrics[i * METRICS + m] = values.of[m];
    }
}

// What has a row for each step, from one step to the next.
FN void go_on_with_metrics(StepCall& call, Index count) {
    if (call.episode_metrics != nullptr) call.episode_metrics += count * METRICS;
}

// In a rollout an episode's metrics go out at once: to keep them for its end would take registers, and so threads.
FN void put_metrics(const RolloutCall& call, const Tile& tile, int k, Index i) {
    const MetricValues values = concluded_metrics(tile, k, call.params.get(i));
    Record& record = call.buffers.records[anew(i)];
    FOR_EACH_METRIC(m) record.metrics[m] = values.of[m];
}
