"""A policy by values: of each element of an action the choice that is worth most, and now and then any other."""

from typing import Any, final

import torch
from torch import nn

from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.ops import SUMS, LossSettings, Ops, Samples
from gpu_envs.training.operations.optimiser import Adam
from gpu_envs.training.policies.normalise import ObservationScale
from gpu_envs.training.policies.parts import Rows
from gpu_envs.training.policies.torch_networks import TorchPolicyNetworks, chosen_of, matmul_precision, plain

_LEAST = 1e-30
"""The probability of what is not chosen at random: its logarithm is a number."""


@final
class TorchValues(TorchPolicyNetworks):
    """A module that values choices, ``[rows, head.parameters]``, run by torch (Gallici et al. 2024).

    What an action is worth is the mean over its elements. An element is a random choice with a probability, epsilon.
    """

    def __init__(
        self, module: nn.Module, head: Head, ops: Ops, optimiser: Adam | None, scale: ObservationScale | None,
        precision: str, device: str,
    ) -> None:  # fmt: skip
        super().__init__(module, head, ops, optimiser, scale, precision, device)
        self.epsilon: torch.Tensor = torch.zeros(1, device=device)
        starts = [sum(head.sizes[:element]) - head.starts[element] for element in range(head.width)]
        self._places = torch.tensor(starts, device=device)

    def act(
        self, observations: Rows, actions: torch.Tensor, log_probs: torch.Tensor, values: torch.Tensor | None,
        acted: torch.Tensor | None, stream: torch.Tensor, turn: int, *, greedy: bool,
        action_mask: torch.Tensor | None = None, first_row: int = 0, largest: torch.Tensor | None = None,
        alive: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        assert largest is None
        assert alive is None
        assert acted is None
        self._learning(False)
        with torch.no_grad(), matmul_precision(self._precision), self._casts():
            found = self.module(self._scaled(observations))
        found = plain(found)
        if values is not None:
            values.copy_(self._best(found, action_mask))
        self._ops.sample(
            found if greedy else self._logits(found, action_mask), actions, log_probs, stream=stream, turn=turn,
            greedy=greedy, first_row=first_row, action_mask=action_mask,
        )  # fmt: skip

    def _valued(self, observations: Any, action_mask: torch.Tensor | None) -> torch.Tensor:
        return self._best(self.module(observations).float(), action_mask)

    def _learnt(self, observations: Any) -> tuple[torch.Tensor, ...]:
        return (self.module(observations),)

    def _judged(
        self, outputs: tuple[torch.Tensor, ...], batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, sums: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        del settings, scalars
        (found,) = outputs
        chosen = chosen_of(batch.actions, indices) + self._places
        off = found.gather(1, chosen).mean(1) - chosen_of(batch.returns, indices)
        sums.zero_()
        alive, losses = sums[SUMS.index("alive")], sums[SUMS.index("value_loss")]
        alive.fill_(1.0)
        if batch.alive is not None:
            alive.copy_(chosen_of(batch.alive, indices))
            off = torch.where(alive != 0, off, 0.0)
        torch.mul(off, off / 2, out=losses)
        gradient = torch.zeros_like(found)
        return (gradient.scatter_(1, chosen, (off / self.head.width).unsqueeze(1).expand(chosen.shape)),)

    def _best(self, found: torch.Tensor, action_mask: torch.Tensor | None) -> torch.Tensor:
        """What the best action is worth, of the possible ones; where nothing is possible, of all."""
        best = [part.amax(1) for part in self._elements(_possible(found, action_mask))]
        if action_mask is not None:
            every = [part.amax(1) for part in self._elements(found)]
            best = [torch.where(some.isinf(), of_all, some) for some, of_all in zip(best, every, strict=True)]
        return torch.stack(best).mean(0)

    def _logits(self, found: torch.Tensor, action_mask: torch.Tensor | None) -> torch.Tensor:
        """The logarithms of the choices' probabilities; what a mask forbids may have any."""
        logits = torch.empty_like(found)
        parts = self._elements(_possible(found, action_mask))
        for part, own in zip(parts, self._elements(logits), strict=True):
            possible = (~part.isinf()).sum(1, keepdim=True).clamp(min=1)
            own.copy_((self.epsilon / possible).expand(part.shape))
            own.scatter_add_(1, part.argmax(1, keepdim=True), (1 - self.epsilon).expand(len(part), 1))
        return logits.clamp_(min=_LEAST).log_()

    def _elements(self, of_choices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Each element's choices."""
        return torch.split(of_choices, list(self.head.sizes), 1)


def _possible(found: torch.Tensor, action_mask: torch.Tensor | None) -> torch.Tensor:
    return found if action_mask is None else torch.where(action_mask != 0, found, -torch.inf)
