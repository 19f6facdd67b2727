"""Parameters and tables of an environment in the generated code."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_envs.backend.program import CPP_TYPES
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen.layout import Layout, SimulationConfig
from gpu_envs.specs.base import Spec
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.distributions import Choice, Distribution, Kind
from gpu_envs.specs.names import enum_name
from gpu_envs.specs.params import Param, ParamValue

NUMBERS = "_numbers"
"""Member of ``ParamBuffers``: the numbers of all distributions, in the order of ``Layout.drawn``."""


def cpp_type(name: str, param: Param) -> str:
    """Return the C++ type that rules read a parameter as."""
    return enum_name(name) if param.kind == "choice" else param.kind


def _stored(param: Param) -> str:
    return "real" if param.kind == "real" else "int"


def _enumerators(param: Param) -> str:
    return ", ".join(choice.replace("-", "_") for choice in param.choices)


def _comment(text: str) -> str:
    """Return a text that fits in a comment at the end of a line of C++."""
    return " ".join(text.replace("\\", " ").split())


def params_struct(config: SimulationConfig) -> str:
    """Generate the C++ struct ``Params``: the parameters of one replica and the tables, as rules read them."""
    settings = config.spec.settings
    enums = [
        f"enum class {enum_name(n)} : int {{ {_enumerators(p)} }};" for n, p in settings.items() if p.kind == "choice"
    ]
    fields = [f"    {_member(config, n, p)};  // {_comment(p.description)}".rstrip(" /") for n, p in settings.items()]
    for name, table in config.spec.tables.items():
        sizes = ", ".join(map(str, config.table_shape(name)))
        fields.append(f"    Table<const {CPP_TYPES[table.type]}, {sizes}> {name};")
    return "\n".join([*enums, "struct Params {", *fields, "};"])


def _member(config: SimulationConfig, name: str, param: Param) -> str:
    """Return the declaration of a parameter in ``Params``."""
    if not param.rank:
        return f"{cpp_type(name, param)} {name}"
    return f"Table<const {_stored(param)}, {', '.join(map(str, _sizes(config, name, param)))}> {name}"


def _sizes(config: SimulationConfig, name: str, param: Param) -> tuple[int, ...]:
    """Return the shape of an array parameter."""
    value = config.params[name]
    assert isinstance(value, np.ndarray)
    return tuple(value.shape[-param.rank :])


def params_buffers(layout: Layout) -> Struct:
    """Return the argument struct ``ParamBuffers``: numbers; pointers for arrays, tables, per-replica parameters."""
    spec = layout.config.spec
    arrays = {n: f"{_stored(p)}*" for n, p in spec.settings.items() if p.rank or n in layout.per_replica}
    arrays |= {n: f"const {kind}" for n, kind in arrays.items() if n not in layout.drawn}
    fields = [(arrays.get(n, _stored(p)), n) for n, p in spec.settings.items()]
    fields += [(f"const {CPP_TYPES[table.type]}*", n) for n, table in spec.tables.items()]
    fields += [("const real*", NUMBERS)] if layout.drawn else []
    # An empty struct has a size of one byte in C++, and zero in ctypes.
    return Struct.of("ParamBuffers", layout.real, *(fields or [("int", "nothing")]))


def params_members(layout: Layout) -> list[str]:
    """Generate ``get`` of ``ParamBuffers`` and, if parameters are drawn, ``_draw`` and ``_keep``, which stores them."""
    singles = [name for name in layout.drawn if not layout.config.spec.params[name].rank]
    if not layout.drawn:
        return [_getter(layout)]
    drawn = {name: f"_drawn.of[{j}]" for j, name in enumerate(singles)}
    loaded = ", ".join(f"this->{NUMBERS}[{j}]" for j in range(_loaded_numbers(layout)))
    stores = " ".join(f"this->{name}[_replica] = {target};" for name, target in drawn.items())
    return [
        _getter(layout),
        _getter(layout, drawn),
        f"FN DrawNumbers _load() const {{ return {{{{{loaded}}}}}; }}",
        "FN void _draw(Drawn& _drawn, [[maybe_unused]] const real* _from, Index _replica, const u64* _seed,",
        "              const u32* _episode, int _first, int _step) const {",
        *(f"    {_drawing(layout, name, drawn.get(name, ''))}" for name in layout.drawn),
        "}",
        f"FN void _keep([[maybe_unused]] Index _replica, [[maybe_unused]] const Drawn& _drawn) const {{ {stores} }}",
    ]


def _loaded_numbers(layout: Layout) -> int:
    """Return the count of numbers in ``DrawNumbers``: of all distributions but choices, which may have many."""
    return sum(kind.numbers for kind in layout.drawn.values() if kind.name != Choice.name)


def drawn_struct(layout: Layout) -> str:
    """Generate the C++ structs ``Drawn`` and ``DrawNumbers``.

    ``Drawn``: the scalar parameters that one replica draws; arrays are drawn into memory. ``DrawNumbers``: the numbers
    of distributions, loaded once for many draws.
    """
    ranks = [layout.config.spec.params[name].rank for name in layout.drawn]
    is_drawn_ahead = str(not any(ranks)).lower()
    return (
        f"constexpr int  DRAWN = {max(1, ranks.count(0))};\n"
        f"constexpr bool DRAWN_AHEAD = {is_drawn_ahead};  // drawn before the current episode ends\n"
        "struct Drawn { real of[DRAWN]; };\n"
        f"struct DrawNumbers {{ real of[{max(1, _loaded_numbers(layout))}]; }};"
    )


def _drawing(layout: Layout, name: str, target: str) -> str:
    """Generate C++ that draws a parameter: a scalar into ``target``, or every ``_step``-th element into its buffer."""
    param, stream = layout.config.spec.params[name], list(layout.config.spec.params).index(name)
    names = list(layout.drawn)
    distribution, count = layout.drawn[name]
    first = sum(layout.drawn[before].numbers for before in names[: names.index(name)])
    element = f"Random _random(_seed, _episode, PARAMETER, {stream}, u32(_e));"
    if distribution == Choice.name:
        value = f"this->{NUMBERS}[{first} + _random.integer({count})]"
    else:
        numbers = ", ".join(f"_from[{first + k}]" for k in range(count))
        value = f"drawn_{distribution}(_random, {numbers})"
    if not param.rank:
        return f"if (_first == 0) {{ constexpr int _e = 0; {element} {target} = {value}; }}"
    length = math.prod(_sizes(layout.config, name, param))
    target = f"this->{name}[_replica * {length} + _e]"
    return f"for (int _e = _first; _e < {length}; _e += _step) {{ {element} {target} = {value}; }}"


def append_params_code(layout: Layout, element_format: str) -> list[str]:
    """Return C++ statements that write ``observe_params`` after the other elements of an observation, one per number.

    Args:
        layout: The environment's layout.
        element_format: C++ of element ``{}`` of the observation, such as ``last[{}]``.
    """
    lines: list[str] = []
    for name, size in layout.config.spec.observed_sizes(layout.config.params).items():
        param = layout.config.spec.params[name]
        number = f"int(p.{name})" if param.kind == "choice" else f"p.{name}"
        elements = [f"{number}[{k}]" for k in range(size)] if param.rank else [number]
        lines += [f"    {element_format.format(len(lines) + k)} = float({value});" for k, value in enumerate(elements)]
    return lines


RENAME_OBSERVE = ("generated", "#define observe observe_by_rules  // observe below calls it and appends parameters")
"""Part before rules whose observations end with parameters."""


def _getter(layout: Layout, drawn: Mapping[str, str] | None = None) -> str:
    """Generate ``get`` of ``ParamBuffers``: one replica's ``Params``; its arguments start with _, unlike parameters.

    Args:
        layout: The environment's layout.
        drawn: Expressions of the scalar parameters that the replica has just drawn; None: read them from memory.
    """
    values, checked = [], layout.config.checked
    for name, param in layout.config.spec.settings.items():
        if param.rank:
            length = math.prod(_sizes(layout.config, name, param))
            target = f"this->{name} + _replica * {length}" if name in layout.per_replica else f"this->{name}"
            values.append(f'{{{target}, "{name}"}}' if checked else f"{{{target}}}")
            continue
        value = f"this->{name}[_replica]" if name in layout.per_replica else f"this->{name}"
        value = (drawn or {}).get(name, value)
        if name in layout.baked:
            value = f"real({layout.baked[name]!r})" if param.kind == "real" else str(layout.baked[name])
        values.append(value if param.kind == "real" else f"{cpp_type(name, param)}({value})")
    values += [f'{{this->{n}, "{n}"}}' if checked else f"{{this->{n}}}" for n in layout.config.spec.tables]
    argument = "" if drawn is None else ", [[maybe_unused]] const Drawn& _drawn"
    return f"FN Params get([[maybe_unused]] Index _replica{argument}) const {{ return {{{', '.join(values)}}}; }}"


def baked_values(spec: Spec, values: Mapping[str, Any]) -> dict[str, float | int]:
    """Return the values that are compiled in: of baked reals and of all other types, if equal in all replicas.

    Reset options are not, and neither are derived parameters of a spec with options, as a reset may change both.
    """
    return {
        n: values[n]
        for n, p in spec.params.items()
        if n in values
        and (p.baked or p.kind != "real")
        and not isinstance(values[n], np.ndarray)
        and not (spec.options and isinstance(p, Derived))
    }


def distribution_numbers(config: SimulationConfig, drawn: Mapping[str, Distribution]) -> dict[str, tuple[float, ...]]:
    """Return the numbers that kernels read of each distribution, in the order of ``kinds_of``."""
    limits = {name: config.spec.params[name].limits(config.precision) for name in kinds_of(config.spec, drawn)}
    return {name: _kernel_numbers(drawn[name], ends) for name, ends in limits.items()}


@functools.lru_cache(maxsize=1024)
def _kernel_numbers(distribution: Distribution, limits: tuple[float, float]) -> tuple[float, ...]:
    limited = distribution.with_limits(*limits)
    return (*limited.numbers, *limited.derived)


def kinds_of(spec: Spec, drawn: Mapping[str, Distribution]) -> dict[str, Kind]:
    """Return the part of each distribution that is compiled in: in the order of the spec, but choices last."""
    names = sorted(filter(drawn.__contains__, spec.params), key=lambda name: isinstance(drawn[name], Choice))
    return {name: drawn[name].kind for name in names}


def tables(config: SimulationConfig) -> dict[str, np.ndarray]:
    """Return the tables' values by name, in the dtypes that kernels read."""
    arrays = {name: config.spec.table(name, config.params) for name in config.spec.tables}
    return {n: a.astype(config.precision) if config.spec.tables[n].type == "real" else a for n, a in arrays.items()}


def param_values(spec: Spec, values: Mapping[str, ParamValue]) -> dict[str, float | int | np.ndarray]:
    """Return parameters' values as kernels read them, in the order of the spec: bools and choices as ints."""
    return {
        n: v if isinstance(v, np.ndarray) else float(v) if p.kind == "real" else p.index(v)
        for (n, p), v in ((item, values[item[0]]) for item in spec.settings.items() if item[0] in values)
    }
