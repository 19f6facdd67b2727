"""Advantage actor-critic (Mnih et al. 2016)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, final

from gpu_envs.documented import documented
from gpu_envs.training.algorithms.base import PolicyGradient

if TYPE_CHECKING:
    import torch


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class A2C(PolicyGradient):
    """One pass over a horizon, without clipping."""

    name: ClassVar[str] = "a2c"

    def policy_loss(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor
    ) -> torch.Tensor:
        """-A log pi(a)."""
        del old_log_probs
        return -advantages * log_probs
