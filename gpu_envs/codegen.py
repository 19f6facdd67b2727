"""Turns a spec into the one C++ source that both compilers read, and into the ctypes structs that its kernels take.

Each struct is written once, as a list of fields; the C++ declaration and the ctypes class are made from that list, so
that the two sides cannot disagree. Compilers' messages name the headers, by ``#line``.
"""

import ctypes
import dataclasses
import importlib.resources
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from gpu_envs.spec import EnvSpec, Param, Value

MODULES = {"vector_env": ("step", "inspect", "reset"), "rollout": ("rollout",)}
"""The drivers that are compiled, each when first needed, and their kernels."""

AUTORESET_MODES = ("NextStep", "SameStep", "Disabled")
PRECISIONS = ("float32", "float64")

_C_TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "Index": ctypes.c_longlong,
    "u64": ctypes.c_ulonglong,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the generated code depends on: with the headers, all of it."""

    spec: EnvSpec
    autoreset_mode: str
    precision: str
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    per_replica: frozenset[str]
    """Parameters that have one value a replica."""
    baked: Mapping[str, float | int]
    """Parameters whose value is compiled in."""

    @property
    def real(self) -> str:
        """The C++ type of states and parameters."""
        return {"float32": "float", "float64": "double"}[self.precision]


@dataclasses.dataclass(frozen=True)
class Struct:
    """A struct on both sides: pairs of C++ type and name."""

    name: str
    fields: tuple[tuple[str, "str | Struct", str], ...]
    """Type in C++ (empty for a nested struct), type it stands for, name."""

    @classmethod
    def of(cls, name: str, real: str, *fields: "tuple[str | Struct, str]") -> "Struct":
        """Makes a struct of (type, name) pairs, in which ``real`` stands for float or double."""
        resolved: list[tuple[str, str | Struct, str]] = []
        for kind, field in fields:
            if isinstance(kind, Struct):
                resolved.append((kind.name, kind, field))
            else:
                resolved.append((kind, real if kind == "real" else kind, field))
        return cls(name, tuple(resolved))

    def cpp(self, body: Sequence[str] = ()) -> str:
        """The declaration in C++."""
        lines = [f"    {kind} {field};" for kind, _, field in self.fields]
        return "\n".join([f"struct {self.name} {{", *lines, *(f"    {line}" for line in body), "};"])

    def ctype(self) -> type[ctypes.Structure]:
        """The same struct for ctypes; pointers are addresses."""
        members: list[tuple[str, Any]] = []
        for _, kind, field in self.fields:
            if isinstance(kind, Struct):
                members.append((field, kind.ctype()))
            else:
                members.append((field, ctypes.c_void_p if kind.endswith("*") else _C_TYPES[kind]))
        return type(self.name, (ctypes.Structure,), {"_fields_": members})


@dataclasses.dataclass(frozen=True)
class Program:
    """The source of one driver of one environment, and the structs its kernels take."""

    name: str
    """For people: environment and driver."""
    source: str
    """C++ for both compilers."""
    calls: Mapping[str, type[ctypes.Structure]]
    """The argument of each kernel, by the kernel's name."""
    staging_bytes: int
    """Shared memory that a kernel needs per thread on a GPU."""
    flush_denormals: bool
    """Whether denormals count as zero: in float32, as on a GPU."""


def header_text(name: str | Path) -> str:
    """The text of a header: one of this package's by its name, another by its path."""
    path = Path(name)
    if path.is_absolute() or path.parent != Path():
        if not path.is_file():
            raise FileNotFoundError(f"there is no header {str(path)!r}; give its path, or a name in gpu_envs/kernels")
        return path.read_text()
    resource = importlib.resources.files("gpu_envs.kernels") / str(name)
    if not resource.is_file():
        raise FileNotFoundError(f"there is no header {str(name)!r} in gpu_envs/kernels; give a path for one elsewhere")
    return resource.read_text()


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _cpp_param(name: str, param: Param) -> str:
    return {"bool": "bool", "choice": _camel(name), "real": "real"}[param.kind]


def _stored(param: Param) -> str:
    return "real" if param.kind == "real" else "int"


def _number(value: float) -> str:
    return (
        f"{np.float32(value)!s}f" if "." in str(np.float32(value)) or "e" in str(np.float32(value)) else f"{value}.0f"
    )


def _state(spec: EnvSpec) -> str:
    """State of one replica, of a tile of them, and of all: structure of arrays."""
    names = spec.state
    read = ", ".join(f"{n}[k]" for n in names)
    return "\n".join(
        [
            "struct State {",
            *(f"    real {n};" for n in names),
            "};",
            "struct States {",
            *(f"    real {n}[LANES];" for n in names),
            f"    FN State get(int k) const {{ return {{{read}}}; }}",
            "    FN void set(int k, const State& s) {",
            *(f"        {n}[k] = s.{n};" for n in names),
            "    }",
            "    template <class From> FN void load(int k, const From& from, Index i) {",
            *(f"        {n}[k] = from.{n}[i];" for n in names),
            "    }",
            "    template <class To> FN void store(int k, const To& to, Index i) const {",
            *(f"        to.{n}[i] = {n}[k];" for n in names),
            "    }",
            "};",
        ]
    )


def _enumerators(param: Param) -> str:
    return ", ".join(choice.replace("-", "_") for choice in param.choices)


def _params(settings: Mapping[str, Param]) -> str:
    enums = [
        f"enum class {_camel(n)} : int {{ {_enumerators(p)} }};" for n, p in settings.items() if p.kind == "choice"
    ]
    fields = [f"    {_cpp_param(n, p)} {n};  // {p.description}".rstrip(" /") for n, p in settings.items()]
    return "\n".join([*enums, "struct Params {", *fields, "};"])


def _params_getter(layout: Layout) -> str:
    values = []
    for name, param in layout.spec.settings.items():
        value = f"{name}[i]" if name in layout.per_replica else name
        if name in layout.baked:
            value = f"real({layout.baked[name]!r})" if param.kind == "real" else str(layout.baked[name])
        values.append(value if param.kind == "real" else f"{_cpp_param(name, param)}({value})")
    return f"FN Params get(Index i) const {{ return {{{', '.join(values)}}}; }}"


def _action(space: gymnasium.Space[Any], spec_id: str) -> str:
    if isinstance(space, gymnasium.spaces.Discrete):
        return f"using Actions = DiscreteActions<{space.n}, {space.start}>;\nusing Action = Actions::Action;"
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and space.dtype == np.float32:
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise ValueError(f"{spec_id}: the bounds of a Box of actions must be finite; got {space}")
        select = [
            " : ".join([*(f"j == {j} ? {_number(v)}" for j, v in enumerate(b[:-1])), _number(b[-1])])
            for b in (space.low, space.high)
        ]
        return "\n".join(
            [
                "struct ActionBounds {",
                f"    FN static constexpr float low([[maybe_unused]] int j) {{ return {select[0]}; }}",
                f"    FN static constexpr float high([[maybe_unused]] int j) {{ return {select[1]}; }}",
                "};",
                f"using Actions = BoxActions<{space.shape[0]}, ActionBounds>;",
                "using Action = Actions::Action;",
            ]
        )
    raise ValueError(f"{spec_id}: an action space must be Discrete or a float32 Box of one dimension; got {space}")


def structs(layout: Layout) -> dict[str, Struct]:
    """The structs that cross from Python to the kernels, in the order of declaration."""
    real = layout.real
    settings = layout.spec.settings

    def of(name: str, *fields: tuple[str | Struct, str]) -> Struct:
        return Struct.of(name, real, *fields)

    state = of("StateBuffers", *(("real*", n) for n in layout.spec.state))
    params = of(
        "ParamBuffers",
        *((f"const {_stored(p)}*" if n in layout.per_replica else _stored(p), n) for n, p in settings.items()),
    )
    buffers = of(
        "Buffers",
        ("Index", "count"),
        (state, "state"),
        ("real*", "running_return"),
        ("int*", "elapsed"),
        ("u8*", "ended"),
        ("u8*", "finished"),
        ("Record*", "records"),
        ("u64*", "offence"),
    )
    world: tuple[tuple[str | Struct, str], ...] = ((buffers, "buffers"), (params, "params"))
    stepping: tuple[tuple[str | Struct, str], ...] = (
        ("const void*", "actions"),
        ("int", "action_kind"),
        ("int", "limit"),
        ("u64", "launch"),
    )
    results: tuple[tuple[str | Struct, str], ...] = (
        ("float*", "observations"),
        ("real*", "rewards"),
        ("u8*", "terminations"),
        ("u8*", "truncations"),
    )
    extras: tuple[tuple[str | Struct, str], ...] = (  # arrays of the user's, or null
        ("float*", "final_obs"),
        ("real*", "episode_return"),
        ("int*", "episode_length"),
    )
    step = of("StepCall", *world, *stepping, ("int", "report_frozen"), ("int", "clear_final"), *results, *extras)
    reset = of(
        "ResetCall",
        *world,
        ("const u8*", "mask"),
        ("const u8*", "reseed"),
        ("const u64*", "new_seeds"),
        ("u64", "first_seed"),
        ("int", "reseed_all"),
        ("int", "observe_only"),
        ("float*", "observations"),
    )
    rollout = of(
        "RolloutCall",
        *world,
        *stepping,
        ("int", "steps"),
        ("int", "per_step"),
        ("void*", "random_actions"),
        *results,
        ("real*", "reward_sum"),
        ("int*", "episodes"),
        ("int*", "terminated"),
        ("int*", "truncated"),
        ("real*", "return_sum"),
        ("int*", "length_sum"),
    )
    return {s.name: s for s in (state, params, buffers, step, reset, rollout)}


def _prologue(layout: Layout, declared: Mapping[str, Struct]) -> str:
    """What the spec says, in C++."""
    spec, space = layout.spec, layout.observation_space
    if not (isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and space.dtype == np.float32):
        raise ValueError(f"{spec.id}: an observation space must be a float32 Box of one dimension; got {space}")
    bodies = {
        "ParamBuffers": [_params_getter(layout)],
        "StateBuffers": [
            f"FN void set(Index i, const State& s) const {{ {' '.join(f'{n}[i] = s.{n};' for n in spec.state)} }}"
        ],
    }
    return "\n\n".join(
        [
            f"// {spec.id}, {layout.precision}, {layout.autoreset_mode}",
            "enum Autoreset { NEXT_STEP, SAME_STEP, DISABLED };\n"
            f"constexpr Autoreset AUTORESET = {_mode_constant(layout.autoreset_mode)};",
            _state(spec),
            _params(spec.settings),
            _action(layout.action_space, spec.id),
            f"constexpr int OBSERVATION_SIZE = {space.shape[0]};\nusing Observation = float[OBSERVATION_SIZE];",
            "// What a step tells of one replica. `terminated`: the world has come to an end of its own.\n"
            "struct Outcome {\n    real reward;\n"
            "    int  terminated;  // true or false, in a type as wide as the reward: GCC vectorises that\n};",
            _record(layout),
            *(s.cpp(bodies.get(s.name, ())) for s in declared.values()),
        ]
    )


def record_words(layout: Layout) -> int:
    """The size of a ``Record`` in words of 32 bits: whole sectors of memory."""
    size = _observation_size(layout.observation_space)
    return 8 + (-(-size // 8) * 8 if layout.autoreset_mode == "SameStep" else 0)


def _observation_size(space: gymnasium.Space[Any]) -> int:
    return int(np.prod(space.shape or (1,)))


def _record(layout: Layout) -> str:
    words = record_words(layout)
    return "\n".join(
        [
            "// What a replica's random numbers depend on.",
            "struct alignas(16) Key {",
            "    u64 seed;",
            "    u32 episode;",
            "    int padding = 0;",
            "};",
            "// What is touched only when an episode begins or ends, side by side: whole sectors of memory.",
            f"struct alignas({64 if words % 16 == 0 else 32}) Record {{",
            "    Key  key;",
            "    real last_return;",
            "    int  last_length;",
            f"    alignas(32) float final_obs[{words - 8}];"
            if words > 8
            else "    float final_obs[1];  // of no use in this mode",
            "};",
            f'static_assert(sizeof(Record) == {4 * words}, "Record is laid out otherwise in Python");',
        ]
    )


def _mode_constant(mode: str) -> str:
    return {"NextStep": "NEXT_STEP", "SameStep": "SAME_STEP", "Disabled": "DISABLED"}[mode]


def generate(layout: Layout, module: str = "vector_env") -> Program:
    """Writes the source of one driver: the dialect, what the spec says, the header with the rules, the driver.

    Args:
        layout: What the code depends on.
        module: Which driver, of ``MODULES``.
    """
    declared = structs(layout)
    parts = [
        ("portable.cuh", header_text("portable.cuh")),
        ("generated", f"using real = {layout.real};"),
        ("math.cuh", header_text("math.cuh")),
        ("philox.cuh", header_text("philox.cuh")),
        ("actions.cuh", header_text("actions.cuh")),
        ("generated", _prologue(layout, declared)),
        (str(layout.spec.header), header_text(layout.spec.header)),
        ("tile.cuh", header_text("tile.cuh")),
        (f"{module}.cuh", header_text(f"{module}.cuh")),
    ]
    body = "\n".join(f'#line 1 "{name}"\n{text}' for name, text in parts)
    calls = {"step": "StepCall", "inspect": "StepCall", "reset": "ResetCall", "rollout": "RolloutCall"}
    shape = layout.observation_space.shape or (1,)
    return Program(
        name=f"{layout.spec.id}-{module}",
        source=f"namespace gpu_envs {{\n{body}\n}}\n",
        calls={kernel: declared[calls[kernel]].ctype() for kernel in MODULES[module]},
        staging_bytes=ctypes.sizeof(ctypes.c_float) * int(shape[0]),
        flush_denormals=layout.precision == "float32",
    )


def baked_values(spec: EnvSpec, values: Mapping[str, Any]) -> dict[str, float | int]:
    """Those of a program's parameters that are compiled in; of reset options none, since a reset may change them."""
    return {
        n: values[n]
        for n, p in spec.params.items()
        if (p.baked or p.kind != "real") and not isinstance(values[n], np.ndarray)
    }


def param_values(spec: EnvSpec, values: Mapping[str, Value]) -> dict[str, float | int | np.ndarray]:
    """Parameters as the structs hold them: switches and choices as integers."""
    return {
        n: v if isinstance(v, np.ndarray) else float(v) if p.kind == "real" else p.index(v)
        for (n, p), v in ((item, values[item[0]]) for item in spec.settings.items())
    }
