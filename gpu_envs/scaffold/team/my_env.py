"""A crew keeps its boat in its place. The rules are in my_env.cuh; all else about it is here."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import Field, Param, Role, TeamSpec
from gpu_envs.pictures import Drawing, Params, Picture, State, disc, line, own, placed, polygon, same

_RIVER, _ROPE, _BOAT, _FRESH, _WEARY = (214, 230, 240), (192, 57, 43), (96, 66, 40), (88, 150, 88), (200, 120, 60)
_HULL = np.array([[0.3, 0.0], [0.2, 0.09], [-0.25, 0.08], [-0.25, -0.08], [0.2, -0.09]])


def draw(state: State, params: Params) -> Picture:
    """From the states of some replicas to what they look like: shapes, from back to front.

    Fields of the boat are [replicas], those of the rowers [replicas, agents].
    """
    replicas, rowers = state["tired"].shape
    x = state["x"] / own(params["reach"], replicas)  # the ropes are at -1 and 1
    seats = x[:, None] + np.linspace(-0.18, 0.15, rowers)
    places = np.stack([seats, np.zeros_like(seats)], -1)
    weary = state["tired"] > 0.5
    return Picture(
        (-1.3, -0.5, 1.3, 0.5),
        (
            line(same([[-1, -0.5], [-1, 0.5]], replicas), 0.02, _ROPE),
            line(same([[1, -0.5], [1, 0.5]], replicas), 0.02, _ROPE),
            polygon(placed(_HULL, x, 0.0), _BOAT),
            disc(places, 0.035, _FRESH, ~weary),
            disc(places, 0.035, _WEARY, weary),
        ),
        _RIVER,
    )


MY_ENV = TeamSpec(
    id="MyEnv-v0",
    header="my_env.cuh",
    description="A crew keeps its boat in its place.",
    # Agents of one kind see and do the same things. How many there are, a parameter may say.
    roles=(Role("rower", "num_rowers", Box(-np.inf, np.inf, (4,), np.float32), Discrete(3)),),
    # What each agent has, what there is once, and what is there once and no longer than a step.
    state={"tired": Field()},
    shared={"x": Field(), "speed": Field(), "current": Field()},
    shared_scratch={"pull": Field("int")},
    # Fields of Params: make(..., push=2.0) sets one.
    params={
        "num_rowers": Param(3, "rowers in the boat", positive=True, fixed=True),
        "tau": Param(0.1, "seconds a step", positive=True),
        "push": Param(1.0, "of all rowers together, m/s^2"),
        "drag": Param(0.5, "of the water, 1/s", minimum=0),
        "strongest": Param(1.0, "the strongest current, m/s", minimum=0),
        "gust": Param(0.1, "the most by which the current changes in a step, m/s", minimum=0),
        "start": Param(0.3, "an episode begins within, m", minimum=0),
        "reach": Param(1.0, "an episode ends beyond, m", positive=True),
        "effort": Param(0.1, "by which a rower tires in a step", minimum=0),
        "rest": Param(0.2, "by which one who rests recovers", minimum=0),
        "weariness": Param(0.2, "taken from the reward of one who is tired", minimum=0),
    },
    max_episode_steps=200,
    drawing=Drawing(draw, size=(520, 200), frames_a_second=10),
)
