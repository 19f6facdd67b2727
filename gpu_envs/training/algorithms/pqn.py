"""Parallelised Q-learning (Gallici et al. 2024): Q(lambda) without a replay buffer and without target networks."""

import dataclasses
from typing import ClassVar, final

from gpu_envs.training.algorithms.base import Minibatched, Tensor
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.settings import setting


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PQN(Minibatched):
    """PQN: epsilon-greedy Q(lambda) for discrete actions."""

    name: ClassVar[str] = "pqn"
    actions: ClassVar[tuple[str, ...]] = ("discrete",)

    epsilon: Schedule | str | float = setting(Schedule.of("0:1,0.2:0.05"), minimum=0.0, maximum=1.0)
    """Probability of a random choice, per action element: a number, or a schedule of progress:value points."""

    def loss(self, q_values: Tensor, returns: Tensor) -> Tensor:
        """Return (Q(s, a) - R)^2 / 2 of each sample; R is the lambda return, Q(s, a) the mean over a's elements."""
        return 0.5 * (q_values - returns).square()
