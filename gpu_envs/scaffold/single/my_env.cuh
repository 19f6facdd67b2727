// A boat holds its position in a changing current: it paddles backward, drifts, or paddles forward.
//
// my_env.py defines the fields of State and Params. Numbers have the type real: write 0.5 as real(0.5).

// Start an episode: set every field of the state.
FN void reset(State& s, const Params& p, Random& random) {
    s.x       = random.uniform(-p.start, p.start);
    s.speed   = real(0);
    s.current = random.uniform(-p.strongest, p.strongest);
}

// Take one step: update the state; return the reward and whether the episode terminates.
FN Outcome step(State& s, const Params& p, const Action& action, Random& random) {
    const real push = p.push * real(action - 1);  // an action is 0, 1 or 2
    s.current = clip(s.current + random.uniform(-p.gust, p.gust), -p.strongest, p.strongest);
    s.speed  += p.tau * (push - p.drag * (s.speed - s.current));
    s.x      += p.tau * s.speed;
    const bool adrift = s.x < -p.reach || s.x > p.reach;
    return {adrift ? real(0) : real(1), adrift};
}

// Write the observation: one number for each element of the observation space.
FN void observe(const State& s, const Params& p, Observation& observation) {
    observation[0] = s.x / p.reach;
    observation[1] = s.speed;
    observation[2] = s.current;
}
