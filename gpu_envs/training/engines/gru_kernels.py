"""Kernels of a trunk with memory on Hopper GPUs: a first layer and a GRU, as a differentiable function for torch."""

import math
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.program import Grid, KernelSettings, Program
from gpu_envs.backend.several import current_runs
from gpu_envs.training.engines.kernels import Part, block_program, load_filled, sizes_of
from gpu_envs.training.engines.ops import float_struct
from gpu_envs.training.networks import Case
from gpu_envs.training.recurrent import RecurrentTrunk
from gpu_envs.training.recurrent_settings import GRU

HEADER = "recurrent/gru.cuh"

SIZES = (32, 64)
"""Supported numbers of units of the first layer and of the GRU."""

MAX_FEATURES = 32
"""Maximum features of observations, limited by registers."""

_ACTIVATIONS = ("tanh", "relu")
_WARPS = 8
"""Warps of a block, limited by registers."""
_ROWS = 16
"""Rows of a tile, with which a team of warps goes through all steps."""

_MEMBERS: tuple[Any, ...] = (
    *(("Index", name) for name in ("rows", "steps")),
    ("const float*", "observations", ("steps", "rows", "features")),
    ("const u8*", "starts", ("steps", "rows")),
    ("const float*", "state", ("rows", "units")),
    ("const float*", "weight_1", ("hidden", "features")),
    ("const float*", "bias_1", ("hidden",)),
    ("const float*", "weight_ih", ("gates", "hidden")),
    ("const float*", "weight_hh", ("gates", "units")),
    *(("const float*", name, ("gates",)) for name in ("bias_ih", "bias_hh")),
)
_OUTPUTS = ("steps", "rows", "units")

_FORWARD = float_struct("ForwardCall", *_MEMBERS, ("float*", "outputs", _OUTPUTS))
_BACKWARD = float_struct(
    "BackwardCall",
    *_MEMBERS,
    *(("const float*", name, _OUTPUTS) for name in ("outputs", "grad_outputs")),
    *(("float*", name, ("steps", "rows", f"{name[:-1]}_columns")) for name in ("gradients", "factors")),
    ("float*", "grad_first", ("steps", "rows", "hidden")),
    ("float*", "sums", ("teams", "sum_columns")),
)


_INPUTS = ("observations", "state", "starts", "weight_1", "bias_1", "weight_ih", "bias_ih", "weight_hh", "bias_hh")


def missing_support(case: Case) -> str:
    """Return why these kernels cannot run a policy's trunk, as a sentence; empty if they can."""
    net = case.network
    if net.fused is False:
        return "fused is False"
    if not isinstance(net.memory, GRU):
        return "its memory is not a GRU"
    if net.memory.size not in SIZES or len(net.hidden) != 1 or net.hidden[0] not in SIZES:
        sizes = " or ".join(map(str, SIZES))
        return f"hidden layers are {net.hidden} and the memory is {net.memory}, not one layer and a GRU of {sizes}"
    if net.activation not in _ACTIVATIONS:
        return f"the activation is {net.activation}, not {' or '.join(_ACTIVATIONS)}"
    if net.layer_norm:
        return "layer_norm is on"
    if net.precision != "tf32":
        return f"the precision is {net.precision}, not tf32"
    if case.features > MAX_FEATURES:
        return f"observations have {case.features} features, more than {MAX_FEATURES}"
    if current_runs() is not None:
        return "the kernels train one run at a time"
    if case.device == "cpu":
        return "the device is a CPU"
    if torch.cuda.is_available() and torch.cuda.get_device_capability(torch.device(case.device).index) != (9, 0):
        return "the device is not a Hopper GPU"
    return ""


def programs(features: int, hidden: int, units: int, activation: str) -> tuple[dict[str, Program], dict[str, int]]:
    """Return the programs of ``forward`` and ``backward``, and sizes of the arrays that ``backward`` writes."""
    found, dimensions = {}, {"features": features, "hidden": hidden, "units": units, "gates": 3 * units}
    for name, call in (("forward", _FORWARD), ("backward", _BACKWARD)):
        text = [
            f"constexpr int FEATURES = {features}, HIDDEN = {hidden}, UNITS = {units}, WARPS = {_WARPS};",
            f"constexpr bool IS_TANH = {str(activation == 'tanh').lower()};",
        ]
        parts: list[Part] = ["training/common/tensor_core.cuh", ("shape", "\n".join(text)), f"training/{HEADER}"]
        expressions = {size: size.upper() for size in ("gradient_columns", "factor_columns", "sum_columns", "teams")}
        sizes = sizes_of(parts, KernelSettings(), expressions | {"bytes": f"sizeof({name.title()}Memory)"})
        grid = Grid(threads=_WARPS * 32, replicas=1, shared_bytes=sizes.pop("bytes"))
        settings = KernelSettings(sizes=dimensions)
        found[name] = block_program(parts, {name: call}, settings, grid, "THREADS, 1")
    return found, sizes


@final
class GruKernels:
    """Runs the trunks of a case without ``missing_support``.

    Attributes:
        processors: Maximum number of blocks of a launch: the GPU's multiprocessors.
    """

    def __init__(self, case: Case) -> None:
        """Start to compile the kernels."""
        backend, net = open_backend(resolve_device(case.device)), case.network
        assert isinstance(net.memory, GRU)
        self.processors = backend.traits.processors
        sources, self._sizes = programs(case.features, net.hidden[0], net.memory.size, net.activation)
        self._kernels: Final = load_filled(backend, sources.values())

    def __call__(
        self, trunk: RecurrentTrunk, observations: Tensor, state: Tensor, starts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the results of ``RecurrentTrunk.forward``; only the weights get gradients."""
        first, cell = trunk.hidden[0], trunk.cell
        weights = first.weight, first.bias, cell.weight_ih, cell.bias_ih, cell.weight_hh, cell.bias_hh
        run: Any = _Sequence.apply  # untyped
        outputs = run(self, observations.contiguous(), state.contiguous(), starts, *weights)
        return outputs, outputs[-1]

    def forward(self, inputs: dict[str, Any]) -> Tensor:
        """Return the outputs."""
        outputs: Tensor = inputs["observations"].new_empty(*inputs["starts"].shape, inputs["state"].shape[1])
        self._launch("forward", inputs, outputs=outputs)
        return outputs

    def backward(self, inputs: dict[str, Any], outputs: Tensor, grad_outputs: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the weights."""
        steps, rows, units = outputs.shape
        hidden, sizes = len(inputs["bias_1"]), dict(self._sizes)
        sizes["teams"] *= self._blocks(rows)
        arrays = {
            "gradients": outputs.new_empty(steps, rows, sizes["gradient_columns"]),
            "factors": outputs.new_empty(steps, rows, sizes["factor_columns"]),
            "grad_first": outputs.new_empty(steps, rows, hidden),
            "sums": outputs.new_empty(sizes["teams"], sizes["sum_columns"]),
        }
        self._launch("backward", inputs, outputs=outputs, grad_outputs=grad_outputs.contiguous(), **arrays, **sizes)
        gates, new = 3 * units, 2 * units
        weights = _sum_of_products(arrays["gradients"], arrays["factors"], 32)
        first = _sum_of_products(arrays["grad_first"], inputs["observations"], 256)
        biases = arrays["sums"].sum(0)
        of_state = torch.cat((weights[:new, hidden:], weights[gates:, hidden:]))
        bias_of_state = torch.cat((biases[:new], biases[gates : gates + units]))
        return first, biases[gates + units :], weights[:gates, :hidden], biases[:gates], of_state, bias_of_state

    def _blocks(self, rows: int) -> int:
        """Return the number of blocks of a launch."""
        return max(1, min(self.processors, -(-rows // _ROWS)))

    def _launch(self, name: str, inputs: dict[str, Any], **more: Any) -> None:
        steps, rows = inputs["starts"].shape
        self._kernels[name].launch(self._blocks(rows), steps=steps, rows=rows, **inputs, **more)


@final
class _Sequence(torch.autograd.Function):
    """The outputs of a trunk as a function of its weights."""

    @staticmethod
    def forward(
        ctx: Any, kernels: GruKernels, observations: Tensor, state: Tensor, starts: Tensor, *weights: Tensor
    ) -> Tensor:
        inputs = observations, state, starts, *weights
        outputs = kernels.forward(dict(zip(_INPUTS, inputs, strict=True)))
        ctx.kernels = kernels
        ctx.save_for_backward(outputs, *inputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        outputs, *inputs = ctx.saved_tensors
        named = dict(zip(_INPUTS, inputs, strict=True))
        return None, None, None, None, *ctx.kernels.backward(named, outputs, grad_outputs)


def _sum_of_products(left: Tensor, right: Tensor, most: int) -> Tensor:
    """Return the product of left transposed and right, over steps and rows, in up to ``most`` parts at once."""
    parts = math.gcd(left.shape[0] * left.shape[1], most)
    left, right = (matrix.view(parts, -1, matrix.shape[2]) for matrix in (left, right))
    return torch.bmm(left.transpose(1, 2), right).sum(0)
