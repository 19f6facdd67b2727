"""What runs a policy's module: acting, and for those that learn on-policy valuing and a minibatch's gradient."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from gpu_envs.training.operations.ops import SUMS, LossSettings, Samples
from gpu_envs.training.operations.optimiser import Adam, Step
from gpu_envs.training.policies.parts import Rows

TOTALS = len(SUMS)
"""Sums over the samples of a minibatch."""

CHUNK_BYTES = 4 * 2**30
"""A pass through a module keeps about so much for the way back; larger minibatches go in pieces."""


def most_rows(units: int) -> int:
    """How many rows go at a time through a module with so many units in all its layers."""
    return max(1, CHUNK_BYTES // (12 * units))


class Networks(ABC):
    """A policy's module on its device, as it acts."""

    epsilon: torch.Tensor | None = None
    """How likely an element of an action is a random choice, ``[1]``; None: outputs say how likely each choice is."""

    @abstractmethod
    def act(
        self, observations: Rows, actions: torch.Tensor, log_probs: torch.Tensor, values: torch.Tensor | None,
        acted: torch.Tensor | None, stream: torch.Tensor, turn: int, *, greedy: bool,
        action_mask: torch.Tensor | None = None, first_row: int = 0, largest: torch.Tensor | None = None,
        alive: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Chooses actions for rows of observations.

        Args:
            observations: ``[rows, features]``.
            actions: Receives what the loss will ask about, ``[rows, width]``.
            log_probs: Receives the logarithms of their probabilities.
            values: Receives the values, where networks have them and ``acts_with_value``; None: not wanted.
            acted: Receives the environment's actions, where those are others (a box).
            stream: Key and counter of the random numbers, on the device.
            turn: Counts from the counter on.
            greedy: Take the likeliest action.
            action_mask: ``[rows, choices]``, zero where a choice is forbidden; None: everything is possible.
            first_row: The number of the first row, of which its random numbers are.
            largest: As of ``PolicyNetworks.values``, for networks with ``notes_largest``.
            alive: As of ``PolicyNetworks.values``.
        """


class PolicyNetworks(Networks):
    """A policy's module that values what it sees, and learns from minibatches of what it did."""

    acts_with_value: bool
    """Acting gives the values of the same observations, at no or little cost."""
    notes_largest = False
    """Acting with values notes the largest observation, too."""
    optimiser: Adam | None
    """Who takes the steps; None: they do not learn."""

    @abstractmethod
    def values(
        self, observations: Rows, values: torch.Tensor, *, places: torch.Tensor | None = None,
        largest: torch.Tensor | None = None, alive: torch.Tensor | None = None,
        action_mask: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Writes the values of observations.

        Args:
            observations: ``[rows, features]``.
            values: ``[rows]``, or of each of ``places``.
            places: Which rows are valued, whole groups of them; below zero: none, and the value may be anything.
            largest: ``[1]``, raised to the largest magnitude in rows of agents in the game, above which is NaN.
            alive: Whose rows those are, ``[rows]``; None: all.
            action_mask: As for ``act``, without ``places``.
        """

    @abstractmethod
    def gradient(
        self, observations: Rows, batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, totals: torch.Tensor,
    ) -> None:  # fmt: skip
        """Leaves the gradient of a minibatch's summed loss with the optimiser.

        Args:
            observations: Of all samples, ``[samples, features]``; of those in parts minibatches are whole groups.
            batch: What the loss needs of all samples.
            indices: The minibatch's samples; None: all.
            settings: The loss.
            scalars: Its changing numbers, on the device.
            totals: Receives the sums over the minibatch.
        """

    def learn(
        self, observations: Rows, batch: Samples, indices: torch.Tensor | None, settings: LossSettings,
        scalars: torch.Tensor, how: Step,
    ) -> None:  # fmt: skip
        """Takes a step along the gradient of a minibatch's loss, which it leaves with the optimiser.

        Args:
            observations: As for ``gradient``, like all up to ``scalars``.
            batch: What the loss needs of all samples.
            indices: The minibatch's samples; None: all.
            settings: The loss.
            scalars: Its changing numbers, on the device.
            how: The step.
        """
        assert self.optimiser is not None
        self.gradient(observations, batch, indices, settings, scalars, self.optimiser.totals)
        self.optimiser.step(how)


def sliced(batch: Samples, piece: slice) -> Samples:
    """Some of the samples, as views."""
    pieces: dict[str, Any] = {name: part if part is None else part[piece] for name, part in vars(batch).items()}
    return Samples(**pieces)


def units_of(parameters: Iterable[nn.Parameter]) -> int:
    """The outputs of all layers, by their weights."""
    return sum(parameter.shape[0] for parameter in parameters if parameter.dim() == 2) or 256
