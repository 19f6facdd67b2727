"""Random actions that are independent of the number of replicas, and that masks allow."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np

from gpu_envs.engine.random_actions import num_elements
from gpu_envs.engine.roles import RoleInfo

Draw: TypeAlias = dict[str, np.ndarray]
"""Numbers from 0 to 1 by role, to choose actions with: ``[num_envs, elements]`` or ``[num_envs, agents, elements]``."""

_BELOW_ONE = 1.0 - 2.0**-53
"""Largest float64 below 1."""


def draws(roles: Mapping[str, RoleInfo], steps: int, num_envs: int, seed: int) -> list[Draw]:
    """Returns uniform random numbers for each step; a replica's numbers do not depend on the number of replicas."""
    return [
        {
            name: np.random.default_rng([seed, t, r]).random((*role.batch_shape(num_envs), num_elements(role.action)))
            for r, (name, role) in enumerate(roles.items())
        }
        for t in range(steps)
    ]


NUM_PATTERNS = 5
"""Number of action patterns in ``long_draws``."""

_REPEATS = 40
"""Number of steps for which an action is repeated."""


def long_draws(roles: Mapping[str, RoleInfo], steps: int, num_envs: int, seed: int) -> Iterator[Draw]:
    """Yields numbers for each step; replica i follows pattern i % 5: random, repeated, lowest, highest, at bounds."""
    pattern = np.arange(num_envs) % NUM_PATTERNS
    for t in range(steps):
        (random,) = draws(roles, 1, num_envs, seed + 1 + t)
        (repeated,) = draws(roles, 1, num_envs, seed + 1 + t // _REPEATS * _REPEATS)
        low, high = ({role: np.full_like(units, end) for role, units in random.items()} for end in (0.0, _BELOW_ONE))
        patterns = (random, repeated, low, high, at_bounds(random))
        yield {
            role: np.choose(pattern.reshape(-1, *(1,) * (units.ndim - 1)), [numbers[role] for numbers in patterns])
            for role, units in random.items()
        }


def at_bounds(draw: Draw) -> Draw:
    """Returns the numbers rounded to 0 or almost 1: actions at the bounds of Boxes, or the first and last choices."""
    return {role: np.where(units < 0.5, 0.0, _BELOW_ONE) for role, units in draw.items()}
