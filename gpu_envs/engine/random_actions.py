"""Uniform random actions among the allowed choices; a mask that forbids all choices is ignored."""

import copy
from collections.abc import Sequence
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.seeds import derived_seed

_UNBOUNDED = 10.0
"""Replaces an infinite bound of an action."""


def num_elements(space: gymnasium.Space[Any]) -> int:
    """The number of elements of an action."""
    return int(np.prod(space.shape or (1,)))


def choices(space: gymnasium.Space[Any]) -> list[int]:
    """The number of choices of each element of an action; empty for a Box."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return [int(n) for n in np.ravel(space.nvec)]
    return []


def bounds(space: gymnasium.Space[Any]) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper bounds of each element of a Box's random actions; finite also where the Box has none."""
    assert isinstance(space, gymnasium.spaces.Box)
    low = np.where(np.isfinite(space.low), space.low, -_UNBOUNDED)
    high = np.where(np.isfinite(space.high), space.high, _UNBOUNDED)
    return low.ravel(), high.ravel()


def sample_masked(space: gymnasium.Space[Any], mask: Any, uniforms: Any) -> Any:
    """Map uniform random numbers to actions, uniform among the allowed choices.

    Args:
        space: Space of one action: Discrete or MultiDiscrete.
        mask: ``[..., choices of all elements]``, zero for forbidden choices; an array of NumPy or torch.
        uniforms: Random numbers in [0, 1), ``[..., elements]``; an array of the same library.

    Returns:
        Actions ``[..., *space.shape]``, int64.
    """
    columns, first = [], 0
    for j, count in enumerate(choices(space)):
        columns.append(_select_allowed(mask[..., first : first + count] != 0, uniforms[..., j]))
        first += count
    return _stack_elements(columns, space, uniforms)


def sample_actions(space: gymnasium.Space[Any], uniforms: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Map uniform random numbers to NumPy actions of any space, as ``sample_masked``; no ``mask``: all choices."""
    if isinstance(space, gymnasium.spaces.Box):
        low, high = bounds(space)
        flat = low + (high - low) * np.where(uniforms > 1.0 - 2.0**-52, 1.0, uniforms)
        return np.asarray(flat.reshape(*uniforms.shape[:-1], *space.shape), np.float32)
    if mask is not None:
        return np.asarray(sample_masked(space, mask, uniforms), np.int64)
    columns = [_floor(uniforms[..., j] * count) for j, count in enumerate(choices(space))]
    return np.asarray(_stack_elements(columns, space, uniforms), np.int64)


def _select_allowed(allowed: Any, uniforms: Any) -> Any:
    """Choice number floor(uniform * count) of each row's ``count`` allowed choices; of all if none is allowed."""
    allowed = allowed | ~allowed.any(-1)[..., None]
    rank = _floor(uniforms * allowed.sum(-1))
    return (allowed.cumsum(-1) <= rank[..., None]).sum(-1)


def _floor(values: Any) -> Any:
    """Round numbers that are not negative down to int64."""
    return values.astype(np.int64) if isinstance(values, np.ndarray) else values.long()


def _stack_elements(columns: Sequence[Any], space: gymnasium.Space[Any], uniforms: Any) -> Any:
    """Actions ``[..., *space.shape]`` from the choice of each element, counted from 0; ``uniforms`` has the library."""
    shape = (*uniforms.shape[:-1], *(space.shape or ()))
    start = np.asarray(getattr(space, "start", 0), np.int64)
    if isinstance(uniforms, np.ndarray):
        return np.stack(columns, -1).reshape(shape) + start
    import torch

    return torch.stack(list(columns), -1).reshape(shape) + torch.as_tensor(start, device=uniforms.device)


@final
class RandomActions:
    """A policy that samples the action spaces, or the actions that action masks allow."""

    def __init__(self, env: Any, seed: int) -> None:
        """Copy the action spaces, so that the random state of the environment's spaces does not change."""
        self._by_role = view = RoleInterface(getattr(env, "unwrapped", env))
        self._rng = np.random.default_rng(derived_seed(seed, "possible actions"))
        self._spaces = copy.deepcopy(view.split(env.action_space if view.single_agent else env.action_spaces))
        for role, space in self._spaces.items():
            purpose = "random actions", "" if view.single_agent else role
            space.seed(derived_seed(seed, *purpose) % 2**31)  # Gymnasium's largest seed

    def __call__(self, *observations_and_masks: Any) -> Any:
        """Return random actions in the environment's format."""
        del observations_and_masks
        masks = {role: to_numpy(mask) for role, mask in self._by_role.action_masks.items()}
        return self._by_role.join(
            {role: self._sample_allowed(role, masks[role]) for role in masks}
            or {role: space.sample() for role, space in self._spaces.items()}
        )

    def _sample_allowed(self, role: str, mask: np.ndarray) -> Any:
        space = self._by_role.roles[role].action
        return sample_masked(space, mask, self._rng.random((*mask.shape[:-1], len(choices(space)))))
