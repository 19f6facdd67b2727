"""Networks: those that settings describe, and checks of the user's own modules."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, final

import torch
from torch import nn

from gpu_envs.training.algorithms import PQN, Algorithm, OffPolicy
from gpu_envs.training.algorithms.base import LOG_STD_RANGE
from gpu_envs.training.heads import Head
from gpu_envs.training.observations import FEW_FEATURES, Parts, Rows, Split
from gpu_envs.training.policy import Network, check_learning_policies, join_names
from gpu_envs.training.process.device import is_shortage, wake_autograd

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU, "gelu": nn.GELU}

ALIGNED = 8
"""Matrix products are quick where rows of both factors are whole words of 16 bytes: 8 elements of bf16."""


@final
@dataclasses.dataclass(frozen=True)
class Case:
    """Settings of a policy, spaces of its agents, and its device: the module and the choice of its engine follow."""

    algorithm: Algorithm
    network: Network
    head: Head
    features: int
    """Numbers of an observation."""
    device: str
    """``cpu`` or ``cuda:N``."""
    masked: bool = False
    """Whether the environment has action masks."""
    split: Split | None = None
    """How observations consist of two parts; None: they do not."""
    default: bool = True
    """Whether the module is the one that the settings describe."""
    samples: int = 2**31
    """Samples of a minibatch, about."""
    threads: int | None = None
    """Threads on the CPU, at most; None: one for each core."""


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
        self.actor = _perceptron(case, case.head.parameters - case.head.log_stds, 0.01, generator)
        self.critic = _perceptron(case, 1, 1.0, generator)
        self.log_std = _log_std(case)

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
        self.trunk = _drawn(_hidden(case), math.sqrt(2), generator)
        self.means = case.head.parameters - case.head.log_stds
        self.heads = nn.Linear(case.network.hidden[-1], padded(self.means + 1))  # one product for both
        self.log_std = _log_std(case)
        nn.init.zeros_(self.heads.bias)
        nn.init.zeros_(self.heads.weight)
        nn.init.orthogonal_(self.heads.weight[: self.means], 0.01, generator=generator)
        nn.init.orthogonal_(self.heads.weight[self.means : self.means + 1], 1.0, generator=generator)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = self.heads(self.trunk(observations))
        return _with_log_std(both[:, : self.means], self.log_std), both[:, self.means]


@final
class ActionValues(nn.Module):
    """A multilayer perceptron that values every choice of every element of an action, ``[rows, head.parameters]``."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        """Draws the weights: orthogonal, the last ones small, so that nothing is preferred at first."""
        super().__init__()
        self.actor = _perceptron(case, case.head.parameters, 0.01, generator, pads=False)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.actor(observations)
        return values


@final
class Padding(nn.Module):
    """Lengthens rows by zeros to whole words, in the type that the product wants."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        features = rows.shape[1]
        if padded(features) == features:
            return rows
        autocast = torch.is_autocast_enabled(rows.device.type)
        kind = torch.get_autocast_dtype(rows.device.type) if autocast else rows.dtype
        longer = rows.new_empty((rows.shape[0], padded(features)), dtype=kind)
        longer[:, :features] = rows
        longer[:, features:] = 0
        return longer


@final
class PartedLinear(nn.Linear):
    """The first layer for observations in parts: what agents see alike is multiplied once for all of them."""

    def __init__(self, split: Split, width: int) -> None:
        super().__init__(padded(split.own) + padded(split.shared), width)
        self.split, self.lengthen = split, Padding()

    def forward(self, rows: Rows) -> torch.Tensor:
        parts = rows if isinstance(rows, Parts) else Parts.of(rows, self.split)
        own = padded(self.split.own)
        products = nn.functional.linear(self.lengthen(parts.own), self.weight[:, :own], self.bias)
        of_all = nn.functional.linear(self.lengthen(parts.shared), self.weight[:, own:])
        return (products.view(-1, parts.each, self.out_features) + of_all.unsqueeze(1)).flatten(0, 1)


def padded(count: int) -> int:
    """Up to whole words."""
    return -(-count // ALIGNED) * ALIGNED


def _log_std(case: Case) -> nn.Parameter | None:
    count = case.head.log_stds
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


def _hidden(case: Case, *, pads: bool = True) -> nn.Sequential:
    layers = nn.Sequential()
    features, network, split = case.features, case.network, case.split
    if pads and features > FEW_FEATURES and features % ALIGNED and split is None:
        layers.append(Padding())
        features = padded(features)
    for number, width in enumerate(network.hidden):
        layers.append(nn.Linear(features, width) if split is None or number > 0 else PartedLinear(split, width))
        if network.layer_norm:
            layers.append(nn.LayerNorm(width))
        layers.append(ACTIVATIONS[network.activation]())
        features = width
    return layers


def _perceptron(
    case: Case, outputs: int, last_gain: float, generator: torch.Generator, *, pads: bool = True
) -> nn.Sequential:
    """A multilayer perceptron of observations, with so many outputs; ``pads``: rows become whole words, for torch."""
    layers = _hidden(case, pads=pads).append(nn.Linear(case.network.hidden[-1], outputs))
    return _drawn(layers, last_gain, generator)


def _drawn(layers: nn.Sequential, last_gain: float, generator: torch.Generator) -> nn.Sequential:
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer in linear:
        nn.init.orthogonal_(layer.weight, last_gain if layer is linear[-1] else math.sqrt(2), generator=generator)
        nn.init.zeros_(layer.bias)
    return layers


class ActorCritic(nn.Module):
    """An actor, and critics of what it does, for sac, td3 and ddpg.

    ``Trainer`` takes any that has both: ``actor`` maps observations ``[rows, features]`` to ``[rows, width]``, of which
    the hyperbolic tangent is the action where its bounds are -1 and 1; for sac to ``[rows, 2 * width]``, means and
    logarithms of deviations of what is squashed so. ``critics`` maps observations and such actions to what they are
    worth, ``[critics, rows]``: two critics, of ddpg one.

    Parameters of ``actor`` alone learn by the actor's loss, and all others by the critics': a trunk of both, too.
    """

    actor: nn.Module
    critics: nn.Module


def learning_parameters(module: ActorCritic) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Returns the parameters that learn by the critics' loss, and those that learn by the actor's."""
    of_actor = {*module.actor.parameters()} - {*module.critics.parameters()}
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [p for p in learning if p not in of_actor], [p for p in learning if p in of_actor]


@final
class PerceptronActorCritic(ActorCritic):
    """Actor and critics as multilayer perceptrons of their own."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        """Draws the weights: orthogonal, the actor's last ones small, so that it begins undecided."""
        super().__init__()
        algorithm, head = case.algorithm, case.head
        assert isinstance(algorithm, OffPolicy)
        whole = dataclasses.replace(case, split=None)
        self.actor = _perceptron(whole, outputs_of(head, algorithm), 0.01, generator, pads=False)
        if algorithm.stochastic:
            last = self.actor[-1].bias
            assert isinstance(last, nn.Parameter)
            nn.init.constant_(last[head.width :], math.log(case.network.initial_std))
        self.critics = Critics(algorithm.critics, case.features + head.width, case.network, generator)


@final
class Critics(nn.Module):
    """Several multilayer perceptrons side by side, which value the same actions."""

    def __init__(self, count: int, inputs: int, network: Network, generator: torch.Generator) -> None:
        super().__init__()
        layers = list(itertools.pairwise((inputs, *network.hidden, 1)))
        self.weights = nn.ParameterList(torch.empty(count, outputs, before) for before, outputs in layers)
        self.biases = nn.ParameterList(torch.zeros(count, 1, outputs) for _, outputs in layers)
        widths = network.hidden if network.layer_norm else ()
        self.gains = nn.ParameterList(torch.ones(count, 1, width) for width in widths)
        self.shifts = nn.ParameterList(torch.zeros(count, 1, width) for width in widths)
        self.activation = ACTIVATIONS[network.activation]()
        for weight in self.weights:
            for one in weight:
                nn.init.orthogonal_(one, 1.0 if weight is self.weights[-1] else math.sqrt(2), generator=generator)

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """What actions are worth, ``[critics, rows]``."""
        rows = torch.cat((observations, actions), 1).expand(len(self.weights[0]), -1, -1)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer > 0:
                if self.gains:
                    rows = nn.functional.layer_norm(rows, rows.shape[-1:])
                    rows = torch.addcmul(self.shifts[layer - 1], rows, self.gains[layer - 1])
                rows = self.activation(rows)
            rows = torch.baddbmm(bias, rows, weight.transpose(1, 2))
        return rows.squeeze(-1)


def outputs_of(head: Head, algorithm: OffPolicy) -> int:
    """The number of an actor's outputs."""
    return head.width * (1 + algorithm.stochastic)


def default_policy(case: Case, generator: torch.Generator) -> nn.Module:
    """The module that settings describe; with a split one that takes observations in parts, where it can."""
    if isinstance(case.algorithm, OffPolicy):
        return PerceptronActorCritic(case, generator)
    trunk = SharedPerceptron if case.network.shared_trunk else Perceptron
    return (ActionValues if isinstance(case.algorithm, PQN) else trunk)(case, generator)


def check_modules(modules: Any, known: Iterable[str]) -> None:
    """Refuses what are no modules by the names of policies that learn."""
    if not isinstance(modules, Mapping):
        raise TypeError(f"modules is a {type(modules).__name__}; give a dict of policies' names and torch.nn.Modules")
    check_learning_policies("modules", modules, known)
    for name, module in modules.items():
        if not isinstance(module, nn.Module):
            raise TypeError(f"modules gives the policy {name!r} {module!r}; give a torch.nn.Module, made")
        lazy = [key for key, parameter in module.named_parameters() if nn.parameter.is_lazy(parameter)]
        if lazy:
            raise ValueError(
                f"the policy {name!r} has the parameter {lazy[0]}, whose shape is not known yet: call the module once "
                "with observations first, or use a layer that is not lazy"
            )


def check_settings(network: Network, name: str) -> None:
    """Refuses settings that a policy which is a module of the user's does not use; their defaults are no setting."""
    unused = ("hidden", "activation", "layer_norm", "shared_trunk", "initial_std")
    changed = [key for key in unused if getattr(network, key) != getattr(Network(), key)]
    if changed:
        raise ValueError(
            f"{join_names(changed)} cannot be set for the policy {name!r}, whose module you gave: leave that out, or set "
            "it for the other policies by a Policy with a Network"
        )


def check_module(module: nn.Module, case: Case, name: str) -> None:
    """Refuses a policy's module that cannot learn, or whose outputs do not have the shapes that its agents need."""
    features, head, algorithm = case.features, case.head, case.algorithm
    for key, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise ValueError(
                f"the policy {name!r} has the parameter {key} of {parameter.dtype}; policies are float32, for "
                f"observations of {features} features: give module.float() (precision='bf16' computes in bfloat16)"
            )
    if isinstance(algorithm, OffPolicy):
        actor, critics = (getattr(module, part, None) for part in ("actor", "critics"))
        if not isinstance(actor, nn.Module) or not isinstance(critics, nn.Module):
            raise ValueError(
                f"the policy {name!r} is a {type(module).__name__}; for {algorithm.name} give a module with an actor "
                "and critics, as training.ActorCritic describes it"
            )
        _check_outputs(actor, case, name, ((2, outputs_of(head, algorithm)),), "the actor of ")
        actions = torch.zeros(2, head.width, device=case.device)
        values = _check_outputs(critics, case, name, ((algorithm.critics, 2),), "the critics of ", actions)
        _check_shared(module, values, name, case.device)
        return
    for method in ("distribution", "value"):
        if isinstance(module, PolicyModule) and getattr(type(module), method) is getattr(PolicyModule, method):
            raise ValueError(
                f"the policy {name!r} is a training.PolicyModule without {method}(): define distribution() and "
                "value(), or inherit from torch.nn.Module and define forward()"
            )
    parameters = (2, head.parameters)
    _check_outputs(module, case, name, (parameters,) if isinstance(algorithm, PQN) else (parameters, (2,)))


def _check_outputs(
    module: nn.Module,
    case: Case,
    name: str,
    wanted: tuple[tuple[int, ...], ...],
    part: str = "",
    *actions: torch.Tensor,
) -> torch.Tensor:
    """Refuses a module, or a part of one, without outputs of these shapes that it could learn; gives the last one."""
    features = case.features
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            f"the policy {name!r} has no parameters that require a gradient: nothing to train. Give a float32 module "
            f"of {features} features that has some, or leave the module out"
        )
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        with torch.enable_grad():
            found = module(torch.zeros(2, features, device=case.device), *actions)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, RuntimeError) and is_shortage(error):
            raise
        raise ValueError(
            f"the policy {name!r} cannot take float32 observations of {features} features, [2, {features}]: {error}"
        ) from error
    finally:
        for each, mode in modes:
            each.training = mode
    outputs = (found,) if len(wanted) == 1 else found
    fits = isinstance(outputs, tuple) and all(isinstance(output, torch.Tensor) for output in outputs)
    shapes = tuple(tuple(output.shape) for output in outputs) if fits else ()
    if shapes != wanted:
        inputs = f"observations [2, {features}]{f' and actions {[*actions[0].shape]}' if actions else ''}"
        expected = " and the values ".join(map(str, wanted))
        if len(wanted) == 2:
            expected = f"a tuple of the distribution's parameters {expected}"
        elif not part:
            expected = f"the values of choices {expected}"
        raise ValueError(
            f"{part}the policy {name!r} {'map' if actions else 'maps'} {inputs} to "
            f"{' and '.join(map(str, shapes)) or type(found).__name__}; expected {expected}"
        )
    if not any(output.requires_grad for output in outputs):
        raise ValueError(
            f"the outputs of the policy {name!r} depend on none of the parameters that it could learn, given float32 "
            f"observations of {features} features; does its forward turn gradients off?"
        )
    last: torch.Tensor = outputs[-1]
    return last


def _check_shared(module: Any, values: torch.Tensor, name: str, device: str) -> None:
    """Refuses parameters of an actor and critics that the loss by which they learn does not reach."""
    _, acting = learning_parameters(module)
    if not acting:
        raise ValueError(
            f"the actor of the policy {name!r} has no parameters but those of the critics, which learn by the critics' "
            "loss: give it a layer of its own"
        )
    of_actor, of_critics = {*acting}, {*module.critics.parameters()}
    named = [(key, p) for key, p in module.named_parameters() if p.requires_grad and p not in of_critics]
    if device != "cpu":
        wake_autograd(device)
    gradients = torch.autograd.grad(values.sum(), [p for _, p in named], allow_unused=True)
    for (key, parameter), gradient in zip(named, gradients, strict=True):
        if parameter in of_actor and gradient is not None:
            raise ValueError(
                f"the critics of the policy {name!r} use its parameter {key}, which is registered in the actor alone, "
                "and would learn by the actor's loss alone: register its module in the critics, too"
            )
        if parameter not in of_actor and gradient is None:
            raise ValueError(
                f"the critics of the policy {name!r} do not use its parameter {key}, which is registered outside of "
                "the actor, and would learn by the critics' loss: register its module in the actor, or give "
                "requires_grad_(False)"
            )
