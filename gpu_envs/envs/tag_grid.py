"""Tag on a grid, with the parameters of WarpDrive's published run."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.pictures import Drawing, Params, Picture, Shape, State, box, discs, line, per_replica, polygon
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec

LONGEST = 32767
"""The greatest grid whose squared distances are 32-bit integers."""


def _observation(params: Params) -> Box:
    size = 4 * (int(params["num_taggers"]) + 1) + 1 if params["use_full_observation"] else 6
    return Box(0.0, 1.0, (size,), np.float32)


def _start_rule(name: str, values: np.ndarray, params: Params) -> str:
    del name
    length = int(np.min(params["grid_length"]))
    wrong = (values < 0) | (values > length) | (values != np.floor(values))
    return f"expected whole numbers from 0 to {length}" if wrong.any() else ""


TAGGER, RUNNER, GONE, LINES = (192, 57, 43), (36, 113, 163), (200, 200, 200), (235, 235, 235)
MOST_LINES = 25
"""Of the grid that are drawn, both ways; between cells, so many apart that there are no more."""
MOST_CELLS = 40
"""Agents in larger grids are drawn as large as in one of so many cells, so that they stay visible."""
MARGIN = 0.01
"""Around the grid, whose side is 1."""


def _draw(state: State, params: Params) -> Picture:
    """Cells, taggers and the runner, which is grey once it has been caught."""
    cells = per_replica(params["grid_length"], len(state["x"])) + 1
    taggers, size = int(params["num_taggers"]), 1 / np.minimum(cells, MOST_CELLS)
    centres = (np.stack([state["x"], state["y"]], -1) + 0.5) / cells[:, None, None]
    squares = centres[:, :taggers, None] + box(-0.4, -0.4, 0.4, 0.4) * size[:, None, None, None]
    caught = state["in_game"][:, taggers:] == 0
    return Picture(
        (-MARGIN, -MARGIN, 1 + MARGIN, 1 + MARGIN),
        (
            _grid(cells),
            *discs(centres[:, taggers:], 0.45 * size, RUNNER, ~caught),
            *discs(centres[:, taggers:], 0.45 * size, GONE, caught),
            polygon(squares, TAGGER),
        ),
    )


def _grid(cells: np.ndarray) -> Shape:
    """Lines between cells, both ways, and around them."""
    apart = np.ceil(cells / (MOST_LINES - 1))
    places = np.minimum(np.arange(MOST_LINES) * (apart / cells)[:, None], 1)
    ends = np.broadcast_to([0.0, 1.0], (*places.shape, 2))
    upright = np.stack([np.broadcast_to(places[..., None], ends.shape), ends], -1)
    there = np.arange(MOST_LINES) <= np.ceil(cells / apart)[:, None]
    return line(np.concatenate([upright, upright[..., ::-1]], 1), 0.0025, LINES, np.concatenate([there, there], 1))


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
        "episode_length": Param(
            100,
            "steps: max_episode_steps where no other is given, and what the observed time is a share of",
            positive=True,
            fixed=True,
        ),
        "wall_hit_penalty": Param(0.1, "reward, subtracted where an agent runs into a wall", minimum=0),
        "tag_reward_for_tagger": Param(10.0, "reward of every tagger, when one has caught the runner"),
        "tag_penalty_for_runner": Param(5.0, "reward, subtracted when caught", minimum=0),
        "step_cost_for_tagger": Param(0.01, "reward, from every tagger to the runner, in each step", minimum=0),
        "use_full_observation": Param(True, "see everybody; otherwise the other side's nearest", fixed=True),
        "start": Param(
            "random",
            "random: any cells, none the runner's; fixed: taggers in the centre, the runner at (0, 0)",
            choices=("random", "fixed"),
        ),
    },
    metrics={"tags": Metric("1 where the runner was tagged"), "survival": Metric("steps that the runner survived")},
    start_fields=("x", "y"),
    start_rule=_start_rule,
    max_episode_steps=lambda params: int(params["episode_length"]),
    drawing=Drawing(_draw, size=(500, 500), frames_a_second=10),
)
