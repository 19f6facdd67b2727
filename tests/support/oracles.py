"""One step of Gymnasium's classic-control environments over many states at once, in NumPy and float64.

Reimplements Gymnasium 1.4 for the tests, with the constants of Gymnasium's instances;
``test_parity.py`` compares them.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt

Reals: TypeAlias = npt.NDArray[np.float64]


class Outcome(NamedTuple):
    """Results of a step from many states."""

    states: Reals
    """``[n, fields]``"""
    rewards: Reals
    """``[n]``"""
    terminations: npt.NDArray[np.bool_]
    """``[n]``"""
    margins: Reals
    """``[n]``: how far the new state is from the limit that decides ``terminations``."""


Step: TypeAlias = Callable[[Any, Reals, Reals], Outcome]
"""A step: Gymnasium's unwrapped instance, states ``[n, fields]``, actions ``[n]``."""


class Oracle(NamedTuple):
    """A step function, and the box of its test states."""

    step: Step
    low: tuple[float, ...]
    high: tuple[float, ...]
    angles: tuple[int, ...] = ()
    """Indices of fields that are compared modulo 2 pi."""


class Variant(NamedTuple):
    """An environment with options, for this package and for Gymnasium."""

    env_id: str
    params: Mapping[str, Any] = MappingProxyType({})
    """For ``gpu_envs.make``."""
    kwargs: Mapping[str, Any] = MappingProxyType({})
    """For ``gymnasium.make``."""
    attributes: Mapping[str, Any] = MappingProxyType({})
    """Set on Gymnasium's instance."""

    def gymnasium(self) -> Any:
        """Makes Gymnasium's environment, unwrapped."""
        env = gymnasium.make(self.env_id, disable_env_checker=True, **self.kwargs).unwrapped
        for name, value in self.attributes.items():
            assert hasattr(env, name)
            setattr(env, name, value)
        env.reset(seed=0)
        return env

    def __str__(self) -> str:
        """Returns a short name for test reports."""
        return "-".join([self.env_id, *(f"{name}={value}" for name, value in self.params.items())])


def cartpole(env: Any, states: Reals, actions: Reals) -> Outcome:
    """CartPole."""
    x, x_dot, theta, theta_dot = states.T
    force = np.where(actions == 1, env.force_mag, -env.force_mag)
    cosine, sine = np.cos(theta), np.sin(theta)
    temp = (force + env.polemass_length * theta_dot**2 * sine) / env.total_mass
    theta_acc = (env.gravity * sine - cosine * temp) / (
        env.length * (4.0 / 3.0 - env.masspole * cosine**2 / env.total_mass)
    )
    x_acc = temp - env.polemass_length * theta_acc * cosine / env.total_mass
    euler = env.kinematics_integrator == "euler"
    new_x_dot, new_theta_dot = x_dot + env.tau * x_acc, theta_dot + env.tau * theta_acc
    new_x = x + env.tau * (x_dot if euler else new_x_dot)
    new_theta = theta + env.tau * (theta_dot if euler else new_theta_dot)
    over = np.maximum(np.abs(new_x) - env.x_threshold, np.abs(new_theta) - env.theta_threshold_radians)
    terminated = over > 0
    rewards = np.where(terminated, -1.0, 0.0) if env._sutton_barto_reward else np.ones(len(x))  # noqa: SLF001 - Gymnasium's own
    return Outcome(np.stack([new_x, new_x_dot, new_theta, new_theta_dot], 1), rewards, terminated, np.abs(over))


def _roll(
    env: Any, position: Reals, velocity: Reals, goal_position: float
) -> tuple[Reals, npt.NDArray[np.bool_], Reals]:
    velocity = np.clip(velocity, -env.max_speed, env.max_speed)
    position = np.clip(position + velocity, env.min_position, env.max_position)
    velocity = np.where((position == env.min_position) & (velocity < 0), 0.0, velocity)
    short = np.maximum(goal_position - position, env.goal_velocity - velocity)
    return np.stack([position, velocity], 1), short <= 0, np.abs(short)


def mountain_car(env: Any, states: Reals, actions: Reals) -> Outcome:
    """MountainCar."""
    position, velocity = states.T
    velocity = velocity + ((actions - 1) * env.force + np.cos(3 * position) * (-env.gravity))
    after, terminated, margins = _roll(env, position, velocity, env.goal_position)
    return Outcome(after, np.full(len(position), -1.0), terminated, margins)


def mountain_car_continuous(env: Any, states: Reals, actions: Reals) -> Outcome:
    """MountainCarContinuous."""
    position, velocity = states.T
    force = np.clip(actions, env.min_action, env.max_action)
    velocity = velocity + (force * env.power - 0.0025 * np.cos(3 * position))
    after, terminated, margins = _roll(env, position, velocity, env.goal_position)
    return Outcome(after, np.where(terminated, 100.0, 0.0) - actions**2 * 0.1, terminated, margins)


def pendulum(env: Any, states: Reals, actions: Reals) -> Outcome:
    """Pendulum, which never terminates."""
    theta, theta_dot = states.T
    torque = np.clip(actions, -env.max_torque, env.max_torque)
    angle = (theta + math.pi) % (2 * math.pi) - math.pi
    rewards = -(angle**2 + 0.1 * theta_dot**2 + 0.001 * torque**2)
    push = 3 * env.g / (2 * env.l) * np.sin(theta) + 3.0 / (env.m * env.l**2) * torque
    new_dot = np.clip(theta_dot + push * env.dt, -env.max_speed, env.max_speed)
    never = np.zeros(len(theta), bool)
    return Outcome(np.stack([theta + new_dot * env.dt, new_dot], 1), rewards, never, np.full(len(theta), np.inf))


def _acrobot_slope(env: Any, y: Reals, torque: Reals) -> Reals:
    m1, m2, l1 = env.LINK_MASS_1, env.LINK_MASS_2, env.LINK_LENGTH_1
    lc1, lc2, moi, g = env.LINK_COM_POS_1, env.LINK_COM_POS_2, env.LINK_MOI, 9.8
    theta1, theta2, dot1, dot2 = y
    cos2, sin2 = np.cos(theta2), np.sin(theta2)
    d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos2) + moi + moi
    d2 = m2 * (lc2**2 + l1 * lc2 * cos2) + moi
    phi2 = m2 * lc2 * g * np.cos(theta1 + theta2 - math.pi / 2.0)
    phi1 = (
        -m2 * l1 * lc2 * dot2**2 * sin2
        - 2 * m2 * l1 * lc2 * dot2 * dot1 * sin2
        + (m1 * lc1 + m2 * l1) * g * np.cos(theta1 - math.pi / 2)
        + phi2
    )
    centrifugal = 0.0 if env.book_or_nips == "nips" else m2 * l1 * lc2 * dot1**2 * sin2
    acc2 = (torque + d2 / d1 * phi1 - centrifugal - phi2) / (m2 * lc2**2 + moi - d2**2 / d1)
    return np.stack([dot1, dot2, -(d2 * acc2 + phi1) / d1, acc2])


def _wrapped(angle: Reals) -> Reals:
    while (high := angle > math.pi).any():
        angle = np.where(high, angle - 2 * math.pi, angle)
    while (low := angle < -math.pi).any():
        angle = np.where(low, angle + 2 * math.pi, angle)
    return angle


def acrobot(env: Any, states: Reals, actions: Reals) -> Outcome:
    """Acrobot without noise; ``actions`` may be fractional."""
    y, dt, torque = states.T, env.dt, actions - 1.0
    k1 = _acrobot_slope(env, y, torque)
    k2 = _acrobot_slope(env, y + dt / 2.0 * k1, torque)
    k3 = _acrobot_slope(env, y + dt / 2.0 * k2, torque)
    k4 = _acrobot_slope(env, y + dt * k3, torque)
    theta1, theta2, dot1, dot2 = y + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
    theta1, theta2 = _wrapped(theta1), _wrapped(theta2)
    dot1, dot2 = np.clip(dot1, -env.MAX_VEL_1, env.MAX_VEL_1), np.clip(dot2, -env.MAX_VEL_2, env.MAX_VEL_2)
    above = -np.cos(theta1) - np.cos(theta2 + theta1) - 1.0
    after = np.stack([theta1, theta2, dot1, dot2], 1)
    return Outcome(after, np.where(above > 0, 0.0, -1.0), above > 0, np.abs(above))


# CartPole's box has no bounds for speeds; 10 is far beyond what an episode reaches. Pendulum's angle is not normalised.
_CARTPOLE = Oracle(cartpole, (-4.8, -10.0, -0.418, -10.0), (4.8, 10.0, 0.418, 10.0))
ORACLES = {
    "CartPole-v0": _CARTPOLE,
    "CartPole-v1": _CARTPOLE,
    "MountainCar-v0": Oracle(mountain_car, (-1.2, -0.07), (0.6, 0.07)),
    "MountainCarContinuous-v0": Oracle(mountain_car_continuous, (-1.2, -0.07), (0.6, 0.07)),
    "Pendulum-v1": Oracle(pendulum, (-4 * math.pi, -8.0), (4 * math.pi, 8.0)),
    "Acrobot-v1": Oracle(
        acrobot,
        (-math.pi, -math.pi, -4 * math.pi, -9 * math.pi),
        (math.pi, math.pi, 4 * math.pi, 9 * math.pi),
        angles=(0, 1),
    ),
}

OPTIONS = [
    Variant("CartPole-v1", {"kinematics_integrator": "semi-implicit"}, {}, {"kinematics_integrator": "semi-implicit"}),
    Variant("CartPole-v1", {"sutton_barto_reward": True}, {"sutton_barto_reward": True}),
    Variant("Acrobot-v1", {"book_or_nips": "nips"}, {}, {"book_or_nips": "nips"}),
    Variant("MountainCar-v0", {"goal_velocity": 0.03}, {"goal_velocity": 0.03}),
    Variant("MountainCarContinuous-v0", {"goal_velocity": 0.03}, {"goal_velocity": 0.03}),
    Variant("Pendulum-v1", {"g": 3.7}, {"g": 3.7}),
]
