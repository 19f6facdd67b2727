"""TagGridWorld against the oracle of its rules: every state of small grids, whole episodes, starts, parameters."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
from harness import DEVICES, numpy_of
from tag_oracles import (
    GRID,
    GRID_DEFAULTS,
    MOVES,
    Grid,
    MakeTeam,
    Outcome,
    Params,
    by_role,
    joined,
    observe_grid,
    play,
    step_grid,
    take_step,
    unstacked,
)

import gpu_envs

Player: TypeAlias = Callable[..., list[Outcome[Grid]]]
"""Takes parameters, worlds and actions; the oracle, or this package."""

UNEVEN: Params = {
    **GRID_DEFAULTS,
    "episode_length": 30,
    "wall_hit_penalty": 0.25,
    "tag_reward_for_tagger": 8.0,
    "tag_penalty_for_runner": 5.0,
    "step_cost_for_tagger": 0.0625,
}
"""Parameters of which no two could be taken for each other, and whose sums float32 holds exactly."""

each_view_and_precision = pytest.mark.parametrize(("full", "precision"), [(True, "float32"), (False, "float64")])


def grid(places: Any, elapsed: int = 3) -> Grid:
    """A state with agents in these cells, ``[agents, 2]``; the runner last."""
    x, y = np.array(places, np.int32).T.copy()
    return Grid(x, y, np.ones(len(x), bool), elapsed, 1)


# --- One step from many states ---------------------------------------------------------------------------------------


def assert_steps_equal(given: Sequence[Outcome[Grid]], expected: Sequence[Outcome[Grid]]) -> None:
    """Fails unless states, flags, and rewards that float32 holds exactly, are equal, and views nearly."""
    for ours, theirs in zip(given, expected, strict=True):
        for name in ("x", "y", "in_game", "elapsed", "runners_left"):
            assert np.array_equal(getattr(ours.world, name), getattr(theirs.world, name)), name
        assert ours.rewards.tolist() == theirs.rewards.tolist()
        assert np.array_equal(ours.terminated, theirs.terminated)
        assert np.array_equal(ours.truncated, theirs.truncated)
        assert ours.over == theirs.over
    seen = [np.stack([outcome.observations for outcome in outcomes]) for outcomes in (given, expected)]
    np.testing.assert_allclose(seen[0], seen[1], rtol=2.5e-7, atol=0)  # two roundings of a quotient


@each_view_and_precision
@pytest.mark.parametrize(("taggers", "length"), [(1, 2), (2, 1)])
def test_every_step_of_a_small_grid(
    make: MakeTeam, device: str, taggers: int, length: int, full: bool, precision: str
) -> None:
    """From every state, each with all actions, before the last step and at it."""
    params = {**UNEVEN, "num_taggers": taggers, "grid_length": length, "use_full_observation": full}
    cells = list(itertools.product(range(length + 1), repeat=2))
    worlds: list[Grid] = []
    actions = []
    for places in itertools.product(cells, repeat=taggers + 1):
        for moves in itertools.product(range(5), repeat=taggers + 1):
            worlds.append(grid(places, elapsed=(len(worlds) // 5**taggers) % 2 + 28))
            actions.append(moves)
    given = play(make, Grid, params, worlds, np.array(actions), device=device, precision=precision)
    expected = [step_grid(params, *pair) for pair in zip(worlds, actions, strict=True)]
    assert_steps_equal(given, expected)
    kinds = {(bool(outcome.tags), bool(outcome.truncated.any()), outcome.over) for outcome in expected}
    assert kinds == {(False, False, False), (True, False, True), (False, True, True), (True, True, True)}


@pytest.mark.parametrize(("taggers", "full"), [(4, False), (40, True), (40, False)])
def test_one_step_is_the_rules(make: MakeTeam, device: str, taggers: int, full: bool) -> None:
    """From states far and wide, crowds and walls among them."""
    params = {**UNEVEN, "num_taggers": taggers, "use_full_observation": full}
    count, rng = 6_000 // taggers, np.random.default_rng(1)
    places = rng.integers(0, 101, (count, taggers + 1, 2))
    near = rng.integers(0, 98, (count, 1, 2)) + rng.integers(0, 4, (count, taggers + 1, 2))
    places = np.where(rng.random((count, 1, 1)) < 0.5, near, places)
    places = np.where(rng.random((count, taggers + 1, 2)) < 0.1, rng.choice([0, 100], (count, taggers + 1, 2)), places)
    worlds = [grid(p, elapsed=int(e)) for p, e in zip(places, rng.integers(0, 30, count), strict=True)]
    actions = rng.integers(0, 5, (count, taggers + 1))
    given = play(make, Grid, params, worlds, actions, device=device)
    expected = [step_grid(params, *pair) for pair in zip(worlds, actions, strict=True)]
    assert_steps_equal(given, expected)
    tags = [len(outcome.tags) for outcome in expected]
    assert np.count_nonzero(tags) > 0.05 * count
    assert max(tags) > 1


# --- Scenes worked out by hand, for the oracle and for this package --------------------------------------------------

SCENE: Params = {**UNEVEN, "num_taggers": 2, "grid_length": 4}
STAY, RIGHT, LEFT, UP, DOWN = range(5)
STEP, LAST = 0.0625, 29


@pytest.fixture(params=["oracle", *DEVICES])
def player(request: pytest.FixtureRequest, make: MakeTeam) -> Player:
    """The oracle, and this package on each device."""
    if request.param == "oracle":
        return lambda params, worlds, actions: [step_grid(params, *pair) for pair in zip(worlds, actions, strict=True)]
    return functools.partial(play, make, Grid, device=request.param, precision="float64")


def one(player: Player, places: Any, *actions: int, elapsed: int = 3, params: Params = SCENE) -> Outcome[Grid]:
    """One step of one replica."""
    [outcome] = player(params, [grid(places, elapsed)], np.array([actions]))
    return outcome


def test_moves(player: Player) -> None:
    """Stay, right, left, up, down; nobody is hit by standing at a wall."""
    places = ((0, 0), (4, 4), (2, 2))
    for action, (dx, dy) in enumerate(MOVES):
        outcome = one(player, places, STAY, STAY, action)
        assert (outcome.world.x[2], outcome.world.y[2]) == (2 + dx, 2 + dy)
        assert outcome.rewards.tolist() == [-STEP, -STEP, STEP]
        assert not outcome.terminated.any()
        assert not outcome.truncated.any()
        assert not outcome.over
        assert outcome.world.elapsed == 4


def test_walls(player: Player) -> None:
    """Whoever walks into a wall stays, and pays; whoever reaches it does not."""
    outcome = one(player, ((0, 0), (4, 4), (0, 4)), LEFT, UP, UP)
    assert outcome.world.x.tolist() == [0, 4, 0]
    assert outcome.world.y.tolist() == [0, 4, 4]
    assert outcome.rewards.tolist() == [-STEP - 0.25, -STEP - 0.25, STEP - 0.25]
    outcome = one(player, ((0, 0), (4, 4), (3, 0)), DOWN, RIGHT, RIGHT)
    assert outcome.rewards.tolist() == [-STEP - 0.25, -STEP - 0.25, STEP]
    assert (outcome.world.x[2], outcome.world.y[2]) == (4, 0)


@pytest.mark.parametrize(
    ("places", "actions", "tagged"),
    [
        (((1, 2), (0, 0), (2, 2)), (RIGHT, STAY, STAY), True),
        (((2, 2), (0, 0), (3, 2)), (STAY, STAY, LEFT), True),
        (((1, 2), (0, 0), (3, 2)), (RIGHT, STAY, LEFT), True),
        (((0, 0), (1, 2), (2, 2)), (STAY, RIGHT, STAY), True),
        (((1, 2), (0, 0), (2, 2)), (RIGHT, STAY, LEFT), False),  # they change places
        (((1, 2), (0, 0), (2, 2)), (RIGHT, STAY, RIGHT), False),
        (((1, 1), (0, 0), (2, 2)), (STAY, STAY, STAY), False),
        (((3, 4), (0, 0), (4, 4)), (RIGHT, STAY, RIGHT), True),  # the runner into the wall
    ],
)
def test_tags(player: Player, places: Any, actions: Sequence[int], tagged: bool) -> None:
    """A tagger in the runner's cell after both moved ends it, for all taggers alike, instead of the cost of a step."""
    outcome = one(player, places, *actions)
    wall = 0.25 if places[2] == (4, 4) else 0
    assert outcome.rewards.tolist() == ([8, 8, -5 - wall] if tagged else [-STEP, -STEP, STEP])
    assert outcome.terminated.tolist() == [tagged] * 3
    assert not outcome.truncated.any()
    assert outcome.over == tagged
    assert outcome.world.in_game.tolist() == [True, True, not tagged]
    assert outcome.world.runners_left == 1 - tagged
    assert outcome.observations.any(axis=1).all()  # the last view is a real one


def test_walls_cost_in_the_step_of_a_tag(player: Player) -> None:
    """Who hits a wall pays, tag or not; two taggers at once are one tag."""
    outcome = one(player, ((0, 1), (0, 1), (0, 1)), LEFT, STAY, STAY)
    assert outcome.rewards.tolist() == [7.75, 8, -5]
    outcome = one(player, ((3, 0), (2, 0), (2, 0)), DOWN, STAY, STAY)
    assert outcome.rewards.tolist() == [7.75, 8, -5]


def test_time(player: Player) -> None:
    """At T everybody is truncated; who is tagged then is only terminated, and taggers are both."""
    away, near = ((0, 0), (4, 4), (2, 2)), ((0, 0), (2, 3), (2, 2))
    outcome = one(player, away, STAY, STAY, STAY, elapsed=LAST - 1)
    assert not outcome.over
    outcome = one(player, away, STAY, STAY, STAY, elapsed=LAST)
    assert outcome.rewards.tolist() == [-STEP, -STEP, STEP]
    assert outcome.truncated.tolist() == [True] * 3
    assert not outcome.terminated.any()
    assert outcome.over
    assert outcome.world.in_game.all()
    outcome = one(player, near, STAY, DOWN, STAY, elapsed=LAST)
    assert outcome.rewards.tolist() == [8, 8, -5]
    assert outcome.terminated.tolist() == [True] * 3
    assert outcome.truncated.tolist() == [True, True, False]


def test_observation_in_full(player: Player) -> None:
    """Columns, rows and kinds of all, which one oneself is, and the time."""
    outcome = one(player, ((1, 2), (4, 3), (0, 4)), RIGHT, STAY, STAY, elapsed=14)
    common = [0.5, 1, 0, 0.5, 0.75, 1, 0, 0, 1]
    expected = [[*common, *mark, 0.5] for mark in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert outcome.observations.tolist() == expected


def test_observation_in_part(player: Player) -> None:
    """Oneself and the runner, or, for the runner, the nearest tagger, of equals the lowest; kind and time."""
    params = {**SCENE, "use_full_observation": False, "num_taggers": 3}
    outcome = one(player, ((0, 4), (4, 3), (4, 1), (2, 2)), *[STAY] * 4, elapsed=14, params=params)
    assert outcome.observations.tolist() == [
        [0, 1, 0.5, 0.5, 0, 0.5],
        [1, 0.75, 0.5, 0.5, 0, 0.5],
        [1, 0.25, 0.5, 0.5, 0, 0.5],
        [0.5, 0.5, 1, 0.75, 1, 0.5],
    ]
    outcome = one(player, ((0, 4), (4, 3), (4, 1), (2, 2)), STAY, STAY, LEFT, STAY, elapsed=14, params=params)
    assert outcome.observations[3].tolist() == [0.5, 0.5, 0.75, 0.25, 1, 0.5]


# --- Whole episodes under a random policy ----------------------------------------------------------------------------


@each_view_and_precision
def test_whole_episodes_are_the_rules(make: MakeTeam, device: str, full: bool, precision: str) -> None:
    """From each start the oracle plays on by itself, and both agree to the end of the episode, many times."""
    params = {**UNEVEN, "num_taggers": 3, "grid_length": 5, "use_full_observation": full}
    count, steps, rng = 30, 120, np.random.default_rng(2)
    env = make(GRID, count, device=device, precision=precision, autoreset_mode="NextStep", **params)
    env.reset(seed=4)
    worlds, restarting, ends = unstacked(Grid, env.state), np.zeros(count, bool), 0
    for _ in range(steps):
        actions = rng.integers(0, 5, (count, 4))
        result = take_step(env, params, actions)
        afters = unstacked(Grid, env.state)
        for i in np.flatnonzero(restarting).tolist():
            worlds[i] = afters[i]
            assert (worlds[i].elapsed, worlds[i].runners_left) == (0, 1)
            assert worlds[i].in_game.all()
            assert not result.rewards[i].any()
            assert not (result.terminated | result.truncated)[i].any()
            np.testing.assert_allclose(result.observations[i], observe_grid(params, worlds[i]), rtol=2.5e-7)
        playing = np.flatnonzero(~restarting).tolist()
        expected = [step_grid(params, worlds[i], actions[i]) for i in playing]
        given = [
            Outcome(
                afters[i],
                result.rewards[i].astype(np.float64),
                result.terminated[i],
                result.truncated[i],
                bool((result.terminated | result.truncated)[i].all()),
                result.observations[i],
                [],
            )
            for i in playing
        ]
        assert_steps_equal(given, expected)
        assert np.array_equal(result.alive, [after.in_game for after in afters])
        for i, outcome in zip(playing, expected, strict=True):
            worlds[i], restarting[i] = outcome.world, outcome.over
            ends += outcome.over
        restarting[[i for i in range(count) if i not in playing]] = False
    assert ends > 3 * count


def test_what_always_holds(make: MakeTeam, device: str) -> None:
    """Nobody leaves the grid or moves by more than a cell; costs and gains of a step balance but for walls."""
    count, rng = 200, np.random.default_rng(2)
    params = {**UNEVEN, "num_taggers": 4, "grid_length": 6, "wall_hit_penalty": 0.0}
    env = make(GRID, count, device=device, autoreset_mode="NextStep", **params)
    env.reset(seed=4)
    tags = 0
    for _ in range(100):
        before = {name: numpy_of(values) for name, values in env.state.items()}
        result = take_step(env, params, rng.integers(0, 5, (count, 5)))
        after = {name: numpy_of(values) for name, values in env.state.items()}
        assert all(((after[name] >= 0) & (after[name] <= 6)).all() for name in ("x", "y"))
        playing = after["elapsed"] > 0
        moved = np.abs(after["x"] - before["x"]) + np.abs(after["y"] - before["y"])
        assert (moved[playing] <= 1).all()
        tagged = np.asarray(result.terminated.any(axis=1))
        assert (result.terminated.all(axis=1) == tagged).all()
        rewards = np.where(tagged[:, None], [8, 8, 8, 8, -5], np.array([-1, -1, -1, -1, 1]) * STEP)
        assert np.array_equal(result.rewards[playing], rewards[playing])
        assert not result.rewards[~playing].any()
        same = np.equal(after["x"][:, :4], after["x"][:, 4:]) & np.equal(after["y"][:, :4], after["y"][:, 4:])
        assert np.array_equal(same.any(axis=1), tagged)
        assert np.array_equal(result.truncated.any(axis=1), after["elapsed"] == 30)
        tags += int(tagged.sum())
    assert tags > 2 * count


def test_observations_are_in_their_space(make: MakeTeam, device: str) -> None:
    """What agents see stays within the bounds that are said, whose shapes follow from the parameters."""
    for full, precision, features in ((True, "float32", 4 * 4 + 1), (False, "float64", 6)):
        params = {**UNEVEN, "num_taggers": 3, "grid_length": 5, "use_full_observation": full}
        env = make(GRID, 20, device=device, precision=precision, autoreset_mode="NextStep", **params)
        assert env.roles == ("tagger", "runner")
        assert env.counts == {"tagger": 3, "runner": 1}
        assert env.possible_agents == ["tagger_0", "tagger_1", "tagger_2", "runner_0"]
        observations, _ = env.reset(seed=0)
        actions_of: Any = env.single_action_spaces
        for actions in np.random.default_rng(0).integers(0, 5, (60, 20, 4)):
            for role in env.roles:
                assert actions_of[role].n == 5
                assert env.single_observation_spaces[role].shape == (features,)
                assert numpy_of(observations[role]) in env.observation_spaces[role]
            observations = env.step(by_role(params, actions))[0]


# --- Starts ----------------------------------------------------------------------------------------------------------


def cells_of(env: gpu_envs.MultiAgentEnv, length: int) -> np.ndarray:
    """The cells that agents are in, by number: ``[replicas, agents]``."""
    return np.asarray(numpy_of(env.state["x"]) * (length + 1) + numpy_of(env.state["y"]))


@pytest.mark.parametrize(("start", "full"), [("random", False), ("fixed", True)])
def test_every_start(make: MakeTeam, device: str, start: str, full: bool) -> None:
    """Everybody is in the game, and sees the state as it is."""
    params = {**SCENE, "use_full_observation": full}
    env = make(GRID, 100, device=device, start=start, **params)
    observations, infos = env.reset(seed=0)
    assert numpy_of(env.state["x"]).dtype == np.int32
    assert joined(infos["alive"]).all()
    for world, rows in zip(unstacked(Grid, env.state), joined(observations), strict=True):
        assert (world.elapsed, world.runners_left) == (0, 1)
        assert world.in_game.all()
        np.testing.assert_allclose(rows, observe_grid(params, world), rtol=2.5e-7)


def test_random_starts_are_even(make: MakeTeam, device: str) -> None:
    """The runner is in any cell, each tagger in any but the runner's, all equally likely."""
    params = {**UNEVEN, "num_taggers": 2, "grid_length": 2}
    count = 20_000
    env = make(GRID, count, device=device, start="random", **params)
    env.reset(seed=0)
    first, second, runner = cells_of(env, 2).T
    assert ((first != runner) & (second != runner)).all()
    # The 1 - 1e-6 quantiles of chi-square are 54 at 8 degrees of freedom, 136 at 71, 176 at 99 and 769 at 575.
    combinations = (runner * 81 + first * 9 + second, 9 * 8 * 8, 769)
    pairs = [(runner * 9 + tagger, 72, 136) for tagger in (first, second)]
    for numbers, cells, quantile in (combinations, *pairs, (runner, 9, 54)):
        observed = np.unique(numbers, return_counts=True)[1]
        expected = count / cells
        assert len(observed) == cells
        assert ((observed - expected) ** 2 / expected).sum() < quantile


def test_random_starts_fill_the_grid(make: MakeTeam, device: str) -> None:
    """Of the default grid no cell is left out, the last row and column among them."""
    env = make(GRID, 5_000, device=device)
    env.reset(seed=0)
    for name in ("x", "y"):
        values = numpy_of(env.state[name])
        for columns in (values[:, :4], values[:, 4:]):
            counts = np.bincount(columns.ravel(), minlength=101)
            assert len(counts) == 101
            expected = columns.size / 101
            assert ((counts - expected) ** 2 / expected).sum() < 178  # the 1 - 1e-6 quantile


@pytest.mark.parametrize("length", [4, 5])
def test_fixed_start(make: MakeTeam, device: str, length: int) -> None:
    """Taggers in the centre, the runner at the origin, whatever the seed, replica or episode."""
    params = {**SCENE, "grid_length": length, "episode_length": 1}
    env = make(GRID, 20, device=device, autoreset_mode="SameStep", start="fixed", **params)
    for seed in (0, 1, None):
        env.reset(seed=seed)
        for _ in range(2):
            for name in ("x", "y"):
                assert numpy_of(env.state[name]).tolist() == [[length // 2, length // 2, 0]] * 20
            env.step(by_role(params, np.full((20, 3), RIGHT)))


# --- Parameters ------------------------------------------------------------------------------------------------------


def test_published_rewards(make: MakeTeam, device: str) -> None:
    """Rewards of a step that hits a wall and of one that tags, under the defaults."""
    worlds = [grid([(0, 0), (9, 9), (9, 9), (9, 9), (50, 50)]), grid([(0, 0), (9, 9), (9, 9), (9, 9), (10, 9)])]
    actions = np.array([[LEFT, STAY, STAY, STAY, STAY], [LEFT, STAY, STAY, RIGHT, STAY]])
    for precision, bound in (("float32", 1e-7), ("float64", 1e-15)):
        given = play(make, Grid, GRID_DEFAULTS, worlds, actions, device=device, precision=precision)
        np.testing.assert_allclose(given[0].rewards, [-0.11, -0.01, -0.01, -0.01, 0.01], rtol=bound, atol=bound / 10)
        np.testing.assert_allclose(given[1].rewards, [9.9, 10, 10, 10, -5], rtol=bound)


def test_a_single_tagger_on_the_smallest_grid(make: MakeTeam, device: str) -> None:
    """Four cells: wherever the tagger begins, it is not with the runner."""
    params = {**UNEVEN, "num_taggers": 1, "grid_length": 1}
    env = make(GRID, 3_000, device=device, **params)
    env.reset(seed=0)
    tagger, runner = cells_of(env, 1).T
    assert len(np.unique(tagger * 4 + runner)) == 12
    assert (tagger != runner).all()
