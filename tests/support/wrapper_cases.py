"""What the tests of the wrappers share: a wrapped environment beside a NumPy one with the same trajectories."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from harness import numpy_of, random_actions

import gpu_envs
from gpu_envs.backend import resolve_device
from gpu_envs.wrappers import (
    ActionNoise,
    ClipAction,
    FlattenObservation,
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
    ObservationNoise,
    RandomPushes,
    RecordEpisodeStatistics,
    RescaleAction,
    RunningMeanStd,
)

Array = np.ndarray[Any, np.dtype[Any]]

EPS = 2.0**-24
"""The rounding error of one operation in float32, relative."""

LIMIT = 11
"""Steps of an episode: it ends several times in a test."""


def torch_env(env_id: str, count: int, mode: str, device: str, **options: Any) -> gpu_envs.VectorEnv:
    """An environment whose results are tensors."""
    chosen: dict[str, Any] = {"max_episode_steps": LIMIT, "output": "torch"} | options
    env = gpu_envs.make(env_id, count, device=device, autoreset_mode=mode, **chosen)
    assert isinstance(env, gpu_envs.VectorEnv)
    return env


def numpy_env(env_id: str, count: int, mode: str, **options: Any) -> gpu_envs.VectorEnv:
    """The same, whose results are NumPy's: what Gymnasium's own wrappers take."""
    return torch_env(env_id, count, mode, "cpu", output="numpy", **options)


def allow_frozen(env: gpu_envs.VectorEnv) -> gpu_envs.VectorEnv:
    """Which may be stepped while replicas wait for their reset."""
    if env.autoreset_mode.value == "Disabled":
        env.allow_frozen_steps()
    return env


def to_device(device: str, array: Array) -> torch.Tensor:
    """A tensor on a device."""
    return torch.from_numpy(np.array(array)).to(resolve_device(device))


class StepPair(NamedTuple):
    """A step of both, or a reset by mask."""

    ours: Any
    """What the wrapper returned."""
    theirs: Any
    """The same of the other."""
    mask: Array | None
    """Of a reset: which replicas. None: it was a step."""


def step_both(ours: Any, theirs: Any, env_id: str, steps: int, device: str, seed: int = 5) -> Iterator[StepPair]:
    """Takes the same steps with both. In Disabled mode, replicas that are done are reset by mask.

    Args:
        ours: A wrapped environment, after its reset.
        theirs: The other.
        env_id: Whose actions.
        steps: How many.
        device: Of ours.
        seed: Of the actions.
    """
    for actions in random_actions(env_id, steps, ours.num_envs, seed=seed):
        taken = StepPair(ours.step(to_device(device, actions)), theirs.step(actions), None)
        done = numpy_of(taken.ours[2]) | numpy_of(taken.ours[3])
        yield taken
        if ours.metadata["autoreset_mode"].value == "Disabled" and done.any():
            reset = ours.reset(options={"reset_mask": to_device(device, done)})
            yield StepPair(reset, theirs.reset(options={"reset_mask": done.copy()}), done)


class SampleMoments:
    """Mean and variance of all samples, in float64, that a beginning of 1e-4 samples has gone into."""

    def __init__(self) -> None:
        self.samples: list[Array] = []

    def add(self, samples: Array) -> None:
        self.samples.append(np.asarray(samples, np.float64))

    def moments(self) -> tuple[Array, Array, float]:
        all_of_them = np.concatenate(self.samples)
        weight, n = 1e-4, len(all_of_them)
        mean = all_of_them.sum(0) / (n + weight)
        squares = ((all_of_them - mean) ** 2).sum(0) + weight * (1 + mean**2)
        return mean, squares / (n + weight), n + weight


# What float32 costs. A block's squares are sums of at most 256 / 32 + 5 numbers in a row, each of which was rounded
# twice: its share of the variance is off by 15 EPS, the deviation by half of it. Shift, factor and product round five
# times. The mean is off by as many parts of a deviation as a sum over a block has roundings. All in all:
ROUNDINGS = 32


def assert_close(found: Array, expected: Array) -> None:
    """Normalised numbers agree but for float32's roundings."""
    assert found.dtype == np.float32
    wrong = np.abs(found - expected) / (1 + np.abs(expected))
    assert wrong.max() < ROUNDINGS * EPS, wrong.max() / EPS


def assert_statistics(found: RunningMeanStd, seen: SampleMoments) -> None:
    mean, var, count = seen.moments()
    deviation = np.sqrt(var)
    assert float(found.count) == pytest.approx(count, rel=1e-12)
    assert (np.abs(numpy_of(found.mean) - mean) / deviation).max() < ROUNDINGS * EPS
    np.testing.assert_allclose(numpy_of(found.var), var, rtol=ROUNDINGS * EPS)


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "RecordEpisodeStatistics": RecordEpisodeStatistics,
    "NormalizeObservation": NormalizeObservation,
    "NormalizeReward": NormalizeReward,
    "ClipAction": ClipAction,
    "RescaleAction": lambda env: RescaleAction(env, -1.0, 1.0),
    "FrameStackObservation": lambda env: FrameStackObservation(env, 3),
    "FlattenObservation": lambda env: FlattenObservation(FrameStackObservation(env, 2)),
    "ObservationNoise": lambda env: ObservationNoise(env, 0.1, delay=(0, 3)),
    "ActionNoise": lambda env: ActionNoise(env, 0.1, delay=(0, 3), repeat_action_probability=0.25),
    "RandomPushes": lambda env: RandomPushes(env, {"theta_dot": 0.5}, interval=(1, 4)),
    "all": lambda env: FlattenObservation(
        FrameStackObservation(NormalizeReward(NormalizeObservation(RecordEpisodeStatistics(ClipAction(env)))), 2)
    ),
}
"""On Pendulum-v1, the environment of these tests."""

LAUNCHES = {
    "RecordEpisodeStatistics": ["record", "enqueue"],
    "NormalizeObservation": ["measure", "merge", "normalise"],
    "NormalizeReward": ["accumulate", "merge", "scale"],
    "ClipAction": ["clamp"],
    "RescaleAction": ["sub", "div_"],
    "FrameStackObservation": ["stack"],
    "FlattenObservation": ["stack"],
    "ObservationNoise": ["perturb"],
    "ActionNoise": ["perturb"],
    "RandomPushes": ["push"],
    "all": ["clamp", "record", "enqueue", "measure", "merge", "normalise", "accumulate", "merge", "scale", "stack"],
}
"""What a step launches beside the environment's own, in order."""


def make_wrapped(name: str, device: str, mode: str = "SameStep", count: int = 20, **options: Any) -> Any:
    """A wrapper after its reset."""
    env = WRAPPERS[name](torch_env("Pendulum-v1", count, mode, device, **options))
    env.reset(seed=0)
    return env


def random_action_tensors(device: str, steps: int, count: int = 20) -> list[torch.Tensor]:
    return [to_device(device, actions) for actions in random_actions("Pendulum-v1", steps, count)]
