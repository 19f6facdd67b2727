"""Mappings to an environment's live state and parameters, by name."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import numpy as np

from gpu_envs.backend.arrays import Array, Arrays, dtype_name, to_numpy
from gpu_envs.errors import did_you_mean


@final
class LiveState(Mapping[str, Array]):
    """The state by field, views of the simulation's memory. Assigning to a field writes into this memory."""

    def __init__(self, fields: Mapping[str, Array], arrays: Arrays) -> None:
        """Wrap the fields; ``arrays`` writes into them."""
        self._fields = dict(fields)
        self._arrays = arrays

    def __getitem__(self, name: str) -> Array:
        """Return a field, ``[num_envs]``, per agent ``[num_envs, num_agents]``; arrays have a last dimension more."""
        return get_or_suggest(self._fields, name, "the state has no field")

    def __contains__(self, name: object) -> bool:
        """Return whether a field has this name."""
        return name in self._fields

    def __setitem__(self, name: str, values: Any) -> None:
        """Write a field: one value for all replicas, or one for each."""
        self._arrays.write(self[name], as_field(self[name], values, repr(name)))

    def __iter__(self) -> Iterator[str]:
        """Return the names of the fields, in the spec's order."""
        return iter(self._fields)

    def __len__(self) -> int:
        """Return the number of fields."""
        return len(self._fields)

    def __repr__(self) -> str:
        """Show names, types and shapes of the fields."""
        fields = (f"{name}: {dtype_name(field)}{[*field.shape]}" for name, field in self._fields.items())
        return f"LiveState({', '.join(fields)})"


@final
class LiveParams(Mapping[str, Any]):
    """The parameters by name; values per replica are live arrays. Assigning to a parameter is ``set_attr``."""

    def __init__(self, values: Callable[[], Mapping[str, Any]], assign: Callable[[str, Any], None]) -> None:
        """Wrap a function that returns all parameters, and a function that sets a parameter."""
        self._values, self._assign = values, assign

    def __getitem__(self, name: str) -> Any:
        """Return the value for all replicas, or a live array with bools as 0 and 1 and choices as indices."""
        return get_or_suggest(self._values(), name, "there is no parameter")

    def __contains__(self, name: object) -> bool:
        """Return whether a parameter has this name."""
        return name in self._values()

    def __setitem__(self, name: str, values: Any) -> None:
        """Set a parameter: one value for all replicas, or one for each."""
        self._assign(name, values)

    def __iter__(self) -> Iterator[str]:
        """Return the names, in the spec's order."""
        return iter(self._values())

    def __len__(self) -> int:
        """Return the number of parameters."""
        return len(self._values())

    def __repr__(self) -> str:
        """Show the parameters."""
        return f"LiveParams({dict(self)!r})"


def get_or_suggest(values: Mapping[str, Any], name: str, absent: str) -> Any:
    """Return ``values[name]``, or raise a ``KeyError`` that starts with ``absent`` and suggests the closest name."""
    try:
        return values[name]
    except (KeyError, TypeError):
        raise KeyError(f"{absent} {name!r}{did_you_mean(str(name), values)} There are: {', '.join(values)}") from None


def as_field(array: Array, values: Any, what: str) -> np.ndarray:
    """Return values in the shape and dtype of an array, or raise an error if they do not fit; writes nothing.

    Args:
        array: An array of the state, or one like it.
        values: One value for all replicas, or one for each; an array of any library.
        what: Start of the message.
    """
    source, shape, dtype = to_numpy(values), tuple(array.shape), dtype_name(array)
    if source.shape not in ((), shape[1:], shape):
        shared = f", {shape[1:]} for all replicas" if shape[1:] else ""
        raise ValueError(f"{what} got values of shape {source.shape}; expected {shape}{shared}, or one value for all")
    if source.dtype.kind not in "biuf":
        raise TypeError(f"{what} got values of dtype {source.dtype}; expected numbers")
    with np.errstate(invalid="ignore"):
        converted = source.astype(dtype)
    if converted.dtype.kind in "iu" and (converted != source).any():
        raise ValueError(f"{what} got {source[converted != source].flat[0]}, which {dtype} cannot hold")
    return np.broadcast_to(converted, shape)
