// Mountain car with continuous actions: the car of Moore (1990); the force is in an interval and costs its square.

FN void reset(State& s, const Params& p, Random& random) {
    s.position = random.uniform(p.low, p.high);
    s.velocity = 0;
}

FN Outcome step(State& s, const Params& p, const Action& action, Random&) {
    const real force    = clip(action[0], p.min_action, p.max_action);
    const real slope    = cos(real(3) * s.position);
    const real velocity = clip(s.velocity + (force * p.power - p.gravity * slope), -p.max_speed, p.max_speed);
    s.position = clip(s.position + velocity, p.min_position, p.max_position);
    // the left wall is inelastic
    s.velocity = s.position == p.min_position && velocity < 0 ? real(0) : velocity;

    const bool arrived = s.position >= p.goal_position && s.velocity >= p.goal_velocity;
    // the cost is that of the unclipped action
    const real reward = (arrived ? p.goal_reward : real(0)) - action[0] * action[0] * p.action_cost;
    return {reward, arrived};
}

FN void observe(const State& s, const Params&, Observation& observation) {
    observation[0] = s.position;
    observation[1] = s.velocity;
}

FN void measure(const State& s, const Params&, Metrics& metrics) { metrics.position = s.position; }
