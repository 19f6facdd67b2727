"""Tag in the plane: single steps against an oracle, and scenes worked out by hand."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
from harness import DEVICES
from tag_oracles import (
    CONTINUOUS,
    REALS,
    MakeTeam,
    Outcome,
    Params,
    World,
    joined,
    move,
    observe,
    play,
    settle,
    step,
    tag_clearance,
    take_step,
    unstacked,
)
from tag_worlds import AWAY, CORNERS, SCENE, TURN, VARIANTS, draw_actions, draw_worlds, num_agents, scene

Player: TypeAlias = Callable[..., list[Outcome[World]]]
"""Takes parameters, worlds and actions; the oracle, or this package."""

PRECISIONS = {"large": ["float32"], "two": ["float64"]}
"""In which to compute these variants, so that fewer programs are compiled; the others in both."""

each_variant = pytest.mark.parametrize(
    ("name", "precision"),
    [(name, precision) for name in VARIANTS for precision in PRECISIONS.get(name, ["float32", "float64"])],
)


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


@pytest.mark.fast_cases(4)
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


SLOWER, FASTER, RIGHT, LEFT = 1, 3, 1, 3
"""Indices of the least and the greatest acceleration and turn."""

LAST = 19
"""The step of the episode that is followed by its last."""

STAY: Params = {**SCENE, "runner_exits_game_after_tagged": False}


@pytest.fixture(params=["oracle", *DEVICES])
def player(request: pytest.FixtureRequest, make: MakeTeam) -> Player:
    """The oracle, and this package on each device."""
    if request.param == "oracle":
        return lambda params, worlds, actions: [step(params, *pair) for pair in zip(worlds, actions, strict=True)]
    return functools.partial(play, make, World, device=request.param, precision="float64")


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
