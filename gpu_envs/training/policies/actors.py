"""How the actors of off-policy algorithms act."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import nn

from gpu_envs.training.operations.heads import LOG_STD_RANGE, Head
from gpu_envs.training.operations.ops import Ops
from gpu_envs.training.policies.actor_critic import ActorCritic
from gpu_envs.training.policies.normalise import ObservationScale
from gpu_envs.training.policies.parts import Rows
from gpu_envs.training.policies.torch_networks import TorchNetworks, matmul_precision

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@final
class TorchActor(TorchNetworks):
    """An actor, run by torch: a squashed Gaussian's (Haarnoja et al. 2018), or one that knows what it does."""

    module: ActorCritic

    def __init__(
        self, module: nn.Module, head: Head, ops: Ops, scale: ObservationScale | None, precision: str, device: str, *,
        stochastic: bool, noise: float,
    ) -> None:  # fmt: skip
        """Takes the standard deviation of sampled actions around those of an actor that is not stochastic."""
        super().__init__(module, head, ops, scale, precision, device)
        self.stochastic, self._noise = stochastic, noise
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
        self.take(self.look(observations)[0], normal, actions, acted)

    def look(self, observations: Rows, *, hidden: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The actor's outputs for rows of observations, and the last hidden layer, if that is wanted."""
        with torch.no_grad(), self.computing(learning=False):
            rows, actor = self._scaled(observations), self.module.actor
            if not hidden:
                return actor(rows).float(), None
            assert isinstance(actor, nn.Sequential)
            found = actor[:-1](rows)
            return actor[-1](found).float(), found.float()

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
        if self.stochastic:
            mean, log_std = parameters_of(outputs)
            torch.tanh(mean if normal is None else torch.addcmul(mean, log_std.exp(), normal), out=actions)
        else:
            torch.tanh(outputs, out=actions)
            if normal is not None:
                actions.add_(normal, alpha=self._noise).clamp_(-1.0, 1.0)
        self.give(actions, acted)

    def give(self, actions: torch.Tensor, acted: torch.Tensor) -> None:
        """Writes actions in units in which the bounds are -1 and 1 in the environment's own."""
        torch.lerp(self._low, self._high, (actions + 1.0) / 2.0, out=acted)
        torch.clamp(acted, self._low, self._high, out=acted)

    def scaled(self, observations: Rows) -> Any:
        """What an actor or critics are given, each something of its own if they are the user's."""
        return self._scaled(observations)

    @contextlib.contextmanager
    def computing(self, *, learning: bool) -> Iterator[None]:
        """Computes in the run's precision, with the module as it is where it learns, or acts."""
        self._learning(learning)
        with matmul_precision(self._precision), self._casts():
            yield


def parameters_of(outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means, and the logarithms of deviations, before squashing."""
    mean, log_std = outputs.chunk(2, 1)
    return mean, log_std.clamp(*LOG_STD_RANGE)


def squashed(outputs: torch.Tensor, normal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Actions by normal numbers, and the logarithms of their probabilities, where the bounds are -1 and 1."""
    mean, log_std = parameters_of(outputs)
    before = torch.addcmul(mean, log_std.exp(), normal)
    # of a tangent's derivative the logarithm is 2 (log 2 - x - softplus(-2 x)), which is exact far out, too
    slope = 2.0 * (math.log(2.0) - before - nn.functional.softplus(-2.0 * before))
    log_probs = -(0.5 * normal.square() + log_std + _HALF_LOG_TWO_PI + slope)
    return torch.tanh(before), log_probs.sum(1)
