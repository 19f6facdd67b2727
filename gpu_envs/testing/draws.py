"""Random actions: of each replica its own, whatever others there are, and only such as masks allow."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from gpu_envs.masks import drawn_among, drawn_among_all

Draw: TypeAlias = dict[str, np.ndarray]
"""By role (``""`` without roles) numbers from 0 to 1: ``[num_envs, elements]`` or ``[num_envs, agents, elements]``."""

_FAR = 10.0
"""Stands for an infinite bound of an action."""


def elements(space: gymnasium.Space[Any]) -> int:
    """How many numbers make an action."""
    return int(np.prod(space.shape or (1,)))


def draws(
    spaces: Mapping[str, gymnasium.Space[Any]], counts: Mapping[str, int], steps: int, num_envs: int, seed: int
) -> list[Draw]:
    """Numbers for some steps. The first replicas of many have the same as few have.

    Args:
        spaces: The action space of each role.
        counts: How many agents each role has; 0: the role is the one agent.
        steps: How many steps.
        num_envs: How many replicas.
        seed: Of the numbers.
    """
    found = []
    for t in range(steps):
        draw = {}
        for r, (role, space) in enumerate(spaces.items()):
            agents = (counts[role],) if counts[role] else ()
            draw[role] = np.random.default_rng([seed, t, r]).random((num_envs, *agents, elements(space)))
        found.append(draw)
    return found


def at_bounds(draw: Draw) -> Draw:
    """The same numbers at one end or the other: actions at the bounds of Boxes, the first and the last choices."""
    return {role: np.where(units < 0.5, 0.0, 1.0 - 2.0**-53) for role, units in draw.items()}


def chosen(space: gymnasium.Space[Any], units: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Actions of a role.

    Args:
        space: The action space.
        units: Numbers from 0 to 1, ``[..., elements]``.
        mask: Which choices are possible, ``[..., choices of all elements]``; None: all.
    """
    if isinstance(space, gymnasium.spaces.Box):
        low = np.where(np.isfinite(space.low), space.low, -_FAR)
        high = np.where(np.isfinite(space.high), space.high, _FAR)
        flat = low.ravel() + (high - low).ravel() * np.where(units > 1.0 - 2.0**-52, 1.0, units)
        return np.asarray(flat.reshape(*units.shape[:-1], *space.shape), np.float32)
    picked = drawn_among_all(space, units) if mask is None else drawn_among(space, mask, units)
    return np.asarray(picked, np.int64)
