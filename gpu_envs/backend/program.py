"""The input of a backend: a C++ source, the argument structs of its kernels, and the grid."""

import ctypes
import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TypeAlias, final

from gpu_envs.backend.contract import Contract
from gpu_envs.backend.structs import Struct

DIALECT_HEADERS = ("dialect/portable.cuh", "dialect/gpu.cuh", "dialect/cpu.cuh", "dialect/rows.cuh")
"""The first headers of every program."""

MATH_HEADERS = ("dialect/math.cuh", "dialect/philox.cuh", "dialect/random.cuh")
"""The headers that follow the definition of the type ``real``."""

ELEMENTARY_HEADER = "dialect/elementary.cuh"
"""Further elementary functions for rules, in the namespace ``elementary``."""

ELEMENTARY_NAMES = ("abs", "atan", "atan2", "expm1", "hypot", "log10", "log1p", "log2", "power", "tanh")
"""The functions of that header."""

CPP_TYPES = {"real": "real", "int": "int", "agent": "AgentNumber", "byte": "u8", "bool": "bool"}
"""The C++ types of fields and tables."""

ArrayShape: TypeAlias = tuple[tuple[int, ...], str]
"""An array's shape and dtype."""


@dataclasses.dataclass(frozen=True)
class Device:
    """Properties of a device that the code generators use."""

    on_gpu: bool
    processors: int = 1
    """Multiprocessors of a GPU."""
    shared_bytes: int = 0
    """Maximum shared memory of a block, in bytes."""
    block_size: int | None = None
    """Threads per block, if the user sets them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """The launch configuration of a kernel on a GPU."""

    threads: int
    """Threads per block."""
    replicas: int
    """Replicas per ``blocks`` blocks."""
    blocks: int = 1
    """Blocks per ``replicas`` replicas."""
    shared_bytes: int = 0
    """Dynamic shared memory of a block, in bytes."""
    early: bool = True
    """Whether blocks may start while the previous launch ends; this spreads them less evenly over multiprocessors."""
    cooperative: bool = False
    """Whether all blocks run at the same time and may wait for one another; all must fit on the GPU at once."""
    phased: bool = False
    """Whether each phase is a launch: the struct's ``phase`` is its index, and ``phases`` receives their number."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A source, and the argument structs of its kernels."""

    name: str
    """Environment and driver, for messages and file names."""
    source: str
    """C++ for NVRTC and for the CPU's compiler."""
    calls: Mapping[str, type[ctypes.Structure]]
    """The class of each kernel's argument struct, by the kernel's name."""
    flush_denormals: bool
    """Whether the CPU flushes denormals to zero, as a GPU does in float32."""
    staging_bytes: int = 0
    """Shared memory per thread on a GPU, in bytes, if there is a thread per replica."""
    grid: Grid | None = None
    """The launch on a GPU; None: one thread per replica."""
    weight: int = 1
    """The cost of a replica's step, in steps of a single-agent environment, roughly."""
    contract: Contract | None = None
    """The functions that its rules must define, for messages."""
    structs: Mapping[str, Struct] = dataclasses.field(default_factory=dict, repr=False)
    """The description of each kernel's argument struct, for kernels whose arrays ``Kernel`` checks."""


@functools.cache
def header_text(name: str) -> str:
    """The text of a header, by its path below ``kernels/``."""
    return (importlib.resources.files("gpu_envs.kernels") / name).read_text("utf-8")


def headers(*names: str) -> list[tuple[str, str]]:
    """The file names and texts of headers, by their paths below ``kernels/``."""
    return [(PurePosixPath(name).name, header_text(name)) for name in names]


def joined(parts: Sequence[tuple[str, str]]) -> str:
    """Joins (name, text) parts into a source in namespace ``gpu_envs``; ``#line`` tells compilers the parts' names."""
    body = "\n".join(f"#line 1 {json.dumps(name, ensure_ascii=False)}\n{text}" for name, text in parts)
    return f"namespace gpu_envs {{\n{body}\n}}\n"


@final
@dataclasses.dataclass(frozen=True)
class KernelSettings:
    """Compilation and launch settings of a program that needs no spec."""

    prologue: str = ""
    """C++ before the headers."""
    structs: Sequence[Struct] = ()
    """Further structs that the headers use, besides the kernels' arguments."""
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """C++ types by their aliases in structs and headers."""
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Constant dimensions of arrays, by their names in structs."""
    staging_bytes: int = 0
    """Shared memory per thread on a GPU, in bytes."""
    weight: int = 1
    """The cost of an element, in steps of a single-agent environment, roughly."""
    grid: Grid | None = None
    """The launch on a GPU; None: one thread per element."""


def program_of(
    parts: Sequence[str | tuple[str, str]], calls: Mapping[str, Struct], settings: KernelSettings | None = None
) -> Program:
    """Makes a program of kernels that need no spec: its source from headers, and the classes of the kernels' structs.

    Args:
        parts: Headers after the dialect, by their paths below ``kernels/``, or (name, text) pairs. The last part
            defines the kernels.
        calls: The argument struct of each kernel.
        settings: Compilation and launch settings.
    """
    settings = settings or KernelSettings()
    aliases = (f"using {name} = {kind};" for name, kind in settings.types.items())
    structs = (struct.cpp() for struct in (*settings.structs, *calls.values()))
    texts = [part if isinstance(part, tuple) else headers(part)[0] for part in parts]
    dialect = [*headers(*DIALECT_HEADERS), ("prologue", "using real = float;"), *headers(*MATH_HEADERS)]
    source = joined([*dialect, ("settings", "\n".join([settings.prologue, *aliases, *structs])), *texts])
    return Program(
        name=PurePosixPath(texts[-1][0]).stem,
        source=source,
        calls={kernel: call.ctype() for kernel, call in calls.items()},
        structs={kernel: call.resolve(settings.types, settings.sizes) for kernel, call in calls.items()},
        flush_denormals=True,
        staging_bytes=settings.staging_bytes,
        grid=settings.grid,
        weight=settings.weight,
    )
