// Metrics: numbers per episode, which the rules write in measure(). The struct Metrics, the number METRICS and each
// metric's reduction over the steps of an episode are generated; TOTALS metrics need a running total.

#define FOR_EACH_METRIC(m) UNROLL for (int m = 0; m < METRICS; ++m)
#define FOR_EACH_TOTAL(m)  FOR_EACH_METRIC(m) if (reduction(m) != OF_LAST)

// Metric m's running total before the first step, and after one more step with `value`.
FN real first_total(int m) { return reduction(m) == OF_MAX ? -infinity<real>() : real(0); }
FN real with_step(int m, real total, real value) {
    return reduction(m) == OF_MAX ? maximum(total, value) : total + value;
}

// Metric m of an episode, by its last value, its total and the number of steps.
FN real episode_metric(int m, real last, real total, int steps) {
    return reduction(m) == OF_LAST ? last : reduction(m) == OF_MEAN ? total / real(steps) : total;
}
