"""Networks without memory: the default modules that settings describe, and base classes of users' modules."""

import dataclasses
import itertools
import math
from typing import Any, NamedTuple, final

import torch
from torch import nn

from gpu_envs.training.algorithms import Algorithm, OffPolicy
from gpu_envs.training.algorithms.base import LOG_STD_RANGE
from gpu_envs.training.heads import Head
from gpu_envs.training.observations import MAX_SMALL_FEATURES, Rows, Split, SplitRows
from gpu_envs.training.policy import Network
from gpu_envs.training.process.copies import over_copies

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU, "gelu": nn.GELU}

ALIGNMENT = 8
"""Elements to whose multiple rows are padded: matrix products are fast if rows are multiples of 16 bytes (8 bf16)."""


class CentralInput(NamedTuple):
    """The input of a central critic: a row for each group of agents, for a value of each agent."""

    features: int
    agents: int


@final
@dataclasses.dataclass(frozen=True)
class Case:
    """A policy's settings, spaces and device, which determine its module and its engine."""

    algorithm: Algorithm
    network: Network
    head: Head
    features: int
    """Length of a flat observation."""
    device: str
    """``cpu`` or ``cuda:N``."""
    masked: bool = False
    """Whether the environment has action masks."""
    split: Split | None = None
    """Individual and shared features of observations; None: observations are full rows."""
    central: CentralInput | None = None
    """Input of a central critic; None: the critic sees the actor's observations."""
    default: bool = True
    """Whether the module is a default one, not a user's."""
    samples: int = 2**31
    """Approximate number of samples in a minibatch."""
    threads: int | None = None
    """Maximum number of CPU threads; None: one per core."""


class PolicyModule(nn.Module):
    """A policy module whose actor and critic can be evaluated separately.

    ``Trainer`` accepts any ``torch.nn.Module`` whose ``forward`` maps observations ``[rows, features]`` to the
    parameters of the action distribution ``[rows, head.parameters]`` and the value ``[rows]``. A subclass of this class
    with separate actor and critic networks does not compute the critic while it acts.

    Observations of all spaces are float32 rows: the Boxes of a Dict are concatenated in the order of the space's keys,
    each in row-major order; uint8 is divided by 255, int32 is converted. Action masks are applied to the outputs.
    """

    def distribution(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the parameters of the action distribution, ``[rows, head.parameters]``."""
        raise NotImplementedError

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the expected return, ``[rows]``; if the critic is central, from its rows, ``[groups, agents]``."""
        raise NotImplementedError

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the parameters of the action distribution and the expected return."""
        return self.distribution(observations), self.value(observations)


@final
class Perceptron(PolicyModule):
    """Separate multilayer perceptrons for actor and critic."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        """Draw orthogonal weights; the actor's last layer is small, so that the first policy is close to uniform."""
        super().__init__()
        self.actor = _perceptron(case, case.head.parameters - case.head.log_stds, 0.01, generator)
        self.critic = _perceptron(case, 1, 1.0, generator, central=case.central)
        self._values_of_row = () if case.central is None else (case.central.agents,)
        self.log_std = log_std_of(case)

    def distribution(self, observations: torch.Tensor) -> torch.Tensor:
        return with_log_std(self.actor(observations), self.log_std)

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.critic(observations)
        return values.view(-1, *self._values_of_row)


def joined_heads(width: int, means: int, generator: torch.Generator) -> nn.Linear:
    """Return the last layers of actor and critic as one, for one matrix product: means, the value, and padding."""
    heads = nn.Linear(width, padded(means + 1))
    nn.init.zeros_(heads.bias)
    nn.init.zeros_(heads.weight)
    nn.init.orthogonal_(heads.weight[:means], 0.01, generator=generator)
    nn.init.orthogonal_(heads.weight[means : means + 1], 1.0, generator=generator)
    return heads


@final
class SharedPerceptron(nn.Module):
    """Actor and critic that share their hidden layers."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        super().__init__()
        self.trunk = initialised(hidden_layers(case), math.sqrt(2), generator)
        self.means = case.head.parameters - case.head.log_stds
        self.heads = joined_heads(case.network.hidden[-1], self.means, generator)
        self.log_std = log_std_of(case)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = self.heads(self.trunk(observations))
        return with_log_std(outputs[:, : self.means], self.log_std), outputs[:, self.means]


@final
class QNetwork(nn.Module):
    """A multilayer perceptron for the Q values of the choices of each action element, ``[rows, head.parameters]``."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        """Draw orthogonal weights; the last layer's are small, so that the first Q values are close to 0."""
        super().__init__()
        self.actor = _perceptron(case, case.head.parameters, 0.01, generator, pads=False)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.actor(observations)
        return values


@final
class Padding(nn.Module):
    """Pads rows with zeros to a multiple of ``ALIGNMENT``, in the dtype of the following matrix product."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        features = rows.shape[1]
        if padded(features) == features:
            return rows
        autocast = torch.is_autocast_enabled(rows.device.type)
        dtype = torch.get_autocast_dtype(rows.device.type) if autocast else rows.dtype
        padded_rows = rows.new_empty((rows.shape[0], padded(features)), dtype=dtype)
        padded_rows[:, :features] = rows
        padded_rows[:, features:] = 0
        return padded_rows


@final
class SplitLinear(nn.Linear):
    """A first layer that multiplies the features that a group of agents shares once per group."""

    def __init__(self, split: Split, width: int) -> None:
        super().__init__(padded(split.individual) + padded(split.shared), width)
        self.split, self.pad = split, Padding()

    def forward(self, rows: Rows) -> torch.Tensor:
        split_rows = rows if isinstance(rows, SplitRows) else SplitRows.of(rows, self.split)
        columns = padded(self.split.individual)
        products = nn.functional.linear(self.pad(split_rows.individual), self.weight[:, :columns], self.bias)
        shared = nn.functional.linear(self.pad(split_rows.shared), self.weight[:, columns:])
        return (products.view(-1, split_rows.group_size, self.out_features) + shared.unsqueeze(1)).flatten(0, 1)


@final
class CentralLinear(nn.Linear):
    """A first layer that multiplies what the agents of a group share once, and knows the number of each agent.

    Its inputs are the features that they share, a one for the agent's number among zeros (of several agents), and
    padding.
    """

    def __init__(self, central: CentralInput, width: int) -> None:
        inputs = central.features + (central.agents if central.agents > 1 else 0)
        super().__init__(inputs if inputs <= MAX_SMALL_FEATURES else padded(inputs), width)
        self.central = central

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        features, agents = self.central
        products = nn.functional.linear(nn.functional.pad(rows, (0, self.in_features - features)), self.weight)
        if agents == 1:
            return products + self.bias
        of_agents = self.weight[:, features : features + agents].T + self.bias
        return (products.unsqueeze(1) + of_agents).flatten(0, 1)


def padded(count: int) -> int:
    """Round up to a multiple of ``ALIGNMENT``."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def log_std_of(case: Case) -> nn.Parameter | None:
    """Return the initial log standard deviations of continuous actions; None: the actions are discrete."""
    count = case.head.log_stds
    return nn.Parameter(torch.full((count,), math.log(case.network.initial_std))) if count else None


def with_log_std(means: torch.Tensor, log_std: torch.Tensor | None) -> torch.Tensor:
    """Append the clamped log standard deviations to each row of means; None: return the means."""
    if log_std is None:
        return means
    return torch.cat((means, _clamped(log_std).to(means.dtype).expand(*means.shape[:-1], -1)), dim=-1)


@over_copies
def _clamped(log_std: torch.Tensor) -> torch.Tensor:
    clamp: Any = _StraightThroughClamp.apply  # untyped
    clamped: torch.Tensor = clamp(log_std)
    return clamped


@final
class _StraightThroughClamp(torch.autograd.Function):
    """Clamps to ``LOG_STD_RANGE`` and passes the full gradient; ``drop_outward_gradient`` is applied to it later."""

    @staticmethod
    def forward(_ctx: Any, log_std: torch.Tensor) -> torch.Tensor:
        return log_std.clamp(*LOG_STD_RANGE)

    @staticmethod
    def backward(_ctx: Any, upstream: torch.Tensor) -> torch.Tensor:
        return upstream


def drop_outward_gradient(log_std: nn.Parameter, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient of log standard deviations, zero where one out of its range would move further out.

    The clamp alone would stop all gradients there, and the log standard deviation could not return.
    """
    low, high = LOG_STD_RANGE
    outwards = ((log_std < low) & (gradient > 0)) | ((log_std > high) & (gradient < 0))
    return torch.where(outwards, 0.0, gradient)


def hidden_layers(case: Case, *, pads: bool = True, central: CentralInput | None = None) -> nn.Sequential:
    """Return the hidden layers with their activations, not initialised.

    Args:
        case: The settings.
        pads: Pad long input rows, for speed.
        central: The input if it is a central critic's; None: observations.
    """
    layers = nn.Sequential()
    features, network, split = case.features, case.network, case.split
    if pads and central is None and features > MAX_SMALL_FEATURES and features % ALIGNMENT and split is None:
        layers.append(Padding())
        features = padded(features)
    for number, width in enumerate(network.hidden):
        if number == 0 and central is not None:
            layers.append(CentralLinear(central, width))
        else:
            layers.append(nn.Linear(features, width) if split is None or number > 0 else SplitLinear(split, width))
        if network.layer_norm:
            layers.append(nn.LayerNorm(width))
        layers.append(ACTIVATIONS[network.activation]())
        features = width
    return layers


def _perceptron(
    case: Case, outputs: int, last_gain: float, generator: torch.Generator, **options: Any
) -> nn.Sequential:
    """Return an initialised multilayer perceptron; ``options`` as of ``hidden_layers``."""
    layers = hidden_layers(case, **options).append(nn.Linear(case.network.hidden[-1], outputs))
    return initialised(layers, last_gain, generator)


def initialised(layers: nn.Sequential, last_gain: float, generator: torch.Generator) -> nn.Sequential:
    """Draw orthogonal weights in place, with ``last_gain`` for the last layer, and zero biases; return ``layers``."""
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer in linear:
        nn.init.orthogonal_(layer.weight, last_gain if layer is linear[-1] else math.sqrt(2), generator=generator)
        nn.init.zeros_(layer.bias)
    return layers


class ActorCritic(nn.Module):
    """An actor and its critics, for sac, td3 and ddpg.

    ``Trainer`` accepts any module with both. ``actor`` maps observations ``[rows, features]`` to ``[rows, width]``; the
    action, in units where the bounds are -1 and 1, is tanh of it. For sac ``actor`` returns ``[rows, 2 * width]``:
    means and log standard deviations before the tanh. ``critics`` maps observations and such actions to Q values
    ``[critics, rows]``, of two critics (ddpg: one).

    The actor loss trains the parameters that only ``actor`` has; the critic loss trains all others, such as a shared
    trunk.
    """

    actor: nn.Module
    critics: nn.Module


def learning_parameters(module: ActorCritic) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters that the critic loss trains, and the parameters that the actor loss trains."""
    actor_only = {*module.actor.parameters()} - {*module.critics.parameters()}
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [p for p in learning if p not in actor_only], [p for p in learning if p in actor_only]


@final
class PerceptronActorCritic(ActorCritic):
    """Separate multilayer perceptrons for actor and critics."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        """Draw orthogonal weights; the actor's last layer is small, so that the first actions are close to 0."""
        super().__init__()
        algorithm, head = case.algorithm, case.head
        assert isinstance(algorithm, OffPolicy)
        joined = dataclasses.replace(case, split=None)
        self.actor = _perceptron(joined, actor_outputs(head, algorithm), 0.01, generator, pads=False)
        if algorithm.stochastic:
            last = self.actor[-1].bias
            assert isinstance(last, nn.Parameter)
            nn.init.constant_(last[head.width :], math.log(case.network.initial_std))
        self.critics = Critics(algorithm.critics, case.features + head.width, case.network, generator)


@final
class Critics(nn.Module):
    """Several Q networks of the same shape, computed together by batched matrix products."""

    def __init__(self, count: int, inputs: int, network: Network, generator: torch.Generator) -> None:
        super().__init__()
        layers = list(itertools.pairwise((inputs, *network.hidden, 1)))
        self.weights = nn.ParameterList(torch.empty(count, outputs, inputs) for inputs, outputs in layers)
        self.biases = nn.ParameterList(torch.zeros(count, 1, outputs) for _, outputs in layers)
        widths = network.hidden if network.layer_norm else ()
        self.gains = nn.ParameterList(torch.ones(count, 1, width) for width in widths)
        self.shifts = nn.ParameterList(torch.zeros(count, 1, width) for width in widths)
        self.activation = ACTIVATIONS[network.activation]()
        for weight in self.weights:
            for critic in weight:
                nn.init.orthogonal_(critic, 1.0 if weight is self.weights[-1] else math.sqrt(2), generator=generator)

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return the Q values of actions, ``[critics, rows]``."""
        rows = torch.cat((observations, actions), 1).expand(len(self.weights[0]), -1, -1)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer > 0:
                if self.gains:
                    rows = nn.functional.layer_norm(rows, rows.shape[-1:])
                    rows = torch.addcmul(self.shifts[layer - 1], rows, self.gains[layer - 1])
                rows = self.activation(rows)
            rows = torch.baddbmm(bias, rows, weight.transpose(1, 2))
        return rows.squeeze(-1)


def actor_outputs(head: Head, algorithm: OffPolicy) -> int:
    """Return the number of an actor's outputs."""
    return head.width * (1 + algorithm.stochastic)
