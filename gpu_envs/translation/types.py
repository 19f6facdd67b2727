"""Types of the expressions in rules."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias, dataclass_transform


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Record:
    """Base of immutable classes that are compared by their fields: every subclass becomes a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True)(cls)


class Number(Record):
    """A numeric type."""

    cpp: str
    python: str
    width: int
    """Rank: an operation on two types has the type of greater width."""


BOOL, INT, REAL = Number("bool", "bool", 0), Number("int", "int", 1), Number("real", "float", 2)
NUMBERS: Mapping[str, Number] = {"float": REAL, "int": INT, "bool": BOOL}
"""Numeric types by annotation."""


class Choice(Record):
    """The type of a parameter with a fixed set of strings; an enum class in C++."""

    cpp: str
    options: tuple[str, ...]


class Array(Record):
    """An array type."""

    kind: "Type"
    """Element type."""
    sizes: tuple[int | None, ...]
    """Shape; None where a size is not known."""
    form: str = "{0}[{1}]"
    """Format of an element in C++, from the array and the indices."""
    stored_type: str = ""
    """C++ type that elements are stored as; empty if they may not be assigned."""
    refusal: str = ""
    """Why elements may not be assigned; empty if they may."""
    owner: str = ""
    """Argument that an assignment to an element changes; empty for a local list."""
    flat: str = ""
    """Format with a single index into the flattened array; empty if not allowed."""
    cpp: str = ""
    """C++ type of a local variable of this type; empty if there may be none."""

    @property
    def write_only(self) -> bool:
        """Whether elements may be written and not read."""
        return self.owner in ("Observation", "Row", "Mask")


class Struct(Record):
    """The type of an argument with fields and methods, such as State or Team; fields are expressions."""

    name: str
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, hash=False)


class Tuple(Record):
    """The type of a function result of several numbers; a struct in C++."""

    cpp: str
    kinds: tuple[Number, ...]


class Static(Record):
    """The type of compile-time values (strings, modules, tuples of constants), and of functions without result."""


Type: TypeAlias = Number | Choice | Array | Struct | Tuple | Static
STATIC = Static()
STREAM = Choice("Stream", ())
RANDOM = Struct("Random")
LIST = "list"
"""Marks the type of a local list, in ``Array.cpp``."""


def wider(left: Type, right: Type) -> Type:
    """Return the wider of two types, which can hold values of both; raise a TypeError for unlike types."""
    if isinstance(left, Number) and isinstance(right, Number):
        return left if left.width >= right.width else right
    if isinstance(left, Array) and isinstance(right, Array) and (left.cpp, left.sizes) == (LIST, right.sizes):
        kind = wider(left.kind, right.kind)
        return dataclasses.replace(left, kind=kind, stored_type=list_of(kind, left.sizes).stored_type)
    if left == right:
        return left
    raise TypeError(f"{left} and {right} are unlike types")


def list_of(kind: Type, sizes: tuple[int | None, ...]) -> Array:
    """Return the type of a local list."""
    return Array(kind, sizes, stored_type=kind.cpp if isinstance(kind, Number) else "", cpp=LIST)


_MAX_SHOWN = 100
"""Maximum number of characters of a value in a message."""


def describe(kind: Type, value: object = None) -> str:
    """Return words for a type, or for a compile-time value, in a message: ``an int``, ``the World``."""
    match kind:
        case Number():
            return {"real": "a float", "int": "an int", "bool": "a bool"}[kind.cpp]
        case Choice():
            words = ", ".join(map(repr, kind.options))
            return f"a choice of {words}" if words else "a random stream"
        case Array():
            return "an array"
        case Tuple():
            return f"{len(kind.kinds)} numbers"
        case Struct():
            return f"the {kind.name}" if kind.name != "Random" else "a random number generator"
    text = f"the string {value!r}" if isinstance(value, str) else f"{value!r}"
    return text if len(text) <= _MAX_SHOWN else f"an object of the class {type(value).__name__}"
