"""Environments for measurements, and random actions that are sampled before them."""

from typing import Any

import gymnasium
import numpy as np

import gpu_envs


def make_staggered(env_id: str, num_envs: int, device: str, **options: Any) -> gpu_envs.VectorEnv:
    """Make an environment with SameStep auto-reset whose replicas reach the time limit at different steps.

    The first episodes, which are shorter for that, have ended.
    """
    output = {} if device == "cpu" else {"output": "torch"}
    env = gpu_envs.make(env_id, num_envs, device=device, **{"autoreset_mode": "SameStep"} | output | options)
    assert isinstance(env, gpu_envs.VectorEnv)
    env.reset(seed=0)
    env.stagger(seed=1)
    assert env.max_episode_steps is not None
    env.rollout(env.max_episode_steps)
    return env


def random_actions(space: gymnasium.Space[Any], num_envs: int, count: int = 16) -> list[np.ndarray]:
    """Sample uniform actions for ``count`` steps."""
    rng = np.random.default_rng(0)
    if isinstance(space, gymnasium.spaces.Discrete):
        return [rng.integers(0, space.n, num_envs) for _ in range(count)]
    return [rng.uniform(-1, 1, (num_envs, 1)).astype(np.float32) for _ in range(count)]


def action_tensors(env: Any, count: int = 16, dtype: str = "int64") -> list[Any]:
    """Sample uniform actions for several steps, on the environment's device.

    Args:
        env: The environment.
        count: The number of steps.
        dtype: The data type of discrete actions.
    """
    import torch

    space, num_envs, device = env.single_action_space, env.num_envs, env.device
    if hasattr(space, "n"):
        integer = getattr(torch, dtype)
        return [torch.randint(0, int(space.n), (num_envs,), device=device, dtype=integer) for _ in range(count)]
    low, high = float(space.low[0]), float(space.high[0])
    return [torch.empty((num_envs, 1), device=device).uniform_(low, high) for _ in range(count)]
