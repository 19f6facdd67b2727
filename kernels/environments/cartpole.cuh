// Cart-pole: keep a pole upright on a cart that is pushed left or right.
// Barto, Sutton & Anderson (1983), "Neuronlike adaptive elements that can solve difficult learning control problems";
// frictionless equations as corrected by Florian (2007).

FN void reset(State& s, const Params& p, Random& random) {
    s.x         = random.uniform(p.low, p.high);
    s.x_dot     = random.uniform(p.low, p.high);
    s.theta     = random.uniform(p.low, p.high);
    s.theta_dot = random.uniform(p.low, p.high);
}

FN Outcome step(State& s, const Params& p, const Action& action, Random&) {
    const real force        = action == 1 ? p.force_mag : -p.force_mag;
    const real inverse_mass = real(1) / (p.cart_mass + p.pole_mass);
    const real pole_moment  = p.pole_mass * p.length;  // length: half the pole's
    const auto [sine, cosine] = sincos(s.theta);

    const real temp       = (force + pole_moment * s.theta_dot * s.theta_dot * sine) * inverse_mass;
    const real theta_acc  = (p.gravity * sine - cosine * temp)
                          / (p.length * (real(4) / real(3) - p.pole_mass * cosine * cosine * inverse_mass));
    const real x_acc      = temp - pole_moment * theta_acc * cosine * inverse_mass;

    const real x_dot      = s.x_dot + p.tau * x_acc;
    const real theta_dot  = s.theta_dot + p.tau * theta_acc;
    const bool euler      = p.kinematics_integrator == KinematicsIntegrator::euler;
    s.x     += p.tau * (euler ? s.x_dot : x_dot);
    s.theta += p.tau * (euler ? s.theta_dot : theta_dot);
    s.x_dot     = x_dot;
    s.theta_dot = theta_dot;

    const bool fallen = s.x < -p.x_threshold || s.x > p.x_threshold
                     || s.theta < -p.theta_threshold_radians || s.theta > p.theta_threshold_radians;
    const real upright = p.sutton_barto_reward ? real(0) : real(1);
    const real down    = p.sutton_barto_reward ? real(-1) : real(1);
    return {fallen ? down : upright, fallen};
}

FN void observe(const State& s, const Params& p, Observation& observation) {
    int size = 0;
    observation[size++] = s.x;
    if (p.observe_speeds) observation[size++] = s.x_dot;
    observation[size++] = s.theta;
    if (p.observe_speeds) observation[size++] = s.theta_dot;
}

FN void measure(const State& s, const Params&, Metrics& metrics) {
    metrics.position = abs(s.x);
    metrics.angle    = abs(s.theta);
}
