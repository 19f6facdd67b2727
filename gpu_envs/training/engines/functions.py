"""Forward and backward pass of perceptrons (actors, critics, Q networks), on a CPU or a Hopper GPU."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias, final

import torch
from gymnasium.spaces import Discrete
from torch import Tensor, nn

from gpu_envs.backend import open_backend
from gpu_envs.backend.host import TILE
from gpu_envs.backend.launcher import MemberValue
from gpu_envs.backend.program import ELEMENTARY_HEADER, KernelSettings, Program, program_of
from gpu_envs.training.algorithms import PQN
from gpu_envs.training.engines.base import (
    LEARNER_SETTINGS,
    PERCEPTRON_SETTINGS,
    STEP_KERNELS,
    KernelEngine,
    Minibatch,
    PolicyNetworks,
    make_optimiser,
    rows_tensor,
)
from gpu_envs.training.engines.kernels import Linear, ParameterOffsets, layers_of, load_filled
from gpu_envs.training.engines.ops import SUMS, float_struct
from gpu_envs.training.engines.optimiser import Adam
from gpu_envs.training.engines.torch import CHOOSER, TorchQValues, chosen_observations
from gpu_envs.training.engines.wide import GRADIENT, PACK, WideKernels, exceeded_limit
from gpu_envs.training.engines.wide_programs import WideNetwork
from gpu_envs.training.heads import Head
from gpu_envs.training.networks import Case, Critics, QNetwork
from gpu_envs.training.observations import Scale
from gpu_envs.training.process.group import Group

MAX_GRAD_INPUTS = 256
"""Maximum columns of a product."""

ACTIVATIONS = {
    "tanh": ("elementary::tanh(x)", "1.0f - y * y"),
    "relu": ("maximum(x, 0.0f)", "y > 0.0f ? 1.0f : 0.0f"),
    "elu": ("x > 0.0f ? x : exp(minimum(x, 0.0f)) - 1.0f", "y > 0.0f ? 1.0f : y + 1.0f"),
}
"""Activations whose slope is a function of the output: activation and slope in C++."""

MAX_WIDTH = 512
"""Maximum units of a layer on a CPU; wider layers are as fast in torch."""

_UNITS = 4
"""Outputs of a layer that a CPU computes together."""


@final
@dataclasses.dataclass(frozen=True)
class Form:
    """Perceptrons of the same shape, with parameters in one flat buffer."""

    nets: tuple[tuple[Linear, ...], ...]
    """The layers of each net."""
    count: int
    """Numbers in the buffer."""
    activation: str
    grad_inputs: range = range(0)
    """Inputs with gradients."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Inputs, the widths of the hidden layers, outputs."""
        return self.nets[0][0].columns, *(layer.rows for layer in self.nets[0])


def actor_form(actor: nn.Module, activation: str) -> Form:
    """Returns the Form of an actor, with parameters in the module's order."""
    offsets = ParameterOffsets(actor.parameters())
    return Form((layers_of(actor, offsets),), offsets.end, activation)


def critics_form(critics: Critics, activation: str, width: int) -> Form:
    """Returns the Form of critics, with parameters in the module's order; ``grad_inputs``: actions, the last inputs."""
    offsets = ParameterOffsets(critics.parameters())

    def linear_of_critic(layer: int, critic: int) -> Linear:
        kinds = (critics.weights, critics.biases, critics.gains, critics.shifts)
        parameters = [kind[layer] for kind in kinds if layer < len(kind)]
        weight, bias, *norm = (offsets[parameter] + critic * parameter[0].numel() for parameter in parameters)
        _, outs, ins = critics.weights[layer].shape
        return Linear(weight, bias, outs, ins, *norm)

    layers, count = range(len(critics.weights)), len(critics.weights[0])
    nets = tuple(tuple(linear_of_critic(layer, critic) for layer in layers) for critic in range(count))
    inputs = nets[0][0].columns
    return Form(nets, offsets.end, activation, grad_inputs=range(inputs - width, inputs))


Forward: TypeAlias = tuple[Tensor, Tensor, Tensor | None] | None
"""Inputs, a tensor for the outputs, and curvatures: ``curvatures * outputs`` is added to gradients (None: zero)."""


class Functions(ABC):
    """One or more perceptrons of the same inputs, forward and backward."""

    @abstractmethod
    def outputs(self, inputs: Tensor, outputs: Tensor) -> None:
        """Writes the outputs, ``[rows, nets, outputs]``, of the inputs, ``[rows, features]``."""

    @abstractmethod
    def backward(
        self, grad_outputs: Tensor, forward: Forward = None, grad_inputs: Tensor | None = None, weights: bool = True
    ) -> None:
        """Writes gradients of a loss: of parameters, summed over rows, and of inputs; runs ``forward`` first, if given.

        Args:
            grad_outputs: The loss's gradients of the outputs, ``[rows, nets, outputs]``.
            forward: A forward pass to run first, on a GPU in the same launch; None: the last call of ``outputs``.
            grad_inputs: Receives the gradients of the form's ``grad_inputs``, ``[rows, nets, inputs]``.
            weights: Whether to write the parameters' gradients, to the buffer that the constructor received.
        """


def functions_of(case: Case, form: Form, weights: Tensor, gradient: Tensor, rows: int = 0) -> Functions:
    """Makes Functions on the case's device, a CPU's for ``rows`` rows per call; ``gradient`` receives the weights'."""
    if case.device == "cpu":
        return Perceptrons(form, weights, gradient, rows, case.threads)
    network = function_network(form, case.network.precision, open_backend(case.device).traits.processors)
    return WideFunctions(network, case.device, weights, gradient)


# --- on a Hopper GPU ---


@final
class FunctionsEngine(KernelEngine):
    """Runs Q networks with the kernels of wide networks."""

    name = "functions"
    learns = PQN
    algorithms = (PQN,)
    settings = (*LEARNER_SETTINGS, *PERCEPTRON_SETTINGS, "layer_norm")
    kernels = (
        PACK,
        ("acting", f"kernel_outputs of wide/act.cuh, {CHOOSER}"),
        ("values", "kernel_outputs of wide/act.cuh, and kernel_greedy_values of off_policy/pqn.cuh"),
        ("gradient", f"{GRADIENT}; kernel_q_loss of off_policy/pqn.cuh for the loss"),
        STEP_KERNELS,
    )

    def exceeded(self, case: Case) -> str:
        if case.split is not None:
            return "agents share observations"
        net = case.network
        sizes = (case.features, *net.hidden, case.head.parameters)
        return function_limit(sizes, net.activation, net.precision, case.device)

    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> PolicyNetworks:
        optimiser = make_optimiser(case, module, group)
        assert isinstance(module, QNetwork)
        form = actor_form(module.actor, case.network.activation)
        functions = functions_of(case, form, optimiser.flat, optimiser.gradient)
        return FunctionQValues(case, module, scale, optimiser, functions)


@final
class FunctionQValues(TorchQValues):
    """Runs the default Q network with kernels."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale, optimiser: Adam, functions: Functions) -> None:
        super().__init__(case, module, scale, optimiser)
        self._functions = functions

    def _q_values(self, observations: Any) -> Tensor:
        rows: Tensor = observations.contiguous()
        q_values = rows.new_empty(len(rows), 1, self.head.parameters)
        self._functions.outputs(rows, q_values)
        return q_values.squeeze(1)

    def gradient(self, minibatch: Minibatch, totals: Tensor) -> None:
        q_values = self._q_values(self._scaled(chosen_observations(minibatch)))
        sums = q_values.new_empty((len(SUMS), len(q_values)))
        (grad_q,) = self._run_loss_kernel((q_values,), minibatch, sums)
        self._functions.backward(grad_q.unsqueeze(1))
        torch.sum(sums, 1, out=totals)


def function_limit(sizes: Sequence[int], activation: str, precision: str, device: str) -> str:
    """A sentence on the first limit of the CUDA kernels that functions of these sizes exceed; empty: none."""
    features, *hidden, outputs = sizes
    return exceeded_limit(Head.of(Discrete(outputs)), features, tuple(hidden), activation, precision, device)


def function_network(form: Form, precision: str, processors: int) -> WideNetwork:
    """Returns the WideNetwork of a form, for which wide kernels are compiled; a ValueError if they cannot run it."""
    if reason := function_limit(form.sizes, form.activation, precision, "cuda"):
        raise ValueError(f"the kernels of wide networks cannot run the functions: {reason}")
    (features, *_, outputs), grad_inputs = form.sizes, form.grad_inputs
    if grad_inputs.step != 1 or grad_inputs.stop > features or len(grad_inputs) > MAX_GRAD_INPUTS:
        raise ValueError(
            f"grad_inputs is {grad_inputs}; give a range of up to {MAX_GRAD_INPUTS} consecutive inputs of {features}"
        )
    head = Head.of(Discrete(outputs))  # has this number of outputs
    network = WideNetwork(head, features, form.nets, form.activation, precision, form.count, processors=processors)
    return dataclasses.replace(network, functions=True, grad_inputs=grad_inputs)


@final
class WideFunctions(WideKernels, Functions):
    """One or two functions on a GPU, with one launch per pass, for any number of rows."""

    _inputs: Tensor

    def outputs(self, inputs: Tensor, outputs: Tensor) -> None:
        rows, self._inputs = len(inputs), inputs
        if rows == 0:
            return
        self._pack_weights()
        blocks = self._blocks_for(rows * len(self.network.nets))
        observations, blocks = rows_tensor(inputs), max(blocks, len(self.network.nets))
        self._kernels["outputs"].launch(blocks, rows=rows, observations=observations, outputs=outputs)

    def backward(
        self, grad_outputs: Tensor, forward: Forward = None, grad_inputs: Tensor | None = None, weights: bool = True
    ) -> None:
        if grad_inputs is not None and not self.network.grad_inputs:
            raise ValueError("grad_inputs is given, but its Form has none; set Form.grad_inputs, or leave it out")
        inputs, outputs, curvatures = forward or (self._inputs, None, None)
        self._inputs = inputs
        if len(inputs) == 0:
            if weights:
                self._gradient.zero_()
            return
        grads = {"grad_outputs": grad_outputs, "grad_inputs": grad_inputs}
        arrays = {"outputs": outputs, "curvatures": curvatures, **grads}

        def members(piece: slice) -> dict[str, MemberValue]:
            slices = {name: None if array is None else array[piece] for name, array in arrays.items()}
            rows = rows_tensor(inputs[piece])
            return {"observations": rows, **slices, "rows": len(rows), "weights": int(weights)}

        self._run_backward(len(inputs), members, None, weight_gradients=weights, weights_packed=outputs is None)


# --- on a CPU ---

_CALLS = {
    "forward": float_struct(
        "ForwardCall",
        ("Index", "rows"),
        ("const float*", "weights", ("count",)),
        ("const float*", "inputs", ("rows", "features")),
        ("float*", "saved", ("tiles", "lines", TILE)),
        ("float*", "outputs", ("rows", "nets", "width")),
    ),
    "backward": float_struct(
        "BackwardCall",
        ("Index", "rows"),
        ("const float*", "weights", ("count",)),
        ("const float*", "saved", ("tiles", "lines", TILE)),
        ("float*", "grads", ("tiles", "lines", TILE)),
        ("const float*", "grad_outputs", ("rows", "nets", "width")),
        ("float*?", "grad_inputs", ("rows", "nets", "grad_inputs")),
        ("const float*?", "outputs", ("rows", "nets", "width")),
        ("const float*?", "curvatures", ("rows", "nets", "width")),
    ),
    "gradient": float_struct(
        "GradientCall",
        ("Index", "rows"),
        ("const float*", "saved", ("tiles", "lines", TILE)),
        ("const float*", "grads", ("tiles", "lines", TILE)),
        ("float*", "gradient", ("count",)),
    ),
}


def table(name: str, rows: Sequence[Sequence[int]], arguments: str = "int net, int l") -> str:
    """C++ text of a function ``name`` that returns ``rows[net][l]``, or ``rows[0][l]`` without an argument ``net``."""
    values = ", ".join(f"{{{', '.join(map(str, row))}}}" for row in rows)
    place = "[net][l]" if "net" in arguments else "[0][l]"
    return (
        f"FN constexpr int {name}({arguments}) {{ constexpr int t[{len(rows)}][{len(rows[0])}] = {{{values}}}; "
        f"return t{place}; }}"
    )


def activation_functions(activation: str) -> list[str]:
    """C++ texts of the functions ``activation(x)`` and ``slope(y)``, its derivative from its output y."""
    forward, slope = ACTIVATIONS[activation]
    return [
        f"FN float activation(float x) {{ return {forward}; }}",
        f"FN float slope(float y) {{ return {slope}; }}",
    ]


def _program(form: Form, lines: int, groups: Sequence[int]) -> Program:
    """The program of a form's CPU kernels: a tile has ``lines`` lines, and layer l ``groups[l]`` groups of outputs."""
    features, *outputs = form.sizes
    nets, layers, inputs = len(form.nets), len(outputs), ", ".join(map(str, form.sizes))

    def starts(first: int, widths: Sequence[int]) -> list[list[int]]:
        return [[first + net * sum(widths) + sum(widths[:layer]) for layer in range(layers)] for net in range(nets)]

    text = [
        f"constexpr int NETS = {nets}, LAYERS = {layers}, INPUTS = {features}, OUTPUTS = {outputs[-1]};",
        f"constexpr int LINES = {lines}, UNITS = {_UNITS}, BLOCKS = {nets * sum(groups)};",
        f"constexpr int FIRST_GRAD_INPUT = {form.grad_inputs.start}, GRAD_INPUTS = {len(form.grad_inputs)};",
        f"FN constexpr int inputs_of(int l) {{ constexpr int t[] = {{{inputs}}}; return t[l]; }}",
        "FN constexpr int outputs_of(int l) { return inputs_of(l + 1); }",
        table("weights_at", [[layer.weight for layer in net] for net in form.nets]),
        table("biases_at", [[layer.bias for layer in net] for net in form.nets]),
        table("line_of", starts(features, outputs)),
        table("block_at", starts(0, groups)),
        *activation_functions(form.activation),
    ]
    sizes = {"count": form.count, "features": features, "nets": nets, "width": outputs[-1], "lines": lines}
    sizes["grad_inputs"] = len(form.grad_inputs)
    settings = KernelSettings(sizes=sizes, weight=max(1, lines // 4))
    parts = (ELEMENTARY_HEADER, ("form", "\n".join(text)), "training/cpu/vectors.cuh", "training/cpu/perceptrons.cuh")
    return program_of(parts, _CALLS, settings)


@final
class Perceptrons(Functions):
    """Functions on a CPU, for a fixed number of rows per call."""

    def __init__(self, form: Form, weights: Tensor, gradient: Tensor, rows: int, threads: int | None = None) -> None:
        """Starts to compile both passes' kernels, for ``rows`` rows; ``gradient`` receives the weights' gradients."""
        features, *outputs = form.sizes
        nets, groups = len(form.nets), [-(-width // _UNITS) for width in outputs]
        lines = features + nets * sum(outputs)  # inputs and the units of all nets
        tiles, programs = -(-rows // TILE), [_program(form, lines, groups)]
        memory = {name: torch.zeros((tiles, lines, TILE)) for name in ("saved", "grads")}
        kernels = load_filled(
            open_backend("cpu", threads), programs, rows=rows, tiles=tiles, weights=weights, gradient=gradient, **memory
        )
        self._forward, self._backward = (kernels[name].bind(rows) for name in ("forward", "backward"))
        self._gradient = kernels["gradient"].bind(TILE * nets * sum(groups))
        self._inputs_shape, self._outputs_shape = (rows, features), (rows, nets, outputs[-1])
        self._grad_inputs_shape = (rows, nets, len(form.grad_inputs))

    def outputs(self, inputs: Tensor, outputs: Tensor) -> None:
        self._forward(_address(inputs, self._inputs_shape), _address(outputs, self._outputs_shape))

    def backward(
        self, grad_outputs: Tensor, forward: Forward = None, grad_inputs: Tensor | None = None, weights: bool = True
    ) -> None:
        inputs, outputs, curvatures = forward or (None, None, None)
        if inputs is not None and outputs is not None:
            self.outputs(inputs, outputs)
        shapes = (self._outputs_shape, self._grad_inputs_shape, self._outputs_shape, self._outputs_shape)
        self._backward(*map(_address, (grad_outputs, grad_inputs, outputs, curvatures), shapes))
        if weights:
            self._gradient()


def _address(tensor: Tensor | None, shape: tuple[int, ...]) -> int | None:
    """Returns a tensor's address, None for None; a ValueError unless it is contiguous float32 of this shape."""
    if tensor is None:
        return None
    # these checks take less time than the launcher's
    if tensor.shape != shape or tensor.dtype != torch.float32 or not tensor.is_contiguous():
        given = f"{tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())}"
        raise ValueError(f"the tensor is {given}; give contiguous float32 {list(shape)}")
    return tensor.data_ptr()
