"""TagGridWorld against the oracle of its rules: every state of small grids, whole episodes, starts, parameters."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from harness import numpy_of
from tag_oracles import (
    GRID,
    GRID_DEFAULTS,
    Grid,
    MakeTeam,
    Outcome,
    Params,
    by_role,
    observe_grid,
    play,
    step_grid,
    take_step,
    unstacked,
)

UNEVEN: Params = {
    **GRID_DEFAULTS,
    "episode_length": 30,
    "wall_hit_penalty": 0.25,
    "tag_reward_for_tagger": 8.0,
    "tag_penalty_for_runner": 5.0,
    "step_cost_for_tagger": 0.0625,
}
"""Parameters that are distinguishable in any reward, with sums that are exact in float32."""

each_view_and_precision = pytest.mark.parametrize(("full", "precision"), [(True, "float32"), (False, "float64")])


def grid(places: Any, elapsed: int) -> Grid:
    """A state with agents in these cells, ``[agents, 2]``, the runner last."""
    x, y = np.array(places, np.int32).T.copy()
    return Grid(x, y, np.ones(len(x), bool), elapsed, 1)


# --- One step from many states ---------------------------------------------------------------------------------------


def assert_steps_equal(given: Sequence[Outcome[Grid]], expected: Sequence[Outcome[Grid]]) -> None:
    """Fails unless states, flags and rewards are equal, and observations nearly."""
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
def test_one_step_matches_the_oracle(make: MakeTeam, device: str, taggers: int, full: bool) -> None:
    """From random states, including crowded cells and walls."""
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


# --- observations worked out by hand, which test the oracle ------------------------------------------

SCENE: Params = {**UNEVEN, "num_taggers": 2, "grid_length": 4}
STAY, RIGHT, LEFT = range(3)


def test_observation_in_full() -> None:
    """Columns, rows and roles of all agents, a one-hot of the agent itself, and time."""
    outcome = step_grid(SCENE, grid(((1, 2), (4, 3), (0, 4)), elapsed=14), (RIGHT, STAY, STAY))
    common = [0.5, 1, 0, 0.5, 0.75, 1, 0, 0, 1]
    expected = [[*common, *mark, 0.5] for mark in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert outcome.observations.tolist() == expected


def test_observation_in_part() -> None:
    """The agent itself and the runner or, for the runner, its nearest tagger (ties: the lowest number); role; time."""
    params = {**SCENE, "use_full_observation": False, "num_taggers": 3}
    world = grid(((0, 4), (4, 3), (4, 1), (2, 2)), elapsed=14)
    assert step_grid(params, world, [STAY] * 4).observations.tolist() == [
        [0, 1, 0.5, 0.5, 0, 0.5],
        [1, 0.75, 0.5, 0.5, 0, 0.5],
        [1, 0.25, 0.5, 0.5, 0, 0.5],
        [0.5, 0.5, 1, 0.75, 1, 0.5],
    ]
    nearer = step_grid(params, world, (STAY, STAY, LEFT, STAY))
    assert nearer.observations[3].tolist() == [0.5, 0.5, 0.75, 0.25, 1, 0.5]


# --- Whole episodes under a random policy ----------------------------------------------------------------------------


@each_view_and_precision
def test_full_episodes_match_the_oracle(make: MakeTeam, device: str, full: bool, precision: str) -> None:
    """From many starts, the oracle and this package agree until the end of the episode."""
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
        over = (result.terminated | result.truncated).all(axis=1).tolist()
        no_tags: list[Any] = [[]] * len(afters)
        columns: Any = zip(afters, *result[1:4], over, result.observations, no_tags, strict=True)
        outcomes = [Outcome(*values) for values in columns]
        assert_steps_equal([outcomes[i] for i in playing], expected)
        assert np.array_equal(result.alive, [after.in_game for after in afters])
        for i, outcome in zip(playing, expected, strict=True):
            worlds[i], restarting[i] = outcome.world, outcome.over
            ends += outcome.over
        restarting[[i for i in range(count) if i not in playing]] = False
    assert ends > 3 * count


# --- Starts ----------------------------------------------------------------------------------------------------------


def test_random_starts_are_uniform(make: MakeTeam, device: str) -> None:
    """The runner is uniform over all cells, each tagger over all but the runner's."""
    params = {**UNEVEN, "num_taggers": 2, "grid_length": 2}
    count = 20_000
    env = make(GRID, count, device=device, start="random", **params)
    env.reset(seed=0)
    first, second, runner = (numpy_of(env.state["x"]) * 3 + numpy_of(env.state["y"])).T
    assert ((first != runner) & (second != runner)).all()
    # The 1 - 1e-6 quantiles of chi-square are 54 at 8 degrees of freedom, 136 at 71, 176 at 99 and 769 at 575.
    combinations = (runner * 81 + first * 9 + second, 9 * 8 * 8, 769)
    pairs = [(runner * 9 + tagger, 72, 136) for tagger in (first, second)]
    for numbers, cells, quantile in (combinations, *pairs, (runner, 9, 54)):
        observed = np.unique(numbers, return_counts=True)[1]
        expected = count / cells
        assert len(observed) == cells
        assert ((observed - expected) ** 2 / expected).sum() < quantile


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
    """Default rewards of a step into a wall, and of a tag."""
    places = [(0, 0), (9, 9), (9, 9), (9, 9)]
    worlds = [grid([*places, runner], elapsed=3) for runner in ((50, 50), (10, 9))]
    actions = np.array([[LEFT, STAY, STAY, STAY, STAY], [LEFT, STAY, STAY, RIGHT, STAY]])
    for precision, bound in (("float32", 1e-7), ("float64", 1e-15)):
        given = play(make, Grid, GRID_DEFAULTS, worlds, actions, device=device, precision=precision)
        np.testing.assert_allclose(given[0].rewards, [-0.11, -0.01, -0.01, -0.01, 0.01], rtol=bound, atol=bound / 10)
        np.testing.assert_allclose(given[1].rewards, [9.9, 10, 10, 10, -5], rtol=bound)
