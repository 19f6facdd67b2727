"""Policies that act and do not learn: random ones, frozen ones, and trained ones under evaluation."""

from collections.abc import Mapping
from typing import final

import torch

from gpu_envs.training.arena import derived_seed
from gpu_envs.training.networks import Networks
from gpu_envs.training.ops import Ops
from gpu_envs.training.seats import Seats


@final
class Player:
    """A policy at its seats. Without networks it is random: uniform over the actions, as a space's own samples are."""

    def __init__(self, seats: Seats, networks: Networks | None, ops: Ops, seed: int, device: str) -> None:
        """Allocates.

        Args:
            seats: The agents it acts for.
            networks: Its module; None: random actions.
            ops: Kernels for its head.
            seed: Of its actions.
            device: Where.
        """
        self.seats, self._networks, self._ops = seats, networks, ops
        rows, head = seats.rows, seats.head
        box = head.kind == "box"
        self._actions = torch.zeros((rows, head.width), dtype=torch.float32 if box else torch.int32, device=device)
        self._log_probs = torch.zeros(rows, device=device)
        self._acted = torch.zeros((rows, head.width), device=device) if box else None
        self.stream = torch.tensor([derived_seed(seed, "player", seats.name), 0], device=device)
        if networks is None:
            self._level = torch.zeros((rows, head.parameters), device=device)
            self._low = torch.tensor(head.low, device=device)
            self._width = torch.tensor(head.high, device=device) - self._low

    def act(self, turn: int, observations: Mapping[str, torch.Tensor], *, greedy: bool = False) -> torch.Tensor:
        """The environment's actions, ``[rows, width]``, overwritten by the next.

        Args:
            turn: Which step since ``advance``.
            observations: By role, ``[num_envs, agents, features]``.
            greedy: Take the likeliest.
        """
        if self._networks is None:
            self._ops.sample(self._level, self._actions, self._log_probs, stream=self.stream, turn=turn)
            if self._acted is None:
                return self._actions
            # a normal number's place in its distribution is uniform
            share = (torch.erf(self._actions / 2**0.5) + 1.0) / 2.0
            return self._acted.copy_(self._low + share * self._width)
        rows = self.seats.take(observations, 0)
        self._networks.act(rows, self._actions, self._log_probs, None, self._acted, self.stream, turn, greedy=greedy)
        return self._actions if self._acted is None else self._acted

    def advance(self, steps: int) -> None:
        """Goes on in its random numbers."""
        self.stream[1].add_(steps)
