"""Draws actions among those that masks allow; where a mask forbids all choices, among all."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np


def choices(space: gymnasium.Space[Any]) -> list[int]:
    """How many choices each element of an action has; none for a Box."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return [int(n) for n in np.ravel(space.nvec)]
    return []


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


def drawn_among_all(space: gymnasium.Space[Any], units: Any) -> Any:
    """As ``drawn_among``, where all is possible."""
    scaled = [units[..., j] * count for j, count in enumerate(choices(space))]
    return _joined([_whole(values) for values in scaled], space, units)


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
