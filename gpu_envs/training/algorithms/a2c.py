"""Advantage actor-critic (Mnih et al. 2016)."""

import dataclasses
from typing import ClassVar, final

from gpu_envs.training.algorithms.base import PolicyGradient, Tensor


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class A2C(PolicyGradient):
    """A2C: one gradient step per rollout, without clipping."""

    name: ClassVar[str] = "a2c"

    def policy_loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
        """Return -A log pi(a)."""
        del old_log_probs
        return -advantages * log_probs
