// Metrics of teams, measured in separate phases: in every step if any metric has a running total, or in builds that
// check metrics; otherwise only when an episode ends. Templates, as Worlds without metrics lack these fields.

template <class W> FN void reset_totals(W& w) {
    if constexpr (TOTALS > 0) FOR_EACH_TOTAL(m) w._totals[total_of(m)] = first_total(m);
}

// Adds this step's metrics to the running totals.
template <class W> FN void add_to_totals(W& w) {
    if constexpr (TOTALS > 0) FOR_EACH_TOTAL(m) {
        real& total = w._totals[total_of(m)];
        total       = with_step(m, total, w._metrics[m]);
    }
}

template <class W> FN void measure_team(W& w, const Params& p, Team& team) {
    Metrics metrics(w._metrics + 0);
    measure(w, p, team, metrics);
}

template <class W> FN void measure_step(W& w, const Params& p, Team& team) {
    if constexpr (TOTALS > 0 || RUNNING_METRICS) measure_team(w, p, team);
}

// Metric m of the current episode, as if it ended now.
template <class W> FN real metric_so_far(const W& w, int m) {
    real value = w._metrics[m];
    if constexpr (TOTALS > 0) value = episode_metric(m, value, w._totals[total_of(m)], w.elapsed);
    return value;
}

template <class W, class Buffers> FN void store_metrics_so_far(const W& w, const Team& team, const Buffers& buffers) {
    if constexpr (RUNNING_METRICS) FOR_EACH_METRIC(m) buffers.running_metrics[team.replica * METRICS + m] = metric_so_far(w, m);
}

// Computes the metrics of the active replicas' episodes, which have just ended, into the World.
template <class W> FN void finish_metrics(W& w, const Params& p, Team& team) {
    if constexpr (METRICS > 0) {
        if constexpr (TOTALS == 0) measure_team(w, p, team);
        FOR_EACH_AGENT(first, 1) FOR_EACH_METRIC(m) w._metrics[m] = metric_so_far(w, m);
    }
}

// Writes an ended episode's metrics to the buffers and the user's array, if any. Called together with the step's other
// stores: in the phases of an episode's end, it would take registers from the step's loads.
template <class W, class Call> FN void store_metrics(const W& w, const Team& team, const Call& call) {
    if constexpr (METRICS > 0) FOR_EACH_METRIC(m) {
        const real    value = w._metrics[m];
        const Element at    = team.replica * METRICS + m;
        call.buffers.last_metrics[at] = value;
        if (call.episode_metrics != nullptr) call.episode_metrics[at] = value;
        if constexpr (RUNNING_METRICS) call.buffers.running_metrics[at] = value;
    }
}
