"""The types that expressions of rules have."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias, dataclass_transform

from gpu_envs.translation.sources import RefusedError


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Record:
    """What is compared by its fields, which do not change; all kinds are final dataclasses."""

    def __init_subclass__(cls) -> None:
        """Makes it a dataclass."""
        dataclasses.dataclass(frozen=True)(cls)


class Number(Record):
    """A type of numbers."""

    cpp: str
    python: str
    width: int
    """Where two types meet, the result has the wider one."""


BOOL, INT, REAL = Number("bool", "bool", 0), Number("int", "int", 1), Number("real", "float", 2)
NUMBERS: Mapping[str, Number] = {"float": REAL, "int": INT, "bool": BOOL}
"""By the words of annotations."""


class Choice(Record):
    """A parameter that is one of several words."""

    cpp: str
    words: tuple[str, ...]


class Array(Record):
    """The type of an array."""

    kind: "Type"
    """The type of an element."""
    sizes: tuple[int | None, ...]
    """For each index, the number of elements, where it is known."""
    form: str = "{0}[{1}]"
    """An element in C++: of what is indexed, and the indices."""
    stored: str = ""
    """The C++ type of an element that may be assigned."""
    refusal: str = ""
    """Why elements may not be assigned; empty where they may."""
    owner: str = ""
    """The argument that an assignment to an element changes; empty of a list of the function's own."""
    flat: str = ""
    """Another form, of one index that counts all elements."""
    cpp: str = ""
    """The C++ type of what a local may name."""

    @property
    def write_only(self) -> bool:
        """Whether elements are never read."""
        return self.owner in ("Observation", "Row", "Mask")


class Thing(Record):
    """An argument of the rules, with fields, which are expressions, and methods."""

    name: str
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, hash=False)


class Several(Record):
    """What a function returns that returns several numbers."""

    cpp: str
    kinds: tuple[Number, ...]


class Static(Record):
    """What only the translation knows: a word, a module, a function, a tuple of constants; or nothing at all."""


Type: TypeAlias = Number | Choice | Array | Thing | Several | Static
STATIC = Static()
STREAM = Choice("Stream", ())
RANDOM = Thing("Random")
LIST = "list"
"""What stands for the C++ type of a list of the function's own."""


def wider(one: Type, other: Type) -> Type:
    """The type that holds both."""
    if isinstance(one, Number) and isinstance(other, Number):
        return one if one.width >= other.width else other
    if isinstance(one, Array) and isinstance(other, Array) and (one.cpp, one.sizes) == (LIST, other.sizes):
        kind = wider(one.kind, other.kind)
        return dataclasses.replace(one, kind=kind, stored=list_of(kind, one.sizes).stored)
    if one == other:
        return one
    raise RefusedError("these are of different kinds")


def list_of(kind: Type, sizes: tuple[int | None, ...]) -> Array:
    """The type of a list of the function's own."""
    return Array(kind, sizes, stored=kind.cpp if isinstance(kind, Number) else "", cpp=LIST)


def described(kind: Type, value: object = None) -> str:
    """What something of a type is, in words."""
    match kind:
        case Number():
            return {"real": "a float", "int": "an int", "bool": "a bool"}[kind.cpp]
        case Choice():
            words = ", ".join(map(repr, kind.words))
            return f"one of the words {words}" if words else "a stream of random numbers"
        case Array():
            return "an array"
        case Several():
            return f"{len(kind.kinds)} numbers"
        case Thing():
            return f"the {kind.name}" if kind.name != "Random" else "a source of random numbers"
    return f"the string {value!r}" if isinstance(value, str) else f"{value!r}"
