// A boat keeps its place in a current that comes and goes: it backs, drifts, or paddles on.
//
// State and Params have the fields that my_env.py names. A number is of type real: write 0.5 as real(0.5).

// The beginning of an episode: gives every field of the state its first value.
FN void reset(State& s, const Params& p, Random& random) {
    s.x       = random.uniform(-p.start, p.start);
    s.speed   = real(0);
    s.current = random.uniform(-p.strongest, p.strongest);
}

// One step: changes the state, and returns the reward and whether the episode has come to its end.
FN Outcome step(State& s, const Params& p, const Action& action, Random& random) {
    const real push = p.push * real(action - 1);  // an action is 0, 1 or 2
    s.current = clip(s.current + random.uniform(-p.gust, p.gust), -p.strongest, p.strongest);
    s.speed  += p.tau * (push - p.drag * (s.speed - s.current));
    s.x      += p.tau * s.speed;
    const bool adrift = s.x < -p.reach || s.x > p.reach;
    return {adrift ? real(0) : real(1), adrift};
}

// What the agent sees: as many numbers as the observation space has.
FN void observe(const State& s, const Params& p, Observation& observation) {
    observation[0] = s.x / p.reach;
    observation[1] = s.speed;
    observation[2] = s.current;
}
