"""Deep deterministic policy gradient (Lillicrap et al. 2016)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, final

from gpu_envs.documented import documented
from gpu_envs.training.algorithms.base import Deterministic

if TYPE_CHECKING:
    import torch


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class DDPG(Deterministic):
    """TD3 with one critic, without smoothing and without delay."""

    name: ClassVar[str] = "ddpg"
    critics: ClassVar[int] = 1

    def target_policy(self, outputs: torch.Tensor, normal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.policy(outputs, normal)
