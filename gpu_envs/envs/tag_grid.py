"""Tag on a grid, with the parameters of WarpDrive's published run."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.params import Param
from gpu_envs.pictures import Drawing, Params, Picture, State, box, disc, line, placed, polygon
from gpu_envs.spec import Field, Role, TeamSpec

LONGEST = 32767
"""The greatest grid whose squared distances are 32-bit integers."""


def _observation(params: Mapping[str, Any]) -> Box:
    size = 4 * (int(params["num_taggers"]) + 1) + 1 if params["use_full_observation"] else 6
    return Box(0.0, 1.0, (size,), np.float32)


def _layout_rule(name: str, values: np.ndarray, params: Mapping[str, Any]) -> str:
    del name
    length = int(np.min(params["grid_length"]))
    wrong = (values < 0) | (values > length) | (values != np.floor(values))
    return f"expected whole numbers from 0 to {length}" if wrong.any() else ""


TAGGER, RUNNER, GONE, LINES = (192, 57, 43), (36, 113, 163), (200, 200, 200), (235, 235, 235)
MOST_LINES = 25
"""Of the grid that are drawn, both ways."""


def _draw(state: State, params: Params) -> Picture:
    """Cells, taggers and the runner, which is grey once it has been caught."""
    length = int(np.max(params["grid_length"]))
    taggers, replicas = int(params["num_taggers"]), len(state["x"])
    cell = max(1.0, (length + 1) / 50)  # agents stay visible in large grids
    every = np.linspace(-0.5, length + 0.5, min(MOST_LINES, length + 2))
    rows = np.stack([np.stack([np.full_like(every, end), every], -1) for end in (-0.5, length + 0.5)], 1)
    grid = np.concatenate([rows, rows[..., ::-1]])
    squares = placed(box(-0.5, -0.5, 0.5, 0.5) * 0.8 * cell, state["x"], state["y"])
    centres = np.stack([state["x"], state["y"]], -1).astype(np.float64)
    caught = state["in_game"][:, taggers:] == 0
    return Picture(
        (-0.5 - cell / 2, -0.5 - cell / 2, length + 0.5 + cell / 2, length + 0.5 + cell / 2),
        (
            line(np.broadcast_to(grid, (replicas, *grid.shape)), length / 400, LINES),
            disc(centres[:, taggers:], 0.45 * cell, RUNNER, ~caught),
            disc(centres[:, taggers:], 0.45 * cell, GONE, caught),
            polygon(squares[:, :taggers], TAGGER),
        ),
    )


TAG_GRID_WORLD = TeamSpec(
    id="TagGridWorld-v0",
    header="tag_grid.cuh",
    description="Taggers chase one runner on a grid, cell by cell.",
    roles=(
        Role("tagger", "num_taggers", _observation, Discrete(5)),
        Role("runner", 1, _observation, Discrete(5)),
    ),
    state={"x": Field("int"), "y": Field("int")},
    shared={"runners_left": Field("int")},
    scratch={"column": Field(), "line": Field(), "distance": Field("int")},
    shared_scratch={"tags": Field("int"), "nearest_distance": Field("int"), "nearest_tagger": Field("int")},
    params={
        "num_taggers": Param(4, "taggers in a replica", positive=True, fixed=True),
        "grid_length": Param(100, "cells are 0 to this, both ways", positive=True, maximum=LONGEST),
        "episode_length": Param(100, "steps; the same as max_episode_steps", positive=True, fixed=True),
        "wall_hit_penalty": Param(0.1, "subtracted where an agent runs into a wall", minimum=0),
        "tag_reward_for_tagger": Param(10.0, "for every tagger, when one has caught the runner"),
        "tag_penalty_for_runner": Param(5.0, "subtracted when caught", minimum=0),
        "step_cost_for_tagger": Param(0.01, "from every tagger to the runner, in each step", minimum=0),
        "use_full_observation": Param(True, "see everybody; otherwise the other side's nearest", fixed=True),
        "start": Param("random", "any cells, or centre and corner", choices=("random", "fixed")),
    },
    layouts=("x", "y"),
    layout_rule=_layout_rule,
    limit="episode_length",
    max_episode_steps=100,
    drawing=Drawing(_draw, size=(500, 500), frames_a_second=10),
)
