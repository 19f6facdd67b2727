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
    """Numbers for each row; those that depend on the ones before begin anew with an episode.

    Attributes:
        follows: They do.
        by_state: They depend on what is seen.
    """

    def __init__(self, kind: str, policy_rows: PolicyRows, hidden: int, ops: Ops, device: str) -> None:
        """Allocates; ``hidden`` is the width of the actor's last hidden layer."""
        rows, width = policy_rows.rows, policy_rows.head.width
        self._policy_rows, self._ops, self._hidden = policy_rows, ops, hidden
        self.by_state, self.follows = kind == "state", kind != "white"
        self._numbers = torch.zeros((rows, width), device=device)
        shape = (rows, hidden, width) if self.by_state else (rows, width)
        self._kept = torch.zeros(shape, device=device) if self.follows else None
        self._new = torch.ones(rows, dtype=torch.bool, device=device)

    def white(self, stream: torch.Tensor, turn: int) -> torch.Tensor:
        """Numbers that depend on nothing, ``[rows, width]``; the next overwrite them."""
        self._draw(self._numbers, stream, turn, 1)
        return self._numbers

    def next(self, stream: torch.Tensor, turn: int, hidden: torch.Tensor | None) -> torch.Tensor:
        """The numbers of a step, ``[rows, width]``, by the last hidden layer ``[rows, hidden]``, if they need it."""
        if self._kept is None:
            return self.white(stream, turn)
        if self.by_state:
            assert hidden is not None
            fresh = torch.empty_like(self._kept)
            self._draw(fresh, stream, turn, self._hidden)
            self._kept.copy_(torch.where(self._new.view(-1, 1, 1), fresh, self._kept))
            length = hidden.norm(dim=1, keepdim=True).clamp(min=1e-6)
            torch.div(torch.bmm(hidden.unsqueeze(1), self._kept).squeeze(1), length, out=self._numbers)
        else:
            fresh = self.white(stream, turn)
            kept = torch.where(self._new.unsqueeze(1), 0.0, self._kept)
            stays = 1.0 - _RETURN
            torch.add(stays * kept, fresh, alpha=math.sqrt(1.0 - stays * stays), out=self._kept)
            self._numbers.copy_(self._kept)
        self._new.zero_()
        return self._numbers

    def begin_anew(self, rows: torch.Tensor) -> None:
        """Says whose episodes have ended, bool ``[rows]``."""
        self._new.logical_or_(rows)

    def _draw(self, numbers: torch.Tensor, stream: torch.Tensor, turn: int, each: int) -> None:
        flat = numbers.view(-1, numbers.shape[-1])
        for rows, first in self._policy_rows.spans:
            some = slice(rows.start * each, rows.stop * each)
            self._ops.normal(flat[some], stream=stream, turn=turn, first_row=first * each)

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
