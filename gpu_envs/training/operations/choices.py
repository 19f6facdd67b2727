"""What choices are worth: the best, the probabilities of exploring, and the loss with its gradient, a kernel each."""

import dataclasses
from typing import Final, final

import torch

from gpu_envs.backend.base import Backend
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import ELEMENTARY, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.ops import SUMS, Samples, flags, head_settings

_VALUES = ("const float*", "values", ("rows", "outputs"))
_MASK = ("const u8*?", "action_mask", ("rows", "outputs"))

_CALLS = {
    "best": Struct.of("BestCall", "float", ("Index", "rows"), _VALUES, _MASK, ("float*", "best", ("rows",))),
    "prefer": Struct.of(
        "PreferCall",
        "float",
        ("Index", "rows"),
        _VALUES,
        _MASK,
        ("const float*", "epsilon", (1,)),
        ("float*", "logits", ("rows", "outputs")),
    ),
    "judge": Struct.of(
        "JudgeChoicesCall",
        "float",
        ("Index", "rows"),
        _VALUES,
        ("const int*?", "indices", ("rows",)),
        ("const Element*", "actions", ("samples", "width")),
        ("const float*", "returns", ("samples",)),
        ("const u8*?", "alive", ("samples",)),
        ("float*", "by_values", ("rows", "outputs")),
        ("float*", "sums", (len(SUMS), "rows")),
    ),
}


def program(head: Head) -> Program:
    """The source."""
    plain = head_settings(head)
    sums = f"VALUE_LOSS = {SUMS.index('value_loss')}, ALIVE = {SUMS.index('alive')}, SUM_COUNT = {len(SUMS)}"
    settings = dataclasses.replace(plain, prologue=f"{plain.prologue}\nconstexpr int {sums};", staging_bytes=0)
    return program_of((ELEMENTARY, "training/off_policy/choices.cuh"), _CALLS, settings)


@final
class Choices:
    """The kernels of a head whose every choice is valued; what an action is worth is the mean over its elements."""

    def __init__(self, head: Head, backend: Backend) -> None:
        self._best, self._prefer, self._judge = load_kernels(backend, program(head))
        self._sizes: Final = len(SUMS), head.parameters

    def best(self, values: torch.Tensor, action_mask: torch.Tensor | None) -> torch.Tensor:
        """What the best possible action of each row is worth; where nothing is possible of an element, of all.

        Args:
            values: [R, P].
            action_mask: int8 [R, P], zero where a choice is forbidden; None: everything is possible.
        """
        best = values.new_empty(len(values))
        self._best.launch(len(values), rows=len(values), values=values, action_mask=flags(action_mask), best=best)
        return best

    def prefer(self, values: torch.Tensor, action_mask: torch.Tensor | None, epsilon: torch.Tensor) -> torch.Tensor:
        """The logarithms of probabilities, [R, P], where an element is a random choice with the probability epsilon."""
        rows, logits = len(values), torch.empty_like(values)
        mask = flags(action_mask)
        self._prefer.launch(rows, rows=rows, values=values, action_mask=mask, epsilon=epsilon, logits=logits)
        return logits

    def judge(
        self,
        values: torch.Tensor,
        batch: Samples,
        indices: torch.Tensor | None,
        by_values: torch.Tensor,
        sums: torch.Tensor,
    ) -> None:
        """Writes the gradient by ``values``, [B, P], and each sample's ``SUMS``, [6, B]; as ``Ops.loss`` does."""
        self._judge.launch(
            len(values),
            rows=len(values),
            samples=len(batch.returns),
            values=values,
            indices=indices,
            actions=batch.actions,
            returns=batch.returns,
            alive=batch.alive,
            by_values=by_values,
            sums=sums,
        )
