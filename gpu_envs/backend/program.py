"""What a backend compiles and launches: a C++ text, the structs that its kernels take, and the grid."""

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

PORTABLE = ("dialect/portable.cuh", "dialect/gpu.cuh", "dialect/cpu.cuh", "dialect/rows.cuh")
"""What every program begins with."""

NUMBERS = ("dialect/math.cuh", "dialect/philox.cuh")
"""What follows once ``real`` is a type."""

ELEMENTARY = "dialect/elementary.cuh"
"""Further functions for rules, in a namespace of their own."""

ELEMENTARY_NAMES = ("abs", "atan", "atan2", "expm1", "hypot", "log10", "log1p", "log2", "power", "tanh")
"""What they are called."""

CPP_TYPES = {"real": "real", "int": "int", "agent": "AgentNumber", "byte": "u8", "bool": "bool"}
"""The C++ types of fields and tables."""

ArrayShape: TypeAlias = tuple[tuple[int, ...], str]
"""An array's shape and dtype."""


@dataclasses.dataclass(frozen=True)
class Device:
    """What the generators must know of a device."""

    on_gpu: bool
    processors: int = 1
    """Multiprocessors of a GPU."""
    shared_bytes: int = 0
    """The most shared memory that a block may have."""
    block_size: int | None = None
    """Threads in a block, where the user says so."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """How a kernel is launched on a GPU."""

    threads: int
    """In a block."""
    replicas: int
    """In a block."""
    blocks: int = 1
    """For so many replicas."""
    shared_bytes: int = 0
    early: bool = True
    """Blocks may come while the launch before ends. Several to a multiprocessor then lie as they find room."""
    together: bool = False
    """All blocks of a launch run at the same time, and may wait for one another: there must be room for them."""
    phased: bool = False
    """A launch for each phase: the struct's ``phase`` says which, and ``phases`` receives their number."""


@dataclasses.dataclass(frozen=True)
class Program:
    """The source of one driver of one environment, and the structs its kernels take."""

    name: str
    """For people: environment and driver."""
    source: str
    """C++ for both compilers."""
    calls: Mapping[str, type[ctypes.Structure]]
    """The argument of each kernel, by the kernel's name."""
    flush_denormals: bool
    """Whether denormals count as zero: in float32, as on a GPU."""
    staging_bytes: int = 0
    """Shared memory that a kernel needs per thread on a GPU, where each thread has a replica."""
    grid: Grid | None = None
    """The launch on a GPU where it is not a thread for each replica."""
    weight: int = 1
    """How many steps of a single-agent environment a replica's step is worth, roughly."""
    contract: Contract | None = None
    """Its rules, for messages about them."""
    structs: Mapping[str, Struct] = dataclasses.field(default_factory=dict, repr=False)
    """What each kernel's argument says of arrays, where arrays are checked by it."""


@functools.cache
def header_text(name: str) -> str:
    """The text of one of this package's headers, by its path below ``kernels/``."""
    return (importlib.resources.files("gpu_envs.kernels") / name).read_text("utf-8")


def headers(*names: str) -> list[tuple[str, str]]:
    """Headers of this package as parts of a source, by their paths below ``kernels/``."""
    return [(PurePosixPath(name).name, header_text(name)) for name in names]


def joined(parts: Sequence[tuple[str, str]]) -> str:
    """One source of many named parts; compilers' messages name them, by ``#line``."""
    body = "\n".join(f"#line 1 {json.dumps(name, ensure_ascii=False)}\n{text}" for name, text in parts)
    return f"namespace gpu_envs {{\n{body}\n}}\n"


@final
@dataclasses.dataclass(frozen=True)
class KernelSettings:
    """What is compiled into a program that needs no spec beside its headers, and how it is launched."""

    prologue: str = ""
    """C++ that stands before the headers."""
    structs: Sequence[Struct] = ()
    """What the headers need beside the structs of the kernels."""
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What names of types in structs and headers stand for."""
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The dimensions of arrays that do not change from launch to launch, by their names in structs."""
    staging_bytes: int = 0
    """Shared memory of a GPU that a thread needs."""
    weight: int = 1
    """How many steps of a small environment an element is worth, roughly."""
    grid: Grid | None = None
    """The launch on a GPU where it is not a thread for each element."""


def program_of(
    parts: Sequence[str | tuple[str, str]], calls: Mapping[str, Struct], settings: KernelSettings | None = None
) -> Program:
    """The program of headers that need no spec, with the struct of each kernel.

    Parts are headers by their paths below ``kernels/``, without the dialect, or pairs of a name and a text; the last
    part has the kernels.
    """
    settings = settings or KernelSettings()
    aliases = (f"using {name} = {kind};" for name, kind in settings.types.items())
    structs = (struct.cpp() for struct in (*settings.structs, *calls.values()))
    own = [part if isinstance(part, tuple) else headers(part)[0] for part in parts]
    before = [*headers(*PORTABLE), ("prologue", "using real = float;"), *headers(*NUMBERS)]
    source = joined([*before, ("settings", "\n".join([settings.prologue, *aliases, *structs])), *own])
    return Program(
        name=PurePosixPath(own[-1][0]).stem,
        source=source,
        calls={kernel: call.ctype() for kernel, call in calls.items()},
        structs={kernel: call.resolved(settings.types, settings.sizes) for kernel, call in calls.items()},
        flush_denormals=True,
        staging_bytes=settings.staging_bytes,
        grid=settings.grid,
        weight=settings.weight,
    )
