"""Tag in the plane: steps and episodes against an oracle, scenes worked out by hand, starts and parameters."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
from harness import DEVICES, assert_all_same, assert_same_bits, numpy_of
from registered import join_agents
from tag_oracles import (
    AWAY,
    CONTINUOUS,
    CONTINUOUS_DEFAULTS,
    CORNERS,
    GRID,
    GRID_DEFAULTS,
    REALS,
    SCENE,
    TURN,
    VARIANTS,
    MakeTeam,
    Moved,
    Outcome,
    Params,
    World,
    by_role,
    draw_actions,
    draw_worlds,
    move,
    num_agents,
    observe,
    play,
    scene,
    settle,
    step,
    tag_clearance,
    take_step,
    unstacked,
)

import gpu_envs

Player: TypeAlias = Callable[..., list[Outcome[World]]]
"""Steps worlds with parameters and actions: the oracle, or this package."""

PRECISIONS = {"large": ["float32"], "two": ["float64"], "one-without-speeds": ["float32"]}
"""The precision of these variants, to compile fewer programs; other variants run in both."""

each_variant = pytest.mark.parametrize(
    ("name", "precision"),
    [(name, precision) for name in VARIANTS for precision in PRECISIONS.get(name, ["float32", "float64"])],
)


def as_float64(world: World) -> World:
    """The same state in float64, so that the oracle's step is exact."""
    return dataclasses.replace(world, **{name: getattr(world, name).astype(np.float64) for name in REALS})


def apart(given: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The absolute difference of angles, at most pi."""
    difference = np.abs(given.astype(np.float64) - expected) % TURN
    return np.asarray(np.minimum(difference, TURN - difference))


def assert_worlds_near(given: World, expected: World, bound: float) -> None:
    """Fails unless the reals of two states differ by less than ``bound``, and all other fields are equal."""
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
def test_one_step_matches_the_oracle(make: MakeTeam, device: str, name: str, precision: str) -> None:
    """From random states, a step equals the formula, and observations match the new state."""
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
        seen = observe(params, ours.world, seeing=before.in_game)  # no two distances are nearly equal
        np.testing.assert_allclose(ours.observations, seen, rtol=0, atol=5e-7)
        clear = min(moved.clearances.min(), tag_clearance(params, moved.world.x, moved.world.y, moved.world.in_game))
        if clear > hair:
            assert_outcomes_near(ours, expected, bound)
            totals += 1, len(expected.tags), moved.hits.sum(), expected.over
    assert totals[0] >= 0.98 * count
    assert totals.min() > 0.02 * count  # so that the comparison covers enough cases


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
    """On a lattice, where most distances tie, equally near agents come in the order of their numbers."""
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
    env.state["speed"] = rng.permuted(np.tile(np.linspace(0.1, 1, agents), (count, 1)), axis=1)  # identifies agents
    env.state["in_game"] = in_game
    seen = join_agents(env, env.observe())
    for world, rows in zip(unstacked(World, env.state), seen, strict=True):
        expected, players = observe(params, world, world.in_game), world.in_game
        np.testing.assert_allclose(rows[players], expected[players], rtol=0, atol=5e-7)
        for speeds in rows[players, 2 * nearest : 3 * nearest]:
            shown = speeds[: players.sum() - 1]
            assert len(set(shown.tolist())) == len(shown)  # no agent twice
            assert 0 not in shown  # not the agent itself


LAST = 19
"""The step before the episode's last."""


@pytest.fixture(params=["oracle", *DEVICES])
def player(request: pytest.FixtureRequest, make: MakeTeam) -> Player:
    """The oracle, and this package on each device."""
    if request.param == "oracle":
        return lambda params, worlds, actions: [step(params, *pair) for pair in zip(worlds, actions, strict=True)]
    return functools.partial(play, make, World, device=request.param, precision="float64")


def no_ops(count: int = 1) -> np.ndarray:
    """Actions that change nothing."""
    return np.zeros((count, num_agents(SCENE), 2), int)


def flags_of(*numbers: int) -> list[bool]:
    """Flags of all agents, set for these."""
    return [i in numbers for i in range(num_agents(SCENE))]


def test_a_distance_equal_to_the_margin_is_no_tag(player: Player) -> None:
    """A runner is tagged below the margin, but not at it."""
    at, nearer = 5.0, float(np.nextafter(5.0, 4.0))
    worlds = [scene(((4.0, 4.0), *CORNERS[1:]), ((x, 4.0), *AWAY[1:])) for x in (at, nearer)]
    worlds[0].x[4] = worlds[1].x[4] = 6.0  # the second runner out of reach
    untouched, tagged = player(SCENE, worlds, no_ops(2))
    assert untouched.rewards.tolist() == [0] * 7
    assert untouched.world.in_game.all()
    assert untouched.world.runners_left == 4
    assert tagged.rewards.tolist() == [10, 0, 0, -10, 0, 0, 0]
    assert tagged.world.in_game.tolist() == [True] * 3 + [False, True, True, True]
    assert tagged.world.runners_left == 3
    assert tagged.terminated.tolist() == flags_of(3)
    assert not tagged.truncated.any()
    assert not tagged.over


def test_the_last_tag_ends_the_episode(player: Player) -> None:
    """All runners tagged, before T and exactly at T: there taggers get both flags, runners only terminate, unpaid."""
    for elapsed, truncated in ((3, ()), (LAST, (0, 1, 2))):
        taggers, runners = ((4.0, 4.0), *CORNERS[1:]), ((4.5, 4.0), *AWAY[1:])
        world = scene(taggers, runners, in_game={4: False, 5: False, 6: False}, elapsed=elapsed)
        [outcome] = player(SCENE, [world], no_ops())
        assert outcome.rewards.tolist() == [10, 0, 0, -10, 0, 0, 0]
        assert outcome.terminated.all()
        assert outcome.truncated.tolist() == flags_of(*truncated)
        assert outcome.over
        assert outcome.world.runners_left == 0
        assert outcome.world.in_game.tolist() == flags_of(0, 1, 2)
        assert outcome.observations[:4].any(axis=1).all()  # the runner's final observation, too
        assert not outcome.observations[4:].any()


def test_observation_in_full(player: Player) -> None:
    """Every other agent by number, one feature after another: offsets, differences, role, in_game; then time."""
    params = {**SCENE, "num_taggers": 1, "num_runners": 2, "max_speed": 2.0}
    world = scene(((1.0, 1.0),), ((4.0, 5.0), (1.0, 1.5)), elapsed=4)
    world.speed[2], world.heading[:] = 0.5, (6.0, 1.0, math.pi / 2)
    [outcome] = player(params, [world], np.array([[[0, 0], [3, 0], [0, 0]]]))  # 3: the greatest acceleration
    diagonal, cos, sin = 8 * math.sqrt(2), math.cos(1.0), math.sin(1.0)
    runner = 4 + 0.25 * cos, 5 + 0.25 * sin
    tagger_sees = [(runner[0] - 1) / diagonal, 0, (runner[1] - 1) / diagonal, 1 / diagonal]
    tagger_sees += [0.125, 0.25, 0.125, 0, -5 / TURN, (math.pi / 2 - 6) / TURN, 0, 0, 1, 1, 0.25]
    np.testing.assert_allclose(outcome.observations[0], tagger_sees, rtol=0, atol=2e-7)
    runner_sees = [(1 - runner[0]) / diagonal] * 2 + [(1 - runner[1]) / diagonal, (2 - runner[1]) / diagonal]
    runner_sees += [-0.125, 0.125, -0.125, -0.125, 5 / TURN, (math.pi / 2 - 1) / TURN, 1, 0, 1, 1, 0.25]
    np.testing.assert_allclose(outcome.observations[1], runner_sees, rtol=0, atol=2e-7)
    assert outcome.rewards.tolist() == [0, 0, 0]  # the margin is 1, and the runner came to it


PLAIN: Params = {**CONTINUOUS_DEFAULTS, "episode_length": 60, "grid_length": 5.0, "tagging_distance": 0.06}

TWELVE: Params = {"num_taggers": 3, "num_runners": 9}
TWO: Params = {"num_taggers": 1, "num_runners": 1, "num_other_agents_observed": 1}

EPISODES: dict[str, tuple[int, Params]] = {
    "exits": (8, {**TWELVE, "num_other_agents_observed": 3}),
    "stay": (4, {**TWELVE, "use_full_observation": True, "runner_exits_game_after_tagged": False}),
    "continuous": (6, {"num_taggers": 2, "num_runners": 6, "actions": "continuous"}),
    "large": (2, {"num_taggers": 5, "num_runners": 60, "grid_length": 20.0, "tagging_distance": 0.03}),
    "two": (12, {**TWO, "grid_length": 2.0, "tagging_distance": 0.15}),
}
"""The number of replicas, and the changes to ``PLAIN``."""


def settle_ours(params: Params, before: World, ours: World, moved: Moved) -> Outcome[World]:
    """The oracle's outcome for the positions that this package computed; its integers must be equal."""
    start = dataclasses.replace(
        moved.world, x=ours.x, y=ours.y, speed=ours.speed, heading=ours.heading, acceleration=ours.acceleration
    )
    assert start.elapsed == before.elapsed
    return settle(params, start, moved.hits)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(("count", "changes"), EPISODES.values(), ids=EPISODES)
def test_full_episodes_agree_in_integers(make: MakeTeam, device: str, count: int, changes: Params) -> None:
    """Tags, remaining runners, flags and the order of the nearest agents equal the oracle's exactly."""
    params = {**PLAIN, **changes}
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
            assert np.array_equal(result.rewards[i], expected.rewards)  # integers, which identify the tagger
            assert np.array_equal(result.terminated[i], expected.terminated)
            assert np.array_equal(result.truncated[i], expected.truncated)
            if t % 3 == 0 or expected.over:
                np.testing.assert_allclose(result.observations[i], expected.observations, rtol=0, atol=5e-7)
            tags += len(expected.tags)
            episodes += expected.over
        restarting = (result.terminated | result.truncated).all(axis=1)
    assert episodes >= count
    assert tags >= count


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
        space: Any = env.single_observation_spaces[role]
        assert set(space.high[: 2 * 16]) == set(-space.low[: 2 * 16]) == {1.0}  # positions relative to the arena
        assert (set(space.low[5 * 16 :]), set(space.high[5 * 16 :])) == ({0.0}, {1.0})  # roles, in_game and time
        assert np.isfinite([space.low, space.high]).all()
        np.testing.assert_allclose(actions[role].low, [-0.2, -1.0], rtol=1e-7)
        np.testing.assert_allclose(actions[role].high, [0.3, 2.0], rtol=1e-7)
        assert space.shape == (7 * 16 + 1,)


START: Params = {**SCENE, "num_taggers": 1, "num_runners": 3}


def layout(env: gpu_envs.MultiAgentEnv) -> np.ndarray:
    """Positions and headings: ``[replicas, 3 * agents]``."""
    return np.concatenate([numpy_of(env.state[name]) for name in ("x", "y", "heading")], axis=1)


@pytest.mark.parametrize("start", ["random", "fixed"])
def test_every_start(make: MakeTeam, device: str, start: str) -> None:
    """All agents are in the game, at rest in the square, heading along an axis; observations match the state."""
    env = make(CONTINUOUS, 200, device=device, start=start, **START)
    observations, infos = env.reset(seed=0)
    state = {name: numpy_of(values) for name, values in env.state.items()}
    assert all(((values >= 0) & (values < 8)).all() for values in (state["x"], state["y"]))
    axes = np.float32(math.pi / 2) * np.arange(4)
    assert (np.abs(state["heading"][..., None] - axes).min(axis=-1) < 5e-7).all()
    assert not state["speed"].any()
    assert not state["acceleration"].any()
    assert state["in_game"].all()
    assert (state["runners_left"] == 3).all()
    assert not state["elapsed"].any()
    assert join_agents(env, infos["alive"]).all()
    for world, rows in zip(unstacked(World, env.state), join_agents(env, observations), strict=True):
        np.testing.assert_allclose(rows, observe(START, world, world.in_game), rtol=0, atol=5e-7)
        assert not rows[:, -1].any()


def test_random_starts_are_uniform(make: MakeTeam, device: str) -> None:
    """Positions and headings are uniform and independent."""
    env = make(CONTINUOUS, 5_000, device=device, **START)
    env.reset(seed=0)
    state = {name: numpy_of(values) for name, values in env.state.items()}
    shares = [np.histogram(state[name], 20, (0, 8))[0] / 20_000 for name in ("x", "y")]
    assert np.abs(np.array(shares) - 0.05).max() < 0.0085  # five and a half standard deviations
    quarters = np.rint(state["heading"] / (math.pi / 2)).astype(int)
    assert np.abs(np.bincount(quarters.ravel(), minlength=4) / 20_000 - 0.25).max() < 0.017
    columns = np.concatenate([state["x"], state["y"], quarters], axis=1)
    assert np.abs(np.corrcoef(columns.T) - np.eye(12)).max() < 0.08  # standard deviation 0.014


def test_fixed_start(make: MakeTeam, device: str) -> None:
    """One layout for all replicas and all episodes, another for another seed."""
    params = {**START, "start": "fixed", "episode_length": 1}
    env = make(CONTINUOUS, 50, device=device, autoreset_mode="SameStep", **params)
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


PUBLISHED = {name: value for name, value in CONTINUOUS_DEFAULTS.items() if name not in ("max_speed", "actions")}
"""WarpDrive's published configuration of this game; for the grid it uses all defaults."""


@pytest.mark.parametrize(
    ("env_id", "published", "defaults"),
    [(CONTINUOUS, PUBLISHED, CONTINUOUS_DEFAULTS), (GRID, GRID_DEFAULTS, GRID_DEFAULTS)],
)
def test_a_published_configuration_ports_by_copying(
    device: str, env_id: str, published: Params, defaults: Params
) -> None:
    """WarpDrive's names and values are valid, and are the defaults; a length may be an integer."""
    settings = gpu_envs.spec(env_id).params
    assert {name: settings[name].default for name in defaults} == dict(defaults)
    assert settings["start"].default == "random"
    runs = []
    for given in ({**published, "grid_length": int(published["grid_length"])}, {}):
        env: Any = gpu_envs.make(env_id, 2, device=device, **given)
        assert env.max_episode_steps == published["episode_length"]
        env.reset(seed=1)
        shape = env.single_action_spaces["runner"].shape
        block = np.random.default_rng(2).integers(0, 5, (3, 2, env.num_agents, *shape))
        runs.append([tuple(take_step(env, published, given)) for given in block])
        env.close()
    assert_all_same(runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params", [{}, {"use_full_observation": True}, {"actions": "continuous", "skill_level_tagger": 1.5}], ids=str
)
def test_observations_stay_within_their_space(make: MakeTeam, device: str, params: Params) -> None:
    env = make(CONTINUOUS, 20, device=device, autoreset_mode="SameStep", num_runners=12, **params)
    seen, _ = env.reset(seed=0)
    for space in env.action_spaces.values():
        space.seed(1)
    for _ in range(600):
        assert all(space.contains(seen[role]) for role, space in env.observation_spaces.items())
        seen = env.step({role: space.sample() for role, space in env.action_spaces.items()})[0]


def test_time_is_relative_to_the_episode_length(make: MakeTeam, device: str) -> None:
    """Also if the time limit is shorter."""
    others = {name: value for name, value in START.items() if name != "episode_length"}
    env = make(CONTINUOUS, 1, device=device, episode_length=4, max_episode_steps=3, **others)
    env.reset(seed=0)
    still = {role: np.zeros((1, count, 2), int) for role, count in env.counts.items()}
    seen = [float(numpy_of(env.step(still)[0]["tagger"])[0, 0, -1]) for _ in range(3)]
    np.testing.assert_allclose(seen, [0.25, 0.5, 0.75], rtol=1e-6)
