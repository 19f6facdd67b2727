"""Names from outside a function, and elements of what they name."""

from typing import Any

import numpy as np

from gpu_envs import rules
from gpu_envs.errors import did_you_mean
from gpu_envs.translation.arguments import element
from gpu_envs.translation.reading.reader import Reader
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Constant, Expr
from gpu_envs.translation.types import STREAM
from gpu_envs.translation.walk import known, literal

_IMPORTED = frozenset(
    name
    for name, found in vars(rules).items()
    if not name.startswith("_")
    and (isinstance(found, rules.Stream) or getattr(found, "__module__", "") == rules.__name__)
)
"""The names of ``gpu_envs.rules``."""


def outside(reader: Reader, name: str) -> Expr:
    """What a name from outside the function means."""
    capitals = reader.unit.arguments.capitals
    try:
        found = reader.written.find(name)
    except KeyError:
        if name in capitals:
            return capitals[name]
        if name in _IMPORTED:
            raise RefusedError(f"{name!r} is not imported", f"from gpu_envs.rules import {name}") from None
        module = (word for word in reader.written.function.__globals__ if not word.startswith("_"))
        words = {*reader.names, *capitals, *reader.arguments, *module} - {name}
        raise RefusedError(
            f"{name!r} is not known here{did_you_mean(name, words)}".rstrip("."),
            "Known are locals, arguments, functions and numbers of the module, and the spec's constants in capitals",
        ) from None
    return meaning(reader, found)


def meaning(reader: Reader, found: Any) -> Expr:
    """Something of the module, or of Python's."""
    if isinstance(found, rules.Constant):
        capitals = reader.unit.arguments.capitals
        if found.name not in capitals:
            raise RefusedError(
                f"the spec has no constant {found.name}{did_you_mean(found.name, capitals)}".rstrip("."),
                "Constants are AGENTS, the roles and the parameters marked fixed, in capitals",
            )
        return capitals[found.name]
    if isinstance(found, rules.Stream):
        return Constant(STREAM, found, "RESET" if found is rules.RESET else "STEP")
    if isinstance(found, np.ndarray) and found.ndim == 0:
        raise RefusedError(
            "this is an array without dimensions, and not a number", "Make it one in the module: float(...)"
        )
    if isinstance(found, np.generic):
        found = found.item()
    if isinstance(found, int) and not isinstance(found, bool):
        found = int(found)  # of an enum
    return literal(found)


def of_constants(reader: Reader, values: Any, indices: list[Expr]) -> Expr:
    """An element of a tuple, a list or an array of the module's."""
    if not all(isinstance(index, Constant) for index in indices):
        return element(reader.unit.constants(_resolved(reader, values)), indices)
    found = values
    for index in indices:
        try:
            found = found[known(index)]
        except (IndexError, TypeError):
            raise RefusedError(f"index {known(index)} is outside") from None
    return meaning(reader, found)


def _resolved(reader: Reader, values: Any) -> Any:
    """The same numbers, with those in place of the spec's constants."""
    if isinstance(values, tuple | list):
        return [_resolved(reader, value) for value in values]
    return known(meaning(reader, values)) if isinstance(values, rules.Constant) else values
