"""A boat holds its position in a changing current: it paddles backward, drifts, or paddles forward."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import EnvSpec, Param, Rules, pictures
from gpu_envs.pictures import Drawing, Picture, line, placed, polygon, rectangle
from gpu_envs.rules import Action, Observation, Params, Random, State, clip

# The rules. They are translated to C++ when the environment is made, and do not run in Python. They can use numbers,
# arithmetic, math, conditions and loops over fields of the state `s` and the parameters `p`.


def reset(s: State, p: Params, random: Random) -> None:
    """Start an episode: set every field of the state."""
    s.x = random.uniform(-p.start, p.start)
    s.speed = 0.0
    s.current = random.uniform(-p.strongest, p.strongest)


def step(s: State, p: Params, action: Action, random: Random) -> tuple[float, bool]:
    """Take one step: update the state; return the reward and whether the episode terminates."""
    push = p.push * (action - 1)  # an action is 0, 1 or 2
    s.current = clip(s.current + random.uniform(-p.gust, p.gust), -p.strongest, p.strongest)
    s.speed += p.tau * (push - p.drag * (s.speed - s.current))
    s.x += p.tau * s.speed
    adrift = s.x < -p.reach or s.x > p.reach
    return 0.0 if adrift else 1.0, adrift


def observe(s: State, p: Params, observation: Observation) -> None:
    """Write the observation: one number for each element of the observation space."""
    observation[0] = s.x / p.reach
    observation[1] = s.speed
    observation[2] = s.current


# The drawing.

_RIVER, _ROPE, _BOAT, _STREAM = (214, 230, 240), (192, 57, 43), (96, 66, 40), (150, 180, 205)
_HULL = np.array([[0.16, 0.0], [0.08, 0.07], [-0.14, 0.06], [-0.14, -0.06], [0.08, -0.07]])


def draw(state: pictures.State, params: pictures.Params) -> Picture:
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
    header=Rules(reset=reset, step=step, observe=observe),
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
