"""Which numbers the wrappers of noise draw: of whom they are a function, and how they are distributed."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from harness import IDS, MODES, assert_same_bits, numpy_of, random_actions  # noqa: E402
from noise_model import COUNT, SEED  # noqa: E402
from wrapper_cases import LIMIT, Array, copied, numpy_env, on, torch_env, waiting  # noqa: E402

from gpu_envs.wrappers import ActionNoise, ObservationNoise, RandomPushes, TorchWrapper  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

NOISY: dict[str, Callable[[Any], TorchWrapper]] = {
    "observations": lambda env: ObservationNoise(env, 0.1, delay=(0, 3)),
    "actions": lambda env: ActionNoise(env, 0.5, delay=(0, 3), repeat_action_probability=0.25),
    "pushes": lambda env: RandomPushes(env, {"theta_dot": 1.0}, interval=(1, 4)),
}
"""Around pendulums."""


def run(env: TorchWrapper, device: str, replicas: slice, steps: int = 2 * LIMIT) -> list[Any]:
    """What steps return, with the actions that these replicas of 60 would be given."""
    blocks = random_actions("Pendulum-v1", steps, 60)
    return [[numpy_of(part) for part in env.step(on(device, block[replicas]))[:2]] for block in blocks]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("name", NOISY)
def test_a_function_of_the_seed(name: str, mode: str, device: str) -> None:
    """It is reproduced, whatever came before, and is the same in a batch of any size."""
    whole = NOISY[name](torch_env("Pendulum-v1", 60, mode, device))
    whole.reset(seed=SEED)
    first = run(whole, device, slice(60))
    whole.reset(seed=SEED)
    assert_same_bits(first, run(whole, device, slice(60)))
    some = slice(20, 27)
    for seed, first_replica in ((SEED + 20, 0), (SEED, 20)):
        part = NOISY[name](torch_env("Pendulum-v1", 7, mode, device, first_replica=first_replica))
        part.reset(seed=seed)
        assert_same_bits([[array[some] for array in step] for step in first], run(part, device, some))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", IDS)
def test_nothing_changes_without_noise(env_id: str, mode: str, device: str) -> None:
    """Not one bit, even of actions outside the bounds and of negative zeros."""
    plain = waiting(torch_env(env_id, COUNT, mode, device))
    inner = waiting(torch_env(env_id, COUNT, mode, device))
    field = next(name for name, values in inner.state.items() if values.dtype.is_floating_point)
    ours = ObservationNoise(ActionNoise(RandomPushes(inner, {field: 0}, interval=1), 0, delay=0), 0.0, delay=(0, 0))
    assert (ours.observation_space, ours.action_space) == (plain.observation_space, plain.action_space)
    assert_same_bits(copied(ours.reset(seed=0)), copied(plain.reset(seed=0)))
    for actions in random_actions(env_id, 2 * LIMIT, COUNT):
        found, expected = copied(ours.step(on(device, actions))), copied(plain.step(on(device, actions)))
        if mode == "SameStep":
            done = expected[4]["_final_obs"]
            for each in (found, expected):
                each[4]["final_obs"] = each[4]["final_obs"][done]
        assert_same_bits(found, expected)


# The greatest distance of n samples' distribution from the true one exceeds 1.95 / sqrt(n) once in a thousand times
# (Kolmogorov); the seeds are fixed, so these tests always say the same.
KOLMOGOROV = 1.95


def assert_distributed(samples: Array, distribution: str, scale: float) -> None:
    ordered = np.sort(samples.ravel().astype(float)) / scale
    n = len(ordered)
    if distribution == "uniform":
        expected = np.clip((ordered + 1) / 2, 0, 1)
        deviation = 1 / math.sqrt(3)
        assert np.abs(ordered).max() <= 1.0
    else:
        expected = np.array([math.erfc(-x / math.sqrt(2)) / 2 for x in ordered])
        deviation = 1.0
    reached = np.arange(n + 1) / n
    distance = max((reached[1:] - expected).max(), (expected - reached[:-1]).max())
    assert distance < KOLMOGOROV / math.sqrt(n)
    assert abs(ordered.mean()) < 4 * deviation / math.sqrt(n)
    assert abs(ordered.std() / deviation - 1) < 4 / math.sqrt(n)


def assert_unrelated(one: Array, other: Array) -> None:
    a, b = one.ravel(), other.ravel()
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(len(a))


@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_distribution_of_observations(distribution: str, device: str) -> None:
    """Of each feature; other features, steps, replicas, episodes and wrappers have nothing to do with it."""
    count, scale = 4_000, np.array([0.5, 2.0, 0.25], np.float32)
    plain = torch_env("Pendulum-v1", count, "SameStep", device, max_episode_steps=3)
    once, twice = (torch_env("Pendulum-v1", count, "SameStep", device, max_episode_steps=3) for _ in range(2))
    inner = ObservationNoise(once, scale, distribution=distribution)
    outer = ObservationNoise(ObservationNoise(twice, 0.0), scale, distribution=distribution)
    envs = (plain, inner, outer)
    seen = [[numpy_of(env.reset(seed=SEED)[0]) for env in envs]]
    given = on(device, random_actions("Pendulum-v1", 6, count))
    seen += [[numpy_of(env.step(actions)[0]) for env in envs] for actions in given]
    observations = np.array(seen, np.float64)  # steps, environments, replicas, features
    noise = observations[:, 1:] - observations[:, :1]
    for feature, each in enumerate(scale):
        assert_distributed(noise[:, 0, :, feature], distribution, each + 1e-6)  # float32's rounding of the sum
    assert_unrelated(noise[:, 0, :, 0], noise[:, 0, :, 1])
    assert_unrelated(noise[:-1, 0, :, 0], noise[1:, 0, :, 0])
    assert_unrelated(noise[:-3, 0, :, 0], noise[3:, 0, :, 0])  # the same step of the next episode
    assert_unrelated(noise[:, 0, :-1, 0], noise[:, 0, 1:, 0])
    assert_unrelated(noise[:, 0], noise[:, 1])


@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_distribution_of_pushes(distribution: str, device: str) -> None:
    env = torch_env("CartPole-v1", 8_000, "SameStep", device)
    pushed, plain = (
        RandomPushes(env, {"x": 0.5}, interval=2, distribution=distribution),
        numpy_env("CartPole-v1", 8_000, "SameStep"),
    )
    pushed.reset(seed=SEED)
    plain.reset(seed=SEED)
    for actions in random_actions("CartPole-v1", 2, 8_000):
        pushed.step(on(device, actions))
        plain.step(actions)
    assert_distributed(numpy_of(env.state["x"]) - plain.state["x"], distribution, 0.5 + 1e-6)


def test_how_often_actions_are_repeated(device: str) -> None:
    """A pendulum that is given 0 and then 2 shows by its reward which it took: 0.001 times the square goes off."""
    count, probability = 4_000, 0.25
    env = torch_env("Pendulum-v1", count, "SameStep", device)
    ours = ActionNoise(env, repeat_action_probability=probability)
    ours.reset(seed=SEED)
    ours.step(torch.zeros(count, 1))
    before = copied(dict(env.state))
    cost = -numpy_of(ours.step(torch.full((count, 1), 2.0))[1])
    theta = (before["theta"] + np.pi) % (2 * np.pi) - np.pi
    effort = cost - theta**2 - 0.1 * before["theta_dot"] ** 2
    repeated = effort < 0.002
    np.testing.assert_allclose(effort, np.where(repeated, 0, 0.004), atol=1e-4)
    assert abs(repeated.mean() - probability) < 4 * math.sqrt(probability * (1 - probability) / count)


def test_how_delays_are_drawn(device: str) -> None:
    """Each about as often, anew in each episode."""
    count, most = 6_000, 3
    ours = ObservationNoise(torch_env("MountainCar-v0", count, "SameStep", device), delay=(0, most))
    raw = numpy_env("MountainCar-v0", count, "SameStep")
    ours.reset(seed=SEED)
    raw.reset(seed=SEED)
    drawn = []
    for _ in range(2):
        history = []
        for _ in range(LIMIT - 1):
            found = numpy_of(ours.step(on(device, np.full(count, 2)))[0])
            history.append(raw.step(np.full(count, 2))[0])
        late = np.stack(history[-1 - most :][::-1], 1)
        same = (late == found[:, None]).all(2)
        assert (same.sum(1) == 1).all()
        drawn.append(same.argmax(1))
        ours.step(on(device, np.full(count, 2)))
        raw.step(np.full(count, 2))
    for each in drawn:
        fractions = np.bincount(each, minlength=most + 1) / count
        assert np.abs(fractions - 0.25).max() < 4 * math.sqrt(0.25 * 0.75 / count)
    assert_unrelated(*drawn)
