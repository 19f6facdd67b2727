"""The states of a policy with memory during a rollout, and its sequences for learning."""

from collections.abc import Mapping
from typing import Final, final

import torch
from torch import Tensor

from gpu_envs.training.algorithms import OnPolicy
from gpu_envs.training.algorithms.base import PolicyGradient
from gpu_envs.training.recurrent import Recurrence


def sequence_length(algorithm: OnPolicy, horizon: int) -> int:
    """Return the number of steps of backpropagation through time; ValueError if it does not divide the horizon."""
    length = (isinstance(algorithm, PolicyGradient) and algorithm.sequence_length) or horizon
    if horizon % length:
        raise ValueError(
            f"sequence_length is {length}, but horizon is {horizon}: give a horizon that is a multiple of {length}, or "
            f"a sequence_length that divides {horizon}"
        )
    return length


@final
class Sequences:
    """Divides a horizon of each row into sequences: sequence n is number ``n // rows`` of row ``n % rows``.

    Attributes:
        length: Steps of a sequence.
        count: Number of sequences.
        state: The states now, ``[rows, state_size]``.
        starts: bool ``[(horizon + 1) * rows]``: whether each step, and the one after the horizon, is the first of its
            episode; set after a rollout.
    """

    starts: Tensor

    def __init__(self, arrays: Mapping[str, Tensor], length: int) -> None:
        """Use arrays of ``sample_arrays``."""
        self.length: Final = length
        self.state: Final = arrays["recurrent_state"]
        self._final: Final = arrays["final_states"]
        self._before: Final = arrays["sequence_states"]
        rows, device = len(self.state), self.state.device
        self.count: Final = len(self._before) * rows
        self._steps: Final = torch.arange(length, dtype=torch.int32, device=device).unsqueeze(1) * rows

    def start_step(self, t: int, starts: Tensor) -> Recurrence:
        """Return the states before step ``t``, and store them if it is the first of a sequence; ``starts``: [rows]."""
        if t % self.length == 0:
            self._before[t // self.length].copy_(self.state)
        return Recurrence(self.state, starts)

    def store_final_states(self, truncated: Tensor) -> Recurrence:
        """Store the states of rows whose episodes the last step truncated, ``[rows]``; return the stored states."""
        torch.where(truncated.unsqueeze(1), self.state, self._final, out=self._final)
        return self.final

    @property
    def after_rollout(self) -> Recurrence:
        """The states before the step after the horizon, to compute the values of its observations."""
        return Recurrence(self.state, self.starts[-len(self.state) :])

    @property
    def final(self) -> Recurrence:
        """The stored states, to compute the values of final observations."""
        return Recurrence(self._final, torch.zeros_like(self._final[:, 0], dtype=torch.bool))

    def minibatch(self, sequences: Tensor) -> tuple[Tensor, Recurrence]:
        """Return the indices of samples of sequences, all first steps before all second ones, and the states.

        ``sequences`` are int32 indices of sequences.
        """
        rows = len(self.state)
        first = sequences + sequences // rows * ((self.length - 1) * rows)
        indices = (first + self._steps).flatten()
        states = self._before.flatten(0, 1).index_select(0, sequences)
        return indices, Recurrence(states, self.starts.index_select(0, indices))
