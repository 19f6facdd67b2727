"""How the actors of off-policy algorithms act."""

import contextlib
from collections.abc import Iterator
from typing import final

import torch
from torch import nn

from gpu_envs.training.algorithms import OffPolicy
from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.ops import Ops
from gpu_envs.training.policies.actor_critic import ActorCritic
from gpu_envs.training.policies.normalise import ObservationScale
from gpu_envs.training.policies.parts import Rows, whole
from gpu_envs.training.policies.torch_networks import TorchNetworks, matmul_precision


@final
class TorchActor(TorchNetworks):
    """An actor, run by torch: a squashed Gaussian's (Haarnoja et al. 2018), or one that knows what it does."""

    module: ActorCritic

    def __init__(
        self, module: nn.Module, head: Head, ops: Ops, scale: ObservationScale | None, precision: str, device: str, *,
        algorithm: OffPolicy,
    ) -> None:  # fmt: skip
        """Acts as the algorithm says."""
        super().__init__(module, head, ops, scale, precision, device)
        self.stochastic, self._algorithm = algorithm.stochastic, algorithm
        self._low = torch.tensor(head.low, device=device)
        self._high = torch.tensor(head.high, device=device)

    def act(
        self, observations: Rows, actions: torch.Tensor, log_probs: torch.Tensor, values: torch.Tensor | None,
        acted: torch.Tensor | None, stream: torch.Tensor, turn: int, *, greedy: bool,
        action_mask: torch.Tensor | None = None, first_row: int = 0, largest: torch.Tensor | None = None,
        alive: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        del log_probs
        assert acted is not None
        assert values is action_mask is largest is alive is None
        normal = None
        if not greedy:
            normal = torch.empty_like(actions)
            self._ops.normal(normal, stream=stream, turn=turn, first_row=first_row)
        self.take(self.look(observations), normal, actions, acted)

    def look(self, observations: Rows) -> torch.Tensor:
        """The actor's outputs for rows of observations."""
        with torch.no_grad(), self.computing(learning=False):
            outputs: torch.Tensor = self.module.actor(self._scaled(observations)).float()
        return outputs

    def take(
        self, outputs: torch.Tensor, normal: torch.Tensor | None, actions: torch.Tensor, acted: torch.Tensor
    ) -> None:
        """Chooses actions by an actor's outputs.

        Args:
            outputs: As ``look`` gives them.
            normal: Standard normal numbers, ``[rows, width]``; None: the likeliest actions.
            actions: Receives them in units in which the bounds are -1 and 1.
            acted: Receives the environment's.
        """
        if normal is None:
            torch.tanh(outputs[:, : actions.shape[1]], out=actions)  # of a stochastic actor the means
        else:
            actions.copy_(self._algorithm.explore(outputs, normal))
        self.give(actions, acted)

    def give(self, actions: torch.Tensor, acted: torch.Tensor) -> None:
        """Writes actions in units in which the bounds are -1 and 1 in the environment's own."""
        torch.lerp(self._low, self._high, (actions + 1.0) / 2.0, out=acted)
        torch.clamp(acted, self._low, self._high, out=acted)

    def scaled(self, observations: Rows) -> torch.Tensor:
        """Observations as actor and critics are given them, if each call takes its ``own``."""
        return whole(observations if self.scale is None else self.scale(observations))

    def own(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows for one call of the actor or the critics: a copy for the user's, which may change them in place."""
        return self._own(rows)

    @contextlib.contextmanager
    def computing(self, *, learning: bool) -> Iterator[None]:
        """Computes in the run's precision, with the module as it is where it learns, or acts."""
        self._learning(learning)
        with matmul_precision(self._precision), self._casts():
            yield
