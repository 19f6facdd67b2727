"""Acrobot, with the constants of Gymnasium."""

import math

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, at, bar, disc, line, placed, polygon
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec


def _observation(params: Params) -> Box:
    speeds = [np.max(params["max_vel_1"]), np.max(params["max_vel_2"])]
    high = np.array([1.0, 1.0, 1.0, 1.0, *speeds], np.float32)
    return Box(-high, high, dtype=np.float32)


REACH = 2.2
"""Half of the height of the picture: both links and a margin."""
THICK, JOINT, LINK = 0.2, (204, 204, 0), (0, 204, 204)


def _draw(state: State, params: Params) -> Picture:
    """Draws, in each replica, two links that hang from a joint, and the line that the tip must pass."""
    inner, outer = state["theta1"] - math.pi / 2, state["theta1"] + state["theta2"] - math.pi / 2
    first, second = params["link_length_1"], params["link_length_2"]
    unit = REACH / (first + second + 0.2)
    first, second = first * unit, second * unit
    x, y = first * np.cos(inner), first * np.sin(inner)
    return Picture(
        (-REACH, -REACH, REACH, REACH),
        (
            line(placed([[-REACH, 0], [REACH, 0]], 0, first), REACH / 250, BLACK),
            polygon(bar(0, 0, inner, 0, first, THICK), LINK),
            disc((0, 0), THICK / 2, JOINT),
            polygon(bar(x, y, outer, 0, second, THICK), LINK),
            disc(at(x, y), THICK / 2, JOINT),
        ),
    )


ACROBOT = EnvSpec(
    id="Acrobot-v1",
    header="acrobot.cuh",
    description="Swing the tip of two hanging links above a line, with a torque on the joint between the links.",
    state=("theta1", "theta2", "theta1_dot", "theta2_dot"),
    params={
        "dt": Param(0.2, "time step, s", positive=True),
        "link_length_1": Param(1.0, "length of the upper link, m", positive=True),
        "link_length_2": Param(1.0, "length of the lower link, m; drawn, but in no equation", positive=True),
        "link_mass_1": Param(1.0, "mass of the upper link, kg", positive=True),
        "link_mass_2": Param(1.0, "mass of the lower link, kg", positive=True),
        "link_com_pos_1": Param(0.5, "centre of mass of the upper link, from its joint, m", positive=True),
        "link_com_pos_2": Param(0.5, "centre of mass of the lower link, from its joint, m", positive=True),
        "link_moi": Param(1.0, "moment of inertia of each link, kg m^2", positive=True),
        "max_vel_1": Param(4 * math.pi, "maximum speed of the upper link (4 pi), rad/s", minimum=0),
        "max_vel_2": Param(9 * math.pi, "maximum speed of the lower link (9 pi), rad/s", minimum=0),
        "gravity": Param(9.8, "gravity, m/s^2"),
        "torque": Param(1.0, "torque of a push, N m"),
        "torque_noise_max": Param(
            0.0, "maximum of the random torque that is added, in both directions, N m", minimum=0, baked=True
        ),
        "book_or_nips": Param(
            "book", "equations of Sutton and Barto's book, or of the NIPS paper of 1996", choices=("book", "nips")
        ),
    },
    options={
        "low": Param(-0.1, "minimum of the initial state variables"),
        "high": Param(0.1, "maximum of the initial state variables"),
    },
    metrics={"height": Metric("height of the tip above the joint, in link lengths; the goal is above 1")},
    ordered=(("low", "high"),),
    observation=_observation,
    action=Discrete(3),
    max_episode_steps=500,
    reward_threshold=-100.0,
    drawing=Drawing(_draw, size=(500, 500), frames_a_second=15),
)
