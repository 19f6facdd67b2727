"""Perceptrons as functions, forward and backward: actors, critics and Q networks, on a CPU or a Hopper GPU."""

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias, final

import torch
from torch import nn

from gpu_envs.backend import open_backend
from gpu_envs.training.algorithms.base import QLearning
from gpu_envs.training.engines.base import (
    LEARNER_SETTINGS,
    PERCEPTRON_SETTINGS,
    STEP_KERNELS,
    KernelEngine,
    Minibatch,
    PolicyNetworks,
    make_optimiser,
)
from gpu_envs.training.engines.torch import CHOOSER, TorchQValues, chosen_observations
from gpu_envs.training.engines.wide import GRADIENT, PACK, Places, WideKernels, exceeded_limit, layers_of
from gpu_envs.training.networks import ActionValues, Critics
from gpu_envs.training.observations import Scale
from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.ops import SUMS
from gpu_envs.training.operations.optimiser import Adam
from gpu_envs.training.operations.perceptrons import Form, Perceptrons
from gpu_envs.training.operations.wide_programs import Linear, WideNetwork
from gpu_envs.training.policies.case import Case
from gpu_envs.training.process.group import Group

MOST_BY_INPUTS = 256
"""Columns of a product, at most."""


@final
class FunctionsEngine(KernelEngine):
    """The network of Q-learning, by kernels of wide networks."""

    name = "functions"
    learns = QLearning
    algorithms = ("pqn",)
    settings = (*LEARNER_SETTINGS, *PERCEPTRON_SETTINGS, "layer_norm")
    kernels = (
        PACK,
        ("acting", f"kernel_outputs of wide/act.cuh, {CHOOSER}"),
        ("values", "kernel_outputs of wide/act.cuh, and kernel_best of off_policy/choices.cuh"),
        ("gradient", f"{GRADIENT}; kernel_judge of off_policy/choices.cuh for the loss"),
        STEP_KERNELS,
    )

    def exceeded(self, case: Case) -> str:
        if case.split is not None:
            return "agents share observations"
        form = form_of((case.features, *case.network.hidden, case.head.parameters), case.network.activation)
        return function_limit(form, case.network.precision, case.device)

    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> PolicyNetworks:
        return FunctionQValues(case, module, scale, make_optimiser(case, module, group))


@final
class FunctionQValues(TorchQValues):
    """The default module's values, and their gradient, by kernels."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale, optimiser: Adam) -> None:
        super().__init__(case, module, scale, optimiser)
        assert isinstance(module, ActionValues)
        form = actor_form(module.actor, case.network.activation)
        self._functions = functions_of(case, form, optimiser.flat, optimiser.gradient)

    def _q_values(self, observations: Any) -> torch.Tensor:
        rows: torch.Tensor = observations.contiguous()
        q_values = rows.new_empty(len(rows), 1, self.head.parameters)
        self._functions.outputs(rows, q_values)
        return q_values.squeeze(1)

    def gradient(self, minibatch: Minibatch, totals: torch.Tensor) -> None:
        q_values = self._q_values(self._scaled(chosen_observations(minibatch)))
        sums = q_values.new_empty((len(SUMS), len(q_values)))
        (by_values,) = self._run_loss_kernel((q_values,), minibatch, sums)
        self._functions.backward(by_values.unsqueeze(1))
        torch.sum(sums, 1, out=totals)


def functions_of(
    case: Case, form: Form, weights: torch.Tensor, gradient: torch.Tensor | None, rows: int = 0
) -> "Functions":
    """The kernels of perceptrons; on a CPU for batches of so many rows."""
    if case.device == "cpu":
        return Perceptrons(form, weights, gradient, rows, case.threads)
    network = function_network(form, case.network.precision, open_backend(case.device).traits.processors)
    return WideFunctions(network, case.device, weights, torch.empty_like(weights) if gradient is None else gradient)


def form_of(sizes: Sequence[int], activation: str, nets: int = 1) -> Form:
    """A form of which only the sizes matter."""
    layers = tuple(Linear(0, 0, outs, ins) for ins, outs in itertools.pairwise(sizes))
    return Form((layers,) * nets, 0, activation)


def actor_form(actor: nn.Module, activation: str) -> Form:
    """The form of an actor whose parameters lie in their own order."""
    places = Places(actor.parameters())
    return Form((layers_of(actor, places),), places.end, activation)


def critics_form(critics: Critics, activation: str, width: int) -> Form:
    """The form of critics whose parameters lie in their own order, with the gradient by the actions' ``width``."""
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


def function_limit(form: Form, precision: str, device: str) -> str:
    """Which limit of the kernels on a CUDA device a function exceeds; empty: none."""
    features, *hidden, outputs = form.sizes
    return exceeded_limit(_head(outputs), features, tuple(hidden), form.activation, precision, device)


def function_network(form: Form, precision: str, processors: int) -> WideNetwork:
    """What is compiled in for one or two functions.

    Args:
        form: Linear layers with activations, and normalised or not, between them.
        precision: ``tf32`` or ``bf16``.
        processors: Of the device.

    Raises:
        ValueError: The kernels cannot run them; the message says why.
    """
    features, *_, outputs = form.sizes
    reason, by_inputs = function_limit(form, precision, "cuda"), form.by_inputs
    if reason:
        raise ValueError(f"the kernels of wide networks cannot run the functions: {reason}")
    if by_inputs.step != 1 or by_inputs.stop > features or len(by_inputs) > MOST_BY_INPUTS:
        raise ValueError(
            f"by_inputs is {by_inputs}; give up to {MOST_BY_INPUTS} of the {features} inputs that lie side by side"
        )
    return WideNetwork(
        _head(outputs),
        features,
        form.nets,
        form.activation,
        precision,
        form.count,
        processors=processors,
        functions=True,
        first_input=by_inputs.start,
        by_inputs=len(by_inputs),
    )


def _head(outputs: int) -> Head:
    """A head of so many outputs, which mean nothing to the kernels."""
    return Head("discrete", (outputs,), (0,), (), (), scalar=True)


@final
class WideFunctions(WideKernels):
    """One or two functions of the same inputs, in one launch each way."""

    _inputs: torch.Tensor

    def outputs(self, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        """Writes the outputs, ``[rows, nets, outputs]``, of ``inputs``, ``[rows, features]``."""
        rows, self._inputs = len(inputs), inputs
        if rows == 0:
            return
        self._pack_weights()
        blocks = self._blocks_for(rows * len(self.network.nets))
        self._forward[0].launch(max(blocks, len(self.network.nets)), **self._common(inputs), rows=rows, outputs=outputs)

    def backward(
        self, by_outputs: torch.Tensor, *, by_inputs: torch.Tensor | None = None, weights: bool = True
    ) -> None:
        """Computes the gradients of a loss whose derivatives by the last outputs are known, of the same inputs.

        Args:
            by_outputs: ``[rows, nets, outputs]``.
            by_inputs: Receives the derivatives by the inputs that the network was made for, ``[rows, nets, inputs]``.
            weights: Whether the gradient by the parameters, summed over the rows, is wanted.
        """
        self._differentiate(None, by_outputs, None, by_inputs, weights)

    def forward_and_backward(
        self,
        inputs: torch.Tensor,
        outputs: torch.Tensor,
        by_outputs: torch.Tensor,
        curvatures: torch.Tensor | None = None,
        *,
        by_inputs: torch.Tensor | None = None,
        weights: bool = True,
    ) -> None:
        """Does both in one launch, where the derivatives are ``by_outputs``, plus ``curvatures * outputs`` if given."""
        self._inputs = inputs
        self._differentiate(outputs, by_outputs, curvatures, by_inputs, weights)

    def _differentiate(
        self,
        outputs: torch.Tensor | None,
        by_outputs: torch.Tensor,
        curvatures: torch.Tensor | None,
        by_inputs: torch.Tensor | None,
        weights: bool,
    ) -> None:
        inputs = self._inputs
        if by_inputs is not None and not self.network.by_inputs:
            raise ValueError("by_inputs is given, and the network was made without; give function_network by_inputs")
        if len(inputs) == 0:
            if weights:
                self._gradient.zero_()
            return
        self._run_backward(
            len(inputs),
            lambda piece: {
                **self._common(inputs[piece]),
                "rows": piece.stop - piece.start,
                "weights": int(weights),
                "outputs": None if outputs is None else outputs[piece],
                "by_outputs": by_outputs[piece],
                "curvatures": None if curvatures is None else curvatures[piece],
                "by_inputs": None if by_inputs is None else by_inputs[piece],
            },
            None,
            weights=weights,
            packed=outputs is None,
        )


Functions: TypeAlias = Perceptrons | WideFunctions
"""Perceptrons of the same inputs, forward and backward."""
