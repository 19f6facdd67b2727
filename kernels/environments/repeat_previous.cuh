// Repeat previous: each step shows the suit of a card; the action names the suit that was shown k steps ago.
// The game of POPGym's RepeatPrevious (Morad, Kortvelesy, Bettini, Liwicki & Prorok 2023, "POPGym: Benchmarking
// Partially Observable Reinforcement Learning", ICLR), but with independent suits.

constexpr int SUITS = 4, BITS = 2;  // s.suits has the last 16 suits, the newest in the lowest bits
constexpr int CARDS = 52;           // of an episode, if it has the default length

// The suit that was shown `age` steps ago.
FN int suit_of(const State& s, int age) { return int(u32(s.suits) >> BITS * age) & (SUITS - 1); }

FN void reset(State& s, const Params&, Random& random) {
    s.suits   = random.integer(SUITS);
    s.steps   = 0;
    s.correct = 0;
}

FN Outcome step(State& s, const Params& p, const Action& action, Random& random) {
    const bool counts  = s.steps >= p.k;
    const bool correct = action == suit_of(s, p.k);
    const real points  = (correct ? p.reward : -p.penalty) / real(CARDS - p.k);
    s.suits    = int(u32(s.suits) << BITS | u32(random.integer(SUITS)));
    s.steps   += 1;
    s.correct += counts && correct ? 1 : 0;
    return {counts ? points : real(0), false};
}

FN void observe(const State& s, const Params&, Observation& observation) {
    for (int j = 0; j < SUITS; ++j) observation[j] = j == suit_of(s, 0) ? 1.0f : 0.0f;
}

FN void measure(const State& s, const Params&, Metrics& metrics) { metrics.correct = real(s.correct); }
