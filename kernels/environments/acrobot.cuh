// Acrobot: two links hang from a fixed joint; a torque on the joint between them must swing the tip above a height.
// Sutton (1996), "Generalization in reinforcement learning: successful examples using sparse coarse coding"; dynamics
// of Sutton & Barto's book, or of the 1996 paper ("nips"), integrated by one step of fourth-order Runge-Kutta.

// The two angles and their velocities, or the derivatives of these.
struct Motion { real theta1, theta2, theta1_dot, theta2_dot; };

// The motion after a time h with constant derivatives.
FN Motion advanced(const Motion& y, real h, const Motion& slope) {
    return {y.theta1 + h * slope.theta1, y.theta2 + h * slope.theta2,
            y.theta1_dot + h * slope.theta1_dot, y.theta2_dot + h * slope.theta2_dot};
}

// The time derivatives of angles and velocities, by the equations of motion with friction-free joints.
FN Motion derivative(const Motion& y, real torque, const Params& p) {
    const real m1 = p.link_mass_1, m2 = p.link_mass_2, l1 = p.link_length_1;
    const real lc1 = p.link_com_pos_1, lc2 = p.link_com_pos_2, inertia = p.link_moi, g = p.gravity;
    const auto [sin1, cos1] = sincos(y.theta1);
    const auto [sin2, cos2] = sincos(y.theta2);
    const real sin12 = sin1 * cos2 + cos1 * sin2;  // sine of the lower link's angle

    const real d1   = m1 * lc1 * lc1 + m2 * (l1 * l1 + lc2 * lc2 + real(2) * l1 * lc2 * cos2) + inertia + inertia;
    const real d2   = m2 * (lc2 * lc2 + l1 * lc2 * cos2) + inertia;
    const real swing = m2 * l1 * lc2 * sin2;
    const real phi2 = m2 * lc2 * g * sin12;
    const real phi1 = -swing * y.theta2_dot * y.theta2_dot - real(2) * swing * y.theta2_dot * y.theta1_dot
                    + (m1 * lc1 + m2 * l1) * g * sin1 + phi2;
    const real inverse_d1  = real(1) / d1;
    const real centrifugal = p.book_or_nips == BookOrNips::book ? swing * y.theta1_dot * y.theta1_dot : real(0);
    const real theta2_acc  = (torque + d2 * inverse_d1 * phi1 - centrifugal - phi2)
                           / (m2 * lc2 * lc2 + inertia - d2 * d2 * inverse_d1);
    const real theta1_acc  = -(d2 * theta2_acc + phi1) * inverse_d1;
    return {y.theta1_dot, y.theta2_dot, theta1_acc, theta2_acc};
}

// The same angle within [-pi, pi], both ends included.
FN real wrapped(real angle) {
    const real turn    = real(2 * PI);
    const real reduced = fma(-turn, round_down(fma(angle, real(1 / (2 * PI)), real(0.5))), angle);
    const real inside  = angle >= real(-PI) && angle <= real(PI) ? angle : reduced;
    return clip(inside, real(-PI), real(PI));
}

FN void reset(State& s, const Params& p, Random& random) {
    s.theta1     = random.uniform(p.low, p.high);
    s.theta2     = random.uniform(p.low, p.high);
    s.theta1_dot = random.uniform(p.low, p.high);
    s.theta2_dot = random.uniform(p.low, p.high);
}

// The height of the tip above the fixed joint, in lengths of a link.
FN real height_of(const State& s) {
    const auto [sin1, cos1] = sincos(s.theta1);
    const auto [sin2, cos2] = sincos(s.theta2);
    return -cos1 - (cos1 * cos2 - sin1 * sin2);
}

// One step of Runge-Kutta with the action's torque; the reward is -1 until the tip is above 1, which ends the episode.
FN Outcome step(State& s, const Params& p, const Action& action, Random& random) {
    real torque = real(action - 1) * p.torque;
    if (p.torque_noise_max > 0) torque += random.uniform(-p.torque_noise_max, p.torque_noise_max);

    const Motion y  = {s.theta1, s.theta2, s.theta1_dot, s.theta2_dot};
    const real   h  = p.dt, half = h / real(2), sixth = h / real(6);
    const Motion k1 = derivative(y, torque, p);
    const Motion k2 = derivative(advanced(y, half, k1), torque, p);
    const Motion k3 = derivative(advanced(y, half, k2), torque, p);
    const Motion k4 = derivative(advanced(y, h, k3), torque, p);

    s.theta1     = wrapped(y.theta1 + sixth * (k1.theta1 + real(2) * k2.theta1 + real(2) * k3.theta1 + k4.theta1));
    s.theta2     = wrapped(y.theta2 + sixth * (k1.theta2 + real(2) * k2.theta2 + real(2) * k3.theta2 + k4.theta2));
    s.theta1_dot = clip(y.theta1_dot + sixth * (k1.theta1_dot + real(2) * k2.theta1_dot + real(2) * k3.theta1_dot
                                                + k4.theta1_dot), -p.max_vel_1, p.max_vel_1);
    s.theta2_dot = clip(y.theta2_dot + sixth * (k1.theta2_dot + real(2) * k2.theta2_dot + real(2) * k3.theta2_dot
                                                + k4.theta2_dot), -p.max_vel_2, p.max_vel_2);

    const bool above = height_of(s) > real(1);
    return {above ? real(0) : real(-1), above};
}

FN void observe(const State& s, const Params&, Observation& observation) {
    const auto [sin1, cos1] = sincos(s.theta1);
    const auto [sin2, cos2] = sincos(s.theta2);
    observation[0] = cos1;
    observation[1] = sin1;
    observation[2] = cos2;
    observation[3] = sin2;
    observation[4] = s.theta1_dot;
    observation[5] = s.theta2_dot;
}

FN void measure(const State& s, const Params&, Metrics& metrics) { metrics.height = height_of(s); }
