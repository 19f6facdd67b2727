"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018)."""

import dataclasses
from typing import ClassVar, final

from gpu_envs.training.algorithms.base import Deterministic, Tensor
from gpu_envs.training.settings import MAX_COUNT, setting


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TD3(Deterministic):
    """TD3: two critics, target policy smoothing and delayed actor updates."""

    name: ClassVar[str] = "td3"

    target_noise: float = setting(0.2, minimum=0.0, maximum=10.0)
    """Standard deviation of the noise on the target actor's actions (target policy smoothing)."""
    target_noise_clip: float = setting(0.5, minimum=0.0, maximum=10.0)
    """Limit of the absolute noise on the target actor's actions."""
    policy_delay: int = setting(2, minimum=1, maximum=MAX_COUNT)
    """Critic updates per actor update."""

    @property
    def actor_interval(self) -> int:
        return self.policy_delay

    def __post_init__(self) -> None:
        """Validate; ``gradient_steps`` must be a multiple of ``policy_delay``, so that each horizon ends with both."""
        super().__post_init__()
        if self.gradient_steps % self.policy_delay:
            raise ValueError(
                f"gradient_steps is {self.gradient_steps} and policy_delay is {self.policy_delay}: give a multiple of "
                "policy_delay, since the actor learns with every policy_delay-th update"
            )

    def target_policy(self, outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return a' = clip(tanh(outputs) + clip(noise, -c, c), -1, 1): target policy smoothing, eq. 14."""
        limit = self.target_noise_clip
        return (outputs.tanh() + (self.target_noise * normal).clamp(-limit, limit)).clamp(-1.0, 1.0), None
