"""Actors and critics as functions that kernels of our own run, on a CPU or a Hopper GPU."""

import itertools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from gpu_envs.backend import open_backend
from gpu_envs.training.algorithms import OffPolicy
from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.perceptrons import ACTIVATIONS, WIDEST, Form, Perceptrons
from gpu_envs.training.operations.wide_programs import Linear
from gpu_envs.training.policies.actor_critic import Critics, outputs_of
from gpu_envs.training.policies.wide_functions import WideFunctions, function_network, why_no_functions
from gpu_envs.training.policies.wide_networks import Places, layers_of
from gpu_envs.training.run import Run


class Functions(Protocol):
    """Perceptrons of the same inputs, forth and back."""

    def outputs(self, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        """As of ``Perceptrons``."""

    def back(self, by_outputs: torch.Tensor, *, by_inputs: torch.Tensor | None = None, weights: bool = True) -> None:
        """As of ``Perceptrons``."""

    def forth_and_back(
        self, inputs: torch.Tensor, outputs: torch.Tensor, by_outputs: torch.Tensor,
        curvatures: torch.Tensor | None = None, *, by_inputs: torch.Tensor | None = None, weights: bool = True,
    ) -> None:  # fmt: skip
        """As of ``Perceptrons``."""


def functions_of(
    form: Form, weights: torch.Tensor, gradient: torch.Tensor | None, rows: int, config: Run, device: str
) -> Functions:
    """The kernels of perceptrons; on a CPU for batches of so many rows."""
    if device == "cpu":
        return Perceptrons(form, weights, gradient, rows, config.cpu_threads)
    network = function_network(form, config.network.precision, open_backend(device).traits.processors)
    return WideFunctions(network, device, weights, torch.empty_like(weights) if gradient is None else gradient)


def why_torch(config: Run, features: int, head: Head, device: str, *, default: bool) -> str:
    """Why no kernels of our own run an update; empty where they do.

    Args:
        config: The run as the policy sees it.
        features: Of an observation.
        head: Of its actions.
        device: Where.
        default: Whether actor and critics are the default ones.
    """
    if config.network.fused is False:
        return "they are turned off"
    if not default:
        return "only the default actor and critics have kernels of their own"
    if device != "cpu":
        algorithm = config.algorithm
        assert isinstance(algorithm, OffPolicy)
        actor = (features, *config.network.hidden, outputs_of(head, algorithm))
        critics = (features + head.width, *config.network.hidden, 1)
        nets = algorithm.critics
        reasons = (
            why_no_functions(form_of(sizes, config, nets), config.network.precision, device)
            for sizes in (actor, critics)
        )
        return next(filter(None, reasons), "")
    if config.network.activation not in ACTIVATIONS:
        return f"the activation is {config.network.activation}, not {', '.join(ACTIVATIONS)}"
    if config.network.layer_norm:
        return "hidden layers are normalised"
    if config.network.precision == "bf16":
        return "the precision is bf16"
    if max(config.network.hidden) > WIDEST:
        return f"a layer has more than {WIDEST} units"
    return ""


def form_of(sizes: Sequence[int], config: Run, nets: int = 1) -> Form:
    """What its sizes are known of."""
    layers = tuple(Linear(0, 0, outs, ins) for ins, outs in itertools.pairwise(sizes))
    return Form((layers,) * nets, 0, config.network.activation)


def actor_form(actor: nn.Module, activation: str) -> Form:
    """Of an actor whose parameters lie in their own order."""
    places = Places(actor.parameters())
    return Form((layers_of(actor, places),), places.end, activation)


def critics_form(critics: Critics, activation: str, width: int) -> Form:
    """Of critics whose parameters lie in their own order, by whose actions the gradient is wanted."""
    places = Places(critics.parameters())

    def place(parameters: Sequence[torch.Tensor], layer: int, net: int) -> int:
        if layer >= len(parameters):
            return -1
        return places[parameters[layer]] + net * parameters[layer][0].numel()

    def linear(layer: int, net: int) -> Linear:
        parameters = (critics.weights, critics.biases, critics.gains, critics.shifts)
        weight, bias, gain, shift = (place([*each], layer, net) for each in parameters)
        _, outs, ins = critics.weights[layer].shape
        return Linear(weight, bias, outs, ins, gain, shift)

    layers = range(len(critics.weights))
    nets = tuple(tuple(linear(layer, net) for layer in layers) for net in range(len(critics.weights[0])))
    inputs = nets[0][0].columns
    return Form(nets, places.end, activation, by_inputs=range(inputs - width, inputs))
