"""Proximal policy optimisation (Schulman et al. 2017)."""

import dataclasses
from typing import ClassVar, final

from gpu_envs.training.algorithms.base import Minibatched, PolicyGradient, Tensor
from gpu_envs.training.settings import setting


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PPO(PolicyGradient, Minibatched):
    """Several epochs over a horizon, with the probability ratio clipped."""

    name: ClassVar[str] = "ppo"

    clip: float = setting(0.2, least=0.0, most=10.0, above=True)
    """Largest change of an action's probability in an update: the ratio stays within 1 - clip and 1 + clip."""
    target_kl: float | None = setting(None, least=0.0, most=1e3, above=True)
    """KL divergence from the acting policy at which an update stops; None: no limit."""

    @property
    def clip_range(self) -> float | None:
        return self.clip

    @property
    def kl_limit(self) -> float | None:
        return self.target_kl

    def policy_loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
        """-min(r A, clip(r, 1 - clip, 1 + clip) A) with r = pi(a) / pi_old(a), eq. 7."""
        ratio = (log_probs - old_log_probs).exp()
        return -(ratio * advantages).minimum(ratio.clamp(1.0 - self.clip, 1.0 + self.clip) * advantages)
