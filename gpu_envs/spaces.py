"""What a spec says of observations and actions: a space, or a function of the parameters that gives one."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium

from gpu_envs.errors import did_you_mean
from gpu_envs.params import Value

SpaceSource: TypeAlias = gymnasium.Space[Any] | Callable[[Mapping[str, Any]], gymnasium.Space[Any]]
"""A space, or a function that derives it from the parameters."""


def space_of(source: SpaceSource, params: Mapping[str, Value], what: str = "a space") -> gymnasium.Space[Any]:
    """A space, derived from the parameters where it depends on them.

    Args:
        source: The space, or what derives it.
        params: The parameters.
        what: Spec and field, for a message.
    """
    if isinstance(source, gymnasium.Space):
        return source
    name = getattr(source, "__name__", "the function")
    try:
        space = source(params)
    except KeyError as error:
        known = ", ".join(params)
        raise ValueError(
            f"{what}: {name} asks for the parameter {error.args[0]!r}"
            f"{did_you_mean(str(error.args[0]), params)} There are: {known or 'none'}"
        ) from error
    except Exception as error:
        raise ValueError(f"{what}: {name} raised {type(error).__name__}: {error}") from error
    if not isinstance(space, gymnasium.Space):
        raise TypeError(f"{what}: {name} returned {space!r}; expected a space of Gymnasium's")
    return space


def check_space(what: str, given: object) -> None:
    """Refuses what is neither a space nor a function that derives one."""
    if isinstance(given, type) or not (isinstance(given, gymnasium.Space) or callable(given)):
        raise TypeError(
            f"{what} is {given!r}; give a space of Gymnasium's, such as Discrete(2), or a function of the parameters "
            "that returns one"
        )
