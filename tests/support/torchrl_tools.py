"""What the tests of TorchRL's interface share: small environments, random actions, walks."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from harness import SMALL_PARAMS
from tensordict import TensorDictBase

import gpu_envs
from gpu_envs.adapters.torchrl import Env

COLLECTORS = pytest.mark.filterwarnings(
    # TorchRL's own: its collectors, when imported and when made, still use what it calls deprecated.
    "ignore:Creating .*WeightUpdater:DeprecationWarning"
)


def make_env(env_id: str, num_envs: int, device: str, **options: Any) -> Env:
    """The adapter's environment, a small one."""
    return Env(env_id, num_envs, device=device, **{**SMALL_PARAMS.get(env_id, {}), **options})


def make_plain_env(env_id: str, num_envs: int, device: str, mode: str, **options: Any) -> Any:
    """The same as gpu_envs makes it."""
    options = {**SMALL_PARAMS.get(env_id, {}), **options}
    return gpu_envs.make(env_id, num_envs, device=device, output="torch", autoreset_mode=mode, **options)


def leaves(tensordict: TensorDictBase) -> dict[Any, torch.Tensor]:
    """The tensors by their keys."""
    return dict(tensordict.items(True, True))


def clone(value: Any) -> Any:
    """A copy of a tensor, or of a mapping's tensors."""
    return {k: clone(v) for k, v in value.items()} if isinstance(value, Mapping) else value.clone()


def random_actions(env: Any, steps: int, seed: int = 0) -> list[TensorDictBase]:
    """Random actions of many steps."""
    torch.manual_seed(seed)
    return [env.full_action_spec.rand() for _ in range(steps)]


def step_through(env: Any, actions: list[TensorDictBase], begin: TensorDictBase) -> Iterator[TensorDictBase]:
    """Each step's TensorDict; what is done begins anew."""
    now = begin
    for action in actions:
        now.update(action)
        before, now = env.step_and_maybe_reset(now)
        yield before
