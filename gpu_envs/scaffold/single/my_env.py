"""A boat keeps its place in a current. The rules are in my_env.cuh; all else about it is here."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import EnvSpec, Param
from gpu_envs.pictures import Drawing, Params, Picture, State, line, own, placed, polygon, same

_RIVER, _ROPE, _BOAT, _STREAM = (214, 230, 240), (192, 57, 43), (96, 66, 40), (150, 180, 205)
_HULL = np.array([[0.16, 0.0], [0.08, 0.07], [-0.14, 0.06], [-0.14, -0.06], [0.08, -0.07]])


def draw(state: State, params: Params) -> Picture:
    """From the states of some replicas, [replicas], to what they look like: shapes, from back to front."""
    replicas = len(state["x"])
    x = state["x"] / own(params["reach"], replicas)  # the ropes are at -1 and 1
    end = 0.5 * state["current"]  # of a line that is as long as the current is strong
    stream = np.stack([np.stack([0 * end, 0 * end + 0.35], -1), np.stack([end, 0 * end + 0.35], -1)], 1)[:, None]
    return Picture(
        (-1.2, -0.5, 1.2, 0.5),
        (
            line(same([[-1, -0.5], [-1, 0.5]], replicas), 0.02, _ROPE),
            line(same([[1, -0.5], [1, 0.5]], replicas), 0.02, _ROPE),
            line(stream, 0.03, _STREAM),
            polygon(placed(_HULL, x, 0.0), _BOAT),
        ),
        _RIVER,
    )


MY_ENV = EnvSpec(
    id="MyEnv-v0",
    header="my_env.cuh",
    description="A boat keeps its place in a current.",
    # Fields of State, each of type real. For others give a mapping, such as {"x": Field(), "tries": Field("int")}.
    state=("x", "speed", "current"),
    # Fields of Params: make(..., push=2.0) sets one, for all replicas or, with an array, for each its own.
    params={
        "tau": Param(0.1, "seconds a step", positive=True),
        "push": Param(1.0, "of a paddle, m/s^2"),
        "drag": Param(0.5, "of the water, 1/s", minimum=0),
        "strongest": Param(1.0, "the strongest current, m/s", minimum=0),
        "gust": Param(0.1, "the most by which the current changes in a step, m/s", minimum=0),
        "start": Param(0.3, "an episode begins within, m", minimum=0),
        "reach": Param(1.0, "an episode ends beyond, m", positive=True),
    },
    observation=Box(-np.inf, np.inf, (3,), np.float32),
    action=Discrete(3),
    max_episode_steps=200,
    reward_threshold=190.0,
    drawing=Drawing(draw, size=(480, 200), frames_a_second=10),
)
