"""A crew holds its boat's position in a current. The rules are in my_env.cuh, the spec and the drawing are here."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import Field, Param, Role, TeamSpec
from gpu_envs.pictures import Drawing, Params, Picture, State, at, disc, line, placed, polygon

_RIVER, _ROPE, _BOAT, _FRESH, _WEARY = (214, 230, 240), (192, 57, 43), (96, 66, 40), (88, 150, 88), (200, 120, 60)
_HULL = np.array([[0.3, 0.0], [0.2, 0.09], [-0.25, 0.08], [-0.25, -0.08], [0.2, -0.09]])


def draw(state: State, params: Params) -> Picture:
    """Return the picture of some replicas: shapes from back to front.

    Fields of the boat are [replicas], and fields of the rowers [replicas, agents].
    """
    x = state["x"] / params["reach"]  # the ropes are at -1 and 1
    seats = at(x[:, None] + np.linspace(-0.18, 0.15, state["tired"].shape[1]), 0)
    weary = state["tired"] > 0.5
    return Picture(
        (-1.3, -0.5, 1.3, 0.5),
        (
            line([[-1, -0.5], [-1, 0.5]], 0.02, _ROPE),
            line([[1, -0.5], [1, 0.5]], 0.02, _ROPE),
            polygon(placed(_HULL, x, 0.0), _BOAT),
            disc(seats, 0.035, _FRESH, ~weary),
            disc(seats, 0.035, _WEARY, weary),
        ),
        _RIVER,
    )


MY_ENV = TeamSpec(
    id="MyEnv-v0",
    header="my_env.cuh",
    description="A crew holds its boat's position in a current.",
    # Agents of a role have the same spaces. Their number can be a parameter.
    roles=(Role("rower", "num_rowers", Box(-np.inf, np.inf, (4,), np.float32), Discrete(3)),),
    # Fields of each agent, shared fields, and shared fields that a step uses temporarily.
    state={"tired": Field()},
    shared={"x": Field(), "speed": Field(), "current": Field()},
    shared_scratch={"pull": Field("int")},
    # Fields of Params. make(..., push=2.0) sets one.
    params={
        "num_rowers": Param(3, "number of rowers", positive=True, fixed=True),
        "tau": Param(0.1, "duration of a step, s", positive=True),
        "push": Param(1.0, "acceleration by all rowers together, m/s^2"),
        "drag": Param(0.5, "drag coefficient of the water, 1/s", minimum=0),
        "strongest": Param(1.0, "maximum speed of the current, m/s", minimum=0),
        "gust": Param(0.1, "maximum change of the current in a step, m/s", minimum=0),
        "start": Param(0.3, "maximum initial distance, m", minimum=0),
        "reach": Param(1.0, "distance that terminates an episode, m", positive=True),
        "effort": Param(0.1, "tiredness added by a step of rowing", minimum=0),
        "rest": Param(0.2, "tiredness removed by a step of rest", minimum=0),
        "weariness": Param(0.2, "reward lost by a fully tired rower", minimum=0),
    },
    max_episode_steps=200,
    drawing=Drawing(draw, size=(520, 200), frames_a_second=10),
)
