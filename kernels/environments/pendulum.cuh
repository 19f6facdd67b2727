// Pendulum: swing a rod up and hold it there, with less torque than it takes to lift it directly.
// theta = 0 is upright. Doya (2000), "Reinforcement learning in continuous time and space", is an early user.

// The same angle within [-pi, pi).
FN real normalised(real angle) {
    const real turn  = real(2 * PI);
    const real raised = angle + real(PI);
    const real left   = fma(-turn, round_down(raised / turn), raised);
    // the quotient is rounded: an angle just below a full turn may count as one
    return (left < 0 ? left + turn : left >= turn ? left - turn : left) - real(PI);
}

FN void reset(State& s, const Params& p, Random& random) {
    s.theta     = random.uniform(-p.x_init, p.x_init);
    s.theta_dot = random.uniform(-p.y_init, p.y_init);
}

FN Outcome step(State& s, const Params& p, const Action& action, Random&) {
    const real torque = clip(action[0], -p.max_torque, p.max_torque);
    const real angle  = normalised(s.theta);
    const real cost   = angle * angle + p.speed_cost * s.theta_dot * s.theta_dot + p.torque_cost * torque * torque;

    const real acceleration = real(3) * p.g / (real(2) * p.l) * sin(s.theta) + real(3) / (p.m * p.l * p.l) * torque;
    s.theta_dot = clip(s.theta_dot + acceleration * p.dt, -p.max_speed, p.max_speed);
    s.theta += s.theta_dot * p.dt;
    return {-cost, false};
}

FN void observe(const State& s, const Params&, Observation& observation) {
    const auto [sine, cosine] = sincos(s.theta);
    observation[0] = cosine;
    observation[1] = sine;
    observation[2] = s.theta_dot;
}

FN void measure(const State& s, const Params&, Metrics& metrics) { metrics.angle = abs(normalised(s.theta)); }
