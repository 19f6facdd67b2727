"""A boat holds its position in a current. The rules are in my_env.cuh, the spec and the drawing are here."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import EnvSpec, Param
from gpu_envs.pictures import Drawing, Params, Picture, State, line, placed, polygon, rectangle

_RIVER, _ROPE, _BOAT, _STREAM = (214, 230, 240), (192, 57, 43), (96, 66, 40), (150, 180, 205)
_HULL = np.array([[0.16, 0.0], [0.08, 0.07], [-0.14, 0.06], [-0.14, -0.06], [0.08, -0.07]])


def draw(state: State, params: Params) -> Picture:
    """Return the picture of some replicas: shapes from back to front. State fields are [replicas]."""
    x = state["x"] / params["reach"]  # the ropes are at -1 and 1
    return Picture(
        (-1.2, -0.5, 1.2, 0.5),
        (
            line([[-1, -0.5], [-1, 0.5]], 0.02, _ROPE),
            line([[1, -0.5], [1, 0.5]], 0.02, _ROPE),
            rectangle(0, 0.335, 0.5 * state["current"], 0.365, _STREAM),  # its length shows the current
            polygon(placed(_HULL, x, 0.0), _BOAT),
        ),
        _RIVER,
    )


MY_ENV = EnvSpec(
    id="MyEnv-v0",
    header="my_env.cuh",
    description="A boat holds its position in a current.",
    # Fields of State, of type real. A dict gives other types: {"x": Field(), "tries": Field("int")}.
    state=("x", "speed", "current"),
    # Fields of Params. make(..., push=2.0) sets one for all replicas; an array sets one value per replica.
    params={
        "tau": Param(0.1, "duration of a step, s", positive=True),
        "push": Param(1.0, "acceleration by the paddle, m/s^2"),
        "drag": Param(0.5, "drag coefficient of the water, 1/s", minimum=0),
        "strongest": Param(1.0, "maximum speed of the current, m/s", minimum=0),
        "gust": Param(0.1, "maximum change of the current in a step, m/s", minimum=0),
        "start": Param(0.3, "maximum initial distance, m", minimum=0),
        "reach": Param(1.0, "distance that terminates an episode, m", positive=True),
    },
    observation=Box(-np.inf, np.inf, (3,), np.float32),
    action=Discrete(3),
    max_episode_steps=200,
    reward_threshold=190.0,
    drawing=Drawing(draw, size=(480, 200), frames_a_second=10),
)
