"""What a spec names besides parameters: the fields of a state, and tables that all replicas read."""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import numpy as np

from gpu_envs.documented import documented
from gpu_envs.specs.evaluate import evaluate

FIELD_TYPES = ("real", "int", "byte", "agent", "bool")

_TABLE_TYPES = {"real": "float64", "int": "int32", "byte": "uint8", "bool": "bool"}


def check_types(what: str, given: object, kind: type, example: str) -> None:
    """Refuses a mapping by name whose values are not all of a kind."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is {given!r}; give a mapping by name, such as {{'name': {example}}}")
    for name, value in given.items():
        if not isinstance(value, kind):
            raise TypeError(f"{what}: {name!r} is {value!r}; give a {kind.__name__}, such as {example}")


Size: TypeAlias = int | str | Callable[[Mapping[str, Any]], int]
"""A whole number, the parameter that says it (of a team also ``"AGENTS"``), or a function of the parameters."""

Shape: TypeAlias = tuple[Size, ...] | Callable[[Mapping[str, Any]], tuple[int, ...]]
"""Sizes, or a function of the parameters that gives them."""

MAX_DIMENSIONS = 3
"""Of an array, that of the agents included."""


@final
@documented
@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One field of a ``State``, or one array of a team's ``World``."""

    type: str = "real"
    """``real``, ``int``, ``byte``, ``bool``, or of a team ``agent``: an agent's number, in as few bits as it allows."""
    length: int | Callable[[Mapping[str, Any]], int] = 1
    """How many elements it has for each replica (or agent); or a function of the parameters that says so."""
    shape: Shape | None = None
    """In place of a length: the sizes of an array for each replica (or agent), which is indexed by as many numbers.
    With ``("AGENTS",)`` each agent has a number for every agent: a matrix."""

    def __post_init__(self) -> None:
        """Refuses an unknown type, and an impossible length or shape."""
        if self.type not in FIELD_TYPES:
            raise ValueError(f"a field's type is {self.type!r}; allowed: {', '.join(FIELD_TYPES)}")
        if not callable(self.length):
            object.__setattr__(self, "length", check_count(self.length, "a field's length"))
        if self.shape is not None:
            if self.length != 1:
                raise ValueError(f"a field has the length {self.length!r} and the shape {self.shape!r}; give one")
            object.__setattr__(self, "shape", check_shape(self.shape, "a field's shape"))

    @property
    def is_array(self) -> bool:
        """Whether it is indexed in the rules: all but a length of 1 that no function gave, or no shape."""
        return self.shape is not None or callable(self.length) or self.length != 1

    def sizes(self, params: Mapping[str, Any], what: str = "{} of a field") -> tuple[int, ...]:
        """Its shape under these parameters, for each replica (or agent); of a single number ``()``.

        Args:
            params: The parameters.
            what: Begins a message, with ``{}`` for its shape or length.
        """
        if self.shape is not None:
            return sizes_of(self.shape, params, what.format("the shape"))
        return sizes_of((self.length,), params, what.format("the length")) if self.is_array else ()


def check_shape(given: object, what: str) -> Shape:
    """A shape as far as it is known, or raises what is wrong with it."""
    if callable(given):
        return given
    if not isinstance(given, tuple | list) or not 1 <= len(given) <= MAX_DIMENSIONS:
        raise TypeError(
            f"{what} is {given!r}; give one to {MAX_DIMENSIONS} sizes, such as (3, 4), or a function of the parameters"
        )
    return tuple(n if callable(n) or isinstance(n, str) else check_count(n, f"{what}: a size") for n in given)


def sizes_of(shape: Shape, params: Mapping[str, Any], what: str) -> tuple[int, ...]:
    """A shape under these parameters, or raises what is wrong with it."""
    given = check_shape(evaluate(shape, params, what), what) if callable(shape) else shape
    assert not callable(given)
    return tuple(check_count(_size(size, params, what), what) for size in given)


def _size(size: Size, params: Mapping[str, Any], what: str) -> object:
    if isinstance(size, str):
        return evaluate(operator.itemgetter(size), params, what)
    return evaluate(size, params, what) if callable(size) else size


def check_count(given: object, what: str) -> int:
    """A length, or raises what is wrong with it."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        raise TypeError(f"{what} is {given!r}; give a whole number from 1 up, or a function of the parameters")
    if given < 1:
        raise ValueError(f"{what} is {given}; at least 1")
    return int(given)


Values: TypeAlias = Any
"""Numbers in one to three dimensions: an array, or nested lists."""


@final
@documented
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
        """Refuses wrong types, and wrong numbers where they are known already."""
        if self.type not in _TABLE_TYPES:
            raise ValueError(f"a table's type is {self.type!r}; allowed: {', '.join(_TABLE_TYPES)}")
        known = self.values if callable(self.values) else _checked(self.values, self.type)
        object.__setattr__(self, "values", known)
        same = known if callable(known) else (known.shape, known.tobytes())
        object.__setattr__(self, "_same", same)

    def array(self, params: Mapping[str, Any], what: str = "a table") -> np.ndarray:
        """Its numbers under these parameters: of a table of reals float64.

        Args:
            params: The parameters.
            what: Spec and name, for a message.
        """
        if not callable(self.values):
            return np.asarray(self.values)
        return _checked(evaluate(self.values, params, what), self.type, what)


def _checked(values: Values, kind: str, what: str = "a table") -> np.ndarray:
    dtype = _TABLE_TYPES[kind]
    try:
        given = np.asarray(values)
    except ValueError:
        raise ValueError(f"{what}'s rows are not all of one length; give numbers in one to three dimensions") from None
    if given.dtype.kind not in "biuf" or not 1 <= given.ndim <= 3 or given.size == 0:
        raise ValueError(
            f"{what} has {given.dtype} numbers of shape {given.shape}; give numbers in one to three dimensions"
        )
    if given.dtype.kind == "f" and np.isnan(given).any():
        first = np.argwhere(np.isnan(given))[0].tolist()
        raise ValueError(f"{what} holds NaN (the first at {first}), which is not allowed; give a number that means it")
    made = np.array(given.astype(dtype))
    if not np.array_equal(made, given):
        raise ValueError(f"{what} of type {kind!r} holds numbers that {dtype} cannot hold")
    made.setflags(write=False)
    return made
