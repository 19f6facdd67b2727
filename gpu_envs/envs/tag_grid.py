"""Tag on a grid, with the parameters of WarpDrive's published run."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.params import Param
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
)
