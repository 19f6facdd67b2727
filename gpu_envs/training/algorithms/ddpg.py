"""Deep deterministic policy gradient (Lillicrap et al. 2016)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, final

from gpu_envs.documented import documented
from gpu_envs.training.algorithms.base import OffPolicy
from gpu_envs.training.settings import setting

if TYPE_CHECKING:
    import torch


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class DDPG(OffPolicy):
    """TD3 with one critic, without smoothing and without delay."""

    name: ClassVar[str] = "ddpg"
    critics: ClassVar[int] = 1

    noise: float = setting(0.1, least=0.0, most=10.0)
    """Standard deviation of the noise on actions in training, where the action bounds are -1 and 1."""

    def explore(self, outputs: torch.Tensor, normal: torch.Tensor) -> torch.Tensor:
        """tanh(outputs) + noise, within the bounds."""
        return (outputs.tanh() + self.noise * normal).clamp(-1.0, 1.0)

    def policy(self, outputs: torch.Tensor, normal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        del normal
        return outputs.tanh(), None

    def target_policy(self, outputs: torch.Tensor, normal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.policy(outputs, normal)

    def actor_loss(self, q_values: torch.Tensor, bonus: torch.Tensor | float) -> torch.Tensor:
        """-Q(s, a)."""
        del bonus
        return -q_values[0]
