"""Worlds of continuous tag that several tests set up."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tag_oracles import (
    CONTINUOUS_DEFAULTS,
    Outcome,
    Params,
    World,
    stacked,
)

TURN = 2 * math.pi

UNEVEN: Params = {
    **CONTINUOUS_DEFAULTS,
    "num_taggers": 3,
    "num_runners": 9,
    "grid_length": 10.0,
    "episode_length": 50,
    "max_speed": 1.5,
    "skill_level_tagger": 1.2,
    "skill_level_runner": 0.8,
    "max_acceleration": 0.3,
    "min_acceleration": -0.2,
    "max_turn": 2.0,
    "min_turn": -1.0,
    "num_acceleration_levels": 7,
    "num_turn_levels": 5,
    "edge_hit_penalty": -0.25,
    "tagging_distance": 0.1,
    "tag_penalty_for_runner": -7.0,
    "step_penalty_for_tagger": -0.5,
    "step_reward_for_runner": 0.125,
    "end_of_game_reward_for_runner": 3.0,
}
"""Parameters of which no two could be taken for each other."""

VARIANTS: dict[str, Params] = {
    "full": {**UNEVEN, "use_full_observation": True},
    "nearest-stay": {**UNEVEN, "num_other_agents_observed": 3, "runner_exits_game_after_tagged": False},
    "padded-continuous": {**UNEVEN, "num_other_agents_observed": 16, "actions": "continuous"},
    "full-continuous-stay": {
        **UNEVEN,
        "use_full_observation": True,
        "actions": "continuous",
        "runner_exits_game_after_tagged": False,
    },
    "large": {**UNEVEN, "num_taggers": 5, "num_runners": 60, "tagging_distance": 0.06},
    "two": {
        **UNEVEN,
        "num_taggers": 1,
        "num_runners": 1,
        "num_acceleration_levels": 1,
        "num_other_agents_observed": 1,
        "tagging_distance": 0.25,
    },
}


def num_agents(params: Params) -> int:
    """How many agents there are."""
    return int(params["num_taggers"] + params["num_runners"])


def draw_worlds(params: Params, precision: str, count: int, seed: int) -> list[World]:
    """States far and wide: crowds, walls, corners, agents at the limits of speed, runners out, the last of them, T."""
    rng = np.random.default_rng(seed)
    real, length, agents = np.dtype(precision).type, params["grid_length"], num_agents(params)
    taggers = params["num_taggers"]
    worlds = []
    for _ in range(count):
        places = rng.uniform(0, length, (2, agents))
        if rng.random() < 0.5:
            places = np.clip(rng.uniform(0, length, (2, 1)) + rng.normal(0, 0.1 * length, (2, agents)), 0, length)
        places = np.where(rng.random((2, agents)) < 0.1, rng.choice([0.0, length], (2, agents)), places)
        x, y = places.astype(precision)
        skills = [params["skill_level_tagger"]] * taggers + [params["skill_level_runner"]] * (agents - taggers)
        fastest = real(params["max_speed"]) * np.array(skills, precision)
        share = np.where(rng.random(agents) < 0.3, rng.choice([0.0, 1.0], agents), rng.random(agents))
        quarters = rng.integers(0, 4, agents) * (math.pi / 2)
        # The sine of float32's pi is no zero, and would move along a wall either into it or not; that of zero is.
        quarters = np.where(np.isin(places, (0, length)).any(axis=0), 0, quarters)
        heading = np.where(rng.random(agents) < 0.3, quarters, rng.uniform(0, 6.28, agents)).astype(precision)
        acceleration = np.where(rng.random(agents) < 0.3, 0, rng.uniform(-0.5, 0.5, agents)).astype(precision)
        in_game = np.ones(agents, bool)
        if params["runner_exits_game_after_tagged"]:
            in_game[taggers:] = rng.random(agents - taggers) < rng.choice([0.8, 0.1])
            in_game[rng.integers(taggers, agents)] = True
        worlds.append(
            World(
                x,
                y,
                share.astype(precision) * fastest,
                heading,
                acceleration,
                in_game,
                int(params["episode_length"] - 1 if rng.random() < 0.3 else rng.integers(params["episode_length"] - 1)),
                int(in_game[taggers:].sum()),
            )
        )
    return worlds


def draw_actions(params: Params, *shape: int, seed: int) -> np.ndarray:
    """Random actions of all agents, ``[*shape, agents, 2]``."""
    rng = np.random.default_rng(seed)
    columns: list[np.ndarray] = []
    for quantity in ("acceleration", "turn"):
        if params["actions"] == "continuous":
            low, high = params[f"min_{quantity}"], params[f"max_{quantity}"]
            drawn = rng.uniform(low, high, (*shape, num_agents(params)))
            columns.append(np.clip(drawn.astype(np.float32), np.float32(low), np.float32(high)))
        else:
            columns.append(rng.integers(0, params[f"num_{quantity}_levels"] + 1, (*shape, num_agents(params))))
    return np.stack(columns, axis=-1)


SCENE: Params = {
    **CONTINUOUS_DEFAULTS,
    "num_taggers": 3,
    "num_runners": 4,
    "grid_length": 8.0,
    "episode_length": 20,
    "tagging_distance": 0.125,  # a margin of 1, exactly
    "max_acceleration": 0.25,
    "min_acceleration": -0.25,
    "max_turn": 2.0,
    "min_turn": -2.0,
    "num_acceleration_levels": 3,
    "num_turn_levels": 3,
    "use_full_observation": True,
}

CORNERS = ((0.0, 0.0), (8.0, 0.0), (0.0, 8.0))

AWAY = ((4.0, 2.0), (4.0, 4.0), (4.0, 6.0), (6.0, 4.0))
"""Places of runners, out of reach of taggers in three corners."""


def scene(
    taggers: Sequence[tuple[float, float]] = CORNERS, runners: Sequence[tuple[float, float]] = AWAY, **fields: Any
) -> World:
    """Agents standing in these places; ``fields`` overrides arrays, or elements of them by number."""
    x, y = np.array([*taggers, *runners], np.float64).T.copy()
    count = len(x)
    speed, heading, acceleration = np.zeros((3, count))
    world = World(x, y, speed, heading, acceleration, np.ones(count, bool), fields.pop("elapsed", 3), 0)
    for name, values in fields.items():
        for i, value in values.items():
            getattr(world, name)[i] = value
    world.runners_left = int(world.in_game[len(taggers) :].sum())
    return world


def columns(outcomes: Sequence[Outcome[World]]) -> dict[str, Any]:
    """What a step made of many replicas, field by field."""
    names = ("rewards", "terminated", "truncated", "observations")
    fields = {name: np.stack([getattr(outcome, name) for outcome in outcomes]) for name in names}
    return {**stacked([outcome.world for outcome in outcomes]), **fields}
