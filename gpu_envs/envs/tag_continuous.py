"""Tag in a square, with the parameters of WarpDrive's published run."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete, Space

from gpu_envs.pictures import Drawing, Params, Picture, State, box, discs, line, per_replica, placed, polygon, repeat
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec

FEATURES = 7
"""What an agent sees of another: place, speed, acceleration, heading, kind, and whether it is in the game."""

POINTS_TOGETHER = 32
"""What ``in_groups`` in ``nearest.cuh`` rounds up to."""


def _agents(params: Params) -> int:
    return int(params["num_taggers"] + params["num_runners"])


def _columns(params: Params) -> int:
    return _agents(params) - 1 if params["use_full_observation"] else int(params["num_other_agents_observed"])


def _observation(params: Params) -> Box:
    """Bounds of what play brings about: an acceleration that lasts has not brought the speed to a limit."""
    skill = max(np.max(params["skill_level_tagger"]), np.max(params["skill_level_runner"]))
    rounding = 1 + 1e-5
    most = np.repeat([1, 1, skill * rounding, 2 * skill * rounding, rounding, 1, 1], _columns(params))
    least = np.repeat([1, 1, skill * rounding, 2 * skill * rounding, rounding, 0, 0], _columns(params))
    return Box(np.append(-least, 0).astype(np.float32), np.append(most, 1).astype(np.float32), dtype=np.float32)


def _action(params: Params) -> Space[Any]:
    if params["actions"] == "continuous":
        low = [np.min(params["min_acceleration"]), np.min(params["min_turn"])]
        high = [np.max(params["max_acceleration"]), np.max(params["max_turn"])]
        return Box(np.array(low, np.float32), np.array(high, np.float32), dtype=np.float32)
    return MultiDiscrete([params["num_acceleration_levels"] + 1, params["num_turn_levels"] + 1])


def _points(params: Params) -> int:
    return -(-_agents(params) // POINTS_TOGETHER) * POINTS_TOGETHER


def _room(params: Params) -> int:
    """``room_for`` in ``nearest.cuh``, of the nearest and the agent itself."""
    if params["use_full_observation"]:
        return 1
    return max(POINTS_TOGETHER, min(int(params["num_other_agents_observed"]), _agents(params) - 1) + 1)


def _start_rule(name: str, values: np.ndarray, params: Params) -> str:
    if not np.isfinite(values).all():
        return "expected finite numbers"
    length = np.min(params["grid_length"])
    if name != "heading" and ((values < 0) | (values > length)).any():
        return f"expected places within 0 to {length:g}"
    return ""


TAGGER, RUNNER, GONE, REACH = (192, 57, 43), (36, 113, 163), (200, 200, 200), (245, 215, 210)
ARROW = np.array([[1.0, 0.0], [-0.7, 0.6], [-0.7, -0.6]])
"""An agent that looks along the x-axis."""
SIZE, MARGIN = 0.0125, 0.03
"""Of an agent, and around the square, whose side is 1."""


def _draw(state: State, params: Params) -> Picture:
    """Agents as arrows: taggers within the reach of their hand, runners, and crosses where runners were tagged."""
    side = per_replica(params["grid_length"], len(state["x"]))[:, None]
    x, y, gone = state["x"] / side, state["y"] / side, state["in_game"] == 0
    taggers = int(params["num_taggers"])
    arrows = placed(ARROW * SIZE, x, y, state["heading"])
    hands = np.stack([x, y], -1)[:, :taggers]
    strokes = [placed(np.array([[-1, way], [1, -way]]) * SIZE / 2, x, y) for way in (-1, 1)]
    walls = repeat(box(0, 0, 1, 1)[[0, 1, 2, 3, 0]], len(gone))
    return Picture(
        (-MARGIN, -MARGIN, 1 + MARGIN, 1 + MARGIN),
        (
            line(walls, 0.004, GONE),
            *(line(stroke, SIZE / 4, GONE, gone) for stroke in strokes),
            *discs(hands, params["tagging_distance"], REACH, ~gone[:, :taggers]),
            polygon(arrows[:, taggers:], RUNNER, ~gone[:, taggers:]),
            polygon(arrows[:, :taggers], TAGGER, ~gone[:, :taggers]),
        ),
    )


TAG_CONTINUOUS = TeamSpec(
    id="TagContinuous-v0",
    header="tag_continuous.cuh",
    description="Taggers chase runners in a square; everybody accelerates and turns.",
    roles=(
        Role("tagger", "num_taggers", _observation, _action),
        Role("runner", "num_runners", _observation, _action),
    ),
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
        "num_taggers": Param(10, "taggers in a replica", positive=True, fixed=True),
        "num_runners": Param(100, "runners in a replica", positive=True, fixed=True),
        "grid_length": Param(20.0, "side of the square, in units of length", positive=True),
        "episode_length": Param(
            500,
            "steps: max_episode_steps where no other is given, and what the observed time is a share of",
            positive=True,
            fixed=True,
        ),
        "max_speed": Param(1.0, "greatest speed, before skill, length a step", positive=True),
        "skill_level_tagger": Param(1.0, "multiplies a tagger's greatest speed", minimum=0),
        "skill_level_runner": Param(1.0, "multiplies a runner's greatest speed", minimum=0),
        "max_acceleration": Param(0.1, "the greatest change of acceleration in a step, length a step^2"),
        "min_acceleration": Param(-0.1, "the least change of acceleration in a step, length a step^2"),
        "max_turn": Param(2.356, "the greatest turn, rad a step"),
        "min_turn": Param(-2.356, "the least turn, rad a step"),
        "num_acceleration_levels": Param(20, "levels from least to most, beside none", positive=True, fixed=True),
        "num_turn_levels": Param(20, "levels from least to most, beside none", positive=True, fixed=True),
        "edge_hit_penalty": Param(0.0, "reward, added where an agent runs into a wall", maximum=0),
        "use_full_observation": Param(False, "see everybody", fixed=True),
        "num_other_agents_observed": Param(
            10, "otherwise: how many of the nearest in the game are seen", positive=True, fixed=True
        ),
        "tagging_distance": Param(0.02, "the reach of a tag, as a share of grid_length", minimum=0),
        "tag_reward_for_tagger": Param(10.0, "reward for each runner tagged"),
        "step_penalty_for_tagger": Param(0.0, "reward, added in each step", maximum=0),
        "tag_penalty_for_runner": Param(-10.0, "reward, added when tagged", maximum=0),
        "step_reward_for_runner": Param(0.0, "reward, added in each step", minimum=0),
        "end_of_game_reward_for_runner": Param(1.0, "reward of those in the game at the last step", minimum=0),
        "runner_exits_game_after_tagged": Param(True, "otherwise a runner can be tagged again"),
        "actions": Param("discrete", "levels, or real numbers", choices=("discrete", "continuous"), fixed=True),
        "start": Param(
            "random",
            "random: drawn for each episode; fixed: drawn once, from the first replica's seed, for all",
            choices=("random", "fixed"),
        ),
    },
    metrics={
        "tags": Metric("runners tagged", "sum"),
        "survival": Metric("steps that a runner survives in the game, the mean of all", "sum"),
    },
    ordered=(("min_acceleration", "max_acceleration"), ("min_turn", "max_turn")),
    start_fields=("x", "y", "heading"),
    start_rule=_start_rule,
    max_episode_steps=lambda params: int(params["episode_length"]),
    drawing=Drawing(_draw, size=(500, 500), frames_a_second=20),
)
