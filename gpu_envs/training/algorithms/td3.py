"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018)."""

import dataclasses
from typing import ClassVar, final

from gpu_envs.training.algorithms.base import Deterministic, Tensor
from gpu_envs.training.settings import MOST, setting


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TD3(Deterministic):
    """Two critics, target actions smoothed by noise, and an actor that learns with every second update."""

    name: ClassVar[str] = "td3"

    target_noise: float = setting(0.2, least=0.0, most=10.0)
    """Standard deviation of the noise on the target actor's actions."""
    target_noise_clip: float = setting(0.5, least=0.0, most=10.0)
    """Largest noise on the target actor's actions."""
    policy_delay: int = setting(2, least=1, most=MOST)
    """Updates of the critics for each update of the actor."""

    @property
    def actor_interval(self) -> int:
        return self.policy_delay

    def __post_init__(self) -> None:
        """Refuses a number of gradient steps after which the actor would lag behind."""
        super().__post_init__()
        if self.gradient_steps % self.policy_delay:
            raise ValueError(
                f"gradient_steps is {self.gradient_steps} and policy_delay is {self.policy_delay}: give a multiple of "
                "policy_delay, since the actor learns with every policy_delay-th update"
            )

    def target_policy(self, outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor | None]:
        """Target policy smoothing, eq. 14, within the bounds: a' = clip(tanh(outputs) + clip(noise, -c, c), -1, 1)."""
        most = self.target_noise_clip
        return (outputs.tanh() + (self.target_noise * normal).clamp(-most, most)).clamp(-1.0, 1.0), None
