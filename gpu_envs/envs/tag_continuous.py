"""Tag in a square, with the parameters of WarpDrive's published run."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete, Space

from gpu_envs.pictures import Drawing, Params, Picture, State, at, box, discs, line, per_replica, placed, polygon
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec

POINT_GROUP = 32
"""Multiple that ``in_groups`` in ``nearest.cuh`` rounds up to."""


def _agents(params: Params) -> int:
    return int(params["num_taggers"] + params["num_runners"])


def _columns(params: Params) -> int:
    return _agents(params) - 1 if params["use_full_observation"] else int(params["num_other_agents_observed"])


def _observation(params: Params) -> Box:
    """Return a Box with the bounds of reachable values: acceleration becomes 0 when the speed reaches a limit."""
    skill = max(np.max(params["skill_level_tagger"]), np.max(params["skill_level_runner"]))
    rounding = 1 + 1e-5
    speeds = [skill * rounding, 2 * skill * rounding] if params["observe_speeds"] else []
    high = np.repeat([1, 1, *speeds, rounding, 1, 1], _columns(params))
    low = np.repeat([-1, -1, *(-speed for speed in speeds), -rounding, 0, 0], _columns(params))
    return Box(np.append(low, 0).astype(np.float32), np.append(high, 1).astype(np.float32), dtype=np.float32)


def _action(params: Params) -> Space[Any]:
    """Return the space of (acceleration change, turn): a Box, or a MultiDiscrete of levels with 0 for none."""
    if params["actions"] == "continuous":
        low = [np.min(params["min_acceleration"]), np.min(params["min_turn"])]
        high = [np.max(params["max_acceleration"]), np.max(params["max_turn"])]
        return Box(np.array(low, np.float32), np.array(high, np.float32), dtype=np.float32)
    return MultiDiscrete([params["num_acceleration_levels"] + 1, params["num_turn_levels"] + 1])


def _points(params: Params) -> int:
    return -(-_agents(params) // POINT_GROUP) * POINT_GROUP


def _room(params: Params) -> int:
    """Return the length of the list of nearest agents and the agent itself: ``room_for`` in ``nearest.cuh``."""
    if params["use_full_observation"]:
        return 1
    return max(POINT_GROUP, min(int(params["num_other_agents_observed"]), _agents(params) - 1) + 1)


def _start_rule(name: str, values: np.ndarray, params: Params) -> str:
    """Return why the initial values of a state field are invalid; empty for finite numbers in the square."""
    if not np.isfinite(values).all():
        return "expected finite numbers"
    length = np.min(params["grid_length"])
    if name != "heading" and ((values < 0) | (values > length)).any():
        return f"expected positions from 0 to {length:g}"
    return ""


TAGGER, RUNNER, GONE, REACH = (192, 57, 43), (36, 113, 163), (200, 200, 200), (245, 215, 210)
ARROW = np.array([[1.0, 0.0], [-0.7, 0.6], [-0.7, -0.6]])
"""Shape of an agent that heads along the x-axis."""
SIZE, MARGIN = 0.0125, 0.03
"""Size of an agent, and margin around the square, whose side is 1."""
PIXELS = 5
"""Minimum size of an agent in pixels."""
LEGEND = {"tagger": TAGGER, "reach of a tagger": REACH, "runner": RUNNER, "tagged runner": GONE}


def _draw(state: State, params: Params) -> Picture:
    """Draws, in each replica, agents as arrows, taggers with their reach, and crosses at tagged runners."""
    side = per_replica(params["grid_length"], len(state["x"]))[:, None]
    x, y, gone = state["x"] / side, state["y"] / side, state["in_game"] == 0
    taggers = int(params["num_taggers"])
    arrows = placed(ARROW * SIZE, x, y, state["heading"])
    strokes = [placed(np.array([[-1, way], [1, -way]]) * SIZE / 2, x, y) for way in (-1, 1)]
    return Picture(
        (-MARGIN, -MARGIN, 1 + MARGIN, 1 + MARGIN),
        (
            line(box(0, 0, 1, 1)[[0, 1, 2, 3, 0]], 0.004, GONE),
            *(line(stroke, SIZE / 4, GONE, gone, min_radius=PIXELS / 2) for stroke in strokes),
            *discs(at(x, y)[:, :taggers], params["tagging_distance"], REACH, ~gone[:, :taggers]),
            polygon(arrows[:, taggers:], RUNNER, ~gone[:, taggers:], min_radius=PIXELS),
            polygon(arrows[:, :taggers], TAGGER, ~gone[:, :taggers], min_radius=PIXELS),
        ),
    )


TAG_CONTINUOUS = TeamSpec(
    id="TagContinuous-v0",
    header="tag_continuous.cuh",
    description="Taggers chase runners in a square; all of them accelerate and turn.",
    roles=(Role("tagger", "num_taggers", _observation, _action), Role("runner", "num_runners", _observation, _action)),
    state={name: Field() for name in ("x", "y", "speed", "heading", "acceleration")},
    shared={"runners_left": Field("int")},
    scratch={"tags": Field("int"), "nearest": Field("agent", _room)},
    shared_scratch={
        "tagged": Field("int"),
        "players": Field("agent", _agents),
        "points": Field("int"),
        "point_x": Field("real", _points),
        "point_y": Field("real", _points),
    },
    columns=_columns,
    params={
        "num_taggers": Param(10, "number of taggers", positive=True, fixed=True),
        "num_runners": Param(100, "number of runners", positive=True, fixed=True),
        "grid_length": Param(20.0, "side of the square, in units of length", positive=True),
        "episode_length": Param(
            500, "default of max_episode_steps, and divisor of the observed time, steps", positive=True, fixed=True
        ),
        "max_speed": Param(1.0, "maximum speed before the factor skill_level, length per step", positive=True),
        "skill_level_tagger": Param(1.0, "factor of a tagger's maximum speed", minimum=0),
        "skill_level_runner": Param(1.0, "factor of a runner's maximum speed", minimum=0),
        "max_acceleration": Param(0.1, "maximum change of acceleration per step, length per step^2"),
        "min_acceleration": Param(-0.1, "minimum change of acceleration per step, length per step^2"),
        "max_turn": Param(2.356, "maximum turn, rad per step"),
        "min_turn": Param(-2.356, "minimum turn, rad per step"),
        "num_acceleration_levels": Param(
            20, "number of actions from minimum to maximum, plus one for no change", positive=True, fixed=True
        ),
        "num_turn_levels": Param(
            20, "number of actions from minimum to maximum, plus one for no turn", positive=True, fixed=True
        ),
        "edge_hit_penalty": Param(0.0, "reward when an agent hits a wall", maximum=0),
        "use_full_observation": Param(False, "observe all agents", fixed=True),
        "num_other_agents_observed": Param(
            10, "otherwise: number of nearest agents in the game to observe", positive=True, fixed=True
        ),
        "observe_speeds": Param(True, "observe speed and acceleration of other agents", fixed=True),
        "tagging_distance": Param(0.02, "maximum distance of a tag, as a fraction of grid_length", minimum=0),
        "tag_reward_for_tagger": Param(10.0, "reward for each tagged runner"),
        "step_penalty_for_tagger": Param(0.0, "reward of each step", maximum=0),
        "tag_penalty_for_runner": Param(-10.0, "reward of a tagged runner", maximum=0),
        "step_reward_for_runner": Param(0.0, "reward of each step", minimum=0),
        "end_of_game_reward_for_runner": Param(1.0, "reward of runners in the game at the last step", minimum=0),
        "runner_exits_game_after_tagged": Param(True, "remove tagged runners; otherwise they can be tagged again"),
        "actions": Param(
            "discrete", "discrete: levels; continuous: real numbers", choices=("discrete", "continuous"), fixed=True
        ),
        "start": Param(
            "random",
            "random: drawn for each episode; fixed: drawn once for all, with the seed of the first replica",
            choices=("random", "fixed"),
        ),
    },
    metrics={
        "tags": Metric("number of tagged runners", "sum"),
        "survival": Metric("steps in the game, mean over runners", "sum"),
    },
    ordered=(("min_acceleration", "max_acceleration"), ("min_turn", "max_turn")),
    start_fields=("x", "y", "heading"),
    start_rule=_start_rule,
    max_episode_steps=lambda params: int(params["episode_length"]),
    drawing=Drawing(_draw, size=(500, 500), frames_a_second=20, legend=LEGEND),
)
