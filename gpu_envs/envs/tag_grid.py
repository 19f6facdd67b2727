"""Tag on a grid, with the parameters of WarpDrive's published run."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.pictures import Drawing, Params, Picture, Shape, State, at, discs, line, per_replica, rectangle
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec

MAX_LENGTH = 32767
"""Maximum grid length: squared distances fit in 32-bit integers."""


def _observation(params: Params) -> Box:
    size = 4 * (int(params["num_taggers"]) + 1) + 1 if params["use_full_observation"] else 6
    return Box(0.0, 1.0, (size,), np.float32)


def _start_rule(name: str, values: np.ndarray, params: Params) -> str:
    """Return why the initial values of a state field are invalid; empty for integers from 0 to ``grid_length``."""
    del name
    length = int(np.min(params["grid_length"]))
    wrong = (values < 0) | (values > length) | (values != np.floor(values))
    return f"expected integers from 0 to {length}" if wrong.any() else ""


TAGGER, RUNNER, GONE, LINES = (192, 57, 43), (36, 113, 163), (200, 200, 200), (235, 235, 235)
MAX_LINES = 25
"""Maximum number of drawn grid lines per axis; in a larger grid, lines are several cells apart."""
MAX_CELLS = 40
"""Agents in larger grids are drawn as large as in a grid of this length, so that they stay visible."""
MARGIN = 0.01
"""Margin around the grid, whose side is 1."""
LEGEND = {"tagger": TAGGER, "runner": RUNNER, "caught runner": GONE}


def _draw(state: State, params: Params) -> Picture:
    """Draws, in each replica, the grid, taggers and the runner, which is grey once it has been caught."""
    cells = per_replica(params["grid_length"], len(state["x"])) + 1
    taggers, size = int(params["num_taggers"]), 1 / np.minimum(cells, MAX_CELLS)
    x, y = ((state[name] + 0.5) / cells[:, None] for name in ("x", "y"))
    runner = at(x, y)[:, taggers:]
    x, y, half = x[:, :taggers], y[:, :taggers], 0.4 * size[:, None]
    caught = state["in_game"][:, taggers:] == 0
    return Picture(
        (-MARGIN, -MARGIN, 1 + MARGIN, 1 + MARGIN),
        (
            _grid(cells),
            *discs(runner, 0.45 * size, RUNNER, ~caught),
            *discs(runner, 0.45 * size, GONE, caught),
            rectangle(x - half, y - half, x + half, y + half, TAGGER),
        ),
    )


def _grid(cells: np.ndarray) -> Shape:
    """Return the grid lines of both axes, with the border, of grids with ``cells`` cells per side, ``[replicas]``."""
    apart = np.ceil(cells / (MAX_LINES - 1))
    places = np.minimum(np.arange(MAX_LINES) * (apart / cells)[:, None], 1)
    ends = np.broadcast_to([0.0, 1.0], (*places.shape, 2))
    upright = np.stack([np.broadcast_to(places[..., None], ends.shape), ends], -1)
    there = np.arange(MAX_LINES) <= np.ceil(cells / apart)[:, None]
    return line(np.concatenate([upright, upright[..., ::-1]], 1), 0.0025, LINES, np.concatenate([there, there], 1))


TAG_GRID_WORLD = TeamSpec(
    id="TagGridWorld-v0",
    header="tag_grid.cuh",
    description="Taggers chase one runner on a grid, cell by cell.",
    roles=(Role("tagger", "num_taggers", _observation, Discrete(5)), Role("runner", 1, _observation, Discrete(5))),
    state={"x": Field("int"), "y": Field("int")},
    shared={"runners_left": Field("int")},
    scratch={"column": Field(), "line": Field(), "distance": Field("int")},
    shared_scratch={"tags": Field("int"), "nearest_distance": Field("int"), "nearest_tagger": Field("int")},
    params={
        "num_taggers": Param(4, "number of taggers", positive=True, fixed=True),
        "grid_length": Param(100, "maximum of both coordinates, which start at 0", positive=True, maximum=MAX_LENGTH),
        "episode_length": Param(
            100, "default of max_episode_steps, and unit of the observed time, steps", positive=True, fixed=True
        ),
        "wall_hit_penalty": Param(0.1, "penalty when an agent hits a wall", minimum=0),
        "tag_reward_for_tagger": Param(10.0, "reward of every tagger when the runner is tagged"),
        "tag_penalty_for_runner": Param(5.0, "penalty of the tagged runner", minimum=0),
        "step_cost_for_tagger": Param(0.01, "penalty of every tagger per step, and reward of the runner", minimum=0),
        "use_full_observation": Param(True, "observe all agents; otherwise the nearest of the other role", fixed=True),
        "start": Param(
            "random",
            "random: taggers not in the runner's cell; fixed: taggers in the centre, the runner at (0, 0)",
            choices=("random", "fixed"),
        ),
    },
    metrics={
        "tags": Metric("1 if the runner was tagged"),
        "survival": Metric("steps that the runner survived, not counting the step of the tag"),
    },
    start_fields=("x", "y"),
    start_rule=_start_rule,
    max_episode_steps=lambda params: int(params["episode_length"]),
    drawing=Drawing(_draw, size=(500, 500), frames_a_second=10, legend=LEGEND),
)
