"""Policies for the roles of a team that are not trained."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np
import torch

from gpu_envs.engine.random_actions import choices, sample_masked
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.errors import did_you_mean
from gpu_envs.seeds import derived_seed

PolicyFunction: TypeAlias = Callable[[Any], Any]
"""A function from a role's observations, a tensor ``[num_envs, agents, ...]``, to an array of its actions."""

OtherPolicy: TypeAlias = str | PolicyFunction
"""``random``, ``still`` or a function."""


@final
class OtherRoles:
    """The roles that are not trained, with a policy for each."""

    def __init__(self, by_role: RoleInterface, role: str, policies: OtherPolicy | Mapping[str, OtherPolicy]) -> None:
        """Select the policies of all roles except ``role``; roles that are missing in a dict act randomly."""
        roles = [name for name in by_role.roles if name != role]
        chosen = dict(policies) if isinstance(policies, Mapping) else dict.fromkeys(roles, policies)
        for name in chosen:
            if name not in roles:
                hint = did_you_mean(name, roles)
                raise ValueError(
                    f"others has the key {name!r}, which is not a role besides the trained one, {role!r}{hint} "
                    f"There are: {', '.join(roles) or 'none'}"
                )
        self._env = by_role.env
        self._policies = {name: _policy(by_role, name, chosen.get(name, "random")) for name in roles}

    def seed(self, seed: int) -> None:
        """Seed the random policies."""
        for role, policy in self._policies.items():
            if isinstance(policy, RandomPolicy):
                policy.seed(derived_seed(seed, "others", role))

    def act(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        """Return the actions of the roles that are not trained, by role, as tensors or a function's arrays."""
        tensors = {role: torch.as_tensor(observations[role], device=self._env.device) for role in self._policies}
        masks = self._env.action_mask or {}
        return {
            role: policy.sample_masked(torch.as_tensor(masks[role], device=self._env.device))
            if role in masks and isinstance(policy, RandomPolicy)
            else policy(tensors[role])
            for role, policy in self._policies.items()
        }


@final
class Still:
    """A policy whose actions are all zeros."""

    def __init__(self, space: gymnasium.Space[Any], rows: tuple[int, ...], device: str) -> None:
        """Allocate the actions for ``rows``: numbers of replicas and of agents in each."""
        dtype = torch.float32 if isinstance(space, gymnasium.spaces.Box) else torch.int64
        self._nothing = torch.zeros((*rows, *(space.shape or ())), dtype=dtype, device=device)

    def __call__(self, observations: Any) -> torch.Tensor:
        del observations
        return self._nothing


@final
class RandomPolicy:
    """A policy that samples the action space uniformly, on the environment's device."""

    def __init__(self, space: gymnasium.Space[Any], rows: tuple[int, ...], device: str) -> None:
        """Start with a random seed; ``rows``: numbers of replicas and of agents in each."""
        self._space, self._shape = space, (*rows, *(space.shape or ()))
        self._device = device
        self._generator = torch.Generator(device)
        self._generator.seed()  # a new torch.Generator always has the same seed
        self._integers = not isinstance(space, gymnasium.spaces.Box)
        low: Any
        width: Any
        if isinstance(space, gymnasium.spaces.Box):
            if not np.isfinite([space.low, space.high]).all():
                raise ValueError(
                    f"cannot sample from {space}, whose bounds are not all finite: give a function from "
                    "observations to actions in others"
                )
            low, width = space.low.astype(np.float32), (space.high - space.low).astype(np.float32)
        elif isinstance(space, gymnasium.spaces.Discrete):
            low, width = np.int64(space.start), np.int64(space.n)
        else:
            assert isinstance(space, gymnasium.spaces.MultiDiscrete)
            low, width = space.start.astype(np.int64), space.nvec.astype(np.int64)
        self._low, self._width = (torch.as_tensor(value, device=device) for value in (low, width))

    def seed(self, seed: int) -> None:
        """Seed the random numbers."""
        self._generator.manual_seed(seed)

    def __call__(self, observations: Any) -> torch.Tensor:
        del observations
        precision = torch.float64 if self._integers else torch.float32  # float32 could round up to an excluded integer
        drawn = torch.rand(self._shape, device=self._device, generator=self._generator, dtype=precision) * self._width
        return self._low + (drawn.to(torch.int64) if self._integers else drawn)

    def sample_masked(self, mask: torch.Tensor) -> torch.Tensor:
        """Return random actions that a mask ``[num_envs, agents, choices]`` allows, one for each agent."""
        shape = (*mask.shape[:-1], len(choices(self._space)))
        units = torch.rand(shape, device=self._device, generator=self._generator, dtype=torch.float64)
        actions: torch.Tensor = sample_masked(self._space, mask, units)
        return actions

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_generator": self._generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._generator = torch.Generator(self._device)
        self._generator.set_state(state["_generator"])


def _policy(by_role: RoleInterface, role: str, policy: OtherPolicy) -> PolicyFunction:
    """Return the function, or the policy named ``random`` or ``still`` for the role; raise a ValueError otherwise."""
    if callable(policy):
        return policy
    built_in: dict[str, type[RandomPolicy] | type[Still]] = {"random": RandomPolicy, "still": Still}
    if not isinstance(policy, str) or policy not in built_in:
        hint = did_you_mean(policy, built_in) if isinstance(policy, str) else ""
        raise ValueError(f"others is {policy!r} for {role!r}: use 'random', 'still' or a function{hint}")
    return built_in[policy](by_role.roles[role].action, by_role.batch_shape(role), by_role.env.device)
