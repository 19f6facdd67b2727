"""The parameters and tables of an environment, as the generated code has them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_envs.backend.program import CPP_TYPES
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen.layout import Layout, SimulationConfig
from gpu_envs.codegen.shared import selection
from gpu_envs.specs.base import Spec
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.distributions import Choice
from gpu_envs.specs.names import enum_name
from gpu_envs.specs.params import Param, ParamValue
from gpu_envs.specs.single import EnvSpec

_MOST_COMPARED = 64
"""So many numbers of a ``Choice`` are told apart by comparisons; the time to compile more grows with their square."""


def _cpp_param(name: str, param: Param) -> str:
    return {"bool": "bool", "choice": enum_name(name), "real": "real", "int": "int"}[param.kind]


def _stored(param: Param) -> str:
    return "real" if param.kind == "real" else "int"


def _enumerators(param: Param) -> str:
    return ", ".join(choice.replace("-", "_") for choice in param.choices)


def _remark(text: str) -> str:
    """A text as the end of a line of C++."""
    return " ".join(text.replace("\\", " ").split())


def params_struct(config: SimulationConfig) -> str:
    """``Params``: what the rules see of the parameters of one replica, and of the tables."""
    settings = config.spec.settings
    enums = [
        f"enum class {enum_name(n)} : int {{ {_enumerators(p)} }};" for n, p in settings.items() if p.kind == "choice"
    ]
    fields = [f"    {_member(config, n, p)};  // {_remark(p.description)}".rstrip(" /") for n, p in settings.items()]
    for name, table in config.spec.tables.items():
        sizes = ", ".join(map(str, config.table_shape(name)))
        fields.append(f"    Table<const {CPP_TYPES[table.type]}, {sizes}> {name};")
    return "\n".join([*enums, "struct Params {", *fields, "};"])


def _member(config: SimulationConfig, name: str, param: Param) -> str:
    """A member of ``Params``."""
    if not param.rank:
        return f"{_cpp_param(name, param)} {name}"
    return f"Table<const {_stored(param)}, {', '.join(map(str, _sizes(config, name, param)))}> {name}"


def _sizes(config: SimulationConfig, name: str, param: Param) -> tuple[int, ...]:
    """The shape of a parameter that is an array."""
    value = config.params[name]
    assert isinstance(value, np.ndarray)
    return tuple(value.shape[-param.rank :])


def params_buffers(layout: Layout) -> Struct:
    """Where the parameters of all replicas are, and the tables."""
    spec = layout.config.spec
    arrays = {n: f"{_stored(p)}*" for n, p in spec.settings.items() if p.rank or n in layout.per_replica}
    arrays |= {n: f"const {kind}" for n, kind in arrays.items() if n not in layout.drawn}
    fields = [(arrays.get(n, _stored(p)), n) for n, p in spec.settings.items()]
    fields += [(f"const {CPP_TYPES[table.type]}*", n) for n, table in spec.tables.items()]
    # (an empty struct takes a byte in C++, and none for ctypes)
    return Struct.of("ParamBuffers", layout.real, *(fields or [("int", "nothing")]))


def params_members(layout: Layout) -> list[str]:
    """The members of ``ParamBuffers``: what gives one replica's ``Params``, and what draws those of an episode."""
    singles = [name for name in layout.drawn if not layout.config.spec.params[name].rank]
    if not layout.drawn:
        return [_getter(layout)]
    drawn = {name: f"_drawn.of[{j}]" for j, name in enumerate(singles)}
    kept = " ".join(f"this->{name}[_replica] = {place};" for name, place in drawn.items())
    return [
        _getter(layout),
        _getter(layout, drawn),
        *(["template <bool AT_ONCE = false>"] if isinstance(layout.config.spec, EnvSpec) else []),
        "FN void _draw(Drawn& _drawn, Index _replica, const u64* _seed, const u32* _episode, int _first, int _step)",
        "    const {",
        *(f"    {_drawing(layout, name, drawn.get(name, ''))}" for name in layout.drawn),
        "}",
        f"FN void _keep([[maybe_unused]] Index _replica, [[maybe_unused]] const Drawn& _drawn) const {{ {kept} }}",
    ]


def drawn_struct(layout: Layout) -> str:
    """``Drawn``: what one replica has drawn of parameters that are single numbers. Arrays are drawn where they are."""
    ranks = [layout.config.spec.params[name].rank for name in layout.drawn]
    ahead = str(not any(ranks)).lower()
    return (
        f"constexpr int  DRAWN = {max(1, ranks.count(0))};\n"
        f"constexpr bool DRAWN_AHEAD = {ahead};  // before the episode that comes first is over\n"
        "struct Drawn { real of[DRAWN]; };"
    )


def _drawing(layout: Layout, name: str, place: str) -> str:
    """Draws one parameter, or its elements from ``_first`` on, each with random numbers of its own."""
    param, number = layout.config.spec.params[name], list(layout.config.spec.params).index(name)
    distribution = layout.drawn[name].within(*param.limits(layout.config.precision))
    numbers = [f"real({each!r})" for each in (*distribution.numbers, *distribution.derived)]
    element = f"Random _random(_seed, _episode, PARAMETER, {number}, u32(_e));"

    def written(target: str) -> str:
        if not isinstance(distribution, Choice):
            return f"{target} = drawn_{distribution.name}(_random, {', '.join(numbers)});"
        table = f"static constexpr real _values[] = {{{', '.join(numbers)}}};"
        chosen = f"{{ {table} {target} = _values[_k]; }}"
        if len(numbers) <= _MOST_COMPARED:
            compared = f"{target} = {selection(numbers, '_k')};"
            of_one = isinstance(layout.config.spec, EnvSpec)  # of one replica alone a CPU foretells no comparison
            chosen = f"if constexpr (ON_GPU || AT_ONCE) {compared} else {chosen}" if of_one else compared
        return f"const int _k = _random.integer({len(numbers)}); {chosen}"

    if not param.rank:
        return f"if (_first == 0) {{ constexpr int _e = 0; {element} {written(place)} }}"
    length = math.prod(_sizes(layout.config, name, param))
    target = written(f"this->{name}[_replica * {length} + _e]")
    return f"for (int _e = _first; _e < {length}; _e += _step) {{ {element} {target} }}"


def observed_params(layout: Layout, place: str) -> list[str]:
    """Writes the parameters that are observed, one statement a number.

    Args:
        layout: What the code depends on.
        place: The number's place, for its index among them.
    """
    found: list[str] = []
    for name, size in layout.config.spec.observed_sizes(layout.config.params).items():
        param = layout.config.spec.params[name]
        number = f"int(p.{name})" if param.kind == "choice" else f"p.{name}"
        each = [f"{number}[{k}]" for k in range(size)] if param.rank else [number]
        found += [f"    {place.format(len(found) + k)} = float({value});" for k, value in enumerate(each)]
    return found


RENAMED = ("generated", "#define observe observe_by_rules  // parameters follow")
"""Stands before rules whose observations end with parameters."""


def _getter(layout: Layout, drawn: Mapping[str, str] | None = None) -> str:
    """What gives one replica's ``Params``; no parameter has its arguments' names.

    Args:
        layout: What the code depends on.
        drawn: Where the numbers stand that the replica has just drawn; None: with the others.
    """
    values, checked = [], layout.config.checked
    for name, param in layout.config.spec.settings.items():
        if param.rank:
            length = math.prod(_sizes(layout.config, name, param))
            place = f"this->{name} + _replica * {length}" if name in layout.per_replica else f"this->{name}"
            values.append(f'{{{place}, "{name}"}}' if checked else f"{{{place}}}")
            continue
        value = f"this->{name}[_replica]" if name in layout.per_replica else f"this->{name}"
        value = (drawn or {}).get(name, value)
        if name in layout.baked:
            value = f"real({layout.baked[name]!r})" if param.kind == "real" else str(layout.baked[name])
        values.append(value if param.kind == "real" else f"{_cpp_param(name, param)}({value})")
    values += [f'{{this->{n}, "{n}"}}' if checked else f"{{this->{n}}}" for n in layout.config.spec.tables]
    just = "" if drawn is None else ", [[maybe_unused]] const Drawn& _drawn"
    return f"FN Params get([[maybe_unused]] Index _replica{just}) const {{ return {{{', '.join(values)}}}; }}"


def baked_values(spec: Spec, values: Mapping[str, Any]) -> dict[str, float | int]:
    """The parameters that are compiled in: neither reset options nor, where a spec has some, what may follow from them.

    A reset may change both.
    """
    return {
        n: values[n]
        for n, p in spec.params.items()
        if n in values
        and (p.baked or p.kind != "real")
        and not isinstance(values[n], np.ndarray)
        and not (spec.options and isinstance(p, Derived))
    }


def tables(config: SimulationConfig) -> dict[str, np.ndarray]:
    """The tables as the kernels read them."""
    arrays = {name: config.spec.table(name, config.params) for name in config.spec.tables}
    return {n: a.astype(config.precision) if config.spec.tables[n].type == "real" else a for n, a in arrays.items()}


def param_values(spec: Spec, values: Mapping[str, ParamValue]) -> dict[str, float | int | np.ndarray]:
    """Parameters, some or all, as the structs hold them: switches and choices as integers."""
    return {
        n: v if isinstance(v, np.ndarray) else float(v) if p.kind == "real" else p.index(v)
        for (n, p), v in ((item, values[item[0]]) for item in spec.settings.items() if item[0] in values)
    }
