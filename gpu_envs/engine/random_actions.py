"""Uniform random actions among the allowed choices; a mask that forbids all choices is ignored."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

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
