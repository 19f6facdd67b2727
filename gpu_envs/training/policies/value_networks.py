"""A policy by values: of each element of an action the choice that is worth most, and now and then any other."""

from typing import Any, final

import torch
from torch import nn

from gpu_envs.training.operations.choices import Choices
from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.ops import LossSettings, Ops, Samples
from gpu_envs.training.operations.optimiser import Adam
from gpu_envs.training.policies.functions import Functions
from gpu_envs.training.policies.networks import TOTALS
from gpu_envs.training.policies.normalise import ObservationScale
from gpu_envs.training.policies.parts import Rows, chosen_rows, of_living
from gpu_envs.training.policies.torch_networks import TorchPolicyNetworks, chosen_of, matmul_precision, plain


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
        self._choices = Choices(head, ops.backend)

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
            found = self._found(self._scaled(observations))
        found = plain(found)
        if values is not None:
            values.copy_(self._choices.best(found, action_mask))
        logits = found if greedy else self._choices.prefer(found, action_mask, self.epsilon)
        self._ops.sample(
            logits, actions, log_probs, stream=stream, turn=turn,
            greedy=greedy, first_row=first_row, action_mask=action_mask,
        )  # fmt: skip

    def _found(self, observations: Any) -> torch.Tensor:
        """What the choices are worth, ``[rows, head.parameters]``."""
        found: torch.Tensor = self.module(observations)
        return found

    def _valued(self, observations: Any, action_mask: torch.Tensor | None) -> torch.Tensor:
        return self._choices.best(plain(self._found(observations)), action_mask)

    def _learnt(self, observations: Any) -> tuple[torch.Tensor, ...]:
        return (self._found(observations),)

    def _judged(
        self, outputs: tuple[torch.Tensor, ...], batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, sums: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        del settings, scalars
        (found,) = outputs
        by_found = torch.empty_like(found)
        self._choices.judge(found, batch, indices, by_found, sums)
        return (by_found,)


@final
class ValuesInKernels(TorchValues):
    """The default module's values, and their gradient, by kernels of our own."""

    def __init__(
        self, functions: Functions, module: nn.Module, head: Head, ops: Ops, optimiser: Adam,
        scale: ObservationScale | None, precision: str, device: str,
    ) -> None:  # fmt: skip
        """``functions`` read the optimiser's parameters and leave their gradient with it."""
        super().__init__(module, head, ops, optimiser, scale, precision, device)
        self._functions = functions

    def _found(self, observations: Any) -> torch.Tensor:
        rows: torch.Tensor = observations.contiguous()
        found = rows.new_empty(len(rows), 1, self.head.parameters)
        self._functions.outputs(rows, found)
        return found.squeeze(1)

    def gradient(
        self, observations: Rows, batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, totals: torch.Tensor,
    ) -> None:  # fmt: skip
        some = observations if indices is None else chosen_rows(observations, indices)
        if batch.alive is not None:
            some = of_living(some, chosen_of(batch.alive, indices))
        found = self._found(self._scaled(some))
        sums = found.new_empty((TOTALS, len(found)))
        (by_found,) = self._judged((found,), batch, indices, settings, scalars, sums)
        self._functions.back(by_found.unsqueeze(1))
        torch.sum(sums, 1, out=totals)
