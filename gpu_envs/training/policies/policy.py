"""What a policy is: a torch module from observations to the parameters of a distribution over actions, and a value."""

import math
from typing import Any, final

import torch
from torch import nn

from gpu_envs.training.algorithms.base import LOG_STD_RANGE
from gpu_envs.training.operations.heads import log_stds
from gpu_envs.training.policies.case import Case
from gpu_envs.training.policies.parts import FEW_FEATURES, Parts, Rows, Split

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}

ALIGNED = 8
"""Matrix products are quick where rows of both factors are whole words of 16 bytes: 8 elements of bf16."""


class PolicyModule(nn.Module):
    """A policy whose actor and critic can be asked apart.

    ``Trainer`` takes any ``torch.nn.Module`` whose ``forward`` maps observations ``[rows, features]`` to the parameters
    of the distribution ``[rows, head.parameters]`` and the value ``[rows]``. One that inherits from this class and
    has two networks with nothing in common spares the critic's work while acting.

    Observations come as rows of float32, whatever the space: a Dict's Boxes one after another in the order of the
    space's keys, each row-major, uint8 divided by 255, int32 as numbers. Action masks are applied to what it returns.
    """

    def distribution(self, observations: torch.Tensor) -> torch.Tensor:
        """The parameters of the distribution over actions."""
        raise NotImplementedError

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        """The expected return."""
        raise NotImplementedError

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The parameters of the distribution over actions, and the expected return."""
        return self.distribution(observations), self.value(observations)


@final
class Perceptron(PolicyModule):
    """Actor and critic as multilayer perceptrons of their own."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        """Draws the weights: orthogonal, the actor's last ones small, so that it begins undecided."""
        super().__init__()
        self.actor = perceptron(case, case.head.parameters - log_stds(case.head))
        self.critic = perceptron(case, 1)
        self.log_std = _log_std(case)
        draw(self.actor, 0.01, generator)
        draw(self.critic, 1.0, generator)

    def distribution(self, observations: torch.Tensor) -> torch.Tensor:
        return _with_log_std(self.actor(observations), self.log_std)

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.critic(observations)
        return values.squeeze(-1)


@final
class SharedPerceptron(nn.Module):
    """Actor and critic on one trunk of hidden layers."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*_hidden(case))
        self.means = case.head.parameters - log_stds(case.head)
        self.heads = nn.Linear(case.network.hidden[-1], padded(self.means + 1))  # one product for both
        self.log_std = _log_std(case)
        draw(self.trunk, math.sqrt(2), generator)
        nn.init.zeros_(self.heads.bias)
        nn.init.zeros_(self.heads.weight)
        nn.init.orthogonal_(self.heads.weight[: self.means], 0.01, generator=generator)
        nn.init.orthogonal_(self.heads.weight[self.means : self.means + 1], 1.0, generator=generator)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The parameters of the distribution over actions, and the expected return."""
        both = self.heads(self.trunk(observations))
        return _with_log_std(both[:, : self.means], self.log_std), both[:, self.means]


@final
class ActionValues(nn.Module):
    """A multilayer perceptron that values every choice of every element of an action, ``[rows, head.parameters]``."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        """Draws the weights: orthogonal, the last ones small, so that nothing is preferred at first."""
        super().__init__()
        self.actor = perceptron(case, case.head.parameters, pads=False)
        draw(self.actor, 0.01, generator)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """The values."""
        values: torch.Tensor = self.actor(observations)
        return values


@final
class Padding(nn.Module):
    """Lengthens rows by zeros to whole words, in the type that the product wants."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows, longer."""
        return _lengthened(rows)


@final
class PartedLinear(nn.Linear):
    """The first layer for observations in parts: what agents see alike is multiplied once for all of them."""

    def __init__(self, split: Split, width: int) -> None:
        super().__init__(padded(split.own) + padded(split.shared), width)
        self.split = split

    def forward(self, rows: Rows) -> torch.Tensor:
        """The products of rows, ``[rows, width]``."""
        parts = rows if isinstance(rows, Parts) else Parts.of(rows, self.split)
        own = padded(self.split.own)
        products = nn.functional.linear(_lengthened(parts.own), self.weight[:, :own], self.bias)
        of_all = nn.functional.linear(_lengthened(parts.shared), self.weight[:, own:])
        return (products.view(-1, parts.each, self.out_features) + of_all.unsqueeze(1)).flatten(0, 1)


def _lengthened(rows: torch.Tensor) -> torch.Tensor:
    """Rows of whole words."""
    features = rows.shape[1]
    if padded(features) == features:
        return rows
    kind = rows.dtype
    if torch.is_autocast_enabled(rows.device.type):
        kind = torch.get_autocast_dtype(rows.device.type)
    longer = rows.new_empty((rows.shape[0], padded(features)), dtype=kind)
    longer[:, :features] = rows
    longer[:, features:] = 0
    return longer


def padded(count: int) -> int:
    """Up to whole words."""
    return -(-count // ALIGNED) * ALIGNED


def _log_std(case: Case) -> nn.Parameter | None:
    count = log_stds(case.head)
    return nn.Parameter(torch.full((count,), math.log(case.network.initial_std))) if count else None


def _with_log_std(means: torch.Tensor, log_std: torch.Tensor | None) -> torch.Tensor:
    if log_std is None:
        return means
    held: Any = _Held.apply  # untyped
    return torch.cat((means, held(log_std).to(means.dtype).expand(means.shape[0], -1)), dim=-1)


@final
class _Held(torch.autograd.Function):
    """Cuts at ``LOG_STD_RANGE``; all of the gradient passes: ``inwards`` judges that of the whole minibatch."""

    @staticmethod
    def forward(ctx: Any, log_std: torch.Tensor) -> torch.Tensor:
        del ctx
        return log_std.clamp(*LOG_STD_RANGE)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> torch.Tensor:
        del ctx
        return upstream


def inwards(module: nn.Module, parameter: nn.Parameter, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient of a module's parameter; of a deviation beyond a bound only what leads back, lest it stay there."""
    if not isinstance(module, Perceptron | SharedPerceptron) or parameter is not module.log_std:
        return gradient
    low, high = LOG_STD_RANGE
    outwards = ((parameter < low) & (gradient > 0)) | ((parameter > high) & (gradient < 0))
    return torch.where(outwards, 0.0, gradient)


def _hidden(case: Case, *, pads: bool = True) -> list[nn.Module]:
    layers: list[nn.Module] = []
    features, network, split = case.features, case.network, case.split
    if pads and features > FEW_FEATURES and features % ALIGNED and split is None:
        layers.append(Padding(features))
        features = padded(features)
    for number, width in enumerate(network.hidden):
        layers.append(nn.Linear(features, width) if split is None or number > 0 else PartedLinear(split, width))
        if network.layer_norm:
            layers.append(nn.LayerNorm(width))
        layers.append(ACTIVATIONS[network.activation]())
        features = width
    return layers


def perceptron(case: Case, outputs: int, *, pads: bool = True) -> nn.Sequential:
    """A multilayer perceptron of observations, with so many outputs; ``pads``: rows become whole words, for torch."""
    layers = _hidden(case, pads=pads)
    return nn.Sequential(*layers, nn.Linear(case.network.hidden[-1], outputs))


def draw(layers: nn.Sequential, last_gain: float, generator: torch.Generator) -> None:
    """Draws weights: orthogonal; biases are zero."""
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer in linear:
        gain = last_gain if layer is linear[-1] else math.sqrt(2)
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        nn.init.zeros_(layer.bias)
