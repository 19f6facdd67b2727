"""CartPole as a user's environment: with the path of its header, and with the same rules in Python."""

import dataclasses
import math
from pathlib import Path

import gpu_envs.kernels
from gpu_envs import Rules
from gpu_envs.envs.cartpole import CARTPOLE_V1
from gpu_envs.rules import Action, Metrics, Observation, Params, Random, State

HEADER = Path(gpu_envs.kernels.__file__).parent / "environments" / "cartpole.cuh"

IN_CPP = dataclasses.replace(CARTPOLE_V1, id="CartPoleOutside-v1", header=HEADER)


def reset(s: State, p: Params, random: Random) -> None:
    """Start near the center, nearly upright and nearly at rest."""
    s.x = random.uniform(p.low, p.high)
    s.x_dot = random.uniform(p.low, p.high)
    s.theta = random.uniform(p.low, p.high)
    s.theta_dot = random.uniform(p.low, p.high)


def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    """Apply the equations of the header, in the same order."""
    force = p.force_mag if action == 1 else -p.force_mag
    inverse_mass = 1.0 / (p.cart_mass + p.pole_mass)
    pole_moment = p.pole_mass * p.length
    sine = math.sin(s.theta)
    cosine = math.cos(s.theta)

    temp = (force + pole_moment * s.theta_dot * s.theta_dot * sine) * inverse_mass
    theta_acc = (p.gravity * sine - cosine * temp) / (
        p.length * (4.0 / 3.0 - p.pole_mass * cosine * cosine * inverse_mass)
    )
    x_acc = temp - pole_moment * theta_acc * cosine * inverse_mass

    x_dot = s.x_dot + p.tau * x_acc
    theta_dot = s.theta_dot + p.tau * theta_acc
    euler = p.kinematics_integrator == "euler"
    s.x += p.tau * (s.x_dot if euler else x_dot)
    s.theta += p.tau * (s.theta_dot if euler else theta_dot)
    s.x_dot = x_dot
    s.theta_dot = theta_dot

    fallen = (
        s.x < -p.x_threshold
        or s.x > p.x_threshold
        or s.theta < -p.theta_threshold_radians
        or s.theta > p.theta_threshold_radians
    )
    upright = 0.0 if p.sutton_barto_reward else 1.0
    down = -1.0 if p.sutton_barto_reward else 1.0
    return down if fallen else upright, fallen


def observe(s: State, p: Params, observation: Observation) -> None:
    """Write the state."""
    observation[0] = s.x
    observation[1] = s.x_dot
    observation[2] = s.theta
    observation[3] = s.theta_dot


def measure(s: State, p: Params, metrics: Metrics) -> None:
    """Write the distances from the center and from upright."""
    metrics.position = abs(s.x)
    metrics.angle = abs(s.theta)


IN_PYTHON = dataclasses.replace(
    CARTPOLE_V1, id="CartPoleInPython-v1", header=Rules(reset=reset, step=step, observe=observe, measure=measure)
)
