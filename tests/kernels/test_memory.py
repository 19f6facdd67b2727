"""Environments that need memory: CartPole without speeds, and the rules of RepeatPrevious and TMaze in Python."""

import itertools
from collections import deque
from typing import Any

import numpy as np
import pytest
from harness import MODES, Make, assert_same_bits, numpy_of

from gpu_envs.registry.catalog import env_spec

UP, DOWN, LEFT, RIGHT = range(4)


# --- CartPoleHidden ---


@pytest.mark.parametrize("mode", MODES)
def test_hidden_cartpole_differs_only_in_its_observations(make: Make, device: str, mode: str) -> None:
    """State, rewards, ends and metrics have the same bits; observations are two of the four numbers."""
    settings: dict[str, Any] = {"device": device, "autoreset_mode": mode, "max_episode_steps": 40}
    hidden, full = (make(env_id, 50, **settings) for env_id in ("CartPoleHidden-v1", "CartPole-v1"))
    assert_same_bits(hidden.reset(seed=3)[0], full.reset(seed=3)[0][:, [0, 2]], "reset")
    rng, ends = np.random.default_rng(0), 0
    for _ in range(100):
        actions = rng.integers(0, 2, 50)
        ours, theirs = hidden.step(actions), full.step(actions)
        assert_same_bits(ours[0], theirs[0][:, [0, 2]], "observations")
        for name, one, other in zip(("rewards", "terminations", "truncations"), ours[1:4], theirs[1:4], strict=True):
            assert_same_bits(one, other, name)
        for name, values in hidden.state.items():
            assert_same_bits(values, full.state[name], name)
        over = ours[2] | ours[3]
        if mode == "SameStep" and over.any():
            final = [np.stack(list(step[4]["final_obs"][over])) for step in (ours, theirs)]
            assert_same_bits(final[0], final[1][:, [0, 2]], "final_obs")
        if mode == "Disabled" and over.any():
            for env in (hidden, full):
                env.reset(options={"reset_mask": over})
        ends += over.sum()
    for name, metric in hidden.episode_metrics.items():
        assert_same_bits(metric, full.episode_metrics[name], name)
    assert ends > 100


def test_cartpole_without_speeds_is_hidden_cartpole() -> None:
    """The id is a default of the parameter: everything else is CartPole-v1's."""
    hidden, full = env_spec("CartPoleHidden-v1"), env_spec("CartPole-v1")
    assert [name for name in full.params if full.params[name] != hidden.params[name]] == ["observe_speeds"]
    assert (hidden.max_episode_steps, hidden.reward_threshold) == (500, 475)
    params = full.check_params({"observe_speeds": False}, 1)
    assert full.observation_space(params) == hidden.observation_space(hidden.check_params({}, 1))


def test_a_snapshot_may_lack_a_fixed_parameter(make: Make, device: str) -> None:
    """As one that is older than the parameter; it must have all others."""
    env, other = (make("CartPole-v1", 3, device=device) for _ in range(2))
    env.reset(seed=1)
    state = {**env.get_state()}
    state["params"] = {name: value for name, value in state["params"].items() if name != "observe_speeds"}
    other.set_state(state)
    assert_same_bits(other.get_state(), env.get_state())
    del state["params"]["gravity"]
    with pytest.raises(ValueError, match="the state's part 'params' must have"):
        other.set_state(state)


def test_a_snapshot_without_a_fixed_parameter_had_its_default(make: Make, device: str) -> None:
    """An environment with another value refuses it."""
    one, other = (make("TMaze-v0", 3, device=device, length=length) for length in (10, 11))
    one.reset(seed=1)
    state = {**one.get_state(), "params": {n: v for n, v in one.get_state()["params"].items() if n != "length"}}
    with pytest.raises(ValueError, match="length"):
        other.set_state(state)


# --- RepeatPrevious ---


@pytest.mark.parametrize("k", [1, 4, 15])
def test_repeat_previous_matches_a_queue(make: Make, device: str, k: int) -> None:
    """Rewards and the metric follow from the suits that were observed, over full episodes."""
    count, steps, reward, penalty = 12, 52, 3.0, 0.5
    settings: dict[str, Any] = {"reward": reward, "penalty": penalty, "autoreset_mode": "Disabled"}
    env = make("RepeatPrevious-v0", count, device=device, k=k, **settings)
    rng, shown = np.random.default_rng(1), numpy_of(env.reset(seed=5)[0])
    queue, right = deque([shown.argmax(1)], maxlen=k + 1), np.zeros(count)
    for t in range(steps):
        answers = np.where(rng.random(count) < 0.5, queue[0], rng.integers(0, 4, count))
        shown, rewards, terminations, truncations, _ = env.step(answers)
        assert shown.sum(1).tolist() == [1] * count
        is_right = answers == queue[0]
        points = np.where(is_right, reward, -penalty) / (steps - k) if t >= k else np.zeros(count)
        np.testing.assert_allclose(rewards, points, rtol=1e-6)
        right += is_right * (t >= k)
        queue.append(shown.argmax(1))
        assert not terminations.any()
        assert truncations.tolist() == [t == steps - 1] * count
    assert numpy_of(env.episode_metrics["correct"]).tolist() == right.tolist()
    assert 0 < right.min() < right.max() <= steps - k


@pytest.mark.parametrize(("answer", "expected"), [(0, 1), (1, -1)])
def test_a_perfect_episode_of_repeat_previous_returns_1(make: Make, device: str, answer: int, expected: int) -> None:
    """And -1 if all answers are wrong."""
    env = make("RepeatPrevious-v0", 3, device=device, autoreset_mode="Disabled")
    suits = [numpy_of(env.reset(seed=0)[0]).argmax(1)]
    for t in range(52):
        suits.append(numpy_of(env.step((suits[max(0, t - 4)] + answer) % 4)[0]).argmax(1))
    np.testing.assert_allclose(env.episode_return, expected, rtol=1e-5)


def test_suits_are_uniform_and_independent(make: Make, device: str) -> None:
    """Pairs of suits, of the first card and two later ones, which are several steps apart."""
    count = 20_000
    env = make("RepeatPrevious-v0", count, device=device)
    shown = [numpy_of(env.reset(seed=0)[0]).argmax(1)]
    shown += [numpy_of(env.step(np.zeros(count, int))[0]).argmax(1) for _ in range(5)]
    for first, second in itertools.combinations((shown[0], shown[1], shown[5]), 2):
        observed = np.bincount(4 * first + second, minlength=16)
        assert ((observed - count / 16) ** 2 / (count / 16)).sum() < 56  # chi-square's 1 - 1e-6 quantile at 15 degrees


# --- TMaze ---


REWARDS = {"turn_reward": 4.0, "turn_penalty": 0.5, "move_penalty": 0.25}


def step_maze(length: int, cell: int, cue: int, action: int) -> tuple[int, int, float]:
    """Returns cell and side after a move, and its reward; the side is 0 unless the move ends the episode."""
    if cell == length and action in (UP, DOWN):
        side = {UP: 1, DOWN: -1}[action]
        return cell, side, REWARDS["turn_reward"] if side == cue else -REWARDS["turn_penalty"]
    if action == RIGHT and cell < length:
        return cell + 1, 0, 0.0
    return max(cell - 1, 0) if action == LEFT else cell, 0, -REWARDS["move_penalty"] / length


@pytest.mark.parametrize("length", [1, 3, 10])
def test_every_move_in_a_maze(make: Make, device: str, length: int) -> None:
    """From every state, with every action."""
    cases = [*itertools.product(range(length + 1), (1, -1), (False, True), range(4))]
    cell, cue, shown, actions = (np.array(column) for column in zip(*cases, strict=True))
    env = make("TMaze-v0", len(cases), device=device, length=length, autoreset_mode="Disabled", **REWARDS)
    env.reset(seed=0)
    for name, values in {"cell": cell, "cue": cue, "shown": shown, "side": 0 * cell}.items():
        env.state[name] = values
    observations, rewards, terminations, _, _ = env.step(actions)
    for i, (start, way, _, action) in enumerate(cases):
        after, side, reward = step_maze(length, start, way, action)
        assert (numpy_of(env.state["cell"])[i], numpy_of(env.state["side"])[i]) == (after, side)
        assert rewards[i] == pytest.approx(reward, rel=1e-6)
        assert terminations[i] == (side != 0)
        assert observations[i].tolist() == [0, 0, after < length, after == length]
    ended = terminations
    assert numpy_of(env.episode_metrics["correct"])[ended].tolist() == (rewards[ended] == 4).tolist()


def test_only_the_first_observation_shows_the_cue(make: Make, device: str) -> None:
    """Walking there and turning to its side returns 1; standing still for an episode, or a wrong turn, returns -1."""
    env = make("TMaze-v0", 1000, device=device, autoreset_mode="Disabled")
    first = numpy_of(env.reset(seed=0)[0])
    assert first[:, 2:].tolist() == [[1, 0]] * 1000
    assert first[:, :2].sum(1).tolist() == [1] * 1000
    assert 400 < first[:, 0].sum() < 600
    for _ in range(10):
        observations, rewards, *_ = env.step(np.full(1000, RIGHT))
        assert not observations[:, :2].any()
        assert not rewards.any()
    up, turn = first[:, 0] == 1, np.arange(1000) % 2
    env.step(turn)
    expected = np.where((turn == UP) == up, 1, -1)
    assert numpy_of(env.episode_return).tolist() == expected.tolist()
    env.reset(seed=1)
    for t in range(100):
        _, _, terminations, truncations, _ = env.step(np.full(1000, (LEFT, UP, DOWN)[t % 3]))
        assert not terminations.any()
        assert truncations.tolist() == [t == 99] * 1000
    np.testing.assert_allclose(env.episode_return, -1, rtol=1e-5)
    assert not numpy_of(env.episode_metrics["correct"]).any()
