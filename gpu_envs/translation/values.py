"""Expressions of the rules in C++: a text, its type, and what is known of its value."""

import dataclasses
import enum
import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias, final

from gpu_envs.translation.sources import RefusedError


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Number:
    """A type of numbers."""

    cpp: str
    python: str
    width: int
    """Where two types meet, the result has the wider one."""


BOOL, INT, REAL = Number("bool", "bool", 0), Number("int", "int", 1), Number("real", "float", 2)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A parameter that is one of several words."""

    cpp: str
    words: tuple[str, ...]


@final
@dataclasses.dataclass(frozen=True)
class Elements:
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
    """The argument that an assignment to it changes."""
    write_only: bool = False
    flat: str = ""
    """Another form, of one index that counts all elements."""
    cpp: str = ""
    """The C++ type, of what a local may name."""
    partly: str = ""
    """How an element is written in Python, of an array that has been given some of its indices."""
    agents: bool = False
    """The first index is an agent."""


@final
@dataclasses.dataclass(frozen=True)
class Thing:
    """An argument of the rules, with fields and methods."""

    name: str
    cpp: str
    """How it is passed."""
    fields: Mapping[str, "Value"] = dataclasses.field(default_factory=dict, compare=False, hash=False)
    owner: str = ""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Several:
    """What a function returns that returns several numbers."""

    cpp: str
    kinds: tuple[Number, ...]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Static:
    """What only the translator knows: a word, a module, a function, a tuple of constants."""


Type: TypeAlias = Number | Choice | Elements | Thing | Several | Static
STATIC = Static()
STREAM = Choice("Stream", ())
RANDOM = Thing("Random", "Random&")


class Level(enum.IntEnum):
    """How tightly an expression holds together."""

    CONDITIONAL = 0
    OR = 1
    AND = 2
    BITS = 3
    EQUALITY = 4
    ORDER = 5
    SUM = 6
    PRODUCT = 7
    UNARY = 8
    ATOM = 9


@final
@dataclasses.dataclass(frozen=True)
class Value:
    """An expression."""

    code: str
    """The C++ text; empty where C++ has none."""
    type: Type
    level: Level = Level.ATOM
    constant: Any = None
    """Its value, where that is known."""
    as_real: str = ""
    """The same whole number as a ``real``, where that is nearer at hand."""
    place: str = ""
    """The C++ expression that may be assigned to."""
    stored: str = ""
    """The C++ type of the place."""
    refusal: str = ""
    """Why it cannot be assigned."""
    owner: str = ""
    """The argument that an assignment to it changes."""
    write_only: bool = False

    def __post_init__(self) -> None:
        """Nothing is both a place and a constant."""
        assert not (self.place and self.constant is not None)

    def within(self, level: Level) -> str:
        """The text, in parentheses where it holds together less tightly than ``level``."""
        if not self.code:
            if isinstance(self.constant, int):
                raise RefusedError(f"{self.constant} does not fit 32 bits", "Write a float, or a smaller number")
            raise RefusedError(f"{self.constant!r} is not a number")
        return self.code if self.level >= level else f"({self.code})"

    @property
    def text(self) -> str:
        """The text by itself."""
        return self.within(Level.CONDITIONAL)

    @property
    def is_simple(self) -> bool:
        """Whether it may be written twice."""
        return self.constant is not None or re.fullmatch(r"[\w.]+", self.code) is not None


def literal(value: Any) -> Value:
    """A constant."""
    if isinstance(value, bool):
        return Value("true" if value else "false", BOOL, constant=value)
    if isinstance(value, int):
        code = str(value) if abs(value) < 2**31 else ""
        return Value(code, INT, Level.UNARY if value < 0 else Level.ATOM, value)
    if isinstance(value, float):
        return Value(_real(value), REAL, Level.UNARY if value == -math.inf else Level.ATOM, value)
    return Value("", STATIC, constant=value)


def _real(value: float) -> str:
    if math.isnan(value):
        raise RefusedError("a simulation cannot go on with NaN", "Leave it out")
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}infinity<real>()"
    return f"real({value!r})"


def number(value: Value) -> Number:
    """The type of a value that must be a number."""
    if value.write_only:
        raise RefusedError("what is observed is written and not read", "Compute it in a local first")
    if not isinstance(value.type, Number):
        instead = value.type.partly if isinstance(value.type, Elements) else ""
        raise RefusedError(f"this is {described(value)} and not a number", f"Write {instead}" if instead else "")
    return value.type


def described(value: Value) -> str:
    """What a value is, in words."""
    kind = value.type
    if isinstance(kind, Number):
        return {"real": "a float", "int": "an int", "bool": "a bool"}[kind.cpp]
    if isinstance(kind, Choice):
        return f"one of the words {', '.join(map(repr, kind.words))}" if kind.words else "a stream of random numbers"
    if isinstance(kind, Elements):
        return "an array"
    if isinstance(kind, Several):
        return f"{len(kind.kinds)} numbers"
    if isinstance(kind, Thing):
        return f"the {kind.name}" if kind.name != "Random" else "a source of random numbers"
    return f"the string {value.constant!r}" if isinstance(value.constant, str) else f"{value.constant!r}"


def converted(value: Value, kind: Type) -> Value:
    """The value in a wider type of numbers, or as it is."""
    if value.type == kind and not value.write_only:
        return value
    if not isinstance(kind, Number):
        raise RefusedError(f"this is {described(value)}")
    given = number(value)
    if given.width > kind.width:
        how = {"int": "int(...), which cuts off the fraction", "bool": "a comparison, as in x != 0"}[kind.cpp]
        name = {"int": "an int", "bool": "a bool"}[kind.cpp]
        raise RefusedError(f"{described(value)} is given where {name} belongs", f"Write {how}")
    if value.constant is not None and (kind is REAL or value.code in ("true", "false")):
        whole = int(value.constant)
        if kind is INT:
            return literal(whole)
        text = str(whole) if given is BOOL else value.code
        code = f"real({text})" if text else _real(float(whole))
        return Value(code, REAL, constant=float(whole))
    if kind is REAL and value.as_real:
        return Value(value.as_real, REAL)
    return Value(f"{kind.cpp}({value.text})", kind, constant=value.constant)


def truth(value: Value) -> Value:
    """Whether a number counts as true."""
    if number(value) is BOOL:
        return value
    if value.constant is not None:
        return literal(bool(value.constant))
    return Value(f"{value.within(Level.SUM)} != 0", BOOL, Level.EQUALITY)


def wider(one: Type, other: Type) -> Type:
    """The type that holds both."""
    if isinstance(one, Number) and isinstance(other, Number):
        return one if one.width >= other.width else other
    if one == other:
        return one
    raise RefusedError("these are of different kinds")
