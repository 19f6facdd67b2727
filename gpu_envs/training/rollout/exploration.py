"""Standard normal numbers by which actions are varied, one after another in the way that was asked for."""

import math
from collections.abc import Mapping
from typing import final

import torch

from gpu_envs.training.operations.ops import Ops
from gpu_envs.training.rollout.policy_rows import PolicyRows

_RETURN = 0.15
"""The share by which a process of Ornstein and Uhlenbeck goes back with each step."""


@final
class Exploration:
    """Numbers for each row; where they depend on earlier ones (``follows``), they restart with an episode."""

    def __init__(self, kind: str, policy_rows: PolicyRows, ops: Ops, device: str) -> None:
        """Allocates for ``white`` or ``ou``."""
        rows, width = policy_rows.rows, policy_rows.head.width
        self._policy_rows, self._ops, self.follows = policy_rows, ops, kind == "ou"
        self._numbers = torch.zeros((rows, width), device=device)
        self._kept = torch.zeros_like(self._numbers) if self.follows else None
        self._new = torch.ones(rows, dtype=torch.bool, device=device)

    def next(self, stream: torch.Tensor, turn: int) -> torch.Tensor:
        """The numbers of a step, ``[rows, width]``; those of the next step overwrite them."""
        for rows, first in self._policy_rows.spans:
            self._ops.normal(self._numbers[rows], stream=stream, turn=turn, first_row=first)
        if self._kept is not None:
            previous = torch.where(self._new.unsqueeze(1), 0.0, self._kept)
            stays = 1.0 - _RETURN
            torch.add(stays * previous, self._numbers, alpha=math.sqrt(1.0 - stays * stays), out=self._kept)
            self._numbers.copy_(self._kept)
            self._new.zero_()
        return self._numbers

    def begin_anew(self, rows: torch.Tensor) -> None:
        """Says whose episodes have ended, bool ``[rows]``."""
        self._new.logical_or_(rows)

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of what the next numbers depend on."""
        return {name: tensor.clone() for name, tensor in self._followed().items()}

    def load(self, state: Mapping[str, torch.Tensor] | None) -> None:
        """Takes over what ``state`` gave; None: all begin anew."""
        if state is None:
            self._new.fill_(True)
            return
        for name, tensor in self._followed().items():
            tensor.copy_(state[name])

    def _followed(self) -> dict[str, torch.Tensor]:
        return {} if self._kept is None else {"kept": self._kept, "new": self._new}
