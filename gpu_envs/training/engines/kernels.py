"""What kernels of small and of wide networks share: arguments, layers, products, sizes, and how they are loaded."""

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
"""Of a program: a header's path, or a name and a text."""

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
"""Arguments of every kernel that acts: ``ActRequest.members``, beside those that stay the same."""

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
"""Arguments of every kernel that gives values: ``ValueRequest.members``, beside those that stay the same."""

UPDATE_MEMBERS = (
    *LOSS_MEMBERS,
    ("const float*", "flat", ("parameters",)),
    ("const float*", "observations", ("samples", "features")),
    ("int", "actors"),
    *SCALE,
)
"""Arguments of every kernel that learns: ``Minibatch.members``, and the number of blocks that the actor has."""


@final
@dataclasses.dataclass(frozen=True)
class Linear:
    """Where a layer's parameters lie in the flat buffer, and their shape; rows of the weight are outputs."""

    weight: int
    bias: int
    rows: int
    columns: int
    gain: int = -1
    """Of the normalisation behind it, if it has one."""
    shift: int = -1


@final
class Places(dict[Tensor, int]):
    """Where parameters that lie one after another begin, and where the last one ends."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()
        self.end = 0
        for parameter in parameters:
            self[parameter] = self.end
            self.end += parameter.numel()


def layers_of(layers: nn.Module, places: Places) -> tuple[Linear, ...]:
    """The linear layers among a module's, each with the normalisation behind it."""
    found: list[Linear] = []
    for layer in layers.modules():
        if isinstance(layer, nn.Linear):
            found.append(Linear(places[layer.weight], places[layer.bias], layer.out_features, layer.in_features))
        elif isinstance(layer, nn.LayerNorm):
            found[-1] = dataclasses.replace(found[-1], gain=places[layer.weight], shift=places[layer.bias])
    return tuple(found)


def nets_of(module: Perceptron | SharedPerceptron) -> tuple[tuple[tuple[Linear, ...], ...], int]:
    """The layers of actor and critic, or of both in one, and where the log-deviations of a box begin."""
    places = Places(module.parameters())
    log_std = -1 if module.log_std is None else places[module.log_std]
    if isinstance(module, SharedPerceptron):
        return (layers_of(module.trunk, places) + layers_of(module.heads, places),), log_std
    return (layers_of(module.actor, places), layers_of(module.critic, places)), log_std


def scale_values(scale: Scale) -> dict[str, MemberValue]:
    """The values of ``SCALE``."""
    mean, inverse = (None, None) if scale is None else (scale.offset, scale.inverse)
    return {"mean": mean, "inverse": inverse, "limit": OBSERVATION_LIMIT}


def load_filled(backend: Backend, programs: Iterable[Program], **values: MemberValue) -> dict[str, Kernel]:
    """Starts to compile programs, and fills in what stays the same.

    Args:
        backend: The device.
        programs: The one that takes longest first.
        values: By names of members and dimensions; each kernel takes those that it has.

    Returns:
        The kernels, by their names.
    """
    kernels: dict[str, Kernel] = {}
    for program in programs:
        for (name, struct), kernel in zip(program.structs.items(), load_kernels(backend, program), strict=True):
            names = {name for member in struct.members for name in (member.name, *(member.dimensions or ()))}
            kernels[name] = kernel.fill(**{name: value for name, value in values.items() if name in names})
    return kernels


def block_settings(head: Head, structs: Sequence[Struct], *, quick: bool, **sizes: int) -> KernelSettings:
    """What is compiled into kernels of blocks: a head's constants, and sizes of arrays."""
    own = head_settings(head, quick=quick)
    return KernelSettings(prologue=own.prologue, structs=structs, types=own.types, sizes={**own.sizes, **sizes})


def block_program(
    parts: Sequence[Part],
    calls: Mapping[str, Struct],
    settings: KernelSettings,
    grid: Grid,
    bounds: str,
    arguments: str = "",
) -> Program:
    """A program whose kernels call functions of the same names, with such template arguments.

    The bounds say how many threads a block has, and how many blocks a multiprocessor, in C++.
    """
    kernels = "\n".join(
        f"KERNEL_OF_BLOCKS(kernel_{name}, {call.name}, {bounds}) {{ {name}{arguments}(call); }}"
        for name, call in calls.items()
    )
    return program_of([*parts, ("-".join(calls), kernels)], calls, dataclasses.replace(settings, grid=grid))


def sizes_of(parts: Sequence[Part], settings: KernelSettings, sizes: Mapping[str, str]) -> dict[str, int]:
    """Sizes that C++ works out, read from a program that has nothing else.

    NVRTC compiles it in a tenth of a second, without a device, and its text is kept in the cache folder.

    Args:
        parts: Headers and texts, as of ``program_of``, without kernels.
        settings: What is compiled into them.
        sizes: Constant expressions in C++, by names.
    """
    lines = [f'extern "C" {{ __device__ u64 size_{name} = u64({value}); }}' for name, value in sizes.items()]
    program = program_of([*parts, ("sizes", "\n".join(lines))], {}, settings)
    ptx = read_sealed(machine_code(program.source, program.name, "compute_80")) or b""
    return {name: int(value or 0) for name, value in re.findall(r"\bsize_(\w+)(?: = (\d+))?;", ptx.decode())}


def network_text(warps: int, activation: str, precision: str) -> str:
    """Constants of a network, for blocks of so many warps."""
    low, high = (f"float({bound!r})" for bound in LOG_STD_RANGE)
    return "\n".join(
        [
            f"constexpr int WARPS = {warps}, SUMS = {len(SUMS)};",
            "enum Activation : int { TANH, RELU, ELU, SILU, GELU };",
            f"constexpr Activation ACTIVATION = {activation.upper()};",
            f"constexpr float LOG_STD_LOW = {low}, LOG_STD_HIGH = {high};",
            f"using Arithmetic = {ARITHMETIC[precision]};",
        ]
    )


PRODUCTS = ("products", "template <int N> struct Product;")
"""The declaration of products, which is enough where nothing is computed."""

_IN_REGISTERS = ("const u32 (&left)[4]", ", ".join(f'"r"(left[{number}])' for number in range(4)), 4)
_DESCRIBED = ("u64 left", '"l"(left)', 1)
"""A product's left factor: its declaration, its operands and their number."""


def group_products(precision: str, columns: Iterable[int]) -> tuple[str, str]:
    """Products of a warpgroup for so many columns of the right factor: an instruction each.

    In bf16 the right factor's depth may also go across its lines.
    """
    depth, kind, more = {"tf32": (8, "tf32", ""), "bf16": (16, "bf16", ", 0")}[precision]
    ways = [("add", _IN_REGISTERS, more), ("add", _DESCRIBED, 2 * more)]
    ways += [("add_across", _IN_REGISTERS, ", 1")] if more else []
    text = [PRODUCTS[1]]
    for count in sorted(set(columns)):
        sums = count // 2
        outputs = ", ".join(f"%{number}" for number in range(sums))
        operands = ", ".join(f'"+f"(c[{number // 4}][{number % 4}])' for number in range(sums))
        name = f"wgmma.mma_async.sync.aligned.m64n{count}k{depth}.f32.{kind}.{kind}"
        text.append(f"template <> struct Product<{count}> {{")
        for way, (declared, given, left), transposed in ways:
            factor = ", ".join(f"%{sums + number}" for number in range(left))
            factor = f"{{{factor}}}" if left > 1 else factor
            text.append(
                f"    FN static void {way}(float (&c)[{count // 8}][4], {declared}, u64 right, bool keep) {{\n"
                f'        asm volatile("{{ .reg .pred keep; setp.ne.b32 keep, %{sums + left + 1}, 0; {name} '
                f'{{{outputs}}}, {factor}, %{sums + left}, keep, 1, 1{transposed}; }}"\n'
                f'                     : {operands} : {given}, "l"(right), "r"(int(keep)));\n    }}'
            )
        text.append("};")
    return "products", "\n".join(text)
