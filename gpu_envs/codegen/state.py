"""The state of single-agent environments in C++: of one replica, and of a tile of them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

MOST_UNROLLED = 32
"""Elements of an array up to which loops over it are unrolled: then a GPU may keep it in registers."""


class StateField(NamedTuple):
    """A field of ``State``."""

    name: str
    cpp: str
    """Its type."""
    sizes: tuple[int, ...]
    """The shape of an array; of a single number ``()``."""

    @property
    def length(self) -> int:
        """Of an array; 0 for a single number."""
        return math.prod(self.sizes) if self.sizes else 0


def state_structs(fields: Sequence[StateField], *, checked: bool) -> str:
    """``State``, and ``States`` of a tile of replicas: structure of arrays, whose names no function has.

    Args:
        fields: Those of ``State``.
        checked: Its arrays know their lengths.
    """
    one = [f"    {_member(field, checked)};" for field in fields]
    many = [f"    {stored(f.cpp)} {f.name}_{f'[{f.length}]' if f.length else ''}[LANES];" for f in fields]
    return "\n".join(
        [
            *(_tag(field) for field in fields if checked and field.length),
            "struct State {",
            *one,
            "};",
            "struct States {",
            *many,
            *_state_getter(fields),
            "    FN void set(int k, const State& s) {",
            *(_each(f, "{n}_{j}[k] = s.{n}{j};") for f in fields),
            "    }",
            "    template <class From> FN void load(int k, const From& from, Index i, [[maybe_unused]] Index count) {",
            *(_each(f, "{n}_{j}[k] = from.{n}[{i}];") for f in fields),
            "    }",
            "    template <class To> FN void store(int k, const To& to, Index i, [[maybe_unused]] Index count) const {",
            *(_each(f, "to.{n}[{i}] = {n}_{j}[k];") for f in fields),
            "    }",
            "};",
        ]
    )


def stored(cpp: str) -> str:
    """The type of a field in memory: a byte for a bool, with which GCC vectorises more."""
    return "u8" if cpp == "bool" else cpp


def _member(field: StateField, checked: bool) -> str:
    name, cpp, sizes = field
    if not sizes:
        return f"{cpp} {name}"
    shape = ", ".join(map(str, sizes))
    if checked:
        return f"CheckedArray<{cpp}, Of_{name}, {shape}> {name}"
    return f"{cpp} {name}[{shape}]" if len(sizes) == 1 else f"Held<{cpp}, {shape}> {name}"


def _tag(field: StateField) -> str:
    """What names a field in the messages of a checked build."""
    return f'struct Of_{field.name} {{ FN static const char* name() {{ return "{field.name}"; }} }};'


def _state_getter(fields: Sequence[StateField]) -> list[str]:
    """The member of ``States`` that gives one replica's ``State``."""
    if not any(field.sizes for field in fields):
        read = ", ".join(f"{n}_[k]{' != 0' * (cpp == 'bool')}" for n, cpp, _ in fields)
        return [f"    FN State get(int k) const {{ return {{{read}}}; }}"]
    return [
        "    FN State get(int k) const {",
        "        State s;",
        *(_each(f, f"s.{{n}}{{j}} = {{n}}_{{j}}[k]{' != 0' * (f.cpp == 'bool')};") for f in fields),
        "        return s;",
        "    }",
    ]


def _each(field: StateField, statement: str) -> str:
    """A statement about a field; about each element of one that is an array, ``[length, num_envs]`` in memory."""
    name, length = field.name, field.length
    if not length:
        return f"        {statement.format(n=name, j='', i='i')}"
    unroll = "UNROLL " if length <= MOST_UNROLLED else ""
    each = statement.format(n=name, j="[j]", i="Index(j) * count + i")
    return f"        {unroll}for (int j = 0; j < {length}; ++j) {each}"
