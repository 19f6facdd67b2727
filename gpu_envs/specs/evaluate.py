"""Calls functions of the parameters in a spec, and names the spec and field in errors."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from gpu_envs.errors import did_you_mean


class NotFixedError(ValueError):
    """A function read a parameter that is not ``fixed``, or a reset option."""


@final
class FixedParams(Mapping[str, Any]):
    """Parameters that memory may depend on; reading any other raises ``NotFixedError``."""

    def __init__(self, fixed: frozenset[str], values: Mapping[str, Any]) -> None:
        """Takes the names of the readable parameters, and all values."""
        self._fixed, self._values = fixed, values

    def also(self, values: Mapping[str, Any]) -> "FixedParams":
        """Returns these parameters with further fixed values."""
        return FixedParams(self._fixed | values.keys(), {**self._values, **values})

    def __getitem__(self, name: str) -> Any:
        """The value of a fixed parameter."""
        value = self._values[name]
        if name not in self._fixed:
            raise NotFixedError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        """Names of the fixed parameters."""
        return (name for name in self._values if name in self._fixed)

    def __len__(self) -> int:
        """Number of fixed parameters."""
        return sum(1 for _ in self)


def evaluate(function: Callable[[Mapping[str, Any]], Any], params: Mapping[str, Any], what: str) -> Any:
    """Returns a function's value for these parameters; if it fails, raises a ValueError that starts with ``what``."""
    name = getattr(function, "__name__", "it")
    try:
        return function(params)
    except NotFixedError as error:
        raise ValueError(
            f"{what}: {name} reads {error.args[0]!r}, which may change, and memory depends on it: make it a "
            "parameter and mark it fixed=True"
        ) from error
    except KeyError as error:
        raise ValueError(
            f"{what}: {name} reads the parameter {error.args[0]!r}, which does not exist"
            f"{did_you_mean(str(error.args[0]), params)} There are: {', '.join(params) or 'none'}"
        ) from error
    except Exception as error:
        raise ValueError(f"{what}: {name} raised {type(error).__name__}: {error}") from error
