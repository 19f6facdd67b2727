"""NumPy implementations of a step of TagContinuous and TagGridWorld, one replica at a time, written from the rules.

Taggers have the lowest agent indices. A tag is a pair of indices: tagger, runner. TagContinuous is computed
in the dtype of its state, float32 or float64, including all intermediate values. The rest of the module
writes states into environments and reads their steps back, and defines worlds that several tests
use.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from harness import numpy_of
from registered import join_agents

import gpu_envs

Params: TypeAlias = Mapping[str, Any]
Bools: TypeAlias = npt.NDArray[np.bool_]
Tags: TypeAlias = list[tuple[int, int]]
MakeTeam: TypeAlias = Callable[..., gpu_envs.MultiAgentEnv]

CONTINUOUS, GRID = "TagContinuous-v0", "TagGridWorld-v0"

CONTINUOUS_DEFAULTS: Params = MappingProxyType(
    {
        "num_taggers": 10,
        "num_runners": 100,
        "grid_length": 20.0,
        "episode_length": 500,
        "max_speed": 1.0,
        "skill_level_tagger": 1.0,
        "skill_level_runner": 1.0,
        "max_acceleration": 0.1,
        "min_acceleration": -0.1,
        "max_turn": 2.356,
        "min_turn": -2.356,
        "num_acceleration_levels": 20,
        "num_turn_levels": 20,
        "edge_hit_penalty": 0.0,
        "use_full_observation": False,
        "num_other_agents_observed": 10,
        "observe_speeds": True,
        "tagging_distance": 0.02,
        "tag_reward_for_tagger": 10.0,
        "step_penalty_for_tagger": 0.0,
        "tag_penalty_for_runner": -10.0,
        "step_reward_for_runner": 0.0,
        "end_of_game_reward_for_runner": 1.0,
        "runner_exits_game_after_tagged": True,
        "actions": "discrete",
    }
)

GRID_DEFAULTS: Params = MappingProxyType(
    {
        "num_taggers": 4,
        "grid_length": 100,
        "episode_length": 100,
        "wall_hit_penalty": 0.1,
        "tag_reward_for_tagger": 10.0,
        "tag_penalty_for_runner": 5.0,
        "step_cost_for_tagger": 0.01,
        "use_full_observation": True,
    }
)


REALS = ("x", "y", "speed", "heading", "acceleration")


@dataclasses.dataclass
class World:
    """The state of one replica of TagContinuous; arrays are ``[agents]``."""

    x: Any
    y: Any
    speed: Any
    heading: Any
    acceleration: Any
    in_game: Bools
    elapsed: int
    runners_left: int

    @property
    def real(self) -> Any:
        """The type of its numbers."""
        return self.x.dtype.type


@dataclasses.dataclass
class Grid:
    """The state of one replica of TagGridWorld; arrays are ``[agents]``."""

    x: Any
    y: Any
    in_game: Bools
    elapsed: int
    runners_left: int


W = TypeVar("W", World, Grid)


class Outcome(NamedTuple, Generic[W]):
    """Results of a step of one replica."""

    world: W
    rewards: npt.NDArray[np.float64]
    """``[agents]``"""
    terminated: Bools
    """``[agents]``"""
    truncated: Bools
    """``[agents]``"""
    over: bool
    observations: npt.NDArray[np.float32]
    """``[agents, features]``"""
    tags: Tags


class Moved(NamedTuple):
    """One replica after the moves of a step, before tags."""

    world: World
    hits: Bools
    """``[agents]``: whether a wall stopped the agent."""
    clearances: Any
    """``[agents]``: distance of speed and position from a limit at which the result changes discontinuously."""


def change(params: Params, real: Any, quantity: str, action: Any) -> Any:
    """Returns the change of acceleration, or the turn, of an action."""
    if params["actions"] == "continuous":
        return real(action)
    low, high = real(params[f"min_{quantity}"]), real(params[f"max_{quantity}"])
    levels, index = params[f"num_{quantity}_levels"], int(action)
    if index == 0:
        return real(0)
    return low if levels == 1 else low + real(index - 1) * ((high - low) / real(levels - 1))


def move(params: Params, world: World, actions: Any) -> Moved:
    """Accelerates, turns and moves all active agents."""
    real, length = world.real, world.real(params["grid_length"])
    turn_around = real(2 * math.pi)
    after = dataclasses.replace(world, **{name: getattr(world, name).copy() for name in REALS})
    hits = np.zeros(len(world.x), bool)
    clearances = np.full(len(world.x), np.inf)
    for i, (u_acceleration, u_turn) in enumerate(actions):
        if not world.in_game[i]:
            after.speed[i] = after.heading[i] = after.acceleration[i] = 0
            continue
        role = "tagger" if i < params["num_taggers"] else "runner"
        fastest = real(params["max_speed"]) * real(params[f"skill_level_{role}"])
        acceleration = world.acceleration[i] + change(params, real, "acceleration", u_acceleration)
        heading = world.heading[i] + change(params, real, "turn", u_turn)
        heading = heading - turn_around * np.floor(heading / turn_around)
        if not 0 <= heading < turn_around:
            heading = real(0)
        unlimited = world.speed[i] + acceleration
        speed = min(max(unlimited, real(0)), fastest)
        if acceleration != 0:  # otherwise nothing hangs on the limits, and nothing is rounded
            clearances[i] = min(abs(unlimited), abs(unlimited - fastest))
        if speed <= 0 or speed >= fastest:
            acceleration = real(0)
        for position, step in ((after.x, speed * np.cos(heading)), (after.y, speed * np.sin(heading))):
            reached = position[i] + step
            hits[i] |= reached < 0 or reached > length
            if step != 0:
                clearances[i] = min(clearances[i], abs(reached), abs(reached - length))
            position[i] = min(max(reached, real(0)), length)
        after.speed[i], after.heading[i], after.acceleration[i] = speed, heading, acceleration
    return Moved(after, hits, clearances)


def squared_distances(x: Any, y: Any, i: int) -> Any:
    """Returns the squared distances of agent ``i`` from all agents, in the dtype of the state."""
    dx, dy = x - x[i], y - y[i]
    return dx * dx + dy * dy


def resolve_tags(params: Params, x: Any, y: Any, in_game: Bools) -> Tags:
    """Returns the tags: each runner within reach is tagged by its nearest tagger, with ties to the lowest index."""
    taggers, real = params["num_taggers"], x.dtype.type
    reach = real(params["tagging_distance"]) * real(params["grid_length"])
    tags = []
    for runner in range(taggers, len(x)):
        squared = squared_distances(x, y, runner)[:taggers]
        nearest = int(np.argmin(squared))  # the first in a tie
        if in_game[runner] and squared[nearest] < reach * reach:
            tags.append((nearest, runner))
    return tags


def tag_clearance(params: Params, x: Any, y: Any, in_game: Bools) -> float:
    """Returns the smallest change of a distance that would change the tags."""
    taggers, clearance = params["num_taggers"], math.inf
    reach = params["tagging_distance"] * params["grid_length"]
    for runner in range(taggers, len(x)):
        if in_game[runner]:
            distances = np.sqrt(squared_distances(x, y, runner)[:taggers])
            nearest = int(np.argmin(distances))
            clearance = min(clearance, abs(distances[nearest] - reach))
            # Taggers at the same position, such as a corner, have equal distances whatever the rounding.
            apart = (x[:taggers] != x[nearest]) | (y[:taggers] != y[nearest])
            if distances[nearest] < reach and apart.any():
                clearance = min(clearance, distances[apart].min() - distances[nearest])
    return clearance


def observed_agents(params: Params, world: World, i: int) -> list[int]:
    """Returns the active agents that agent ``i`` observes, nearest first, with ties to the lowest index."""
    others = [j for j in range(len(world.x)) if j != i and world.in_game[j]]
    squared = squared_distances(world.x, world.y, i)[others]
    order = np.argsort(squared, kind="stable")[: params["num_other_agents_observed"]]
    return [others[k] for k in order]


def observe(params: Params, world: World, seeing: Bools) -> npt.NDArray[np.float32]:
    """Returns all agents' observations, ``[agents, features]``; zeros where ``seeing`` is false."""
    count = len(world.x)
    full = params["use_full_observation"]
    width = count - 1 if full else params["num_other_agents_observed"]
    diagonal = math.sqrt(2) * params["grid_length"]
    fastest = params["max_speed"] + 1e-10
    rows = np.zeros((count, 7, width), np.float32)
    times = np.zeros((count, 1), np.float32)
    for i in np.flatnonzero(seeing).tolist():
        others = [j for j in range(count) if j != i] if full else observed_agents(params, world, i)
        seen = slice(len(others))
        rows[i, 0, seen] = (world.x[others] - world.x[i]) / diagonal
        rows[i, 1, seen] = (world.y[others] - world.y[i]) / diagonal
        rows[i, 2, seen] = (world.speed[others] - world.speed[i]) / fastest
        rows[i, 3, seen] = (world.acceleration[others] - world.acceleration[i]) / fastest
        rows[i, 4, seen] = (world.heading[others] - world.heading[i]) / (2 * math.pi)
        rows[i, 5, seen] = [j < params["num_taggers"] for j in others]
        rows[i, 6, seen] = world.in_game[others]
        times[i] = world.elapsed / params["episode_length"]
    if not params["observe_speeds"]:
        rows = np.delete(rows, (2, 3), axis=1)
    return np.concatenate([rows.reshape(count, -1), times], axis=1)


def settle(params: Params, moved: World, hits: Bools) -> Outcome[World]:
    """Computes tags, rewards, ends and observations after all agents have moved."""
    present, taggers = moved.in_game, params["num_taggers"]
    exits = params["runner_exits_game_after_tagged"]
    tags = resolve_tags(params, moved.x, moved.y, present)
    after = dataclasses.replace(moved, in_game=present.copy(), elapsed=moved.elapsed + 1)
    rewards = np.zeros(len(present))
    for i in np.flatnonzero(present):
        rewards[i] = params["step_penalty_for_tagger"] if i < taggers else params["step_reward_for_runner"]
        rewards[i] += params["edge_hit_penalty"] if hits[i] else 0
    for tagger, runner in tags:
        rewards[tagger] += params["tag_reward_for_tagger"]
        rewards[runner] += params["tag_penalty_for_runner"]
        if exits:
            after.in_game[runner] = False
            after.runners_left -= 1
    timed_out, all_out = after.elapsed >= params["episode_length"], after.runners_left == 0
    if timed_out:
        rewards[taggers:][after.in_game[taggers:]] += params["end_of_game_reward_for_runner"]
    terminated = ~after.in_game | all_out
    truncated = after.in_game & timed_out
    return Outcome(
        after, rewards, terminated, truncated, timed_out or all_out, observe(params, after, seeing=present), tags
    )


def step(params: Params, world: World, actions: Any) -> Outcome[World]:
    """One step of TagContinuous."""
    moved = move(params, world, actions)
    return settle(params, moved.world, moved.hits)


MOVES = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
"""Stay, right, left, up, down."""


def observe_grid(params: Params, world: Grid) -> npt.NDArray[np.float32]:
    """Returns all agents' observations in the grid world, ``[agents, features]``."""
    count = len(world.x)
    runner = count - 1
    length, time = params["grid_length"], world.elapsed / params["episode_length"]
    is_runner = np.arange(count) == runner
    rows = []
    for i in range(count):
        if params["use_full_observation"]:
            self_mark = np.arange(count) == i
            rows.append([*world.x / length, *world.y / length, *is_runner, *self_mark, time])
            continue
        squared = (world.x[:runner] - world.x[runner]) ** 2 + (world.y[:runner] - world.y[runner]) ** 2
        other = int(np.argmin(squared)) if i == runner else runner  # the first in a tie
        places = world.x[i], world.y[i], world.x[other], world.y[other]
        rows.append([*(place / length for place in places), is_runner[i], time])
    return np.array(rows, np.float32)


def step_grid(params: Params, world: Grid, actions: Any) -> Outcome[Grid]:
    """One step of TagGridWorld."""
    count, length = len(world.x), params["grid_length"]
    runner = count - 1
    after = dataclasses.replace(
        world, x=world.x.copy(), y=world.y.copy(), in_game=world.in_game.copy(), elapsed=world.elapsed + 1
    )
    rewards = np.zeros(count)
    for i, action in enumerate(actions):
        dx, dy = MOVES[int(action)]
        x, y = world.x[i] + dx, world.y[i] + dy
        after.x[i], after.y[i] = min(max(x, 0), length), min(max(y, 0), length)
        rewards[i] -= params["wall_hit_penalty"] if (after.x[i], after.y[i]) != (x, y) else 0
    tags = [(i, runner) for i in range(runner) if after.x[i] == after.x[runner] and after.y[i] == after.y[runner]]
    if tags:
        rewards[:runner] += params["tag_reward_for_tagger"]
        rewards[runner] -= params["tag_penalty_for_runner"]
        after.in_game[runner] = False
        after.runners_left = 0
    else:
        rewards[:runner] -= params["step_cost_for_tagger"]
        rewards[runner] += params["step_cost_for_tagger"]
    timed_out = after.elapsed >= params["episode_length"]
    terminated = np.full(count, bool(tags))
    truncated = after.in_game & timed_out
    over = timed_out or bool(tags)
    return Outcome(after, rewards, terminated, truncated, over, observe_grid(params, after), tags)


def stacked(worlds: Sequence[World] | Sequence[Grid]) -> dict[str, np.ndarray]:
    """Replicas' states as the fields of a batch: ``[replicas, agents]`` or ``[replicas]``."""
    names = [field.name for field in dataclasses.fields(worlds[0])]
    return {name: np.stack([np.asarray(getattr(world, name)) for world in worlds]) for name in names}


def unstacked(kind: type[W], fields: Mapping[str, Any]) -> list[W]:
    """A batch's fields, of any library, as the states of its replicas."""
    names = [field.name for field in dataclasses.fields(kind)]
    arrays = {name: numpy_of(fields[name]) for name in names}
    worlds = []
    for i in range(len(arrays[names[0]])):
        values: dict[str, Any] = {n: int(array[i]) if array.ndim == 1 else array[i] for n, array in arrays.items()}
        worlds.append(kind(**values))
    return worlds


def by_role(params: Params, array: Any) -> dict[str, Any]:
    """Splits an array ``[replicas, agents, ...]`` by role."""
    taggers = params["num_taggers"]
    return {"tagger": array[:, :taggers], "runner": array[:, taggers:]}


class Stepped(NamedTuple):
    """Results of gpu_envs' step, ``[replicas, agents, ...]``."""

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    alive: np.ndarray


def take_step(env: gpu_envs.MultiAgentEnv, params: Params, actions: np.ndarray) -> Stepped:
    """Takes a step in gpu_envs, with actions and results for all agents in one array."""
    observations, rewards, terminations, truncations, infos = env.step(by_role(params, actions))
    parts = observations, rewards, terminations, truncations, infos["alive"]
    return Stepped(*(join_agents(env, part) for part in parts))


def play(
    make: MakeTeam, kind: type[W], params: Params, worlds: Sequence[W], actions: np.ndarray, **kwargs: Any
) -> list[Outcome[W]]:
    """Takes a step in gpu_envs from each of many states; ``tags`` stay empty."""
    env_id = CONTINUOUS if kind is World else GRID
    env = make(env_id, len(worlds), autoreset_mode="Disabled", **params, **kwargs)
    env.reset(seed=0)
    for name, values in stacked(worlds).items():
        env.state[name] = values
    result = take_step(env, params, actions)
    after = unstacked(kind, env.state)
    assert np.array_equal(result.alive, [world.in_game for world in after])
    over = (result.terminated | result.truncated).all(axis=1)
    return [
        Outcome(
            world,
            result.rewards[i].astype(np.float64),
            result.terminated[i],
            result.truncated[i],
            bool(over[i]),
            result.observations[i],
            [],
        )
        for i, world in enumerate(after)
    ]


# --- worlds of continuous tag ---

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
"""Parameters with distinct values, so that mixing up two of them changes results."""

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
    "one-without-speeds": {**UNEVEN, "num_other_agents_observed": 1, "observe_speeds": False},
}


def num_agents(params: Params) -> int:
    """Returns the number of agents."""
    return int(params["num_taggers"] + params["num_runners"])


def draw_worlds(params: Params, precision: str, count: int, seed: int) -> list[World]:
    """Draws varied states: crowds, walls, corners, limits of speed, inactive runners, one runner, the last step."""
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
    """Returns random actions of all agents, ``[*shape, agents, 2]``."""
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
"""Positions of runners out of reach of taggers in three corners."""


def scene(
    taggers: Sequence[tuple[float, float]] = CORNERS, runners: Sequence[tuple[float, float]] = AWAY, **fields: Any
) -> World:
    """Returns a world with agents at rest at these positions; ``fields`` overrides arrays, or elements by index."""
    x, y = np.array([*taggers, *runners], np.float64).T.copy()
    count = len(x)
    speed, heading, acceleration = np.zeros((3, count))
    world = World(x, y, speed, heading, acceleration, np.ones(count, bool), fields.pop("elapsed", 3), 0)
    for name, values in fields.items():
        for i, value in values.items():
            getattr(world, name)[i] = value
    world.runners_left = int(world.in_game[len(taggers) :].sum())
    return world
