"""Pendulum, with the constants of Gymnasium."""

import math

import numpy as np
from gymnasium.spaces import Box

from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, at, disc, line
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec


def _observation(params: Params) -> Box:
    high = np.array([1.0, 1.0, np.max(params["max_speed"])], np.float32)
    return Box(-high, high, dtype=np.float32)


def _action(params: Params) -> Box:
    torque = float(np.max(params["max_torque"]))
    return Box(-torque, torque, (1,), np.float32)


REACH = 2.2
"""Half of the width of the picture, in metres."""


def _draw(state: State, params: Params) -> Picture:
    """Draws, in each replica, a rod that rotates about its end, shortened if too long for the picture."""
    length = np.minimum(params["l"], REACH - 0.2)
    tip = at(-length * np.sin(state["theta"]), length * np.cos(state["theta"]))
    rod = np.stack([0 * tip, tip], 2)
    return Picture(
        (-REACH, -REACH, REACH, REACH),
        (line(rod, 0.2, (204, 77, 77)), disc((0, 0), 0.05, BLACK)),
    )


PENDULUM = EnvSpec(
    id="Pendulum-v1",
    header="pendulum.cuh",
    description="Swing a rod up and hold it there, with less torque than it takes to lift it.",
    state=("theta", "theta_dot"),
    params={
        "g": Param(10.0, "gravity, m/s^2"),
        "m": Param(1.0, "mass of the rod, kg", positive=True),
        "l": Param(1.0, "length of the rod, m", positive=True),
        "dt": Param(0.05, "time step, s", positive=True),
        "max_speed": Param(8.0, "maximum speed of the rod, rad/s", minimum=0),
        "max_torque": Param(2.0, "maximum torque in both directions; actions are clipped, N m", minimum=0),
        "speed_cost": Param(0.1, "factor of the squared speed in the cost of a step"),
        "torque_cost": Param(0.001, "factor of the squared torque in the cost of a step"),
    },
    options={
        "x_init": Param(math.pi, "maximum initial angle in both directions, rad", minimum=0),
        "y_init": Param(1.0, "maximum initial speed in both directions, rad/s", minimum=0),
    },
    metrics={"angle": Metric("angle of the rod from upright, rad")},
    observation=_observation,
    action=_action,
    max_episode_steps=200,
    drawing=Drawing(_draw, size=(500, 500), frames_a_second=30),
)
