"""The state of single-agent environments in C++: of one replica, and of a tile of replicas."""

import math
from collections.abc import Sequence
from typing import NamedTuple

MAX_UNROLLED = 32
"""Maximum elements of an array whose loops are unrolled, so that a GPU may keep it in registers."""


class StateField(NamedTuple):
    """A field of ``State``."""

    name: str
    cpp: str
    """C++ type of an element."""
    sizes: tuple[int, ...]
    """Shape; ``()`` for a scalar."""

    @property
    def length(self) -> int:
        """Elements of an array; 0 for a scalar."""
        return math.prod(self.sizes) if self.sizes else 0


def state_structs(fields: Sequence[StateField], *, checked: bool) -> str:
    """Generate the C++ structs ``State``, of a replica, and ``States``, of a tile of replicas, a structure of arrays.

    Args:
        fields: The fields of ``State``.
        checked: Whether arrays know their lengths.
    """
    tile_members = [f"    {memory_type(f.cpp)} {f.name}_{f'[{f.length}]' if f.length else ''}[LANES];" for f in fields]
    return "\n".join(
        [
            *(_tag(field) for field in fields if checked and field.length),
            "struct State {",
            *(f"    {_member(field, checked)};" for field in fields),
            "};",
            "struct States {",
            *tile_members,
            *_state_getter(fields),
            "    FN void set(int k, const State& s) {",
            *(_for_each_element(f, "{n}_{j}[k] = s.{n}{j};") for f in fields),
            "    }",
            "    template <class From> FN void load(int k, const From& from, Index i, [[maybe_unused]] Index count) {",
            *(_for_each_element(f, "{n}_{j}[k] = from.{n}[{i}];") for f in fields),
            "    }",
            "    template <class To> FN void store(int k, const To& to, Index i, [[maybe_unused]] Index count) const {",
            *(_for_each_element(f, "to.{n}[{i}] = {n}_{j}[k];") for f in fields),
            "    }",
            "};",
        ]
    )


def memory_type(cpp: str) -> str:
    """Return the type of a field in memory: a byte for a bool, so that GCC vectorises more loops."""
    return "u8" if cpp == "bool" else cpp


def _member(field: StateField, checked: bool) -> str:
    """Return the declaration of a field in ``State``; in a checked build arrays know their lengths."""
    name, cpp, sizes = field
    if not sizes:
        return f"{cpp} {name}"
    shape = ", ".join(map(str, sizes))
    if checked:
        return f"CheckedArray<{cpp}, Of_{name}, {shape}> {name}"
    return f"{cpp} {name}[{shape}]" if len(sizes) == 1 else f"LocalTable<{cpp}, {shape}> {name}"


def _tag(field: StateField) -> str:
    """Generate the C++ struct that tells a checked array its field's name, for messages."""
    return f'struct Of_{field.name} {{ FN static const char* name() {{ return "{field.name}"; }} }};'


def _state_getter(fields: Sequence[StateField]) -> list[str]:
    """Generate the method of ``States`` that returns one replica's ``State``."""
    if not any(field.sizes for field in fields):
        read = ", ".join(f"{n}_[k]{' != 0' * (cpp == 'bool')}" for n, cpp, _ in fields)
        return [f"    FN State get(int k) const {{ return {{{read}}}; }}"]
    return [
        "    FN State get(int k) const {",
        "        State s;",
        *(_for_each_element(f, f"s.{{n}}{{j}} = {{n}}_{{j}}[k]{' != 0' * (f.cpp == 'bool')};") for f in fields),
        "        return s;",
        "    }",
    ]


def _for_each_element(field: StateField, statement: str) -> str:
    """Return ``statement``, a format of name n, index j, memory index i; in a loop over j if the field is an array."""
    name, length = field.name, field.length
    if not length:
        return f"        {statement.format(n=name, j='', i='i')}"
    unroll = "UNROLL " if length <= MAX_UNROLLED else ""
    element_statement = statement.format(n=name, j="[j]", i="Index(j) * count + i")
    return f"        {unroll}for (int j = 0; j < {length}; ++j) {element_statement}"
