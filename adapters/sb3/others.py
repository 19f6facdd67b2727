"""Who acts for the roles of a team that are not trained."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np
import torch

from gpu_envs import MultiAgentEnv
from gpu_envs.errors import did_you_mean
from gpu_envs.resets import derived_seed

Policy: TypeAlias = Callable[[Any], Any]
"""From a role's observations, torch's ``[num_envs, agents, ...]``, to its actions: any array of the right shape."""

Other: TypeAlias = str | Policy
"""``random``, ``still`` or a policy."""

KINDS = ("random", "still")


@final
class Others:
    """The roles that are not trained, and what each of them does."""

    def __init__(self, env: MultiAgentEnv, role: str, asked: Other | Mapping[str, Other]) -> None:
        """Finds an actor for each.

        Args:
            env: The environment.
            role: The role that is trained.
            asked: What all others do, or what each does, those left out acting randomly.
        """
        roles = [name for name in env.roles if name != role]
        given = dict(asked) if isinstance(asked, Mapping) else dict.fromkeys(roles, asked)
        for name in given:
            if name not in roles:
                hint = did_you_mean(name, roles)
                raise ValueError(f"others names {name!r}, which is no other role{hint} There are: {', '.join(roles)}")
        self._device = env.device
        self._generator = torch.Generator(env.device)
        self._generator.seed()  # torch's own seed of a new one is always the same
        self._policies: dict[str, Policy] = {}
        for name in roles:
            self._policies[name] = self._policy(env, name, given.get(name, "random"))

    def _policy(self, env: MultiAgentEnv, role: str, asked: Other) -> Policy:
        if callable(asked):
            return asked
        space, rows = env.single_action_spaces[role], (env.num_envs, env.counts[role])
        if asked == "still":
            kind = torch.float32 if isinstance(space, gymnasium.spaces.Box) else torch.int64
            nothing = torch.zeros((*rows, *(space.shape or ())), dtype=kind, device=env.device)
            return lambda _: nothing
        if asked == "random":
            return random_policy(space, rows, env.device, self._generator)
        hint = did_you_mean(asked, KINDS) if isinstance(asked, str) else ""
        raise ValueError(f"others has {asked!r} for {role!r}; give 'random', 'still' or a callable{hint}")

    def seed(self, seed: int) -> None:
        """Begins the random numbers anew."""
        self._generator.manual_seed(derived_seed(seed, "others"))

    def act(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        """Everybody's actions, by role."""
        seen = {role: torch.as_tensor(observations[role], device=self._device) for role in self._policies}
        return {role: policy(seen[role]) for role, policy in self._policies.items()}


def random_policy(
    space: gymnasium.Space[Any], rows: tuple[int, ...], device: str, generator: torch.Generator
) -> Policy:
    """Uniformly random actions, drawn where the environment is."""
    if isinstance(space, gymnasium.spaces.Discrete):
        low, high = int(space.start), int(space.start + space.n)
        return lambda _: torch.randint(low, high, rows, device=device, generator=generator)
    shape = (*rows, *(space.shape or ()))
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        counts = torch.from_numpy(np.asarray(space.nvec, np.int64)).to(device)
        starts = torch.from_numpy(np.asarray(space.start, np.int64)).to(device)

        def choose(_: Any) -> torch.Tensor:
            drawn = torch.rand(shape, device=device, generator=generator, dtype=torch.float64)
            return starts + (drawn * counts).to(torch.int64)

        return choose
    assert isinstance(space, gymnasium.spaces.Box)
    least, most = (torch.from_numpy(bound.astype(np.float32)).to(device) for bound in (space.low, space.high))
    return lambda _: least + torch.rand(shape, device=device, generator=generator) * (most - least)
