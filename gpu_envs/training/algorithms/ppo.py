"""Proximal policy optimisation (Schulman et al. 2017)."""

import dataclasses
from typing import ClassVar, final

from gpu_envs.training.algorithms.base import Minibatched, PolicyGradient, Tensor
from gpu_envs.training.settings import setting


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PPO(PolicyGradient, Minibatched):
    """PPO: several epochs of minibatches over a rollout, with a clipped probability ratio."""

    name: ClassVar[str] = "ppo"

    clip: float = setting(0.2, minimum=0.0, maximum=10.0, exclusive_minimum=True)
    """Clip range of the probability ratio: 1 - clip to 1 + clip."""
    target_kl: float | None = setting(None, minimum=0.0, maximum=1e3, exclusive_minimum=True)
    """Target KL divergence from the policy of the rollout: an update stops early above 1.5 times it; None: no limit."""

    @property
    def clip_range(self) -> float | None:
        return self.clip

    @property
    def kl_limit(self) -> float | None:
        return self.target_kl

    def policy_loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
        """Return -min(r A, clip(r, 1 - clip, 1 + clip) A) with r = pi(a) / pi_old(a), eq. 7."""
        ratio = (log_probs - old_log_probs).exp()
        return -(ratio * advantages).minimum(ratio.clamp(1.0 - self.clip, 1.0 + self.clip) * advantages)
