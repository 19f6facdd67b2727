"""Who acts for the roles of a team that are not trained."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np
import torch

from gpu_envs.engine.by_role import ByRole
from gpu_envs.engine.random_actions import choices, drawn_among
from gpu_envs.errors import did_you_mean
from gpu_envs.seeds import derived_seed

OthersPolicy: TypeAlias = Callable[[Any], Any]
"""From a role's observations, torch's ``[num_envs, agents, ...]``, to its actions: any array of the right shape."""

Other: TypeAlias = str | OthersPolicy
"""``random``, ``still`` or a policy."""


@final
class Others:
    """The roles that are not trained, and what each of them does."""

    def __init__(self, by_role: ByRole, role: str, asked: Other | Mapping[str, Other]) -> None:
        """Finds an actor for each.

        Args:
            by_role: The environment.
            role: The role that is trained.
            asked: What all others do, or what each does, those left out acting randomly.
        """
        roles = [name for name in by_role.roles if name != role]
        given = dict(asked) if isinstance(asked, Mapping) else dict.fromkeys(roles, asked)
        for name in given:
            if name not in roles:
                hint = did_you_mean(name, roles)
                raise ValueError(f"others names {name!r}, which is no other role{hint} There are: {', '.join(roles)}")
        self._env = by_role.env
        self._policies = {name: _policy(by_role, name, given.get(name, "random")) for name in roles}

    def seed(self, seed: int) -> None:
        """Begins the random numbers anew."""
        for role, policy in self._policies.items():
            if isinstance(policy, RandomPolicy):
                policy.seed(derived_seed(seed, "others", role))

    def act(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        """Everybody's actions, by role."""
        seen = {role: torch.as_tensor(observations[role], device=self._env.device) for role in self._policies}
        masks = self._env.action_mask or {}
        return {
            role: policy.among(torch.as_tensor(masks[role], device=self._env.device))
            if role in masks and isinstance(policy, RandomPolicy)
            else policy(seen[role])
            for role, policy in self._policies.items()
        }


@final
class Still:
    """Does nothing: zeros, always."""

    def __init__(self, space: gymnasium.Space[Any], rows: tuple[int, ...], device: str) -> None:
        """Makes the actions.

        Args:
            space: Of one agent's actions.
            rows: Replicas, and agents in each.
            device: Where.
        """
        kind = torch.float32 if isinstance(space, gymnasium.spaces.Box) else torch.int64
        self._nothing = torch.zeros((*rows, *(space.shape or ())), dtype=kind, device=device)

    def __call__(self, observations: Any) -> torch.Tensor:
        """The same every time."""
        del observations
        return self._nothing


@final
class RandomPolicy:
    """Uniformly random actions, drawn where the environment is."""

    def __init__(self, space: gymnasium.Space[Any], rows: tuple[int, ...], device: str) -> None:
        """Begins with random numbers of its own; arguments as of ``Still``."""
        self._space, self._shape = space, (*rows, *(space.shape or ()))
        self._device = device
        self._generator = torch.Generator(device)
        self._generator.seed()  # torch's own seed of a new one is always the same
        self._whole = not isinstance(space, gymnasium.spaces.Box)
        least: Any
        width: Any
        if isinstance(space, gymnasium.spaces.Box):
            if not np.isfinite([space.low, space.high]).all():
                raise ValueError(f"the actions {space} have no bounds to draw between; give others a callable")
            least, width = space.low.astype(np.float32), (space.high - space.low).astype(np.float32)
        elif isinstance(space, gymnasium.spaces.Discrete):
            least, width = np.int64(space.start), np.int64(space.n)
        else:
            assert isinstance(space, gymnasium.spaces.MultiDiscrete)
            least, width = space.start.astype(np.int64), space.nvec.astype(np.int64)
        self._least, self._width = (torch.as_tensor(value, device=device) for value in (least, width))

    def seed(self, seed: int) -> None:
        """Begins the random numbers anew."""
        self._generator.manual_seed(seed)

    def __call__(self, observations: Any) -> torch.Tensor:
        """One action for every agent."""
        del observations
        precision = torch.float64 if self._whole else torch.float32  # float32 would round up to a whole number
        drawn = torch.rand(self._shape, device=self._device, generator=self._generator, dtype=precision) * self._width
        return self._least + (drawn.to(torch.int64) if self._whole else drawn)

    def among(self, mask: torch.Tensor) -> torch.Tensor:
        """One action for every agent, of those that it may choose.

        Args:
            mask: Which ones those are, ``[replicas, agents, choices]``; of several numbers one after another.
        """
        shape = (*mask.shape[:-1], len(choices(self._space)))
        units = torch.rand(shape, device=self._device, generator=self._generator, dtype=torch.float64)
        drawn: torch.Tensor = drawn_among(self._space, mask, units)
        return drawn

    def __getstate__(self) -> dict[str, Any]:
        """All there is, and where the random numbers stand."""
        return {**vars(self), "_generator": self._generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._generator = torch.Generator(self._device)
        self._generator.set_state(state["_generator"])


def _policy(by_role: ByRole, role: str, asked: Other) -> OthersPolicy:
    if callable(asked):
        return asked
    known: dict[str, type[RandomPolicy] | type[Still]] = {"random": RandomPolicy, "still": Still}
    if not isinstance(asked, str) or asked not in known:
        hint = did_you_mean(asked, known) if isinstance(asked, str) else ""
        raise ValueError(f"others has {asked!r} for {role!r}; give 'random', 'still' or a callable{hint}")
    return known[asked](by_role.roles[role].action, by_role.rows(role), by_role.env.device)
