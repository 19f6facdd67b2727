"""The live state of an environment, field by field."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import numpy as np

from gpu_envs.backend.arrays import Array, Arrays, to_numpy
from gpu_envs.errors import did_you_mean


@final
class LiveState(Mapping[str, Array]):
    """The state, field by field: the simulation's own memory. Assigning to a field writes into it."""

    def __init__(self, fields: Mapping[str, Array], arrays: Arrays) -> None:
        """Keeps the fields."""
        self._fields = dict(fields)
        self._arrays = arrays

    def __getitem__(self, name: str) -> Array:
        """Return a field: ``[num_envs]``, of agents ``[num_envs, num_agents]``; of arrays ``[..., length]``."""
        return item(self._fields, name, "the state has no field")

    def __contains__(self, name: object) -> bool:
        """Return whether there is a field of this name."""
        return name in self._fields

    def __setitem__(self, name: str, values: Any) -> None:
        """Writes a field: one value for all replicas, or one for each."""
        self._arrays.write(self[name], as_field(self[name], values, repr(name)))

    def __iter__(self) -> Iterator[str]:
        """The names of the fields, in the spec's order."""
        return iter(self._fields)

    def __len__(self) -> int:
        """The number of fields."""
        return len(self._fields)

    def __repr__(self) -> str:
        """Show names, types and shapes of the fields."""
        shown = (f"{name}: {_type(field)}{[*field.shape]}" for name, field in self._fields.items())
        return f"LiveState({', '.join(shown)})"


@final
class LiveParams(Mapping[str, Any]):
    """The parameters: those that replicas have their own of as live arrays. Assigning to one is ``set_attr``."""

    def __init__(self, values: Callable[[], Mapping[str, Any]], assign: Callable[[str, Any], None]) -> None:
        """Keeps what gives all of them, and what sets one."""
        self._values, self._assign = values, assign

    def __getitem__(self, name: str) -> Any:
        """Return a value for all replicas, or a live array; switches are 0 and 1 there, choices their indices."""
        return item(self._values(), name, "there is no parameter")

    def __contains__(self, name: object) -> bool:
        """Return whether there is a parameter of this name."""
        return name in self._values()

    def __setitem__(self, name: str, values: Any) -> None:
        """Sets a parameter: one value for all replicas, or one for each."""
        self._assign(name, values)

    def __iter__(self) -> Iterator[str]:
        """The names, in the spec's order."""
        return iter(self._values())

    def __len__(self) -> int:
        """The number of parameters."""
        return len(self._values())

    def __repr__(self) -> str:
        """Shows the parameters."""
        return f"LiveParams({dict(self)!r})"


def item(values: Mapping[str, Any], name: str, absent: str) -> Any:
    """Return the value of a name, or raise a ``KeyError`` that suggests the name meant.

    Args:
        values: The values by name.
        name: The name.
        absent: Start of the message.
    """
    try:
        return values[name]
    except (KeyError, TypeError):
        raise KeyError(f"{absent} {name!r}{did_you_mean(str(name), values)} There are: {', '.join(values)}") from None


def _type(array: Array) -> str:
    return str(array.dtype).rpartition(".")[2]


def as_field(array: Array, values: Any, what: str) -> np.ndarray:
    """Values of any library as an array of the simulation's holds them, or an error that says what is wrong.

    Args:
        array: The array.
        values: One for all replicas, or one for each.
        what: Begins the message.
    """
    given, shape, kind = to_numpy(values), tuple(array.shape), _type(array)
    if given.shape not in ((), shape[1:], shape):
        each = f", {shape[1:]} for all replicas" if shape[1:] else ""
        raise ValueError(f"{what} got values of shape {given.shape}; expected {shape}{each}, or one value for all")
    if given.dtype.kind not in "biuf":
        raise TypeError(f"{what} got values of dtype {given.dtype}; expected numbers")
    with np.errstate(invalid="ignore"):
        made = given.astype(kind)
    if made.dtype.kind in "iu" and (made != given).any():
        raise ValueError(f"{what} got {given[made != given].flat[0]}, which {kind} cannot hold")
    return np.broadcast_to(made, shape)
