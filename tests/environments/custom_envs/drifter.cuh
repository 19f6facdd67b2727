// Drifter: drift along a line until too far out. Its metrics use all kinds of reduction.

FN void reset(State& s, const Params& p, Random& random) {
    s.x = random.uniform(-p.start, p.start);
    for (int k = 0; k < 3; ++k) s.trail[k] = 0;
}

FN Outcome step(State& s, const Params& p, const Action& action, Random& random) {
    for (int k = 2; k > 0; --k) s.trail[k] = s.trail[k - 1];
    s.trail[0] = s.x;
    s.x += random.uniform(-1, 1) + real(0.1) * real(action - 1);
    return {-s.x, s.x > p.edge};
}

FN void observe(const State& s, const Params&, Observation& observation) { observation[0] = s.x; }

FN void measure(const State& s, const Params& p, Metrics& metrics) {
    metrics.last    = s.x;
    metrics.mean    = s.x / p.edge;
    metrics.sum     = s.trail[2];
    metrics.highest = s.x - s.trail[0];
}
