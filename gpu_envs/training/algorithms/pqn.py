"""Parallelised Q-learning (Gallici et al. 2024): Q(lambda) without a replay buffer and without target networks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, final

from gpu_envs.documented import documented
from gpu_envs.training.algorithms.base import QLearning

if TYPE_CHECKING:
    import torch


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class PQN(QLearning):
    """Q(lambda) over a horizon, for discrete actions."""

    name: ClassVar[str] = "pqn"

    def loss(self, q_values: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
        """(Q(s, a) - R)^2 / 2 of each sample, where R is the lambda return and Q(s, a) the mean over a's elements."""
        return 0.5 * (q_values - returns).square()
