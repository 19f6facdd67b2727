"""What a simulation asks of the code generators: memory, results and programs of one environment."""

import ctypes
import dataclasses
import importlib.resources
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from gpu_envs.arrays import Array, Arrays
from gpu_envs.codegen.contract import Contract
from gpu_envs.codegen.structs import Struct
from gpu_envs.codegen.text import blanked
from gpu_envs.errors import did_you_mean
from gpu_envs.names import camel
from gpu_envs.params import Param, Value
from gpu_envs.spec import Spec
from gpu_envs.translation import Rules

AUTORESET_MODES = ("NextStep", "SameStep", "Disabled")
PRECISIONS = ("float32", "float64")

CPP_TYPES = {"real": "real", "int": "int", "agent": "AgentNumber", "byte": "u8", "bool": "bool"}
"""The C++ types of fields and tables."""

Shape: TypeAlias = tuple[tuple[int, ...], str]
"""An array's shape and dtype."""

RESULTS = (
    *("observations", "rewards", "terminations", "truncations"),
    *("final_obs", "episode_return", "episode_length", "action_mask"),
)
"""What a step writes: of environments whose modes and rules have it."""


@dataclasses.dataclass(frozen=True)
class Config:
    """What a simulation is made of."""

    spec: Spec
    num_envs: int
    autoreset_mode: str
    precision: str
    limit: int
    """The step at which an episode is truncated."""
    params: Mapping[str, Value]
    """Every parameter and reset option, checked."""
    checked: bool = False
    """Look at every index: a slow build that ends the process where one is outside its array, and says where."""


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


@dataclasses.dataclass(frozen=True)
class Grid:
    """How a kernel is launched on a GPU."""

    threads: int
    """In a block."""
    replicas: int
    """In a block."""
    blocks: int = 1
    """For so many replicas."""
    shared_bytes: int = 0
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


class Layout(ABC):
    """What the generated code depends on, and what follows from it."""

    config: Config
    per_replica: frozenset[str]
    """Parameters that have one value a replica."""
    baked: Mapping[str, float | int]
    """Parameters whose value is compiled in."""

    @property
    def real(self) -> str:
        """The C++ type of states and parameters."""
        return {"float32": "float", "float64": "double"}[self.config.precision]

    @property
    @abstractmethod
    def modules(self) -> tuple[str, ...]:
        """The drivers, in the order in which they are needed: the first at once."""

    @abstractmethod
    def generate(self, module: str) -> Program:
        """Writes the source of one driver."""

    @abstractmethod
    def buffers(self) -> dict[str, Shape]:
        """The arrays that a simulation allocates, by name; ``state.`` begins the state's fields."""

    @abstractmethod
    def view(self, buffers: dict[str, Array], arrays: Arrays) -> None:
        """Adds the arrays that are views of others."""

    @abstractmethod
    def results(self) -> dict[str, Shape]:
        """What a step writes and a user may have written elsewhere; ``name`` or ``name.role``."""

    @property
    @abstractmethod
    def episode(self) -> tuple[str, ...]:
        """The buffers that belong to a snapshot beside the state."""

    @abstractmethod
    def places(self, call: Any) -> list[tuple[str, Any]]:
        """The structs of a call that name actions or results: suffix of the results' names, and struct."""

    @abstractmethod
    def where(self, place: int) -> tuple[int, int, int]:
        """Unpacks an offence's place: replica, agent, step of its episode."""

    @abstractmethod
    def who(self, agent: int) -> str:
        """An agent's name, followed by a comma, for a message; empty where there is but one."""

    @abstractmethod
    def given(self, hosts: Sequence[np.ndarray], replica: int, agent: int) -> str:
        """An agent's action among those that came from the host, for a message; empty where none did."""

    @abstractmethod
    def allowed(self, agent: int) -> str:
        """The actions of an agent, in words."""


def header_text(name: str | Path) -> str:
    """The text of one of this package's headers."""
    return (importlib.resources.files("gpu_envs.kernels") / str(name)).read_text()


def rules_part(config: Config) -> tuple[str, str]:
    """Name and text of the header with an environment's rules: the author's, or what his Python is translated to.

    The name is that in compilers' messages: of an author's own file its absolute path.
    """
    spec = config.spec
    if isinstance(spec.header, Rules):
        from gpu_envs.translation.translate import translated

        return spec.header.file, translated(spec, config.params)
    name, text = _found_header(spec, spec.header)
    code = blanked(text)
    if spec.masked and not re.search(r"\ballow\s*\(", code):
        raise ValueError(
            f"{spec.id}: action_mask=True, but {name} has no function allow(...), which says what is possible"
        )
    if spec.action_mask is None and re.search(r"\bvoid\s+allow\s*\(", code):
        raise ValueError(
            f"{spec.id}: {name} has allow(...), but the spec has no action_mask=True: add it, or "
            "action_mask=False to do without"
        )
    return name, text


def _found_header(spec: Spec, header: str | Path) -> tuple[str, str]:
    """Name and text of an author's header: beside the file that has the spec, or one of this package's."""
    bare = Path(header).parent == Path()
    folders = [] if spec.written_in is None else [spec.written_in.parent]
    own = [folder / header for folder in (*folders, *([] if bare and folders else [Path.cwd()]))]
    for path in own:
        if path.is_file():
            return str(path.absolute()), path.read_text()
    kernels = importlib.resources.files("gpu_envs.kernels")
    if bare and (kernels / str(header)).is_file():
        return str(header), header_text(str(header))
    beside = [path.name for folder in {path.parent for path in own} for path in folder.glob("*.cuh")]
    raise FileNotFoundError(
        f"{spec.id}: there is no header {str(header)!r}{did_you_mean(Path(header).name, beside)} "
        f"Tried: {', '.join(map(str, dict.fromkeys(own)))}{', and the headers of gpu_envs/kernels' * bare}"
    )


def array_header(config: Config) -> str:
    """The header with tables; of a checked build, with all arrays that know their length."""
    return "checked.cuh" if config.checked else "table.cuh"


def dialect(config: Config) -> list[tuple[str, str]]:
    """What every source begins with."""
    checked = [("generated", "#define CHECKED")] if config.checked else []
    return [*checked, ("portable.cuh", header_text("portable.cuh"))]


def joined(parts: Sequence[tuple[str, str]]) -> str:
    """One source of many named parts; compilers' messages name them, by ``#line``."""
    body = "\n".join(f"#line 1 {json.dumps(name, ensure_ascii=False)}\n{text}" for name, text in parts)
    return f"namespace gpu_envs {{\n{body}\n}}\n"


def mask_entries(space: gymnasium.Space[Any]) -> int:
    """How many choices an action mask is about: of a MultiDiscrete those of all its elements; 0 where there is none."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gymnasium.spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return int(space.nvec.sum())
    return 0


def mode_enum(mode: str) -> str:
    """The auto-reset mode in C++."""
    constant = {"NextStep": "NEXT_STEP", "SameStep": "SAME_STEP", "Disabled": "DISABLED"}[mode]
    return f"enum Autoreset {{ NEXT_STEP, SAME_STEP, DISABLED }};\nconstexpr Autoreset AUTORESET = {constant};"


# --- parameters ---


def _cpp_param(name: str, param: Param) -> str:
    return {"bool": "bool", "choice": camel(name), "real": "real", "int": "int"}[param.kind]


def _stored(param: Param) -> str:
    return "real" if param.kind == "real" else "int"


def _enumerators(param: Param) -> str:
    return ", ".join(choice.replace("-", "_") for choice in param.choices)


def _remark(text: str) -> str:
    """A text as the end of a line of C++."""
    return " ".join(text.replace("\\", " ").split())


def params_struct(config: Config) -> str:
    """``Params``: what the rules see of the parameters of one replica, and of the tables."""
    settings = config.spec.settings
    enums = [f"enum class {camel(n)} : int {{ {_enumerators(p)} }};" for n, p in settings.items() if p.kind == "choice"]
    fields = [f"    {_cpp_param(n, p)} {n};  // {_remark(p.description)}".rstrip(" /") for n, p in settings.items()]
    for name, table in config.spec.tables.items():
        sizes = ", ".join(map(str, config.spec.table(name, config.params).shape))
        fields.append(f"    Table<{CPP_TYPES[table.type]}, {sizes}> {name};")
    return "\n".join([*enums, "struct Params {", *fields, "};"])


def params_buffers(layout: Layout) -> Struct:
    """Where the parameters of all replicas are, and the tables."""
    spec = layout.config.spec
    fields = [(f"const {_stored(p)}*" if n in layout.per_replica else _stored(p), n) for n, p in spec.settings.items()]
    fields += [(f"const {CPP_TYPES[table.type]}*", n) for n, table in spec.tables.items()]
    # (an empty struct takes a byte in C++, and none for ctypes)
    return Struct.of("ParamBuffers", layout.real, *(fields or [("int", "nothing")]))


def params_getter(layout: Layout) -> str:
    """The member of ``ParamBuffers`` that gives one replica's ``Params``; no parameter has its argument's name."""
    values = []
    for name, param in layout.config.spec.settings.items():
        value = f"this->{name}[_replica]" if name in layout.per_replica else f"this->{name}"
        if name in layout.baked:
            value = f"real({layout.baked[name]!r})" if param.kind == "real" else str(layout.baked[name])
        values.append(value if param.kind == "real" else f"{_cpp_param(name, param)}({value})")
    checked = layout.config.checked
    values += [f'{{this->{n}, "{n}"}}' if checked else f"{{this->{n}}}" for n in layout.config.spec.tables]
    return f"FN Params get([[maybe_unused]] Index _replica) const {{ return {{{', '.join(values)}}}; }}"


def baked_values(spec: Spec, values: Mapping[str, Any]) -> dict[str, float | int]:
    """Those of a program's parameters that are compiled in; of reset options none, since a reset may change them."""
    return {
        n: values[n]
        for n, p in spec.params.items()
        if (p.baked or p.kind != "real") and not isinstance(values[n], np.ndarray)
    }


def tables(config: Config) -> dict[str, np.ndarray]:
    """The tables as the kernels read them."""
    arrays = {name: config.spec.table(name, config.params) for name in config.spec.tables}
    return {n: a.astype(config.precision) if config.spec.tables[n].type == "real" else a for n, a in arrays.items()}


def param_values(spec: Spec, values: Mapping[str, Value]) -> dict[str, float | int | np.ndarray]:
    """Parameters as the structs hold them: switches and choices as integers."""
    return {
        n: v if isinstance(v, np.ndarray) else float(v) if p.kind == "real" else p.index(v)
        for (n, p), v in ((item, values[item[0]]) for item in spec.settings.items())
    }
