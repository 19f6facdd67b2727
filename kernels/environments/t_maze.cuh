// T-maze: a cue at the start of a corridor tells which way to turn at its end.
// Bakker (2002), "Reinforcement Learning with Long Short-Term Memory", NIPS 14, with other rewards.

enum Move { UP, DOWN, LEFT, RIGHT };

FN void reset(State& s, const Params&, Random& random) {
    s.cell  = 0;
    s.cue   = random.integer(2) == 0 ? 1 : -1;
    s.side  = 0;
    s.shown = true;
}

FN Outcome step(State& s, const Params& p, const Action& action, Random&) {
    const int  vertical = action == UP ? 1 : action == DOWN ? -1 : 0;
    const int  along    = action == RIGHT ? 1 : action == LEFT ? -1 : 0;
    const bool turned   = s.cell == p.length && vertical != 0;
    const int  cell     = clip(s.cell + along, 0, p.length);
    const bool nearer   = cell > s.cell;
    s.cell  = cell;
    s.side  = turned ? vertical : 0;
    s.shown = false;
    const real turn = s.side == s.cue ? p.turn_reward : -p.turn_penalty;
    const real move = nearer ? real(0) : -p.move_penalty / real(p.length);
    return {turned ? turn : move, turned};
}

FN void observe(const State& s, const Params& p, Observation& observation) {
    const bool junction = s.cell == p.length;
    observation[0] = s.shown && s.cue > 0 ? 1.0f : 0.0f;
    observation[1] = s.shown && s.cue < 0 ? 1.0f : 0.0f;
    observation[2] = junction ? 0.0f : 1.0f;
    observation[3] = junction ? 1.0f : 0.0f;
}

FN void measure(const State& s, const Params&, Metrics& metrics) {
    metrics.correct = s.side == s.cue ? real(1) : real(0);
}
