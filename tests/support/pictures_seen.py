"""What the tests of rendering share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from harness import IDS
from harness import random_actions as actions_of_one

import gpu_envs
from gpu_envs.pictures import Drawing


def drawing_of(env_id: str) -> Drawing:
    found = gpu_envs.spec(env_id).drawing
    assert found is not None
    return found


def actions_for(env_id: str, num_envs: int, steps: int) -> list[Any]:
    """Random actions, of either kind of environment, in NumPy."""
    if env_id in IDS:
        return list(actions_of_one(env_id, steps, num_envs))
    env = gpu_envs.make(env_id, num_envs, device="cpu")
    for i, space in enumerate(env.action_spaces.values()):
        space.seed(i)
    drawn = [{role: space.sample() for role, space in env.action_spaces.items()} for _ in range(steps)]
    env.close()
    return drawn


def assert_alike(one: np.ndarray, other: np.ndarray) -> None:
    """Fails unless two frames are the same but for roundings: NumPy's sines differ with their number."""
    assert one.shape == other.shape
    assert np.abs(one.astype(int) - other.astype(int)).max() <= 2


def nothing(_: object) -> None:
    """Does not look."""


def all_of(frames: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(frames)
