"""Pendulum as a Python author would write it: the rules of ``kernels/environments/pendulum.cuh``."""

import math

from gpu_envs.rules import Action, Metrics, Observation, Params, Random, State, clip


def normalised(angle: float) -> float:
    return (angle + math.pi) % (2 * math.pi) - math.pi


def reset(s: State, p: Params, random: Random) -> None:
    s.theta = random.uniform(-p.x_init, p.x_init)
    s.theta_dot = random.uniform(-p.y_init, p.y_init)


def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    torque = clip(action[0], -p.max_torque, p.max_torque)
    angle = normalised(s.theta)
    cost = angle**2 + p.speed_cost * s.theta_dot * s.theta_dot + p.torque_cost * torque * torque
    acceleration = 3 * p.g / (2 * p.l) * math.sin(s.theta) + 3 / (p.m * p.l * p.l) * torque
    s.theta_dot = clip(s.theta_dot + acceleration * p.dt, -p.max_speed, p.max_speed)
    s.theta += s.theta_dot * p.dt
    return -cost, False


def observe(s: State, p: Params, observation: Observation) -> None:
    observation[0] = math.cos(s.theta)
    observation[1] = math.sin(s.theta)
    observation[2] = s.theta_dot


def measure(s: State, p: Params, metrics: Metrics) -> None:
    metrics.angle = abs(normalised(s.theta))
