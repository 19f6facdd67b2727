// Mountain car: an underpowered car must swing itself out of a valley, pushing left, not at all or right.
// Moore (1990), "Efficient memory-based learning for robot control".

FN void reset(State& s, const Params& p, Random& random) {
    s.position = random.uniform(p.low, p.high);
    s.velocity = 0;
}

FN Outcome step(State& s, const Params& p, const Action& action, Random&) {
    const real push     = real(action - 1) * p.force;
    const real slope    = cos(real(3) * s.position);
    const real velocity = clip(s.velocity + (push - slope * p.gravity), -p.max_speed, p.max_speed);
    s.position = clip(s.position + velocity, p.min_position, p.max_position);
    // the left wall is inelastic
    s.velocity = s.position == p.min_position && velocity < 0 ? real(0) : velocity;
    return {real(-1), s.position >= p.goal_position && s.velocity >= p.goal_velocity};
}

FN void observe(const State& s, const Params&, Observation& observation) {
    observation[0] = s.position;
    observation[1] = s.velocity;
}

FN void measure(const State& s, const Params&, Metrics& metrics) { metrics.position = s.position; }
