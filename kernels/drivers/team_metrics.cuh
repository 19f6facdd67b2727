// Metrics of teams, measured in phases of their own: in every step where any of them has a total, or where a build tells
// what they come to so far; otherwise where an episode ends. Templates, for what is named here is not there where there
// are none.

template <class W> FN void begin_totals(W& w) {
    if constexpr (TOTALS > 0) FOR_EACH_TOTAL(m) w._totals[total_of(m)] = first_total(m);
}

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

template <class W> FN real metric_so_far(const W& w, int m) {
    real value = w._metrics[m];
    if constexpr (TOTALS > 0) value = of_episode(m, value, w._totals[total_of(m)], w.elapsed);
    return value;
}

template <class W, class Buffers> FN void tell_metrics(const W& w, const Team& team, const Buffers& buffers) {
    if constexpr (RUNNING_METRICS) FOR_EACH_METRIC(m) buffers.running_metrics[team.replica * METRICS + m] = metric_so_far(w, m);
}

// What the episodes that have just ended come to, of the replicas that take part.
template <class W> FN void conclude_metrics(W& w, const Params& p, Team& team) {
    if constexpr (METRICS > 0) {
        if constexpr (TOTALS == 0) measure_team(w, p, team);
        FOR_EACH_AGENT(first, 1) {
            FOR_EACH_METRIC(m) w._metrics[m] = metric_so_far(w, m);
        }
    }
}

// Writes that out, where all else of a step goes out: among the phases of an episode's end it would take registers from
// the loads with which a step begins.
template <class W, class Call> FN void store_metrics(const W& w, const Team& team, const Call& call) {
    if constexpr (METRICS > 0) {
        FOR_EACH_METRIC(m) {
            const real    value = w._metrics[m];
            const Element at    = team.replica * METRICS + m;
            call.buffers.last_metrics[at] = value;
            if (call.episode_metrics != nullptr) call.episode_metrics[at] = value;
            if constexpr (RUNNING_METRICS) call.buffers.running_metrics[at] = value;
        }
    }
}
