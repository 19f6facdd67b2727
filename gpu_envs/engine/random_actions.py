"""Draws actions uniformly, among those that masks allow; where a mask forbids all choices, among all."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

_FAR = 10.0
"""Stands for an infinite bound of an action."""


def elements(space: gymnasium.Space[Any]) -> int:
    """How many numbers make an action."""
    return int(np.prod(space.shape or (1,)))


def choices(space: gymnasium.Space[Any]) -> list[int]:
    """How many choices each element of an action has; none for a Box."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return [int(n) for n in np.ravel(space.nvec)]
    return []


def bounds(space: gymnasium.Space[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Between which numbers each element of a Box's actions is drawn."""
    assert isinstance(space, gymnasium.spaces.Box)
    low = np.where(np.isfinite(space.low), space.low, -_FAR)
    high = np.where(np.isfinite(space.high), space.high, _FAR)
    return low.ravel(), high.ravel()


def drawn_among(space: gymnasium.Space[Any], mask: Any, units: Any) -> Any:
    """Actions, uniformly among the possible ones where the numbers are uniform.

    Args:
        space: Of one action: Discrete or MultiDiscrete.
        mask: ``[..., choices of all elements]``, zero where a choice is forbidden; NumPy's or torch's.
        units: Numbers from 0 up to but not 1, ``[..., elements]``; of the same library.

    Returns:
        Actions ``[..., *space.shape]``, whole numbers of 64 bits.
    """
    columns, first = [], 0
    for j, count in enumerate(choices(space)):
        columns.append(_nth(mask[..., first : first + count] != 0, units[..., j]))
        first += count
    return _joined(columns, space, units)


def chosen(space: gymnasium.Space[Any], units: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Actions of one role, in NumPy; units are from 0 to 1, and units and mask are shaped as of ``drawn_among``."""
    if isinstance(space, gymnasium.spaces.Box):
        low, high = bounds(space)
        flat = low + (high - low) * np.where(units > 1.0 - 2.0**-52, 1.0, units)
        return np.asarray(flat.reshape(*units.shape[:-1], *space.shape), np.float32)
    if mask is not None:
        return np.asarray(drawn_among(space, mask, units), np.int64)
    scaled = [_whole(units[..., j] * count) for j, count in enumerate(choices(space))]
    return np.asarray(_joined(scaled, space, units), np.int64)


def _nth(possible: Any, units: Any) -> Any:
    """Of the possible choices the one at a share of them."""
    possible = possible | ~possible.any(-1)[..., None]
    wanted = _whole(units * possible.sum(-1))
    return (possible.cumsum(-1) <= wanted[..., None]).sum(-1)


def _whole(values: Any) -> Any:
    """Rounded down; none is negative."""
    return values.astype(np.int64) if isinstance(values, np.ndarray) else values.long()


def _joined(columns: Sequence[Any], space: gymnasium.Space[Any], units: Any) -> Any:
    shape = (*units.shape[:-1], *(space.shape or ()))
    start = np.asarray(getattr(space, "start", 0), np.int64)
    if isinstance(units, np.ndarray):
        return np.stack(columns, -1).reshape(shape) + start
    import torch

    return torch.stack(list(columns), -1).reshape(shape) + torch.as_tensor(start, device=units.device)
