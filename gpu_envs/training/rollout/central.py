"""Central critics, which see the observations of all agents of a role, or of all roles, once for each replica."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from gpu_envs.training.networks import Case
from gpu_envs.training.observations import ObservationScale, Rows, Split, SplitRows
from gpu_envs.training.process.group import Group
from gpu_envs.training.rollout.horizon_env import RoleStorage
from gpu_envs.training.rollout.plan import PolicyRows


@final
class CentralCritic:
    """Observations of a central critic: ``SplitRows`` that have only shared features.

    Attributes:
        scale: Normalisation of the observations; None: no normalisation.
    """

    def __init__(self, case: Case, policy_rows: PolicyRows, horizon: int, group: Group) -> None:
        """Allocate the observations of a horizon."""
        assert case.central is not None
        network, features = case.network, case.central.features
        self._part, self._rows, self._of_all = policy_rows.parts[0], policy_rows.rows, network.critic == "all"
        self._params = network.critic_observes
        self._observations = torch.zeros(horizon + 1, policy_rows.num_envs, features, device=case.device)
        self.scale = ObservationScale(features, case.device, group) if network.normalise_observations else None

    def observe(self, storage: Mapping[str, RoleStorage]) -> SplitRows:
        """Store and return the observations before each step and after the last, ``[horizon + 1, rows, features]``."""
        roles = {name: (s.rows(), s.alive) for name, s in storage.items()}
        torch.cat(self._parts(storage, roles, slice(None)), -1, out=self._observations)
        return self._shared(self._observations)

    @property
    def samples(self) -> SplitRows:
        """The observations before each step, ``[horizon * rows, features]``."""
        return self._shared(self._observations[:-1]).flatten(0, 1)

    def final_rows(self, storage: Mapping[str, RoleStorage]) -> SplitRows:
        """Return the final observations of episodes, ``[horizon, rows, features]``."""
        before = slice(-1)
        remain = {n: None if s.alive is None else s.alive[before] & ~s.terminations for n, s in storage.items()}
        roles = {name: (s.final_rows, remain[name]) for name, s in storage.items()}
        return self._shared(torch.cat(self._parts(storage, roles, before), -1))

    def learn(self) -> None:
        """Update the statistics by the last horizon's observations."""
        if self.scale is not None:
            self.scale.learn(self._observations[:-1].flatten(0, 1), None)

    def _parts(
        self, storage: Mapping[str, RoleStorage], roles: Mapping[str, tuple[Rows, Tensor | None]], steps: slice
    ) -> list[Tensor]:
        """Return the parts of observations, ``[steps, num_envs, ...]``: roles' observations, and parameters."""
        own = storage[self._part.role.name]
        chosen = roles.values() if self._of_all else (roles[own.role.name],)
        parts = [part for role in chosen for part in _without_inactive(*role)]
        if self._params and own.params is not None:
            parts += [own.params[steps, :, own.param_names.index(name)].unsqueeze(-1) for name in self._params]
        return parts

    def _shared(self, observations: Tensor) -> SplitRows:
        no_features = observations.new_empty(len(observations), self._rows, 0)
        split = Split(0, observations.shape[-1], 0)
        return SplitRows(no_features, observations, len(self._part.members), split)


def _without_inactive(rows: Rows, alive: Tensor | None) -> list[Tensor]:
    """Return a role's observations, and shared ones, ``[steps, num_envs, features]``; zeros for inactive agents."""
    own, shared = (rows.individual, rows.shared) if isinstance(rows, SplitRows) else (rows, None)
    if alive is not None:
        own = torch.where(alive.unsqueeze(-1), own, 0.0)
    if shared is None:
        return [own.flatten(-2)]
    return [own.flatten(-2), shared if alive is None else torch.where(alive.any(-1, keepdim=True), shared, 0.0)]
