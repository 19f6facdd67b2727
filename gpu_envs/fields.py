"""What a spec names besides parameters: the fields of a state, and tables that all replicas read."""

import dataclasses
import keyword
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import numpy as np

FIELD_TYPES = ("real", "int", "byte", "agent", "bool")

_TABLE_TYPES = {"real": "float64", "int": "int32", "byte": "uint8", "bool": "bool"}

CPP_WORDS = frozenset(
    "alignas alignof and asm auto bool break case catch char class const constexpr continue default delete do double "
    "else enum explicit export extern false float for friend goto if inline int long mutable namespace new not "
    "operator or private protected public real register return short signed sizeof static struct switch template "
    "this throw true try typedef typename union unsigned using virtual void volatile while xor".split()
)
"""Words that mean something in C++ and no name may be."""


def check_name(name: str, what: str) -> None:
    """Refuses what is no name in both languages."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in CPP_WORDS or keyword.iskeyword(name):
        raise ValueError(f"{what} {name!r} must be a name in both C++ and Python: a letter, then letters, digits, '_'")


def check_kinds(what: str, given: object, kind: type, example: str) -> None:
    """Refuses a mapping by name whose values are not all of a kind."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is {given!r}; give a mapping by name, such as {{'name': {example}}}")
    for name, value in given.items():
        if not isinstance(value, kind):
            raise TypeError(f"{what}: {name!r} is {value!r}; give a {kind.__name__}, such as {example}")


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One field of a ``State``, or one array of a team's ``World``."""

    type: str = "real"
    """``real``, ``int``, ``byte``, ``bool``, or of a team ``agent``: an agent's number, in as few bits as it allows."""
    length: int | Callable[[Mapping[str, Any]], int] = 1
    """How many elements it has for each replica (or agent); or a function of the parameters that says so."""

    def __post_init__(self) -> None:
        """Refuses an unknown type and an impossible length."""
        if self.type not in FIELD_TYPES:
            raise ValueError(f"a field's type is {self.type!r}; allowed: {', '.join(FIELD_TYPES)}")
        if isinstance(self.length, int) and self.length < 1:
            raise ValueError(f"a field's length is {self.length}; at least 1")

    @property
    def is_array(self) -> bool:
        """Whether it is indexed in the rules: all but a length of 1 that no function gave."""
        return callable(self.length) or self.length != 1

    def elements(self, params: Mapping[str, Any]) -> int:
        """How many elements it has under these parameters."""
        return self.length if isinstance(self.length, int) else self.length(params)


Values: TypeAlias = Any
"""Numbers in one to three dimensions: an array, or nested lists."""


@final
@dataclasses.dataclass(frozen=True)
class Table:
    """Numbers that all replicas read and nobody writes: a map, a curve. On the device they are there once."""

    values: Values | Callable[[Mapping[str, Any]], Values] = dataclasses.field(compare=False)
    """They themselves, or a function of the parameters marked ``fixed``."""
    type: str = "real"
    """``real``, ``int``, ``byte`` or ``bool``."""
    _same: object = dataclasses.field(init=False, repr=False)
    """What makes two tables equal."""

    def __post_init__(self) -> None:
        """Refuses what is no table, as far as it is known by now."""
        if self.type not in _TABLE_TYPES:
            raise ValueError(f"a table's type is {self.type!r}; allowed: {', '.join(_TABLE_TYPES)}")
        known = self.values if callable(self.values) else _checked(self.values, self.type)
        object.__setattr__(self, "values", known)
        same = known if callable(known) else (known.shape, known.tobytes())
        object.__setattr__(self, "_same", same)

    def array(self, params: Mapping[str, Any]) -> np.ndarray:
        """Its numbers under these parameters: of a table of reals float64."""
        return _checked(self.values(params), self.type) if callable(self.values) else np.asarray(self.values)


def _checked(values: Values, kind: str) -> np.ndarray:
    dtype = _TABLE_TYPES[kind]
    try:
        given = np.asarray(values)
    except ValueError:
        raise ValueError("a table's rows are not all of one length; give numbers in one to three dimensions") from None
    if given.dtype.kind not in "biuf" or not 1 <= given.ndim <= 3 or given.size == 0:
        raise ValueError(
            f"a table has {given.dtype} numbers of shape {given.shape}; give numbers in one to three dimensions"
        )
    if given.dtype.kind == "f" and np.isnan(given).any():
        first = np.argwhere(np.isnan(given))[0].tolist()
        raise ValueError(f"a table holds NaN (the first at {first}), which is not allowed; give a number that means it")
    made = np.array(given.astype(dtype))
    if not np.array_equal(made, given):
        raise ValueError(f"a table of type {kind!r} holds numbers that are none of {dtype}")
    made.setflags(write=False)
    return made
