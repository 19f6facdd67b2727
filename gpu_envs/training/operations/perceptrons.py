"""Perceptrons as functions on a CPU: their outputs, and the gradients by their weights and their inputs."""

import dataclasses
from typing import Final, final

import torch

from gpu_envs.backend import open_backend
from gpu_envs.backend.host import TILE
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import ELEMENTARY, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.operations.wide_programs import Linear

ACTIVATIONS = {
    "tanh": ("elementary::tanh(x)", "1.0f - y * y"),
    "relu": ("maximum(x, 0.0f)", "y > 0.0f ? 1.0f : 0.0f"),
    "elu": ("x > 0.0f ? x : exp(minimum(x, 0.0f)) - 1.0f", "y > 0.0f ? 1.0f : y + 1.0f"),
}
"""Those whose slope follows from what they give: each with that slope, in C++."""

WIDEST = 512
"""Of a layer; wider ones are as quick in torch."""

_UNITS = 4
"""Outputs of a layer that are worked on together."""

FORTH_CALL = Struct.of(
    "ForthCall",
    "float",
    ("Index", "rows"),
    ("const float*", "weights", ("count",)),
    ("const float*", "inputs", ("rows", "features")),
    ("float*", "kept", ("tiles", "lines", TILE)),
    ("float*", "outputs", ("rows", "nets", "width")),
)

BACK_CALL = Struct.of(
    "BackCall",
    "float",
    ("Index", "rows"),
    ("const float*", "weights", ("count",)),
    ("const float*", "kept", ("tiles", "lines", TILE)),
    ("float*", "slopes", ("tiles", "lines", TILE)),
    ("const float*", "by_outputs", ("rows", "nets", "width")),
    ("float*?", "by_inputs", ("rows", "nets", "by")),
    ("const float*?", "outputs", ("rows", "nets", "width")),
    ("const float*?", "curvatures", ("rows", "nets", "width")),
)

GRADIENT_CALL = Struct.of(
    "GradientCall",
    "float",
    ("Index", "rows"),
    ("const float*", "kept", ("tiles", "lines", TILE)),
    ("const float*", "slopes", ("tiles", "lines", TILE)),
    ("float*", "gradient", ("count",)),
)


@final
@dataclasses.dataclass(frozen=True)
class Form:
    """Perceptrons of the same shape, whose parameters lie in one buffer."""

    nets: tuple[tuple[Linear, ...], ...]
    """The layers of each."""
    count: int
    """Numbers in that buffer."""
    activation: str
    by_inputs: range = range(0)
    """Inputs by which the gradient can be asked for."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Inputs, the widths of the hidden layers, outputs."""
        return self.nets[0][0].columns, *(layer.rows for layer in self.nets[0])

    @property
    def lines(self) -> int:
        """Of a tile on a CPU: its inputs and the units of all nets."""
        return self.sizes[0] + len(self.nets) * sum(self.sizes[1:])


def program(form: Form) -> Program:
    """The source."""
    layers, nets = len(form.sizes) - 1, len(form.nets)
    outputs = form.sizes[1:]
    groups = [-(-width // _UNITS) for width in outputs]

    def table(name: str, values: list[list[int]]) -> str:
        rows = ", ".join(f"{{{', '.join(map(str, row))}}}" for row in values)
        return (
            f"FN constexpr int {name}(int net, int l) {{ constexpr int t[{nets}][{layers}] = {{{rows}}}; "
            "return t[net][l]; }"
        )

    each = range(nets)
    lines = [[form.sizes[0] + net * sum(outputs) + sum(outputs[:layer]) for layer in range(layers)] for net in each]
    blocks = [[net * sum(groups) + sum(groups[:layer]) for layer in range(layers)] for net in each]
    sizes = ", ".join(map(str, form.sizes))
    forth, slope = ACTIVATIONS[form.activation]
    text = [
        f"constexpr int NETS = {nets}, LAYERS = {layers}, INPUTS = {form.sizes[0]}, OUTPUTS = {form.sizes[-1]};",
        f"constexpr int LINES = {form.lines}, UNITS = {_UNITS}, BLOCKS = {nets * sum(groups)};",
        f"constexpr int BY_FIRST = {form.by_inputs.start}, BY = {len(form.by_inputs)};",
        f"FN constexpr int inputs_of(int l) {{ constexpr int t[] = {{{sizes}}}; return t[l]; }}",
        "FN constexpr int outputs_of(int l) { return inputs_of(l + 1); }",
        table("weights_at", [[layer.weight for layer in net] for net in form.nets]),
        table("biases_at", [[layer.bias for layer in net] for net in form.nets]),
        table("line_of", lines),
        table("block_at", blocks),
        f"FN float activation(float x) {{ return {forth}; }}",
        f"FN float slope(float y) {{ return {slope}; }}",
    ]
    settings = KernelSettings(
        sizes={
            "count": form.count,
            "features": form.sizes[0],
            "nets": nets,
            "width": form.sizes[-1],
            "lines": form.lines,
            "by": len(form.by_inputs),
        },
        weight=max(1, form.lines // 4),
    )
    parts = (ELEMENTARY, ("form", "\n".join(text)), "training/cpu/perceptrons.cuh")
    return program_of(parts, {"forth": FORTH_CALL, "back": BACK_CALL, "gradient": GRADIENT_CALL}, settings)


@final
class Perceptrons:
    """Functions of the same inputs, whose weights lie in one buffer."""

    def __init__(
        self, form: Form, weights: torch.Tensor, gradient: torch.Tensor | None, rows: int, threads: int | None = None
    ) -> None:
        """Allocates for so many rows; the gradient by the weights goes to ``gradient``."""
        forth, back, of_weights = load_kernels(open_backend("cpu", threads), program(form))
        tiles, blocks = -(-rows // TILE), len(form.nets) * sum(-(-width // _UNITS) for width in form.sizes[1:])
        kept, slopes = (torch.zeros((tiles, form.lines, TILE)) for _ in range(2))
        for kernel in (forth, back, of_weights):
            kernel.fill(rows=rows, tiles=tiles, kept=kept)
        self._forth: Final = forth.fill(weights=weights).bind(rows)
        self._back: Final = back.fill(weights=weights, slopes=slopes).bind(rows)
        if gradient is not None:
            self._gradient: Final = of_weights.fill(slopes=slopes, gradient=gradient).bind(TILE * blocks)
        self._shapes: Final = tuple(
            torch.Size(shape)
            for shape in (
                (rows, form.sizes[0]),
                (rows, len(form.nets), form.sizes[-1]),
                (rows, len(form.nets), len(form.by_inputs)),
            )
        )

    def outputs(self, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        """Writes the outputs, ``[rows, nets, outputs]``, of ``inputs``, ``[rows, features]``."""
        given, found, _ = self._shapes
        self._forth(_address(inputs, given), _address(outputs, found))

    def backward(
        self, by_outputs: torch.Tensor, *, by_inputs: torch.Tensor | None = None, weights: bool = True
    ) -> None:
        """Finds the gradients of a loss whose derivatives by the last outputs are known.

        Args:
            by_outputs: ``[rows, nets, outputs]``.
            by_inputs: Receives the derivatives by the inputs that the form names, ``[rows, nets, inputs]``.
            weights: Whether the gradient by the weights, summed over the rows, is wanted.
        """
        self._go_back(by_outputs, None, None, by_inputs, weights)

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
        """Does both, where the derivatives are ``by_outputs``, plus ``curvatures * outputs`` if given."""
        self.outputs(inputs, outputs)
        self._go_back(by_outputs, outputs, curvatures, by_inputs, weights)

    def _go_back(
        self,
        by_outputs: torch.Tensor,
        outputs: torch.Tensor | None,
        curvatures: torch.Tensor | None,
        by_inputs: torch.Tensor | None,
        weights: bool,
    ) -> None:
        _, found, by = self._shapes
        shapes = (found, by, found, found)
        self._back(*map(_address, (by_outputs, by_inputs, outputs, curvatures), shapes))
        if weights:
            self._gradient()


def _address(tensor: torch.Tensor | None, shape: torch.Size) -> int | None:
    """Where it lies, or says that it is not what is wanted: in less time than the launcher's checks take."""
    if tensor is None:
        return None
    if tensor.shape != shape or tensor.dtype != torch.float32 or not tensor.is_contiguous():
        raise ValueError(f"the tensor is {tensor.dtype} {list(tensor.shape)}; give contiguous float32 of {list(shape)}")
    return tensor.data_ptr()
