"""Fields of the state, and read-only tables."""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import numpy as np

from gpu_envs.documented import documented
from gpu_envs.specs.evaluate import evaluate

FIELD_TYPES = ("real", "int", "byte", "agent", "bool")

_TABLE_TYPES = {"real": "float64", "int": "int32", "byte": "uint8", "bool": "bool"}


def check_types(what: str, mapping: object, kind: type, example: str) -> None:
    """Raises a TypeError unless this is a mapping from names to values of the class ``kind``, such as ``example``."""
    if not isinstance(mapping, Mapping):
        raise TypeError(f"{what} is {mapping!r}; give a mapping by name, such as {{'name': {example}}}")
    for name, value in mapping.items():
        if not isinstance(value, kind):
            raise TypeError(f"{what}: {name!r} is {value!r}; give a {kind.__name__}, such as {example}")


Size: TypeAlias = int | str | Callable[[Mapping[str, Any]], int]
"""An integer, the name of an integer parameter (of a team also ``"AGENTS"``), or a function of the parameters."""

Shape: TypeAlias = tuple[Size, ...] | Callable[[Mapping[str, Any]], tuple[int, ...]]
"""Sizes, or a function of the parameters that returns them."""

MAX_DIMENSIONS = 3
"""Maximum number of dimensions of an array, including the dimension of the agents."""


@final
@documented
@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field of ``State``, or of a team's ``World``."""

    type: str = "real"
    """``real``, ``int``, ``byte`` or ``bool``; of a team also ``agent``: index of an agent, of minimum size."""
    length: int | Callable[[Mapping[str, Any]], int] = 1
    """Number of elements for each replica (or agent), or a function of the parameters that returns it."""
    shape: Shape | None = None
    """Shape for each replica (or agent), instead of a length. With ``("AGENTS",)`` each agent has an element for every
    agent: a matrix."""

    def __post_init__(self) -> None:
        """Validates the type, and the length or shape."""
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
        """Whether the rules index the field: unless its length is the constant 1 and it has no shape."""
        return self.shape is not None or callable(self.length) or self.length != 1

    def sizes(self, params: Mapping[str, Any], what: str = "{} of a field") -> tuple[int, ...]:
        """Shape under these parameters, for each replica (or agent); ``()`` for a scalar.

        ``what``: start of messages, with ``{}`` for "the shape" or "the length".
        """
        if self.shape is not None:
            return sizes_of(self.shape, params, what.format("the shape"))
        return sizes_of((self.length,), params, what.format("the length")) if self.is_array else ()


def check_shape(shape: object, what: str) -> Shape:
    """Validates a shape of one or more sizes; sizes that are names or functions are checked later, with parameters."""
    if callable(shape):
        return shape
    if not isinstance(shape, tuple | list) or not 1 <= len(shape) <= MAX_DIMENSIONS:
        raise TypeError(
            f"{what} is {shape!r}; give one to {MAX_DIMENSIONS} sizes, such as (3, 4), or a function such as lambda "
            "params: (params['n'], 2)"
        )
    return tuple(n if callable(n) or isinstance(n, str) else check_count(n, f"{what}: a size") for n in shape)


def sizes_of(shape: Shape, params: Mapping[str, Any], what: str) -> tuple[int, ...]:
    """Evaluates and validates a shape under these parameters."""
    evaluated = check_shape(evaluate(shape, params, what), what) if callable(shape) else shape
    assert not callable(evaluated)
    return tuple(check_count(_size(size, params, what), what) for size in evaluated)


def _size(size: Size, params: Mapping[str, Any], what: str) -> object:
    if isinstance(size, str):
        return evaluate(operator.itemgetter(size), params, what)
    return evaluate(size, params, what) if callable(size) else size


def check_count(count: object, what: str) -> int:
    """Validates a length or size, and returns it as an int."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise TypeError(
            f"{what} is {count!r}; give an integer of at least 1, or a function such as lambda params: params['n']"
        )
    if count < 1:
        raise ValueError(f"{what} is {count}; give an integer of at least 1")
    return int(count)


Values: TypeAlias = Any
"""Array, or nested lists, with one to three dimensions."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Table:
    """Read-only array shared by all replicas, such as a map or a curve. It is stored once on the device."""

    values: Values | Callable[[Mapping[str, Any]], Values] = dataclasses.field(compare=False)
    """The array, or a function of the ``fixed`` parameters that returns it."""
    type: str = "real"
    """``real``, ``int``, ``byte`` or ``bool``."""
    _key: object = dataclasses.field(init=False, repr=False)
    """Compared by ``==`` instead of the values."""

    def __post_init__(self) -> None:
        """Validates the type, and the values unless they depend on parameters."""
        if self.type not in _TABLE_TYPES:
            raise ValueError(f"a table's type is {self.type!r}; allowed: {', '.join(_TABLE_TYPES)}")
        values = self.values if callable(self.values) else _checked(self.values, self.type)
        object.__setattr__(self, "values", values)
        key = values if callable(values) else (values.shape, values.tobytes())
        object.__setattr__(self, "_key", key)

    def array(self, params: Mapping[str, Any], what: str = "a table") -> np.ndarray:
        """Values for these parameters, as NumPy array; float64 if the type is ``real``. Errors start with ``what``."""
        if not callable(self.values):
            return np.asarray(self.values)
        return _checked(evaluate(self.values, params, what), self.type, what)


def _checked(values: Values, kind: str, what: str = "a table") -> np.ndarray:
    """Validates a table's values, and returns them as a read-only array with the dtype of the type ``kind``."""
    dtype = _TABLE_TYPES[kind]
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{what} has rows of different lengths; give an array of one to three dimensions") from None
    if array.dtype.kind not in "biuf" or not 1 <= array.ndim <= 3 or array.size == 0:
        raise ValueError(
            f"{what} is an array of {array.dtype} with shape {array.shape}; give numbers, in one to three dimensions"
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        first = np.argwhere(np.isnan(array))[0].tolist()
        raise ValueError(f"{what} holds NaN (the first at {first}), which is not allowed; use a number as the marker")
    converted = np.array(array.astype(dtype))
    if not np.array_equal(converted, array):
        raise ValueError(
            f"{what} of type {kind!r} holds numbers that {dtype} cannot represent; give others, or another type"
        )
    converted.setflags(write=False)
    return converted
