"""Helpers for tests of wrappers, which compare a wrapped torch environment with a wrapped NumPy environment."""

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
"""Relative rounding error of one float32 operation."""

LIMIT = 11
"""Time limit, so short that episodes end several times in a test."""


def torch_env(env_id: str, count: int, mode: str, device: str, **options: Any) -> gpu_envs.VectorEnv:
    """Makes an environment with torch output."""
    chosen: dict[str, Any] = {"max_episode_steps": LIMIT, "output": "torch"} | options
    env = gpu_envs.make(env_id, count, device=device, autoreset_mode=mode, **chosen)
    assert isinstance(env, gpu_envs.VectorEnv)
    return env


def numpy_env(env_id: str, count: int, mode: str, **options: Any) -> gpu_envs.VectorEnv:
    """Makes an environment with NumPy output, for Gymnasium's wrappers."""
    return torch_env(env_id, count, mode, "cpu", output="numpy", **options)


def allow_frozen(env: gpu_envs.VectorEnv) -> gpu_envs.VectorEnv:
    """Allows steps of ended replicas in Disabled mode; returns the environment."""
    if env.autoreset_mode.value == "Disabled":
        env.allow_frozen_steps()
    return env


def to_device(device: str, array: Array) -> torch.Tensor:
    """Copies an array to a tensor on a device."""
    return torch.from_numpy(np.array(array)).to(resolve_device(device))


class StepPair(NamedTuple):
    """Results of a step, or of a reset by mask, of both environments."""

    ours: Any
    """Results of our wrapper."""
    theirs: Any
    """Results of the reference."""
    mask: Array | None
    """Mask of reset replicas; None for a step."""


def step_both(ours: Any, theirs: Any, env_id: str, steps: int, device: str, seed: int = 5) -> Iterator[StepPair]:
    """Takes the same steps in both environments. In Disabled mode, finished replicas are reset by mask.

    Args:
        ours: A wrapped environment, after its reset.
        theirs: The reference environment, after its reset.
        env_id: Environment whose actions are drawn.
        steps: Number of steps.
        device: Device of our environment.
        seed: Seed of the actions.
    """
    for actions in random_actions(env_id, steps, ours.num_envs, seed=seed):
        taken = StepPair(ours.step(to_device(device, actions)), theirs.step(actions), None)
        done = numpy_of(taken.ours[2]) | numpy_of(taken.ours[3])
        yield taken
        if ours.metadata["autoreset_mode"].value == "Disabled" and done.any():
            reset = ours.reset(options={"reset_mask": to_device(device, done)})
            yield StepPair(reset, theirs.reset(options={"reset_mask": done.copy()}), done)


class SampleMoments:
    """Mean and variance of all samples in float64, with Gymnasium's initial count of 1e-4."""

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


# Rounding errors of float32. A block's sum of squares is a chain of at most 256 / 32 + 5 additions of numbers rounded
# twice: the variance has an error of 15 EPS, the standard deviation half of it. Shift, factor and product round five
# times. The mean's error, in standard deviations, is the number of roundings of a block's sum. In total:
ROUNDINGS = 32


def assert_close(found: Array, expected: Array) -> None:
    """Fails unless normalised numbers agree up to float32's rounding errors."""
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
"""Wrappers of Pendulum-v1, by name."""

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
"""Kernels that a wrapper launches in a step, in order."""


def make_wrapped(name: str, device: str, mode: str = "SameStep", count: int = 20, **options: Any) -> Any:
    """Makes a wrapped environment and resets it."""
    env = WRAPPERS[name](torch_env("Pendulum-v1", count, mode, device, **options))
    env.reset(seed=0)
    return env


def random_action_tensors(device: str, steps: int, count: int = 20) -> list[torch.Tensor]:
    return [to_device(device, actions) for actions in random_actions("Pendulum-v1", steps, count)]
