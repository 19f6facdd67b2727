"""What a spec derives from parameters by functions: called, with errors that say whose they are."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from gpu_envs.errors import did_you_mean


class NotFixedError(ValueError):
    """A function asked for a parameter that may change, or for a reset option."""


@final
class FixedParams(Mapping[str, Any]):
    """Of all parameters those on which memory may depend: the others, which may change, are refused."""

    def __init__(self, fixed: frozenset[str], values: Mapping[str, Any]) -> None:
        """Takes the names of those that may be looked at, and all values."""
        self._fixed, self._values = fixed, values

    def also(self, values: Mapping[str, Any]) -> "FixedParams":
        """These, and further values that stay."""
        return FixedParams(self._fixed | values.keys(), {**self._values, **values})

    def __getitem__(self, name: str) -> Any:
        """The value of a fixed parameter."""
        value = self._values[name]
        if name not in self._fixed:
            raise NotFixedError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        """The names of those that may be looked at."""
        return (name for name in self._values if name in self._fixed)

    def __len__(self) -> int:
        """How many those are."""
        return sum(1 for _ in self)


def evaluate(function: Callable[[Mapping[str, Any]], Any], params: Mapping[str, Any], what: str) -> Any:
    """What a function makes of the parameters, or a ValueError that says what it did wrong.

    Args:
        function: The function.
        params: The parameters.
        what: Spec and field, for a message.
    """
    name = getattr(function, "__name__", "it")
    try:
        return function(params)
    except NotFixedError as error:
        raise ValueError(
            f"{what}: {name} asks for {error.args[0]!r}, which may change, and memory depends on it: make it a "
            "parameter and mark it fixed=True"
        ) from error
    except KeyError as error:
        known = ", ".join(params)
        raise ValueError(
            f"{what}: {name} asks for the parameter {error.args[0]!r}"
            f"{did_you_mean(str(error.args[0]), params)} There are: {known or 'none'}"
        ) from error
    except Exception as error:
        raise ValueError(f"{what}: {name} raised {type(error).__name__}: {error}") from error
