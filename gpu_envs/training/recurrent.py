"""Policies with memory: the module that settings describe, and the base class of users' modules."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from gpu_envs.training.networks import Case, hidden_layers, initialised, joined_heads, log_std_of, with_log_std
from gpu_envs.training.recurrent_settings import LSTM, Memory

TrunkKernels: TypeAlias = Callable[["RecurrentTrunk", Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Computes the results of ``RecurrentTrunk.forward`` from the module and its arguments; gradients of weights only."""


class RecurrentModule(nn.Module):
    """A policy module with memory: it keeps a state for each row (an agent of a replica) from step to step."""

    def initial_state(self, rows: int) -> Tensor:
        """Return the float32 state at the start of an episode, ``[rows, state_size]``, on the module's device."""
        raise NotImplementedError

    def forward(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parameters of the action distributions, the values, and the state after the last step.

        Args:
            observations: ``[steps, rows, features]``, as ``PolicyModule`` describes them; one step while it acts.
            state: ``[rows, state_size]``: the state before the first step; the initial one where it starts an episode.
            starts: bool ``[steps, rows]``: whether a step is the first of its episode, so that the state before it is
                the initial one.

        Returns:
            ``[steps, rows, head.parameters]``, ``[steps, rows]`` and ``[rows, state_size]``.
        """
        raise NotImplementedError


class Recurrence(NamedTuple):
    """Inputs of a module with memory besides observations."""

    state: Tensor
    """The state before the first step, ``[rows, state_size]``."""
    starts: Tensor
    """bool ``[steps * rows]``, in the order of the observations: whether a step is the first of its episode."""

    def first_state(self, module: RecurrentModule) -> Tensor:
        """Return the state before the first step: the initial one where that starts an episode."""
        rows = len(self.state)
        return torch.where(self.starts[:rows].unsqueeze(1), module.initial_state(rows), self.state)

    def run(self, module: RecurrentModule, observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a module's results for observations ``[steps * rows, features]``, with steps and rows flattened."""
        rows = len(self.state)
        sets_itself = isinstance(module, RecurrentPolicy)  # to zero, where an episode starts
        state = self.state if sets_itself else self.first_state(module)
        by_step = observations.view(-1, rows, observations.shape[1]), state
        parameters, values, state = module(*by_step, self.starts.view(-1, rows))
        return parameters.flatten(0, 1), values.flatten(0, 1), state


@final
class RecurrentTrunk(nn.Module):
    """Hidden layers, and a GRU or an LSTM; where an episode starts, its state is set to zero.

    Attributes:
        kernels: Computes the results of ``forward`` on a GPU; None: torch does. Copies of the module have none.
    """

    kernels: "TrunkKernels | None" = None

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        """Draw orthogonal weights, of the recurrent layer for each gate; all biases are zero."""
        super().__init__()
        memory = case.network.memory
        assert isinstance(memory, Memory)
        self.hidden = initialised(hidden_layers(case), math.sqrt(2), generator)
        self.cell = (nn.LSTMCell if isinstance(memory, LSTM) else nn.GRUCell)(case.network.hidden[-1], memory.size)
        for weights in (self.cell.weight_ih, self.cell.weight_hh):
            for gate in torch.split(weights, memory.size):
                nn.init.orthogonal_(gate, generator=generator)
        for bias in (self.cell.bias_ih, self.cell.bias_hh):
            nn.init.zeros_(bias)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "kernels": None}

    def forward(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs, ``[steps, rows, size]``, and the state; arguments as of ``RecurrentModule.forward``."""
        weights_only = not (observations.requires_grad or state.requires_grad)
        if self.kernels is not None and weights_only and observations.is_cuda:
            return self.kernels(self, observations, state, starts)
        steps, rows, _ = observations.shape
        cell, size, outputs = self.cell, self.cell.hidden_size, list[Tensor]()
        # one product for all steps; torch's modules for sequences cannot start an episode within them
        products = linear(self.hidden(observations.flatten(0, 1)), cell.weight_ih, cell.bias_ih).float()
        for step, inputs in enumerate(products.view(steps, rows, -1).unbind()):
            state = torch.where(starts[step].unsqueeze(1), 0.0, state)
            recurrent = linear(state[:, :size], cell.weight_hh, cell.bias_hh).float()
            state = (_lstm if isinstance(cell, nn.LSTMCell) else _gru)(inputs, recurrent, state)
            outputs.append(state[:, :size])
        return torch.stack(outputs), state


def _gru(inputs: Tensor, recurrent: Tensor, state: Tensor) -> Tensor:
    """Return the next state, h' = (1 - z) n + z h, of a GRU; the products of inputs and state are in order r, z, n."""
    size = state.shape[1]
    gates = torch.sigmoid(inputs[:, : 2 * size] + recurrent[:, : 2 * size])
    reset, update = gates.chunk(2, 1)
    new = torch.tanh(torch.addcmul(inputs[:, 2 * size :], reset, recurrent[:, 2 * size :]))
    return torch.lerp(new, state, update)


def _lstm(inputs: Tensor, recurrent: Tensor, state: Tensor) -> Tensor:
    """Return the next state of an LSTM, h' = o tanh(c') and c' = f c + i g; the products are in order i, f, g, o."""
    size = state.shape[1] // 2
    products = inputs + recurrent
    input_gate, forget = torch.sigmoid(products[:, : 2 * size]).chunk(2, 1)
    new, output_gate = torch.tanh(products[:, 2 * size : 3 * size]), torch.sigmoid(products[:, 3 * size :])
    cell_state = torch.addcmul(input_gate * new, forget, state[:, size:])
    return torch.cat((output_gate * torch.tanh(cell_state), cell_state), 1)


@final
class RecurrentPolicy(RecurrentModule):
    """Hidden layers, memory and a linear layer, for actor and critic: separate, or shared except for the last layer."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        """Draw orthogonal weights; the actor's last layer is small, so that the first policy is close to uniform."""
        super().__init__()
        case = dataclasses.replace(case, split=None)
        self.actor = RecurrentTrunk(case, generator)
        self.critic = None if case.network.shared_trunk else RecurrentTrunk(case, generator)
        self.means, size = case.head.parameters - case.head.log_stds, self.actor.cell.hidden_size
        if self.critic is None:
            self.heads = joined_heads(size, self.means, generator)
        else:
            self.actor_head, self.critic_head = (
                initialised(nn.Sequential(nn.Linear(size, count)), gain, generator)
                for count, gain in ((self.means, 0.01), (1, 1.0))
            )
        self.log_std = log_std_of(case)
        self.state_size = case.network.state_size

    def set_kernels(self, kernels: TrunkKernels | None) -> None:
        """Let kernels compute the trunks; None: torch does."""
        for trunk in (self.actor, self.critic):
            if trunk is not None:
                trunk.kernels = kernels

    def initial_state(self, rows: int) -> Tensor:
        return self.actor.cell.weight_hh.new_zeros(rows, self.state_size)

    def forward(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.critic is None:
            features, next_state = self.actor(observations, state, starts)
            outputs = self.heads(features)
            means, values = outputs[..., : self.means], outputs[..., self.means : self.means + 1]
        else:
            actor_state, critic_state = state.chunk(2, 1)
            features, actor_state = self.actor(observations, actor_state, starts)
            means = self.actor_head(features)
            features, critic_state = self.critic(observations, critic_state, starts)
            values, next_state = self.critic_head(features), torch.cat((actor_state, critic_state), 1)
        return with_log_std(means, self.log_std), values.squeeze(-1), next_state
