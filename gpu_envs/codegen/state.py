"""The state of single-agent environments in C++: of one replica, and of a tile of them."""

from collections.abc import Sequence
from typing import NamedTuple

MOST_UNROLLED = 32
"""Elements of an array up to which loops over it are unrolled: then a GPU may keep it in registers."""


class StateField(NamedTuple):
    """A field of ``State``."""

    name: str
    cpp: str
    """Its type."""
    length: int
    """Of an array; 0 for a single number."""


def state_structs(fields: Sequence[StateField], *, checked: bool) -> str:
    """``State``, and ``States`` of a tile of replicas: structure of arrays, whose names no function has.

    Args:
        fields: Those of ``State``.
        checked: Its arrays know their lengths.
    """
    one = [f"    {_member(field, checked)};" for field in fields]
    many = [f"    {stored(cpp)} {n}_{f'[{length}]' if length else ''}[LANES];" for n, cpp, length in fields]
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
            *(_each(n, length, "{n}_{j}[k] = s.{n}{j};") for n, _, length in fields),
            "    }",
            "    template <class From> FN void load(int k, const From& from, Index i, [[maybe_unused]] Index count) {",
            *(_each(n, length, "{n}_{j}[k] = from.{n}[{i}];") for n, _, length in fields),
            "    }",
            "    template <class To> FN void store(int k, const To& to, Index i, [[maybe_unused]] Index count) const {",
            *(_each(n, length, "to.{n}[{i}] = {n}_{j}[k];") for n, _, length in fields),
            "    }",
            "};",
        ]
    )


def stored(cpp: str) -> str:
    """The type of a field in memory: a byte for a bool, with which GCC vectorises more."""
    return "u8" if cpp == "bool" else cpp


def _member(field: StateField, checked: bool) -> str:
    name, cpp, length = field
    if not length:
        return f"{cpp} {name}"
    return f"CheckedArray<{cpp}, {length}, Of_{name}> {name}" if checked else f"{cpp} {name}[{length}]"


def _tag(field: StateField) -> str:
    """What names a field in the messages of a checked build."""
    return f'struct Of_{field.name} {{ FN static const char* name() {{ return "{field.name}"; }} }};'


def _state_getter(fields: Sequence[StateField]) -> list[str]:
    """The member of ``States`` that gives one replica's ``State``."""
    if not any(length for _, _, length in fields):
        read = ", ".join(f"{n}_[k]{' != 0' * (cpp == 'bool')}" for n, cpp, _ in fields)
        return [f"    FN State get(int k) const {{ return {{{read}}}; }}"]
    return [
        "    FN State get(int k) const {",
        "        State s;",
        *(_each(n, length, f"s.{{n}}{{j}} = {{n}}_{{j}}[k]{' != 0' * (cpp == 'bool')};") for n, cpp, length in fields),
        "        return s;",
        "    }",
    ]


def _each(name: str, length: int, statement: str) -> str:
    """A statement about a field; about each element of one that is an array, ``[length, num_envs]`` in memory."""
    if not length:
        return f"        {statement.format(n=name, j='', i='i')}"
    unroll = "UNROLL " if length <= MOST_UNROLLED else ""
    each = statement.format(n=name, j="[j]", i="Index(j) * count + i")
    return f"        {unroll}for (int j = 0; j < {length}; ++j) {each}"
