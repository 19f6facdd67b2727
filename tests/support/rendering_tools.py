"""What the tests of rendering share."""

from typing import Any

import numpy as np
from registered import draw_actions, join_actions

import gpu_envs
from gpu_envs.pictures import Drawing


def drawing_of(env_id: str) -> Drawing:
    found = gpu_envs.spec(env_id).drawing
    assert found is not None
    return found


def actions_for(env_id: str, num_envs: int, steps: int) -> list[Any]:
    """Random actions, of either kind of environment, in NumPy."""
    env = gpu_envs.make(env_id, num_envs, device="cpu")
    drawn = [join_actions(env, actions) for actions in draw_actions(env, steps)]
    env.close()
    return drawn


def assert_similar_frames(one: np.ndarray, other: np.ndarray) -> None:
    """Fails unless two frames are the same but for roundings: NumPy's sines differ with their number."""
    assert one.shape == other.shape
    assert np.abs(one.astype(int) - other.astype(int)).max() <= 2


def do_nothing(_: object) -> None:
    """Does not look."""
