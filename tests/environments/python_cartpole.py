"""Cart-pole as a Python author would write it: the rules of ``kernels/environments/cartpole.cuh``."""

import math

from gpu_envs.rules import Action, Metrics, Observation, Params, Random, State


def reset(s: State, p: Params, random: Random) -> None:
    s.x = random.uniform(p.low, p.high)
    s.x_dot = random.uniform(p.low, p.high)
    s.theta = random.uniform(p.low, p.high)
    s.theta_dot = random.uniform(p.low, p.high)


def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    force = p.force_mag if action == 1 else -p.force_mag
    inverse_mass = 1 / (p.cart_mass + p.pole_mass)
    pole_moment = p.pole_mass * p.length
    sine, cosine = math.sin(s.theta), math.cos(s.theta)
    temp = (force + pole_moment * s.theta_dot * s.theta_dot * sine) * inverse_mass
    theta_acc = (p.gravity * sine - cosine * temp) / (p.length * (4 / 3 - p.pole_mass * cosine * cosine * inverse_mass))
    x_acc = temp - pole_moment * theta_acc * cosine * inverse_mass

    x_dot = s.x_dot + p.tau * x_acc
    theta_dot = s.theta_dot + p.tau * theta_acc
    euler = p.kinematics_integrator == "euler"
    s.x += p.tau * (s.x_dot if euler else x_dot)
    s.theta += p.tau * (s.theta_dot if euler else theta_dot)
    s.x_dot, s.theta_dot = x_dot, theta_dot
    fallen = (
        s.x < -p.x_threshold
        or s.x > p.x_threshold
        or not -p.theta_threshold_radians <= s.theta <= p.theta_threshold_radians
    )
    upright = 0 if p.sutton_barto_reward else 1
    down = -1 if p.sutton_barto_reward else 1
    return down if fallen else upright, fallen


def observe(s: State, p: Params, observation: Observation) -> None:
    observation[0] = s.x
    observation[1] = s.x_dot
    observation[2] = s.theta
    observation[3] = s.theta_dot


def measure(s: State, p: Params, metrics: Metrics) -> None:
    metrics.position = abs(s.x)
    metrics.angle = abs(s.theta)
