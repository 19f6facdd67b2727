"""Helpers for tests of the TorchRL adapter."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from harness import SMALL_PARAMS
from tensordict import TensorDictBase

import gpu_envs
from gpu_envs.adapters.torchrl import Env

COLLECTORS = pytest.mark.filterwarnings(
    # TorchRL's collectors use its own deprecated functions.
    "ignore:Creating .*WeightUpdater:DeprecationWarning"
)


def make_env(env_id: str, num_envs: int, device: str, **options: Any) -> Env:
    """Makes the adapter of a small environment."""
    return Env(env_id, num_envs, device=device, **{**SMALL_PARAMS.get(env_id, {}), **options})


def make_plain_env(env_id: str, num_envs: int, device: str, mode: str, **options: Any) -> Any:
    """Makes the same environment with ``gpu_envs.make``."""
    options = {**SMALL_PARAMS.get(env_id, {}), **options}
    return gpu_envs.make(env_id, num_envs, device=device, output="torch", autoreset_mode=mode, **options)


def leaves(tensordict: TensorDictBase) -> dict[Any, torch.Tensor]:
    """Returns all tensors by their nested keys."""
    return dict(tensordict.items(True, True))


def clone(value: Any) -> Any:
    """Clones a tensor, or the tensors of a mapping."""
    return {k: clone(v) for k, v in value.items()} if isinstance(value, Mapping) else value.clone()


def random_actions(env: Any, steps: int, seed: int = 0) -> list[TensorDictBase]:
    """Draws random actions for many steps."""
    torch.manual_seed(seed)
    return [env.full_action_spec.rand() for _ in range(steps)]


def step_through(env: Any, actions: list[TensorDictBase], begin: TensorDictBase) -> Iterator[TensorDictBase]:
    """Steps with each action, resets finished replicas, and yields each step's TensorDict."""
    now = begin
    for action in actions:
        now.update(action)
        before, now = env.step_and_maybe_reset(now)
        yield before
