"""Random actions: of each replica its own, whatever others there are, and only such as masks allow."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np

from gpu_envs.engine.roles import RoleInfo
from gpu_envs.engine.random_actions import num_elements

Draw: TypeAlias = dict[str, np.ndarray]
"""By role numbers from 0 to 1: ``[num_envs, elements]`` or ``[num_envs, agents, elements]``."""

_MOST = 1.0 - 2.0**-53
"""The last number before 1."""


def draws(roles: Mapping[str, RoleInfo], steps: int, num_envs: int, seed: int) -> list[Draw]:
    """Numbers for some steps. The first replicas of many have the same as few have."""
    return [
        {
            name: np.random.default_rng([seed, t, r]).random((*role.batch_shape(num_envs), num_elements(role.action)))
            for r, (name, role) in enumerate(roles.items())
        }
        for t in range(steps)
    ]


KINDS = 5
"""How many ways to act ``long_draws`` has."""

_RUN = 40
"""For how many steps an action is held."""


def long_draws(roles: Mapping[str, RoleInfo], steps: int, num_envs: int, seed: int) -> Iterator[Draw]:
    """Numbers for a long run: replicas in turn act at random, hold an action, stay at one end or the other, or jump."""
    kind = np.arange(num_envs) % KINDS
    for t in range(steps):
        (fresh,) = draws(roles, 1, num_envs, seed + 1 + t)
        (held,) = draws(roles, 1, num_envs, seed + 1 + t // _RUN * _RUN)
        low, high = ({role: np.full_like(units, end) for role, units in fresh.items()} for end in (0.0, _MOST))
        ways = (fresh, held, low, high, at_bounds(fresh))
        yield {
            role: np.choose(kind.reshape(-1, *(1,) * (units.ndim - 1)), [way[role] for way in ways])
            for role, units in fresh.items()
        }


def at_bounds(draw: Draw) -> Draw:
    """The same numbers at one end or the other: actions at the bounds of Boxes, the first and the last choices."""
    return {role: np.where(units < 0.5, 0.0, _MOST) for role, units in draw.items()}
