"""Cart-pole, with the constants of Gymnasium."""

import dataclasses
import math

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, at, bar, box, disc, line, placed, polygon
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec


def _observation(params: Params) -> Box:
    """Return the space, with bounds of twice the termination thresholds: they contain the final observation."""
    x, theta = (2 * np.max(params[name]) for name in ("x_threshold", "theta_threshold_radians"))
    high = np.array([x, np.inf, theta, np.inf] if params["observe_speeds"] else [x, theta], np.float32)
    return Box(-high, high, dtype=np.float32)


WIDE, HIGH = 600, 400
"""Size of the picture in pixels, which are also the units of coordinates."""
CART, POLE, AXLE = (50, 30), 10, (129, 132, 203)
TRACK = 100
"""Height of the track above the bottom of the picture."""


def _draw(state: State, params: Params) -> Picture:
    """Draws, in each replica, a track that ends at the position threshold, with cart and pole."""
    metre = WIDE / (2 * params["x_threshold"])
    wide, tall = CART
    x, hinge = WIDE / 2 + state["x"] * metre, TRACK + tall / 4
    top = 2 * params["length"] * metre - POLE / 2
    return Picture(
        (0, 0, WIDE, HIGH),
        (
            line([[0, TRACK], [WIDE, TRACK]], 1, BLACK),
            polygon(placed(box(-wide / 2, -tall / 2, wide / 2, tall / 2), x, TRACK), BLACK),
            polygon(bar(x, hinge, math.pi / 2 - state["theta"], -POLE / 2, top, POLE), (202, 152, 101)),
            disc(at(x, hinge), POLE / 2, AXLE),
        ),
    )


CARTPOLE_V1 = EnvSpec(
    id="CartPole-v1",
    header="cartpole.cuh",
    description="Keep a pole upright on a cart that is pushed left or right.",
    state=("x", "x_dot", "theta", "theta_dot"),
    params={
        "gravity": Param(9.8, "gravity, m/s^2"),
        "cart_mass": Param(1.0, "mass of the cart, kg", positive=True),
        "pole_mass": Param(0.1, "mass of the pole, kg", positive=True),
        "length": Param(0.5, "half the pole's length, m", positive=True),
        "force_mag": Param(10.0, "force of a push, N"),
        "tau": Param(0.02, "time step, s", positive=True),
        "theta_threshold_radians": Param(
            12 * 2 * math.pi / 360, "maximum angle in both directions; beyond it an episode ends, rad", positive=True
        ),
        "x_threshold": Param(2.4, "maximum position in both directions; beyond it an episode ends, m", positive=True),
        "kinematics_integrator": Param(
            "euler",
            "euler: positions change by the old velocities; semi-implicit: by the new ones",
            choices=("euler", "semi-implicit"),
        ),
        "sutton_barto_reward": Param(False, "reward 0 per step and -1 at termination, instead of 1 per step"),
        "observe_speeds": Param(True, "observe x_dot and theta_dot; otherwise only x and theta", fixed=True),
    },
    options={
        "low": Param(-0.05, "minimum of the initial state variables"),
        "high": Param(0.05, "maximum of the initial state variables"),
    },
    metrics={
        "position": Metric("distance of the cart from the centre, m"),
        "angle": Metric("angle of the pole from upright, rad"),
    },
    ordered=(("low", "high"),),
    observation=_observation,
    action=Discrete(2),
    max_episode_steps=500,
    reward_threshold=475.0,
    drawing=Drawing(_draw, size=(WIDE, HIGH), frames_a_second=50),
)

CARTPOLE_V0 = dataclasses.replace(CARTPOLE_V1, id="CartPole-v0", max_episode_steps=200, reward_threshold=195.0)

CARTPOLE_HIDDEN = dataclasses.replace(
    CARTPOLE_V1,
    id="CartPoleHidden-v1",
    description="CartPole whose speeds are not observed.",
    params={
        **CARTPOLE_V1.params,
        "observe_speeds": dataclasses.replace(CARTPOLE_V1.params["observe_speeds"], default=False),
    },
)
