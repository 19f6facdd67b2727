"""T-maze: remembering a cue along a corridor, as in Bakker (2002)."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.pictures import Drawing, Params, Picture, State, at, disc, rectangle
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec

STEPS_PER_CELL = 10
"""Time limit divided by the corridor's length: moves into a wall for a whole episode cost as much as a wrong turn."""

WIDE, HIGH = 11, 3
"""Size of the picture, in cells of a corridor of the default length."""
FLOOR, CUE, AGENT = (220, 220, 220), (39, 174, 96), (36, 113, 163)
LEGEND = {"agent": AGENT, "side of the cue": CUE}


def _draw(state: State, params: Params) -> Picture:
    """Draws, in each replica, the maze, the end that the cue names, the agent, and a ring while the cue is shown."""
    length = int(params["length"])
    wide = max(length + 1, WIDE)
    high = wide * HIGH / WIDE
    middle, cue = high / 2, state["cue"]
    agent = at(state["cell"] + 0.5, middle + state["side"])
    return Picture(
        (0, 0, wide, high),
        (
            rectangle(0, middle - 0.5, length + 1, middle + 0.5, FLOOR),
            rectangle(length, middle - 1.5, length + 1, middle + 1.5, FLOOR),
            rectangle(length, middle + cue - 0.5, length + 1, middle + cue + 0.5, CUE),
            disc(agent, 0.45, CUE, state["shown"]),
            disc(agent, 0.3, AGENT),
        ),
    )


T_MAZE = EnvSpec(
    id="TMaze-v0",
    header="t_maze.cuh",
    description="Walk along a corridor, and turn to the side that a cue at its start has shown.",
    state={"cell": Field("int"), "cue": Field("int"), "side": Field("int"), "shown": Field("bool")},
    params={
        "length": Param(10, "number of cells of the corridor before the junction", positive=True, fixed=True),
        "turn_reward": Param(1.0, "reward of a turn to the side of the cue"),
        "turn_penalty": Param(1.0, "penalty of a turn to the other side", minimum=0),
        "move_penalty": Param(0.1, "penalty of `length` moves that do not lead towards the junction", minimum=0),
    },
    metrics={"correct": Metric("1 if the episode ended on the side of the cue")},
    observation=Box(0.0, 1.0, (4,), np.float32),
    action=Discrete(4),
    max_episode_steps=lambda params: STEPS_PER_CELL * params["length"],
    drawing=Drawing(_draw, size=(48 * WIDE, 48 * HIGH), frames_a_second=10, legend=LEGEND),
)
