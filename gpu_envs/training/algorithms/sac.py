"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905; equation numbers refer to it)."""

import dataclasses
import math
from typing import ClassVar, final

from gpu_envs.training.algorithms.base import LOG_STD_RANGE, OffPolicy, Tensor
from gpu_envs.training.settings import setting


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SAC(OffPolicy):
    """SAC: two critics, a tanh-squashed Gaussian actor, and a learnt temperature."""

    name: ClassVar[str] = "sac"
    stochastic: ClassVar[bool] = True

    temperature: float = setting(1.0, minimum=0.0, maximum=1e6, exclusive_minimum=True)
    """Initial temperature, the weight of the entropy bonus; it is learnt from there."""
    target_entropy: float | None = setting(None, automatic=True, minimum=-1e6, maximum=1e6)
    """Target entropy of the policy, in units where the action bounds are -1 and 1; None: -1 per action element."""

    def entropy_target(self, width: int) -> float:
        """Return the target entropy for actions of ``width`` elements."""
        return -float(width) if self.target_entropy is None else self.target_entropy

    def explore(self, outputs: Tensor, normal: Tensor) -> Tensor:
        mean, log_std = _split(outputs)
        return mean.addcmul(log_std.exp(), normal).tanh()

    def policy(self, outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return a = tanh(u), u = mean + std * normal, and log pi(a) = log N(u) - log(1 - tanh(u)^2), appendix C."""
        from torch.nn.functional import softplus

        mean, log_std = _split(outputs)
        u = mean.addcmul(log_std.exp(), normal)
        log_slope = 2.0 * (math.log(2.0) - u - softplus(-2.0 * u))  # log(1 - tanh(u)^2), without overflow for large |u|
        log_probs = -(0.5 * normal.square() + log_std + 0.5 * math.log(2.0 * math.pi) + log_slope)
        return u.tanh(), log_probs.sum(1)

    def entropy_bonus(self, log_probs: Tensor, log_temperature: Tensor) -> Tensor:
        """Return the entropy bonus of each value, ``[B]``: -alpha log pi(a), eq. 3."""
        return -log_temperature.exp() * log_probs

    def actor_loss(self, q_values: Tensor, bonus: Tensor | float) -> Tensor:
        """Return alpha log pi(a) - min_i Q_i(s, a), eq. 7."""
        return -(q_values.amin(0) + bonus)

    def temperature_gradient(self, log_probs: Tensor, target_entropy: float) -> Tensor:
        """Return the gradient with respect to log alpha for each row, ``[B]``: -(log pi(a) + target entropy).

        The loss is -log(alpha) (log pi(a) + target entropy); eq. 18 has alpha in place of log(alpha), which most
        implementations change in the same way.
        """
        return -(log_probs + target_entropy)


def _split(outputs: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = outputs.chunk(2, 1)
    return mean, log_std.clamp(*LOG_STD_RANGE)
