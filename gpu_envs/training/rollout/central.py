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
        samples: The observations of the last horizon, ``[horizon * rows, features]``.
    """

    samples: SplitRows

    def __init__(self, case: Case, policy_rows: PolicyRows, group: Group) -> None:
        assert case.central is not None
        self._part, self._rows, self._of_all = policy_rows.parts[0], policy_rows.rows, case.network.critic == "all"
        normalises = case.network.normalise_observations
        self.scale = ObservationScale(case.central.features, case.device, group) if normalises else None

    def observe(self, storage: Mapping[str, RoleStorage]) -> SplitRows:
        """Store a horizon's observations; return these and those after it, ``[horizon + 1, rows, features]``."""
        rows = self._joined({name: (s.rows(), s.alive) for name, s in storage.items()})
        self.samples = rows[:-1].flatten(0, 1)
        return rows

    def final_rows(self, storage: Mapping[str, RoleStorage]) -> SplitRows:
        """Return the final observations of episodes, ``[horizon, rows, features]``."""
        return self._joined(
            {name: (s.final_rows, None if s.alive is None else s.alive[:-1]) for name, s in storage.items()}
        )

    def learn(self) -> None:
        """Update the statistics by the last horizon's observations."""
        if self.scale is not None:
            self.scale.learn(self.samples.shared, None)

    def _joined(self, by_role: Mapping[str, tuple[Rows, Tensor | None]]) -> SplitRows:
        chosen = by_role.values() if self._of_all else (by_role[self._part.role.name],)
        parts = [_joint(*role) for role in chosen]
        shared = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        no_features = shared.new_empty(len(shared), self._rows, 0)
        return SplitRows(no_features, shared, len(self._part.members), Split(0, shared.shape[-1], 0))


def _joint(rows: Rows, alive: Tensor | None) -> Tensor:
    """Return a role's observations ``[steps, num_envs, features of all agents]``, zeros for inactive agents."""
    own, shared = (rows.individual, rows.shared) if isinstance(rows, SplitRows) else (rows, None)
    if alive is not None:
        own = torch.where(alive.unsqueeze(-1), own, 0.0)
    if shared is None:
        return own.flatten(-2)
    if alive is not None:
        shared = torch.where(alive.any(-1, keepdim=True), shared, 0.0)
    return torch.cat((own.flatten(-2), shared), -1)
