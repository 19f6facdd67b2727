"""Shared code of the kernels of small and wide networks: arguments, layers, products, sizes, loading."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, final

from torch import Tensor, nn

from gpu_envs.backend import Backend
from gpu_envs.backend.launcher import Kernel, MemberValue, load_kernels
from gpu_envs.backend.nvrtc import machine_code
from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.backend.toolchain import read_sealed
from gpu_envs.training.algorithms.base import LOG_STD_RANGE
from gpu_envs.training.engines.ops import LOSS_MEMBERS, SUMS, head_settings
from gpu_envs.training.heads import Head
from gpu_envs.training.networks import Perceptron, SharedPerceptron
from gpu_envs.training.observations import OBSERVATION_LIMIT, Scale

Part: TypeAlias = str | tuple[str, str]
"""A part of a program: the path of a header, or a name and a text."""

ARITHMETIC = {"float32": "Split", "tf32": "Tf32", "bf16": "Bf16"}

SCALE = (("const float*?", "mean", ("features",)), ("const float*?", "inverse", ("features",)), ("float", "limit"))

ACT_MEMBERS = (
    ("Index", "rows"),
    ("Index", "first_row"),
    ("const float*", "flat", ("parameters",)),
    ("const float*", "observations", ("rows", "features")),
    ("const u64*", "stream", (2,)),
    ("u64", "turn"),
    ("Element*", "actions", ("rows", "width")),
    ("float*?", "acted", ("rows", "width")),
    ("float*", "log_probs", ("rows",)),
    ("int", "greedy"),
    *SCALE,
)
"""Arguments of kernels that act: ``ActRequest.members``, and constant ones."""

VALUES_MEMBERS = (
    ("Index", "rows"),
    ("const float*", "flat", ("parameters",)),
    ("const float*", "observations", ("samples", "features")),
    ("float*", "values", ("rows",)),
    ("const Index*?", "indices", ("rows",)),
    ("float*?", "largest", (1,)),
    ("const u8*?", "alive", ("samples",)),
    *SCALE,
)
"""Arguments of kernels that compute values: ``ValueRequest.members``, and constant ones."""

UPDATE_MEMBERS = (
    *LOSS_MEMBERS,
    ("const float*", "flat", ("parameters",)),
    ("const float*", "observations", ("samples", "features")),
    ("int", "actors"),
    *SCALE,
)
"""Arguments of kernels that learn: ``Minibatch.members``, and the number of blocks for the actor."""


@final
@dataclasses.dataclass(frozen=True)
class Linear:
    """Offsets of a layer's parameters in the flat buffer, and the weight's shape; its rows are outputs."""

    weight: int
    bias: int
    rows: int
    columns: int
    gain: int = -1
    """Offset of the gain of the layer normalisation after the layer; -1: none."""
    shift: int = -1


@final
class ParameterOffsets(dict[Tensor, int]):
    """Maps parameters to their offsets in a flat buffer without gaps; ``end`` is its length."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()
        self.end = 0
        for parameter in parameters:
            self[parameter] = self.end
            self.end += parameter.numel()


def layers_of(module: nn.Module, offsets: ParameterOffsets) -> tuple[Linear, ...]:
    """Returns a module's linear layers in order, each with the layer normalisation that follows it."""
    linears: list[Linear] = []
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            weight, bias = offsets[layer.weight], offsets[layer.bias]
            linears.append(Linear(weight, bias, layer.out_features, layer.in_features))
        elif isinstance(layer, nn.LayerNorm):
            gain, shift = offsets[layer.weight], offsets[layer.bias]
            linears[-1] = dataclasses.replace(linears[-1], gain=gain, shift=shift)
    return tuple(linears)


def nets_of(module: Perceptron | SharedPerceptron) -> tuple[tuple[tuple[Linear, ...], ...], int]:
    """Returns the layers of actor and critic, or of the one shared net, and the offset of log_std (-1: none)."""
    offsets = ParameterOffsets(module.parameters())
    log_std = -1 if module.log_std is None else offsets[module.log_std]
    if isinstance(module, SharedPerceptron):
        return (layers_of(module.trunk, offsets) + layers_of(module.heads, offsets),), log_std
    return (layers_of(module.actor, offsets), layers_of(module.critic, offsets)), log_std


def scale_values(scale: Scale) -> dict[str, MemberValue]:
    """The values of ``SCALE``."""
    mean, inverse = (None, None) if scale is None else (scale.offset, scale.inverse)
    return {"mean": mean, "inverse": inverse, "limit": OBSERVATION_LIMIT}


def load_filled(backend: Backend, programs: Iterable[Program], **values: MemberValue) -> dict[str, Kernel]:
    """Starts to compile programs; returns their kernels by name, with the arguments ``values`` set for all launches.

    Args:
        backend: The device.
        programs: The programs, in order of compilation; the slowest should be first.
        values: Values by names of members and dimensions; a kernel ignores names that it does not have.
    """
    kernels: dict[str, Kernel] = {}
    for program in programs:
        for (name, struct), kernel in zip(program.structs.items(), load_kernels(backend, program), strict=True):
            names = {name for member in struct.members for name in (member.name, *(member.dimensions or ()))}
            kernels[name] = kernel.fill(**{name: value for name, value in values.items() if name in names})
    return kernels


def block_settings(head: Head, structs: Sequence[Struct], *, quick: bool, **sizes: int) -> KernelSettings:
    """Compiled-in settings of kernels that work by blocks: a head's constants, and sizes of arrays."""
    rows = head_settings(head, quick=quick)
    sizes = {**rows.sizes, **sizes}
    return KernelSettings(prologue=rows.prologue, structs=structs, types=rows.types, sizes=sizes)


def block_program(
    parts: Sequence[Part],
    calls: Mapping[str, Struct],
    settings: KernelSettings,
    grid: Grid,
    bounds: str,
    arguments: str = "",
) -> Program:
    """Returns a program with a kernel ``kernel_NAME`` per call, which runs the function ``NAME<arguments>(call)``.

    ``bounds`` are the threads of a block and the blocks of a multiprocessor, as C++ expressions.
    """
    kernels = "\n".join(
        f"KERNEL_OF_BLOCKS(kernel_{name}, {call.name}, {bounds}) {{ {name}{arguments}(call); }}"
        for name, call in calls.items()
    )
    return program_of([*parts, ("-".join(calls), kernels)], calls, dataclasses.replace(settings, grid=grid))


def sizes_of(parts: Sequence[Part], settings: KernelSettings, sizes: Mapping[str, str]) -> dict[str, int]:
    """Returns the values of constant C++ expressions by name, such as sizes of structs that ``parts`` define.

    NVRTC compiles them to constants in 0.1 s, without a device; the result is cached on disk.
    """
    lines = [f'extern "C" {{ __device__ u64 size_{name} = u64({value}); }}' for name, value in sizes.items()]
    program = program_of([*parts, ("sizes", "\n".join(lines))], {}, settings)
    ptx = read_sealed(machine_code(program.source, program.name, "compute_80")) or b""
    return {name: int(value or 0) for name, value in re.findall(r"\bsize_(\w+)(?: = (\d+))?;", ptx.decode())}


def network_text(warps: int, activation: str, precision: str) -> str:
    """C++ text of a network's activation, arithmetic and limits, for blocks of ``warps`` warps."""
    low, high = (f"float({bound!r})" for bound in LOG_STD_RANGE)
    lines = [
        f"constexpr int WARPS = {warps}, SUMS = {len(SUMS)};",
        "enum Activation : int { TANH, RELU, ELU, SILU, GELU };",
        f"constexpr Activation ACTIVATION = {activation.upper()};",
        f"constexpr float LOG_STD_LOW = {low}, LOG_STD_HIGH = {high};",
        f"using Arithmetic = {ARITHMETIC[precision]};",
    ]
    return "\n".join(lines)


PRODUCTS = ("products", "template <int N> struct Product;")
"""The declaration of products, for programs that only evaluate sizes."""

_IN_REGISTERS = ("const u32 (&left)[4]", ", ".join(f'"r"(left[{number}])' for number in range(4)), 4)
_DESCRIBED = ("u64 left", '"l"(left)', 1)
"""A product's left factor, in registers or as a descriptor: declaration, operands and their number."""


def warpgroup_products(precision: str, columns: Iterable[int]) -> tuple[str, str]:
    """Returns the part ``products`` of a program: a C++ struct ``Product<N>`` for each N in ``columns``.

    Its functions are one instruction each: a warpgroup adds the product of a left and a right factor, of N columns.
    In bf16 the right factor may also be transposed (``add_across``).
    """
    depth, kind, more = {"tf32": (8, "tf32", ""), "bf16": (16, "bf16", ", 0")}[precision]
    variants = [("add", _IN_REGISTERS, more), ("add", _DESCRIBED, 2 * more)]
    variants += [("add_across", _IN_REGISTERS, ", 1")] if more else []
    text = [PRODUCTS[1]]
    for count in sorted(set(columns)):
        sums = count // 2
        outputs = ", ".join(f"%{number}" for number in range(sums))
        operands = ", ".join(f'"+f"(c[{number // 4}][{number % 4}])' for number in range(sums))
        name = f"wgmma.mma_async.sync.aligned.m64n{count}k{depth}.f32.{kind}.{kind}"
        text.append(f"template <> struct Product<{count}> {{")
        for function, (declaration, inputs, left), transposed in variants:
            factor = ", ".join(f"%{sums + number}" for number in range(left))
            factor = f"{{{factor}}}" if left > 1 else factor
            text.append(
                f"    FN static void {function}(float (&c)[{count // 8}][4], {declaration}, u64 right, bool keep) {{\n"
                f'        asm volatile("{{ .reg .pred keep; setp.ne.b32 keep, %{sums + left + 1}, 0; {name} '
                f'{{{outputs}}}, {factor}, %{sums + left}, keep, 1, 1{transposed}; }}"\n'
                f'                     : {operands} : {inputs}, "l"(right), "r"(int(keep)));\n    }}'
            )
        text.append("};")
    return "products", "\n".join(text)
