"""TagContinuous against the oracle of its rules: steps, scenes worked by hand, whole episodes, starts, parameters."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import pytest
from harness import DEVICES, assert_all_same, assert_same_bits, numpy_of
from tag_oracles import (
    CONTINUOUS,
    CONTINUOUS_DEFAULTS,
    REALS,
    MakeTeam,
    Moved,
    Outcome,
    Params,
    World,
    by_role,
    joined,
    move,
    observe,
    play,
    resolve_tags,
    settle,
    stacked,
    step,
    tag_clearance,
    take_step,
    unstacked,
)

import gpu_envs
from gpu_envs import ActionError

TURN = 2 * math.pi
Player: TypeAlias = Callable[..., list[Outcome[World]]]
"""Takes parameters, worlds and actions; the oracle, or this package."""

# --- One step from many states ---------------------------------------------------------------------------------------

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

PRECISIONS = {"large": ["float32"], "two": ["float64"]}
"""In which to compute these variants, so that fewer programs are compiled; the others in both."""
each_variant = pytest.mark.parametrize(
    ("name", "precision"),
    [(name, precision) for name in VARIANTS for precision in PRECISIONS.get(name, ["float32", "float64"])],
)


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


def as_float64(world: World) -> World:
    """The same state, so that the oracle's step from it is the formula's."""
    return dataclasses.replace(world, **{name: getattr(world, name).astype(np.float64) for name in REALS})


def apart(given: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """How far angles are apart, the shorter way round."""
    difference = np.abs(given.astype(np.float64) - expected) % TURN
    return np.asarray(np.minimum(difference, TURN - difference))


def assert_worlds_near(given: World, expected: World, bound: float) -> None:
    """Fails unless the numbers of two states differ by less than ``bound``, and all else not at all."""
    for name in REALS:
        one, other = getattr(given, name), getattr(expected, name)
        error = apart(one, other) if name == "heading" else np.abs(one.astype(np.float64) - other)
        assert error.max() <= bound, f"{name} of agent {error.argmax()} is off by {error.max():.3g}"
    for name in ("in_game", "elapsed", "runners_left"):
        assert np.array_equal(getattr(given, name), getattr(expected, name)), name


def assert_outcomes_near(given: Outcome[World], expected: Outcome[World], bound: float) -> None:
    """Fails unless states, rewards and flags agree."""
    assert_worlds_near(given.world, expected.world, bound)
    np.testing.assert_allclose(given.rewards, expected.rewards, rtol=0, atol=bound)
    assert np.array_equal(given.terminated, expected.terminated)
    assert np.array_equal(given.truncated, expected.truncated)
    assert given.over == expected.over


@each_variant
def test_one_step_is_the_rules(make: MakeTeam, device: str, name: str, precision: str) -> None:
    """From states far and wide a step is the formula's, and what agents see is what the new state shows."""
    params = VARIANTS[name]
    count = 4_000 // num_agents(params)
    worlds = draw_worlds(params, precision, count, seed=1)
    actions = draw_actions(params, count, seed=2)
    given = play(make, World, params, worlds, actions, device=device, precision=precision)
    # In float32 a heading is right to 1e-6, a few times half the unit in the last place at 8; a place within 10 then to
    # 1.8 times that, the greatest speed, and its own rounding.
    bound, hair = (4e-6, 2e-5) if precision == "float32" else (1e-14 * params["grid_length"], 1e-11)
    totals = np.zeros(4, int)
    for before, action, ours in zip(worlds, actions, given, strict=True):
        moved = move(params, as_float64(before), action)
        expected = settle(params, moved.world, moved.hits)
        seen = observe(params, ours.world, seeing=before.in_game)  # in order of distance without a doubt
        np.testing.assert_allclose(ours.observations, seen, rtol=0, atol=5e-7)
        clear = min(moved.clearances.min(), tag_clearance(params, moved.world.x, moved.world.y, moved.world.in_game))
        if clear > hair:
            assert_outcomes_near(ours, expected, bound)
            totals += 1, len(expected.tags), moved.hits.sum(), expected.over
    assert totals[0] >= 0.98 * count
    assert totals.min() > 0.02 * count  # so that the comparison above means something


def test_replicas_play_by_their_own_parameters(make: MakeTeam, device: str) -> None:
    """Real parameters may differ between replicas, and each replica follows its own."""
    count, precision, rng = 100, "float32", np.random.default_rng(5)
    base = VARIANTS["full"]
    # Given in float32, so that float32 has just these parameters, and a wall is where the oracle has it.
    scales = {name: rng.uniform(0.8, 1.25, count) for name in base if isinstance(base[name], float)}
    own = {name: (base[name] * scale).astype(np.float32).astype(np.float64) for name, scale in scales.items()}
    worlds = []
    each = [{**base, **{name: float(values[i]) for name, values in own.items()}} for i in range(count)]
    for i, params in enumerate(each):
        worlds += draw_worlds(params, precision, 1, seed=100 + i)
    actions = draw_actions(base, count, seed=6)
    given = play(make, World, {**base, **own}, worlds, actions, device=device, precision=precision)
    bound, hair, compared = 5e-6, 2e-5, 0  # as above, of squares and speeds a quarter larger
    for params, before, action, ours in zip(each, worlds, actions, given, strict=True):
        moved = move(params, as_float64(before), action)
        seen = observe(params, ours.world, seeing=before.in_game)
        np.testing.assert_allclose(ours.observations, seen, rtol=0, atol=5e-7)
        world = moved.world
        if min(moved.clearances.min(), tag_clearance(params, world.x, world.y, world.in_game)) > hair:
            assert_outcomes_near(ours, settle(params, world, moved.hits), bound)
            compared += 1
    assert compared >= 0.98 * count


# The numbers of nearest on both sides of where the kernel changes from sorting to a heap are among these.
@pytest.mark.parametrize(
    ("variant", "cells", "nearest"),
    [
        *(("nearest-stay", 5, k) for k in (1, 3, 11, 16)),
        ("large", 2, 10),
        *(("large", 6, k) for k in (10, 15, 16, 40)),
    ],
)
def test_nearest_are_in_order(make: MakeTeam, device: str, variant: str, cells: int, nearest: int) -> None:
    """On a lattice, where most distances tie, the nearest come in order, of equals the lowest number first."""
    params = {**VARIANTS[variant], "num_other_agents_observed": nearest}
    agents, rng = num_agents(params), np.random.default_rng(nearest)
    count = 600 // agents
    env = make(CONTINUOUS, count, device=device, autoreset_mode="Disabled", **params)
    assert env.single_observation_spaces["runner"].shape == (7 * nearest + 1,)
    env.reset(seed=0)
    in_game = rng.random((count, agents)) < 0.8
    in_game[:, : params["num_taggers"]] = True
    env.state["x"] = rng.integers(0, cells, (count, agents))
    env.state["y"] = rng.integers(0, cells, (count, agents))
    env.state["speed"] = rng.permuted(np.tile(np.linspace(0.1, 1, agents), (count, 1)), axis=1)  # tells agents apart
    env.state["in_game"] = in_game
    seen = joined(env.observe())
    for world, rows in zip(unstacked(World, env.state), seen, strict=True):
        expected, players = observe(params, world, world.in_game), world.in_game
        np.testing.assert_allclose(rows[players], expected[players], rtol=0, atol=5e-7)
        for speeds in rows[players, 2 * nearest : 3 * nearest]:
            shown = speeds[: players.sum() - 1]
            assert len(set(shown.tolist())) == len(shown)  # nobody twice
            assert 0 not in shown  # nor oneself


def test_who_sees_follows_the_state(make: MakeTeam, device: str) -> None:
    """Whoever is put out of the game by hand sees nothing, and whoever is put back sees again."""
    params = VARIANTS["full"]
    env = make(CONTINUOUS, 1, device=device, autoreset_mode="Disabled", **params)
    env.reset(seed=0)
    views = []
    for out in ([4, 5], [5]):
        in_game = ~np.isin(np.arange(12), out)[None]
        env.state["in_game"] = in_game
        env.state["runners_left"] = 9 - len(out)
        [world] = unstacked(World, env.state)
        np.testing.assert_allclose(joined(env.observe())[0], observe(params, world, in_game[0]), rtol=0, atol=5e-7)
        actions = draw_actions(params, 1, seed=1)
        views.append(take_step(env, params, actions).observations[0].any(axis=1).tolist())
    assert views == [[i not in out for i in range(12)] for out in ((4, 5), (5,))]


# --- Scenes worked out by hand, for the oracle and for this package --------------------------------------------------

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
SLOWER, FASTER, RIGHT, LEFT = 1, 3, 1, 3
"""Indices of the least and the greatest acceleration and turn."""
LAST = 19
"""The step of the episode that is followed by its last."""
STAY: Params = {**SCENE, "runner_exits_game_after_tagged": False}
CORNERS = ((0.0, 0.0), (8.0, 0.0), (0.0, 8.0))
AWAY = ((4.0, 2.0), (4.0, 4.0), (4.0, 6.0), (6.0, 4.0))
"""Places of runners, out of reach of taggers in three corners."""


@pytest.fixture(params=["oracle", *DEVICES])
def player(request: pytest.FixtureRequest, make: MakeTeam) -> Player:
    """The oracle, and this package on each device."""
    if request.param == "oracle":
        return lambda params, worlds, actions: [step(params, *pair) for pair in zip(worlds, actions, strict=True)]
    return functools.partial(play, make, World, device=request.param, precision="float64")


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


def no_ops(count: int = 1, **chosen: Any) -> np.ndarray:
    """Actions that change nothing, but for those ``chosen`` by role and number."""
    actions = np.zeros((count, num_agents(SCENE), 2), int)
    for name, action in chosen.items():
        role, number = name.split("_")
        actions[:, int(number) + (3 if role == "runner" else 0)] = action
    return actions


def rewards_of(tagger: Sequence[float] = (0, 0, 0), runner: Sequence[float] = (0, 0, 0, 0)) -> list[float]:
    """Rewards of all agents."""
    return [*tagger, *runner]


def flags_of(*numbers: int) -> list[bool]:
    """Flags of all agents, set for these."""
    return [i in numbers for i in range(num_agents(SCENE))]


EVERYBODY = tuple(range(7))


def test_a_distance_equal_to_the_margin_is_no_tag(player: Player) -> None:
    """A runner is tagged nearer than the margin, and not at it."""
    at, nearer = 5.0, float(np.nextafter(5.0, 4.0))
    worlds = [scene(((4.0, 4.0), *CORNERS[1:]), ((x, 4.0), *AWAY[1:])) for x in (at, nearer)]
    worlds[0].x[4] = worlds[1].x[4] = 6.0  # the second runner out of reach
    untouched, tagged = player(SCENE, worlds, no_ops(2))
    assert untouched.rewards.tolist() == rewards_of()
    assert untouched.world.in_game.all()
    assert untouched.world.runners_left == 4
    assert tagged.rewards.tolist() == rewards_of((10, 0, 0), (-10, 0, 0, 0))
    assert tagged.world.in_game.tolist() == [True] * 3 + [False, True, True, True]
    assert tagged.world.runners_left == 3
    assert tagged.terminated.tolist() == flags_of(3)
    assert not tagged.truncated.any()
    assert not tagged.over


def test_the_nearest_tagger_gets_the_reward(player: Player) -> None:
    """Of several taggers within reach the nearest, of equally near ones the lowest, whatever their order."""
    runners = ((4.0, 4.0), (6.0, 6.0), (6.0, 7.5), (7.5, 6.0))
    worlds = [
        scene(((4.5, 4.0), (4.0, 4.25), (4.0, 3.5)), runners),
        scene(((4.5, 4.0), (4.0, 4.5), (4.0, 3.5)), runners),
        scene(((0.0, 0.0), (4.5, 4.0), (3.5, 4.0)), runners),
        scene(((4.5, 4.0), (4.25, 4.0), (3.75, 4.0)), runners),
    ]
    rewards = [outcome.rewards[:3].tolist() for outcome in player(SCENE, worlds, no_ops(4))]
    assert rewards == [[0, 10, 0], [10, 0, 0], [0, 10, 0], [0, 10, 0]]


def test_one_tagger_tags_several(player: Player) -> None:
    """Every runner tagged in a step counts, and each is tagged by one tagger only."""
    runners = ((4.5, 4.0), (4.0, 4.5), (3.5, 4.0), (6.5, 6.5))
    [outcome] = player(SCENE, [scene(((4.0, 4.0), (6.0, 6.0), (0.0, 0.0)), runners)], no_ops())
    assert outcome.rewards.tolist() == rewards_of((30, 10, 0), (-10, -10, -10, -10))
    [outcome] = player(SCENE, [scene(((4.0, 4.0), (6.0, 0.0), (4.0, 4.0)), runners)], no_ops())
    assert outcome.rewards.tolist() == rewards_of((30, 0, 0), (-10, -10, -10, 0))
    assert outcome.world.runners_left == 1


def test_tags_come_after_moves(player: Player) -> None:
    """Runners are tagged where they arrive."""
    taggers = ((2.0, 2.0), *CORNERS[1:])
    fast = {"speed": {3: 1.0}, "heading": {3: 0.0}}
    worlds = [
        scene(taggers, ((2.5, 2.0), *AWAY[1:]), **fast),  # leaves
        scene(taggers, ((0.5, 2.0), *AWAY[1:]), **fast),  # arrives
        scene(taggers, ((0.0, 2.0), *AWAY[1:]), **fast),  # arrives at the margin
    ]
    assert [outcome.rewards[0] for outcome in player(SCENE, worlds, no_ops(3))] == [0, 10, 0]


def test_the_last_tag_terminates_everybody(player: Player) -> None:
    """When all runners are out, the taggers are terminated too, and stay in the game."""
    world = scene(((4.0, 4.0), *CORNERS[1:]), ((4.5, 4.0), *AWAY[1:]), in_game={4: False, 5: False, 6: False})
    [outcome] = player(SCENE, [world], no_ops())
    assert outcome.rewards.tolist() == rewards_of((10, 0, 0), (-10, 0, 0, 0))
    assert outcome.terminated.tolist() == flags_of(*EVERYBODY)
    assert outcome.truncated.tolist() == flags_of()
    assert outcome.over
    assert outcome.world.runners_left == 0
    assert outcome.world.in_game.tolist() == flags_of(0, 1, 2)
    assert outcome.observations[:4].any(axis=1).all()  # the runner's last view, too
    assert not outcome.observations[4:].any()


def test_time_truncates_who_is_alive(player: Player) -> None:
    """At T who is in the game is truncated, who is out or goes out is terminated, and survivors are rewarded."""
    taggers, runners = ((4.0, 4.0), *CORNERS[1:]), ((4.5, 4.0), (4.0, 2.0), (4.0, 6.0), (6.0, 4.0))
    for elapsed, truncated, end in ((LAST - 1, (), 0), (LAST, (0, 1, 2, 4, 5), 1)):
        world = scene(taggers, runners, in_game={6: False}, elapsed=elapsed)
        [outcome] = player(SCENE, [world], no_ops())
        assert outcome.rewards.tolist() == rewards_of((10, 0, 0), (-10, end, end, 0))
        assert outcome.terminated.tolist() == flags_of(3, 6)
        assert outcome.truncated.tolist() == flags_of(*truncated)
        assert outcome.over == bool(end)
        assert outcome.world.elapsed == elapsed + 1
        np.testing.assert_allclose(outcome.observations[:6, -1], (elapsed + 1) / 20, rtol=1e-6)


def test_the_last_tag_at_the_last_step(player: Player) -> None:
    """All runners out exactly at T: both flags for taggers, runners only terminated and without an end reward."""
    world = scene(((4.0, 4.0), *CORNERS[1:]), ((4.5, 4.0), *AWAY[1:]), in_game={4: False, 5: False, 6: False})
    world.elapsed = LAST
    [outcome] = player(SCENE, [world], no_ops())
    assert outcome.rewards.tolist() == rewards_of((10, 0, 0), (-10, 0, 0, 0))
    assert outcome.terminated.tolist() == flags_of(*EVERYBODY)
    assert outcome.truncated.tolist() == flags_of(0, 1, 2)
    assert outcome.over


def test_runners_may_stay_after_tags(player: Player) -> None:
    """With exits off a tag takes nobody out, so that the next step tags again, and at T everybody survives."""
    world = scene(((4.0, 4.0), *CORNERS[1:]), ((4.5, 4.0), (4.0, 4.5), (4.0, 6.0), (6.0, 4.0)))
    for elapsed, end in ((0, 0), (1, 0), (LAST, 1)):
        world.elapsed = elapsed
        [outcome] = player(STAY, [world], no_ops())
        assert outcome.rewards.tolist() == rewards_of((20, 0, 0), (-10 + end, -10 + end, end, end))
        assert not outcome.terminated.any()
        assert outcome.truncated.tolist() == flags_of(*(EVERYBODY if end else ()))
        assert outcome.over == bool(end)
        assert outcome.world.in_game.all()
        assert outcome.world.runners_left == 4
        world = outcome.world


def test_walls(player: Player) -> None:
    """Beyond a wall pays once, corner or not; on it costs nothing. Speed and heading stay."""
    params = {**SCENE, "edge_hit_penalty": -1.0, "tagging_distance": 0.0}
    eighth = math.pi / 4
    worlds = [
        scene(((7.5, 0.0), (0.0, 3.0), (8.0, 8.0)), ((7.5, 5.0), (7.25, 2.0), (2.0, 0.0), (7.75, 7.75))),
        scene(((0.0, 0.0), (0.5, 3.0), (0.25, 7.5)), ((2.0, 0.25), (4.0, 4.0), (6.0, 7.75), (8.0, 0.0))),
    ]
    headings = [(0, 0, 0, 0, 0, 0, eighth), (5 * eighth, math.pi, 3 * eighth, -2 * eighth + TURN, 0, eighth, 0)]
    speeds = [(0.5, 0.5, 0, 0.75, 0.75, 0.5, 1), (0.5, 0.75, 1, 0.5, 0.5, 1, 0.0)]
    for world, heading, speed in zip(worlds, headings, speeds, strict=True):
        world.heading[:], world.speed[:] = heading, speed
    # To the wall along another; off a wall; still in a corner. Over it; to it; along it; over a corner.
    hits = [[False, False, False, True, False, False, True], [True, True, True, True, False, True, False]]
    places = [[(8, 0), (0.5, 3), (8, 8), (8, 5), (8, 2), (2.5, 0), (8, 8)]]
    outcomes = player(params, worlds, no_ops(2))
    for outcome, hit, world in zip(outcomes, hits, worlds, strict=True):
        assert outcome.rewards.tolist() == [-1.0 if h else 0.0 for h in hit]
        np.testing.assert_allclose(outcome.world.speed, world.speed)
        np.testing.assert_allclose(outcome.world.heading, world.heading)
    np.testing.assert_allclose(np.stack([outcomes[0].world.x, outcomes[0].world.y], 1), places[0], atol=1e-12)
    corner = outcomes[1].world.x[0], outcomes[1].world.y[0]
    assert corner == (0, 0)


def test_acceleration_adds_up(player: Player) -> None:
    """An action changes the acceleration, which changes the speed; at a limit of speed the acceleration is lost."""
    params = {**SCENE, "skill_level_tagger": 0.75, "skill_level_runner": 0.5}
    world = scene(((2.0, 2.0), (2.0, 4.0), (2.0, 6.0)), ((5.0, 1.0), (5.0, 3.0), (5.0, 5.0), (5.0, 7.0)))
    world.speed[1], world.acceleration[1] = 0.5, -0.125
    world.speed[6], world.acceleration[6] = 0.25, 0.125
    actions = no_ops(tagger_0=(FASTER, 0), tagger_2=(SLOWER, 0), runner_0=(FASTER, 0), runner_1=(2, 2))
    speeds, accelerations, places = [], [], []
    for _ in range(3):
        [outcome] = player(params, [world], actions)
        world = outcome.world
        speeds.append(world.speed.tolist())
        accelerations.append(world.acceleration.tolist())
        places.append(world.x.tolist())
        actions = no_ops(tagger_0=(FASTER, 0), runner_0=(SLOWER, 0))
    assert speeds == [
        [0.25, 0.375, 0, 0.25, 0, 0, 0.375],
        [0.75, 0.25, 0, 0.25, 0, 0, 0.5],
        [0.75, 0.125, 0, 0, 0, 0, 0.5],
    ]
    assert accelerations == [
        [0.25, -0.125, 0, 0.25, 0, 0, 0.125],
        [0, -0.125, 0, 0, 0, 0, 0],
        [0, -0.125, 0, 0, 0, 0, 0],
    ]
    assert places == [
        [2.25, 2.375, 2, 5.25, 5, 5, 5.375],
        [3, 2.625, 2, 5.5, 5, 5, 5.875],
        [3.75, 2.75, 2, 5.5, 5, 5, 6.375],
    ]


def test_turns_wrap(player: Player) -> None:
    """Headings stay within one turn, also of who stands still."""
    world = scene(heading={0: 6.0, 1: 1.0, 2: 3.0, 3: 0.0, 4: 5.0})
    actions = no_ops(
        tagger_0=(0, LEFT), tagger_1=(0, RIGHT), tagger_2=(0, LEFT), runner_0=(0, RIGHT), runner_1=(0, LEFT)
    )
    [outcome] = player(SCENE, [world], actions)
    expected = [8 - TURN, TURN - 1, 5, TURN - 2, 7 - TURN, 0, 0]
    np.testing.assert_allclose(outcome.world.heading, expected, rtol=1e-14, atol=1e-14)


def test_who_is_out_stays_out(player: Player) -> None:
    """Who is out stands where it was, has nothing but its place, sees and earns nothing, and cannot be tagged."""
    params = {**SCENE, "step_reward_for_runner": 0.5, "edge_hit_penalty": -1.0, "step_penalty_for_tagger": -0.25}
    out = {3: False, 5: False}
    world = scene(((8.0, 4.0), *CORNERS[1:]), ((8.0, 4.0), *AWAY[1:]), in_game=out, elapsed=LAST)
    for values in (world.speed, world.heading, world.acceleration):
        values[:] = 0.125
    [outcome] = player(params, [world], no_ops(runner_0=(FASTER, LEFT)))
    for name in ("speed", "heading", "acceleration"):
        assert not getattr(outcome.world, name)[[3, 5]].any()
        assert getattr(outcome.world, name)[[4, 6]].all()
    assert (outcome.world.x[3], outcome.world.y[3]) == (8, 4)
    assert outcome.rewards[3:].tolist() == [0, 1.5, 0, 1.5]
    assert outcome.rewards[0] == -1.25  # it hits the wall, and tags nobody
    assert not outcome.observations[[3, 5]].any()
    assert outcome.terminated.tolist() == flags_of(3, 5)
    assert outcome.truncated.tolist() == flags_of(0, 1, 2, 4, 6)
    rows = outcome.observations[0, :-1].reshape(7, 6)
    np.testing.assert_allclose(rows[6], [1, 1, 0, 1, 0, 1])  # but others see its place
    assert rows[1, 2] != 0
    np.testing.assert_allclose(rows[2, [2, 4]], -0.25 / (1 + 1e-10), rtol=1e-6)


def test_observation_in_full(player: Player) -> None:
    """Every other agent by number, feature after feature: offsets, differences, kind, in the game or not; then time."""
    params = {**SCENE, "num_taggers": 1, "num_runners": 2, "max_speed": 2.0}
    world = scene(((1.0, 1.0),), ((4.0, 5.0), (1.0, 1.5)), elapsed=4)
    world.speed[2], world.heading[:] = 0.5, (6.0, 1.0, math.pi / 2)
    [outcome] = player(params, [world], np.array([[[0, 0], [FASTER, 0], [0, 0]]]))
    diagonal, cos, sin = 8 * math.sqrt(2), math.cos(1.0), math.sin(1.0)
    runner = 4 + 0.25 * cos, 5 + 0.25 * sin
    tagger_sees = [(runner[0] - 1) / diagonal, 0, (runner[1] - 1) / diagonal, 1 / diagonal]
    tagger_sees += [0.125, 0.25, 0.125, 0, -5 / TURN, (math.pi / 2 - 6) / TURN, 0, 0, 1, 1, 0.25]
    np.testing.assert_allclose(outcome.observations[0], tagger_sees, rtol=0, atol=2e-7)
    runner_sees = [(1 - runner[0]) / diagonal] * 2 + [(1 - runner[1]) / diagonal, (2 - runner[1]) / diagonal]
    runner_sees += [-0.125, 0.125, -0.125, -0.125, 5 / TURN, (math.pi / 2 - 1) / TURN, 1, 0, 1, 1, 0.25]
    np.testing.assert_allclose(outcome.observations[1], runner_sees, rtol=0, atol=2e-7)
    assert outcome.rewards.tolist() == [0, 0, 0]  # the margin is 1, and the runner came to it


def test_observation_of_the_nearest(player: Player) -> None:
    """The nearest in the game come first; those who were tagged in this step are none of them; zeros where none is."""
    params = {**SCENE, "use_full_observation": False, "num_other_agents_observed": 3}
    taggers, runners = ((1.0, 4.0), (7.0, 7.0), (7.0, 1.0)), ((1.5, 4.0), (4.0, 4.0), (5.0, 4.0), (3.0, 4.0))
    worlds = [scene(taggers, runners, elapsed=4), scene(taggers, runners, elapsed=4)]
    worlds[1].in_game[[5, 6]] = False
    worlds[1].runners_left = 2
    everybody, few = player(params, worlds, no_ops(2))
    diagonal = 8 * math.sqrt(2)
    rows = everybody.observations[:, :-1].reshape(7, 7, 3)
    np.testing.assert_allclose(rows[0, 0] * diagonal, [2, 3, 4], atol=1e-6)  # runners 3, 1 and 2: 0 was tagged
    np.testing.assert_allclose(rows[3, 0] * diagonal, [-0.5, 1.5, 2.5], atol=1e-6)  # whose last view this is
    np.testing.assert_allclose(rows[3, 5], [1, 0, 0])
    np.testing.assert_allclose(rows[4, 0] * diagonal, [1, -1, -3], atol=1e-6)  # a tie; then tagger 0
    np.testing.assert_allclose(rows[4, 5], [0, 0, 1])
    assert rows[:, 6].all()
    rows = few.observations[:, :-1].reshape(7, 7, 3)
    np.testing.assert_allclose(rows[0, 0] * diagonal, [3, 6, 6], atol=1e-6)
    np.testing.assert_allclose(rows[0, 1] * diagonal, [0, 3, -3], atol=1e-6)
    np.testing.assert_allclose(few.observations[[0, 1, 2, 3, 4], -1], 0.25)
    assert not few.observations[5:].any()


def test_nearest_pads_with_zeros(player: Player) -> None:
    """Who observes more agents than there are in the game sees zeros in place of the rest."""
    params = {**SCENE, "use_full_observation": False, "num_other_agents_observed": 9}
    world = scene(((1.0, 4.0), (7.0, 7.0), (7.0, 1.0)), in_game={5: False, 6: False})
    [outcome] = player(params, [world], no_ops())
    rows = outcome.observations[:, :-1].reshape(7, 7, 9)
    assert rows[:5, 6].tolist() == [[1, 1, 1, 1, 0, 0, 0, 0, 0]] * 5
    assert not rows[:, :, 4:].any()
    assert not outcome.observations[5:].any()


# --- Whole episodes under a random policy ----------------------------------------------------------------------------

PLAIN: Params = {**CONTINUOUS_DEFAULTS, "episode_length": 60, "grid_length": 5.0, "tagging_distance": 0.06}
EPISODES: dict[str, tuple[int, Params]] = {
    "exits": (8, {**PLAIN, "num_taggers": 3, "num_runners": 9, "num_other_agents_observed": 3}),
    "stay": (
        4,
        {
            **PLAIN,
            "num_taggers": 3,
            "num_runners": 9,
            "use_full_observation": True,
            "runner_exits_game_after_tagged": False,
        },
    ),
    "continuous": (6, {**PLAIN, "num_taggers": 2, "num_runners": 6, "actions": "continuous"}),
    "large": (2, {**PLAIN, "num_taggers": 5, "num_runners": 60, "grid_length": 20.0, "tagging_distance": 0.03}),
    "two": (
        12,
        {
            **PLAIN,
            "num_taggers": 1,
            "num_runners": 1,
            "num_other_agents_observed": 1,
            "grid_length": 2.0,
            "tagging_distance": 0.15,
        },
    ),
}


def settle_ours(params: Params, before: World, ours: World, moved: Moved) -> Outcome[World]:
    """What the rules make of the places that this package moved everybody to, in integers exactly."""
    start = dataclasses.replace(
        moved.world, x=ours.x, y=ours.y, speed=ours.speed, heading=ours.heading, acceleration=ours.acceleration
    )
    assert start.elapsed == before.elapsed
    return settle(params, start, moved.hits)


@pytest.mark.parametrize(("count", "params"), EPISODES.values(), ids=EPISODES)
def test_whole_episodes_in_integers(make: MakeTeam, device: str, count: int, params: Params) -> None:
    """Who is tagged by whom and when, who is left, the flags and the order of the nearest are the rules', exactly."""
    env = make(CONTINUOUS, count, device=device, autoreset_mode="NextStep", **params)
    env.reset(seed=3)
    restarting, tags, episodes = np.zeros(count, bool), 0, 0
    for t, actions in enumerate(draw_actions(params, 2 * params["episode_length"], count, seed=4)):
        befores = unstacked(World, env.state)
        result = take_step(env, params, actions)
        afters = unstacked(World, env.state)
        for i in range(count):
            before, after = befores[i], afters[i]
            if restarting[i]:
                assert after.elapsed == 0
                assert after.in_game.all()
                assert after.runners_left == params["num_runners"]
                assert not result.rewards[i].any()
                assert not (result.terminated | result.truncated)[i].any()
                continue
            moved = move(params, before, actions[i])
            for name in ("speed", "heading", "acceleration"):
                assert np.array_equal(getattr(after, name), getattr(moved.world, name)), (name, t)
            # Two sines differ by four units in their last place, 2.4e-7; the sums by one in theirs, 1.9e-6 from 16.
            assert np.abs(after.x - moved.world.x).max() <= 2.5e-6
            assert np.abs(after.y - moved.world.y).max() <= 2.5e-6
            expected = settle_ours(params, before, after, moved)
            assert np.array_equal(after.in_game, expected.world.in_game)
            assert (after.elapsed, after.runners_left) == (expected.world.elapsed, expected.world.runners_left)
            assert np.array_equal(result.rewards[i], expected.rewards)  # whole numbers: who tagged whom
            assert np.array_equal(result.terminated[i], expected.terminated)
            assert np.array_equal(result.truncated[i], expected.truncated)
            if t % 3 == 0 or expected.over:
                np.testing.assert_allclose(result.observations[i], expected.observations, rtol=0, atol=5e-7)
            tags += len(expected.tags)
            episodes += expected.over
        restarting = (result.terminated | result.truncated).all(axis=1)
    assert episodes >= count
    assert tags >= count


def test_final_observations(make: MakeTeam, device: str) -> None:
    """Where an episode ends within its step, its last views are those that other modes return, zero for who was out."""
    count, params = EPISODES["exits"]
    next_step, same_step = (
        make(CONTINUOUS, count, device=device, autoreset_mode=mode, **params) for mode in ("NextStep", "SameStep")
    )
    for env in (next_step, same_step):
        env.reset(seed=3)
    running = np.ones(count, bool)  # in their first episode, which is the same
    for actions in draw_actions(params, params["episode_length"], count, seed=4):
        out = ~numpy_of(next_step.state["in_game"])
        expected = take_step(next_step, params, actions)
        observations, rewards, terminations, truncations, infos = same_step.step(by_role(params, actions))
        for ours, theirs in zip((rewards, terminations, truncations), expected[1:4], strict=True):
            assert_same_bits(joined(ours)[running], theirs[running])
        over = (expected.terminated | expected.truncated).all(axis=1) & running
        if over.any():
            final = joined(infos["final_obs"])
            assert numpy_of(infos["_final_obs"])[running].tolist() == over[running].tolist()
            assert_same_bits(final[over], expected.observations[over])
            assert not final[out & over[:, None]].any()
            worlds = unstacked(World, same_step.state)
            for i in np.flatnonzero(over).tolist():
                assert worlds[i].elapsed == 0
                first = observe(params, worlds[i], worlds[i].in_game)
                np.testing.assert_allclose(joined(observations)[i], first, rtol=0, atol=5e-7)
        running &= ~over
    assert not running.any()


def test_a_long_episode_of_the_defaults(make: MakeTeam, device: str) -> None:
    """500 steps of 10 taggers and 100 runners: who is tagged by whom and when, who is left."""
    params = CONTINUOUS_DEFAULTS
    env = make(CONTINUOUS, 2, device=device, autoreset_mode="NextStep")
    env.reset(seed=5)
    present = np.ones((2, num_agents(params)), bool)
    for t, actions in enumerate(draw_actions(params, params["episode_length"], 2, seed=6)):
        result = take_step(env, params, actions)
        expected = np.zeros_like(result.rewards)
        xs, ys = numpy_of(env.state["x"]), numpy_of(env.state["y"])
        for i in range(2):
            for tagger, runner in resolve_tags(params, xs[i], ys[i], present[i]):
                expected[i, tagger] += 10
                expected[i, runner] -= 10
                present[i, runner] = False
        last = t + 1 == params["episode_length"]
        if last:
            expected[:, params["num_taggers"] :] += present[:, params["num_taggers"] :]
        assert np.array_equal(result.rewards, expected)
        assert np.array_equal(result.alive, present)
        assert np.array_equal(numpy_of(env.state["runners_left"]), present[:, params["num_taggers"] :].sum(axis=1))
        assert np.array_equal(result.terminated, ~present)
        assert np.array_equal(result.truncated, present & last)
    assert 20 < (~present).sum() < 200


# --- What holds in every step ----------------------------------------------------------------------------------------

CROWD: Params = {**PLAIN, "num_taggers": 4, "num_runners": 20, "num_other_agents_observed": 6}


@pytest.mark.parametrize("exits", [True, False])
def test_rewards_balance(make: MakeTeam, device: str, exits: bool) -> None:
    """Taggers earn together what their tags are worth, runners lose what theirs cost; all else is accounted for."""
    params = {**CROWD, "runner_exits_game_after_tagged": exits, "tag_reward_for_tagger": 4.0}
    params |= {"step_penalty_for_tagger": -0.25, "step_reward_for_runner": 0.125, "tag_penalty_for_runner": -16.0}
    count, seen = 50, 0
    env = make(CONTINUOUS, count, device=device, autoreset_mode="NextStep", **params)
    env.reset(seed=1)
    restarting = np.zeros(count, bool)
    for actions in draw_actions(params, 100, count, seed=2):
        runners_before = numpy_of(env.state["runners_left"])
        present = numpy_of(env.state["in_game"])[:, 4:]
        result = take_step(env, params, actions)
        over = (result.terminated | result.truncated).all(axis=1)
        timed_out = numpy_of(env.state["elapsed"]) == params["episode_length"]
        playing = ~restarting
        runners = result.rewards[:, 4:] - 0.125 * present - (timed_out[:, None] & result.alive[:, 4:])
        tagged = (runners < 0)[playing]
        assert np.isin(runners[playing], (0, -16)).all()
        tags = tagged.sum(axis=1)
        assert np.array_equal((result.rewards[playing, :4] + 0.25).sum(axis=1), 4 * tags)
        assert np.isin((result.rewards[playing, :4] + 0.25) / 4, np.arange(21)).all()
        if exits:
            gone = (runners_before - numpy_of(env.state["runners_left"]))[playing]
            assert np.array_equal(gone, tags)
            assert np.array_equal(present[playing] & ~result.alive[playing, 4:], tagged)
        else:
            assert (numpy_of(env.state["runners_left"]) == 20).all()
            assert result.alive.all()
        assert not result.rewards[restarting].any()
        restarting, seen = over, seen + int(tags.sum())
    assert seen > 20 * count


def test_wall_hits_are_accounted_for(make: MakeTeam, device: str) -> None:
    """Whoever pays for a wall stands at one, once a step; and whoever came to one paid, but for exact landings."""
    params = {**CROWD, "edge_hit_penalty": -1.0, "tagging_distance": 0.0}
    env = make(CONTINUOUS, 50, device=device, autoreset_mode="NextStep", **params)
    env.reset(seed=1)
    hits = exact = 0
    for actions in draw_actions(params, params["episode_length"] - 1, 50, seed=2):
        before = numpy_of(env.state["x"]), numpy_of(env.state["y"])
        result = take_step(env, params, actions)
        after = numpy_of(env.state["x"]), numpy_of(env.state["y"])
        at_wall, was_at_wall = (np.isin(places, (0, 5)).any(axis=0) for places in (after, before))
        assert np.isin(result.rewards, (0, -1)).all()
        paid = result.rewards < 0
        assert (at_wall | ~paid).all()
        hits += int(paid.sum())
        exact += int((at_wall & ~was_at_wall & ~paid).sum())
    assert hits > 10_000
    assert exact < 5


def test_what_always_holds(make: MakeTeam, device: str) -> None:
    """Nobody leaves the square, breaks a limit or comes back; who is out is still, and sees and earns nothing."""
    params = {**CROWD, "step_reward_for_runner": 0.125, "edge_hit_penalty": -0.5, "max_speed": 0.75}
    params |= {"skill_level_tagger": 1.5}
    count, nearest, compared = 50, params["num_other_agents_observed"], 0
    env = make(CONTINUOUS, count, device=device, autoreset_mode="NextStep", **params)
    env.reset(seed=1)
    fastest = np.float32(0.75) * np.where(np.arange(24) < 4, np.float32(1.5), np.float32(1))
    for actions in draw_actions(params, 100, count, seed=2):
        before = {name: numpy_of(values) for name, values in env.state.items()}
        result = take_step(env, params, actions)
        after = {name: numpy_of(values) for name, values in env.state.items()}
        restarted = after["elapsed"] == 0
        assert all(((values >= 0) & (values <= 5)).all() for values in (after["x"], after["y"]))
        assert ((after["speed"] >= 0) & (after["speed"] <= fastest)).all()
        assert ((after["heading"] >= 0) & (after["heading"] < np.float32(TURN))).all()
        assert after["in_game"][:, :4].all()
        out = ~before["in_game"] & ~restarted[:, None]
        assert not after["in_game"][out].any()
        assert result.terminated[out].all()
        assert not result.truncated[out].any()
        for name in ("speed", "heading", "acceleration"):
            assert not after[name][out].any()
        for name in ("x", "y"):
            assert np.array_equal(after[name][out], before[name][out])
        assert not result.rewards[out].any()
        assert not result.observations[out].any()
        shown = result.observations[..., :-1].reshape(count, 24, 7, nearest)
        distances = np.square(shown[:, :, :2].astype(np.float64)).sum(axis=2)
        listed = shown[:, :, 6] != 0
        assert np.isin(shown[:, :, 6], (0, 1)).all()
        assert not shown.transpose(0, 1, 3, 2)[~listed].any()
        assert (np.diff(listed.astype(int), axis=2) <= 0).all()  # no gaps
        assert (np.diff(distances, axis=2)[listed[..., 1:]] > -1e-6).all()
        others = after["in_game"].sum(axis=1)[:, None] - after["in_game"]
        seeing = ~out
        assert np.array_equal(listed.sum(axis=2)[seeing], np.minimum(others, nearest)[seeing])
        # Among fewer than K others, all taggers are listed, but never oneself.
        few = seeing & (others <= nearest)
        taggers = np.where(np.arange(24) < 4, 3, 4)
        assert np.array_equal(shown[:, :, 5].sum(axis=2)[few], np.broadcast_to(taggers, few.shape)[few])
        compared += int(few.sum())
    assert compared > 100


def test_sums_are_the_same_every_time(make: MakeTeam, device: str) -> None:
    """Two runs with many tags in a step agree in every bit."""
    params = {**CROWD, "tagging_distance": 0.2}
    actions = draw_actions(params, 10, 200, seed=9)
    runs = []
    for _ in range(2):
        env = make(CONTINUOUS, 200, device=device, autoreset_mode="NextStep", **params)
        env.reset(seed=8)
        runs.append([tuple(take_step(env, params, action)) for action in actions])
    assert_all_same(runs)


# --- Actions ---------------------------------------------------------------------------------------------------------


def columns(outcomes: Sequence[Outcome[World]]) -> dict[str, Any]:
    """What a step made of many replicas, field by field."""
    names = ("rewards", "terminated", "truncated", "observations")
    fields = {name: np.stack([getattr(outcome, name) for outcome in outcomes]) for name in names}
    return {**stacked([outcome.world for outcome in outcomes]), **fields}


def test_actions_of_who_is_out_are_ignored(make: MakeTeam, device: str) -> None:
    """Even what is no action; of who is in the game it is refused, and nothing changes."""
    for params, bad in ((VARIANTS["full"], -5), (VARIANTS["padded-continuous"], math.nan)):
        worlds = draw_worlds(params, "float32", 40, seed=3)
        actions = draw_actions(params, 40, seed=4)
        ignored = actions.copy()
        ignored[~np.stack([world.in_game for world in worlds])] = bad
        runs = [play(make, World, params, worlds, given, device=device) for given in (actions, ignored)]
        assert_all_same(columns(run) for run in runs)
        env = make(CONTINUOUS, 2, device=device, autoreset_mode="Disabled", **params)
        env.reset(seed=0)
        for agent in (0, 11):
            wrong = draw_actions(params, 2, seed=5)
            wrong[1, agent, 1] = bad
            before = env.get_state()
            with pytest.raises(ActionError):
                env.step(by_role(params, wrong))
            assert_same_bits(before, env.get_state())


def test_continuous_actions_are_the_levels(make: MakeTeam, device: str) -> None:
    """The same changes of acceleration and the same turns, given by index or as numbers, make the same step."""
    discrete = {**SCENE, "num_acceleration_levels": 3, "num_turn_levels": 3}
    worlds = draw_worlds(discrete, "float32", 100, seed=3)
    indices = draw_actions(discrete, 100, seed=4)
    tables = np.array([[0, -0.25, 0, 0.25], [0, -2, 0, 2]], np.float32)
    numbers = np.stack([tables[k][indices[..., k]] for k in range(2)], axis=-1)
    one = play(make, World, discrete, worlds, indices, device=device)
    other = play(make, World, {**discrete, "actions": "continuous"}, worlds, numbers, device=device)
    assert_same_bits(columns(one), columns(other))


def test_spaces(make: MakeTeam, device: str) -> None:
    """Roles, agents and spaces follow from the parameters."""
    env = make(CONTINUOUS, 3, device=device, autoreset_mode="Disabled", **VARIANTS["full"])
    actions: Any = env.single_action_spaces
    assert env.roles == ("tagger", "runner")
    assert env.counts == {"tagger": 3, "runner": 9}
    assert env.possible_agents == [*(f"tagger_{i}" for i in range(3)), *(f"runner_{i}" for i in range(9))]
    for role, count in env.counts.items():
        assert actions[role].nvec.tolist() == [8, 6]
        assert env.single_observation_spaces[role].shape == (7 * 11 + 1,)
        assert env.single_observation_spaces[role].dtype == np.float32
        assert env.action_spaces[role].shape == (3, count, 2)
        assert env.observation_spaces[role].shape == (3, count, 78)
    env = make(CONTINUOUS, 3, device=device, autoreset_mode="Disabled", **VARIANTS["padded-continuous"])
    actions = env.single_action_spaces
    for role in env.roles:
        np.testing.assert_allclose(actions[role].low, [-0.2, -1.0], rtol=1e-7)
        np.testing.assert_allclose(actions[role].high, [0.3, 2.0], rtol=1e-7)
        assert env.single_observation_spaces[role].shape == (7 * 16 + 1,)


# --- Starts ----------------------------------------------------------------------------------------------------------

START: Params = {**SCENE, "num_taggers": 1, "num_runners": 3}


def snapshot(env: gpu_envs.MultiAgentEnv) -> dict[str, np.ndarray]:
    """A copy of the state."""
    return {name: numpy_of(values) for name, values in env.state.items()}


def layout(env: gpu_envs.MultiAgentEnv) -> np.ndarray:
    """Who stands where, and looks where: ``[replicas, 3 * agents]``."""
    return np.concatenate([numpy_of(env.state[name]) for name in ("x", "y", "heading")], axis=1)


@pytest.mark.parametrize("start", ["random", "fixed"])
def test_every_start(make: MakeTeam, device: str, start: str) -> None:
    """Everybody is in the game, standing in the square, looking along an axis; what they see is the state."""
    env = make(CONTINUOUS, 200, device=device, start=start, **START)
    observations, infos = env.reset(seed=0)
    state = snapshot(env)
    assert all(((values >= 0) & (values < 8)).all() for values in (state["x"], state["y"]))
    axes = np.float32(math.pi / 2) * np.arange(4)
    assert (np.abs(state["heading"][..., None] - axes).min(axis=-1) < 5e-7).all()
    assert not state["speed"].any()
    assert not state["acceleration"].any()
    assert state["in_game"].all()
    assert (state["runners_left"] == 3).all()
    assert not state["elapsed"].any()
    assert joined(infos["alive"]).all()
    for world, rows in zip(unstacked(World, env.state), joined(observations), strict=True):
        np.testing.assert_allclose(rows, observe(START, world, world.in_game), rtol=0, atol=5e-7)
        assert not rows[:, -1].any()


def test_random_starts_are_even(make: MakeTeam, device: str) -> None:
    """Places and headings are uniform and independent."""
    env = make(CONTINUOUS, 5_000, device=device, **START)
    env.reset(seed=0)
    state = snapshot(env)
    shares = [np.histogram(state[name], 20, (0, 8))[0] / 20_000 for name in ("x", "y")]
    assert np.abs(np.array(shares) - 0.05).max() < 0.0085  # five and a half standard deviations
    quarters = np.rint(state["heading"] / (math.pi / 2)).astype(int)
    assert np.abs(np.bincount(quarters.ravel(), minlength=4) / 20_000 - 0.25).max() < 0.017
    columns = np.concatenate([state["x"], state["y"], quarters], axis=1)
    assert np.abs(np.corrcoef(columns.T) - np.eye(12)).max() < 0.08  # standard deviation 0.014


def test_random_starts_are_all_different(make: MakeTeam, device: str) -> None:
    """Replicas, episodes and seeds begin elsewhere, whether restarted by hand or not; the same seed, there."""
    env = make(CONTINUOUS, 50, device=device, autoreset_mode="SameStep", **{**START, "episode_length": 1})
    env.reset(seed=0)
    layouts = [layout(env)]
    for _ in range(3):
        env.step(by_role(START, np.zeros((50, 4, 2), int)))
        layouts.append(layout(env))
    env.reset()
    layouts.append(layout(env))
    env.reset(seed=1_000)
    layouts.append(layout(env))
    every = np.concatenate(layouts)
    assert len(np.unique(every, axis=0)) == len(every)
    assert (every.std(axis=0) > 0.5).all()
    env.reset(seed=0)
    assert_same_bits(layout(env), layouts[0])


def test_fixed_start(make: MakeTeam, device: str) -> None:
    """One layout for all replicas and all episodes, another for another seed."""
    env = make(
        CONTINUOUS, 50, device=device, autoreset_mode="SameStep", start="fixed", **{**START, "episode_length": 1}
    )
    env.reset(seed=7)
    first = layout(env)
    assert (first == first[0]).all()
    assert len(np.unique(first[0, :8])) == 8
    env.step(by_role(START, np.zeros((50, 4, 2), int)))
    assert_same_bits(layout(env), first)
    env.reset()
    assert_same_bits(layout(env), first)
    env.reset(options={"reset_mask": np.arange(50) % 2 == 0})
    assert_same_bits(layout(env), first)
    env.reset(seed=8)
    other = layout(env)
    assert (other == other[0]).all()
    assert (other[0, :8] != first[0, :8]).all()
    env.reset(seed=7)
    assert_same_bits(layout(env), first)


@pytest.mark.parametrize("start", ["random", "fixed"])
def test_explicit_layouts(make: MakeTeam, device: str, start: str) -> None:
    """A reset takes places and headings, for all replicas or for each, whole or in part, for that reset alone."""
    env = make(CONTINUOUS, 3, device=device, start=start, **START)
    env.reset(seed=0)
    drawn = layout(env)
    one = {"x": [1.0, 2.0, 3.0, 4.0], "y": [8.0, 7.0, 6.0, 0.0], "heading": [0.0, 1.0, 2.0, 6.0]}
    observations, _ = env.reset(seed=0, options=one)
    assert_same_bits(layout(env), np.tile(np.concatenate(list(one.values())).astype(np.float32), (3, 1)))
    for world, rows in zip(unstacked(World, env.state), joined(observations), strict=True):
        np.testing.assert_allclose(rows, observe(START, world, world.in_game), rtol=0, atol=5e-7)
    each = {name: np.stack([np.roll(values, k) for k in range(3)]) for name, values in one.items()}
    env.reset(seed=0, options=each)
    expected = np.concatenate(list(each.values()), axis=1).astype(np.float32)
    assert_same_bits(layout(env), expected)
    env.reset(seed=1, options={**one, "reset_mask": np.array([False, True, False])})
    expected[1] = np.concatenate(list(one.values()))
    assert_same_bits(layout(env), expected)
    env.reset(seed=0, options={"x": one["x"]})
    expected = drawn.copy()
    expected[:, :4] = one["x"]
    assert_same_bits(layout(env), expected)
    env.reset(seed=0)
    assert_same_bits(layout(env), drawn)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"x": [1.0, 2.0, 3.0]}, "x"),
        ({"x": np.ones((2, 4))}, "x"),
        ({"y": [1.0, 2.0, 3.0, 8.1]}, "y"),
        ({"y": [1.0, 2.0, 3.0, -0.1]}, "y"),
        ({"x": [1.0, 2.0, 3.0, math.nan]}, "x"),
        ({"heading": [1.0, 2.0, 3.0, math.inf]}, "heading"),
        ({"headings": [1.0, 2.0, 3.0, 4.0]}, "headings.*[Dd]id you mean 'heading'"),
    ],
)
def test_wrong_layouts(make: MakeTeam, device: str, options: dict[str, Any], named: str) -> None:
    """A layout that cannot be is refused by name, and changes nothing."""
    env = make(CONTINUOUS, 3, device=device, **START)
    env.reset(seed=0)
    before = env.get_state()
    with pytest.raises(ValueError, match=named):
        env.reset(options=options)
    assert_same_bits(before, env.get_state())


# --- Parameters ------------------------------------------------------------------------------------------------------

PUBLISHED: Params = {
    "num_taggers": 10,
    "num_runners": 100,
    "grid_length": 20,
    "episode_length": 500,
    "max_acceleration": 0.1,
    "min_acceleration": -0.1,
    "max_turn": 2.356,
    "min_turn": -2.356,
    "num_acceleration_levels": 20,
    "num_turn_levels": 20,
    "skill_level_runner": 1,
    "skill_level_tagger": 1,
    "use_full_observation": False,
    "runner_exits_game_after_tagged": True,
    "num_other_agents_observed": 10,
    "tag_reward_for_tagger": 10.0,
    "step_penalty_for_tagger": -0.00,
    "tag_penalty_for_runner": -10.0,
    "step_reward_for_runner": 0.00,
    "edge_hit_penalty": -0.00,
    "end_of_game_reward_for_runner": 1.0,
    "tagging_distance": 0.02,
}
"""WarpDrive's published run configuration, as it stands there."""


def test_a_published_configuration_ports_by_copying(make: MakeTeam, device: str) -> None:
    """WarpDrive's names and values are taken as they are, and are the defaults."""
    settings = gpu_envs.spec(CONTINUOUS).params
    assert {name: settings[name].default for name in CONTINUOUS_DEFAULTS} == dict(CONTINUOUS_DEFAULTS)
    assert settings["start"].default == "random"
    runs = []
    for given in (PUBLISHED, {}):
        env = make(CONTINUOUS, 2, device=device, **given)
        assert env.max_episode_steps == 500
        observations, _ = env.reset(seed=1)
        assert observations["tagger"].shape == (2, 10, 71)
        actions: Any = env.single_action_spaces
        assert actions["runner"].nvec.tolist() == [21, 21]
        env.reset(seed=1)
        runs.append([tuple(take_step(env, PUBLISHED, a)) for a in draw_actions(CONTINUOUS_DEFAULTS, 3, 2, seed=2)])
    assert_all_same(runs)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_taggers", 0),
        ("num_runners", 0),
        ("num_taggers", -1),
        ("num_runners", 2.5),
        ("num_taggers", True),
        ("num_taggers", np.array([2, 2])),
        ("num_runners", [3, 3]),
        ("num_other_agents_observed", 0),
        ("num_other_agents_observed", np.array([2, 2])),
        ("num_acceleration_levels", 0),
        ("num_turn_levels", 0),
        ("episode_length", 0),
        ("grid_length", 0.0),
        ("grid_length", -20.0),
        ("grid_length", math.inf),
        ("max_speed", 0.0),
        ("skill_level_tagger", -1.0),
        ("skill_level_runner", math.nan),
        ("tagging_distance", -0.01),
        ("edge_hit_penalty", 0.1),
        ("step_penalty_for_tagger", 0.1),
        ("tag_penalty_for_runner", 10.0),
        ("step_reward_for_runner", -0.1),
        ("end_of_game_reward_for_runner", -1.0),
        ("min_acceleration", 0.2),
        ("max_acceleration", -0.2),
        ("min_turn", 3.0),
        ("max_turn", -3.0),
        ("use_full_observation", 2),
        ("actions", "Discrete"),
        ("start", "centre"),
        ("tagging_distance", "near"),
    ],
)
def test_wrong_parameters(make: MakeTeam, name: str, value: Any) -> None:
    """A wrong value is a ValueError that names the parameter."""
    with pytest.raises(ValueError, match=name):
        make(CONTINUOUS, 2, device="cpu", **{name: value})


@pytest.mark.parametrize(("name", "meant"), [("num_tagger", "num_taggers"), ("grid_lenght", "grid_length")])
def test_unknown_parameters(make: MakeTeam, name: str, meant: str) -> None:
    """A name that is none is an error that says which was meant."""
    with pytest.raises(ValueError, match=f"'{name}'.*[Dd]id you mean '{meant}'"):
        make(CONTINUOUS, 2, device="cpu", **{name: 5})


def test_two_names_of_the_limit(make: MakeTeam, device: str) -> None:
    """``episode_length`` is ``max_episode_steps``; both may be given where they agree."""
    others = {name: value for name, value in START.items() if name != "episode_length"}
    for given in ({"episode_length": 3}, {"max_episode_steps": 3}, {"episode_length": 3, "max_episode_steps": 3}):
        env = make(CONTINUOUS, 1, device=device, **others, **given)
        assert env.max_episode_steps == 3
        env.reset(seed=0)
        ends = [take_step(env, START, np.zeros((1, 4, 2), int)) for _ in range(3)]
        assert [bool(end.truncated.any()) for end in ends] == [False, False, True]
        np.testing.assert_allclose([end.observations[0, 0, -1] for end in ends], [1 / 3, 2 / 3, 1], rtol=1e-6)
    with pytest.raises(ValueError, match="episode_length"):
        make(CONTINUOUS, 1, device=device, episode_length=3, max_episode_steps=4)


def test_no_limit(make: MakeTeam, device: str) -> None:
    """Without a limit nobody is truncated."""
    env = make(CONTINUOUS, 4, device=device, max_episode_steps=-1, tagging_distance=0.0, num_taggers=1, num_runners=1)
    assert env.max_episode_steps is None
    env.reset(seed=0)
    for _ in range(600):
        *_, terminations, truncations, _ = env.step(by_role({"num_taggers": 1}, np.zeros((4, 2, 2), int)))
    for flags in (terminations, truncations):
        assert not joined(flags).any()


def test_one_agent_a_role(make: MakeTeam, device: str) -> None:
    """The smallest game there is: a tagger, a runner, one level of each action."""
    params = {**SCENE, "num_taggers": 1, "num_runners": 1, "num_acceleration_levels": 1, "num_turn_levels": 1}
    worlds = [scene(((1.0, 1.0),), ((x, 1.0),), acceleration={0: 0.5}) for x in (1.5, 4.0)]
    tagged, free = play(make, World, params, worlds, np.array([[[1, 1], [0, 0]]] * 2), device=device)
    assert tagged.over
    assert tagged.rewards.tolist() == [10, -10]
    assert not free.over
    np.testing.assert_allclose(free.world.speed, [0.25, 0])  # 0.5 and the least change, -0.25
    np.testing.assert_allclose(free.world.heading, [TURN - 2, 0], rtol=1e-6)


@pytest.mark.parametrize(
    "params", [{}, {"use_full_observation": True}, {"actions": "continuous", "skill_level_tagger": 1.5}]
)
def test_observations_stay_within_their_space(make: MakeTeam, device: str, params: dict[str, Any]) -> None:
    """The space is bounded, and whole random episodes stay within it."""
    env = make("TagContinuous-v0", 20, device=device, autoreset_mode="SameStep", num_runners=12, **params)
    observations, _ = env.reset(seed=0)
    for space in env.single_observation_spaces.values():
        assert isinstance(space, gymnasium.spaces.Box)
        assert np.isfinite(space.low).all()
        assert np.isfinite(space.high).all()
    for space in env.action_spaces.values():
        space.seed(1)
    for _ in range(600):
        for role, space in env.observation_spaces.items():
            assert space.contains(observations[role]), role
        observations = env.step({role: space.sample() for role, space in env.action_spaces.items()})[0]
