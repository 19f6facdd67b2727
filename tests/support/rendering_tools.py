"""Helpers for tests of rendering."""

from typing import Any

import numpy as np
from registered import draw_actions, join_actions

import gpu_envs
from gpu_envs.pictures import Drawing


def drawing_of(env_id: str) -> Drawing:
    drawing = gpu_envs.spec(env_id).drawing
    assert drawing is not None
    return drawing


def actions_for(env_id: str, num_envs: int, steps: int) -> list[Any]:
    """Returns random actions of a single-agent or team environment, in NumPy."""
    env = gpu_envs.make(env_id, num_envs, device="cpu")
    drawn = [join_actions(env, actions) for actions in draw_actions(env, steps)]
    env.close()
    return drawn


def assert_similar_frames(one: np.ndarray, other: np.ndarray) -> None:
    """Fails unless two frames agree up to rounding: NumPy's sine depends on the array's size."""
    assert one.shape == other.shape
    assert np.abs(one.astype(int) - other.astype(int)).max() <= 2


def do_nothing(_: object) -> None:
    """Ignores its argument."""
