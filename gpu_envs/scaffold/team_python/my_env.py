"""A crew holds its boat's position in a current. Each rower rows backward, rests, or rows forward, and tires."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs import Field, Param, Role, Rules, TeamSpec, pictures
from gpu_envs.pictures import Drawing, Picture, at, disc, line, placed, polygon
from gpu_envs.rules import AGENTS, RESET, STEP, Params, Row, Team, TeamActions, World, add, clip

# The rules. They are translated to C++ when the environment is made, and do not run in Python. They can use numbers,
# arithmetic, math, conditions and loops over fields of the world `w` and the parameters `p`.
#
# Code for every agent is a loop `for i in team.agents():`. On a GPU its iterations run in parallel: iteration i writes
# fields of agent i only, and reads what earlier loops wrote. One iteration writes shared fields: if i == 0.


def reset(w: World, p: Params, team: Team) -> None:
    """Start an episode: set every field."""
    for i in team.agents():
        w.tired[i] = 0.0
        if i == 0:
            random = team.random(RESET, i)
            w.x = random.uniform(-p.start, p.start)
            w.speed = 0.0
            w.current = random.uniform(-p.strongest, p.strongest)


def step(w: World, p: Params, team: Team, actions: TeamActions) -> None:
    """Take one step: update the state, set the reward of each agent and whether the episode terminates."""
    for i in team.agents():
        if i == 0:
            w.pull = 0
    for i in team.agents():
        stroke = actions[i] - 1  # an action is 0, 1 or 2
        w.tired[i] = clip(w.tired[i] + (-p.rest if stroke == 0 else p.effort), 0.0, 1.0)
        add(w.pull, stroke)  # atomic: all iterations may add to an integer
    for i in team.agents():
        if i == 0:
            random = team.random(STEP, i, w.elapsed)
            push = p.push * w.pull / AGENTS
            w.current = clip(w.current + random.uniform(-p.gust, p.gust), -p.strongest, p.strongest)
            w.speed += p.tau * (push - p.drag * (w.speed - w.current))
            w.x += p.tau * w.speed
            w.terminated = w.x < -p.reach or w.x > p.reach
    for i in team.agents():
        w.reward[i] = 0.0 if w.terminated else 1.0 - p.weariness * w.tired[i]


def observe(w: World, p: Params, i: int, row: Row) -> None:
    """Write the observation of agent i: one number for each element of its observation space."""
    row[0] = w.x / p.reach
    row[1] = w.speed
    row[2] = w.current
    row[3] = w.tired[i]


# The drawing.

_RIVER, _ROPE, _BOAT, _FRESH, _WEARY = (214, 230, 240), (192, 57, 43), (96, 66, 40), (88, 150, 88), (200, 120, 60)
_HULL = np.array([[0.3, 0.0], [0.2, 0.09], [-0.25, 0.08], [-0.25, -0.08], [0.2, -0.09]])


def draw(state: pictures.State, params: pictures.Params) -> Picture:
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
    header=Rules(reset=reset, step=step, observe=observe),
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
