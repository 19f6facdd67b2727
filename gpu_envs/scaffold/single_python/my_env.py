"""A boat keeps its place in a current that comes and goes: it backs, drifts, or paddles on."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import EnvSpec, Param, Rules, pictures
from gpu_envs.pictures import Drawing, Picture, line, own, placed, polygon, same
from gpu_envs.rules import Action, Observation, Params, Random, State, clip

# The rules. They are translated to C++ when the environment is made, and never run by Python: numbers, arithmetic,
# math, conditions and loops, over fields of the state `s` and of the parameters `p`.


def reset(s: State, p: Params, random: Random) -> None:
    """The beginning of an episode: gives every field of the state its first value."""
    s.x = random.uniform(-p.start, p.start)
    s.speed = 0.0
    s.current = random.uniform(-p.strongest, p.strongest)


def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    """One step: changes the state, and returns the reward and whether the episode has come to its end."""
    push = p.push * (action - 1)  # an action is 0, 1 or 2
    s.current = clip(s.current + random.uniform(-p.gust, p.gust), -p.strongest, p.strongest)
    s.speed += p.tau * (push - p.drag * (s.speed - s.current))
    s.x += p.tau * s.speed
    adrift = s.x < -p.reach or s.x > p.reach
    return 0.0 if adrift else 1.0, adrift


def observe(s: State, p: Params, observation: Observation) -> None:
    """What the agent sees: as many numbers as the observation space has."""
    observation[0] = s.x / p.reach
    observation[1] = s.speed
    observation[2] = s.current


# What it looks like.

_RIVER, _ROPE, _BOAT, _STREAM = (214, 230, 240), (192, 57, 43), (96, 66, 40), (150, 180, 205)
_HULL = np.array([[0.16, 0.0], [0.08, 0.07], [-0.14, 0.06], [-0.14, -0.06], [0.08, -0.07]])


def draw(state: pictures.State, params: pictures.Params) -> Picture:
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
    header=Rules(reset=reset, step=step, observe=observe),
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
