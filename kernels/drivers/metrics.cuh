// Metrics: numbers of a replica's episode, which the rules write in measure(). Metrics, their number METRICS and how each
// is reduced over the steps of an episode are generated; TOTALS of them have a total to keep from step to step.

#define FOR_EACH_METRIC(m) UNROLL for (int m = 0; m < METRICS; ++m)
#define FOR_EACH_TOTAL(m)  FOR_EACH_METRIC(m) if (reduction(m) != OF_LAST)

// A total before the first step, and with one more.
FN real first_total(int m) { return reduction(m) == OF_MAX ? -infinity<real>() : real(0); }
FN real with_step(int m, real total, real value) {
    return reduction(m) == OF_MAX ? maximum(total, value) : total + value;
}

// What an episode of so many steps has of metric m.
FN real of_episode(int m, real last, real total, int steps) {
    return reduction(m) == OF_LAST ? last : reduction(m) == OF_MEAN ? total / real(steps) : total;
}
