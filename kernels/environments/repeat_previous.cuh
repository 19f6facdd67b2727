// Repeat previous: each step shows the suit of a card; the action names the suit that was shown k steps ago.
// The game of POPGym's RepeatPrevious (Morad, Kortvelesy, Bettini, Liwicki & Prorok 2023, "POPGym: Benchmarking
// Partially Observable Reinforcement Learning", ICLR), but with independent suits.

constexpr int SUITS = 4;

FN void reset(State& s, const Params& p, Random& random) {
    for (int j = 0; j <= p.k; ++j) s.suits[j] = 0;
    s.suits[0] = u8(random.integer(SUITS));
    s.steps    = 0;
    s.right    = 0;
}

FN Outcome step(State& s, const Params& p, const Action& action, Random& random) {
    const int  oldest = (s.steps + 1) % (p.k + 1);  // shown k steps ago, and replaced by the next suit
    const bool counts = s.steps >= p.k;
    const bool right  = action == int(s.suits[oldest]);
    s.suits[oldest] = u8(random.integer(SUITS));
    s.steps += 1;
    s.right += counts && right ? 1 : 0;
    const real points = right ? real(1) : -p.penalty;
    return {counts ? points * p.share : real(0), false};
}

FN void observe(const State& s, const Params& p, Observation& observation) {
    const int suit = s.suits[s.steps % (p.k + 1)];
    for (int j = 0; j < SUITS; ++j) observation[j] = j == suit ? 1.0f : 0.0f;
}

FN void measure(const State& s, const Params&, Metrics& metrics) { metrics.right = real(s.right); }
