"""What a policy is: a torch module from observations to the parameters of a distribution over actions, and a value."""

import math
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import nn

from gpu_envs.training.config import Config
from gpu_envs.training.operations.heads import LOG_STD_RANGE, Head, log_stds

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}

ALIGNED = 8
"""Matrix products are quick where rows of both factors are whole words of 16 bytes: 8 elements of bf16."""

FEW_FEATURES = 64
"""Networks of up to so many features are small in any case, and may be run by kernels of our own."""


class Policy(nn.Module):
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
class Perceptron(Policy):
    """Actor and critic as multilayer perceptrons of their own."""

    def __init__(self, features: int, head: Head, config: Config, generator: torch.Generator) -> None:
        """Draws the weights: orthogonal, the actor's last ones small, so that it begins undecided."""
        super().__init__()
        self.actor = _layers(features, config.hidden, head.parameters - log_stds(head), config.activation)
        self.critic = _layers(features, config.hidden, 1, config.activation)
        self.log_std = _log_std(head, config)
        _draw(self.actor, 0.01, generator)
        _draw(self.critic, 1.0, generator)

    def distribution(self, observations: torch.Tensor) -> torch.Tensor:
        return _with_log_std(self.actor(observations), self.log_std)

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.critic(observations)
        return values.squeeze(-1)


@final
class SharedPerceptron(nn.Module):
    """Actor and critic on one trunk of hidden layers."""

    def __init__(self, features: int, head: Head, config: Config, generator: torch.Generator) -> None:
        super().__init__()
        self.trunk = _hidden(features, config.hidden, config.activation)
        self.means = head.parameters - log_stds(head)
        self.heads = nn.Linear(config.hidden[-1], padded(self.means + 1))  # one product for both
        self.log_std = _log_std(head, config)
        _draw(self.trunk, math.sqrt(2), generator)
        nn.init.zeros_(self.heads.bias)
        nn.init.zeros_(self.heads.weight)
        nn.init.orthogonal_(self.heads.weight[: self.means], 0.01, generator=generator)
        nn.init.orthogonal_(self.heads.weight[self.means : self.means + 1], 1.0, generator=generator)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The parameters of the distribution over actions, and the expected return."""
        both = self.heads(self.trunk(observations))
        return _with_log_std(both[:, : self.means], self.log_std), both[:, self.means]


@final
class Padding(nn.Module):
    """Lengthens rows by zeros to whole words, in the type that the product wants."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows, longer."""
        kind = rows.dtype
        if torch.is_autocast_enabled(rows.device.type):
            kind = torch.get_autocast_dtype(rows.device.type)
        longer = rows.new_empty((rows.shape[0], padded(self.features)), dtype=kind)
        longer[:, : self.features] = rows
        longer[:, self.features :] = 0
        return longer


def padded(count: int) -> int:
    """Up to whole words."""
    return -(-count // ALIGNED) * ALIGNED


def default_policy(features: int, head: Head, config: Config, generator: torch.Generator) -> nn.Module:
    """The policy that a configuration describes."""
    kind = SharedPerceptron if config.shared_trunk else Perceptron
    return kind(features, head, config, generator)


def _log_std(head: Head, config: Config) -> nn.Parameter | None:
    count = log_stds(head)
    return nn.Parameter(torch.full((count,), math.log(config.initial_std))) if count else None


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


def _hidden(features: int, widths: Sequence[int], activation: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    if features > FEW_FEATURES and features % ALIGNED:
        layers.append(Padding(features))
        features = padded(features)
    for width in widths:
        layers += [nn.Linear(features, width), _ACTIVATIONS[activation]()]
        features = width
    return nn.Sequential(*layers)


def _layers(features: int, widths: Sequence[int], outputs: int, activation: str) -> nn.Sequential:
    return nn.Sequential(*_hidden(features, widths, activation), nn.Linear(widths[-1], outputs))


def _draw(layers: nn.Sequential, last_gain: float, generator: torch.Generator) -> None:
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer in linear:
        gain = last_gain if layer is linear[-1] else math.sqrt(2)
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        nn.init.zeros_(layer.bias)
