"""Names from outside a function, and elements of what they name."""

import ast
import dataclasses
from typing import Any

import numpy as np

from gpu_envs import rules
from gpu_envs.errors import did_you_mean
from gpu_envs.translation.arguments import element, index_code
from gpu_envs.translation.body import Body
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.values import STREAM, Elements, Value, literal

_IMPORTED = frozenset(
    name
    for name, found in vars(rules).items()
    if not name.startswith("_")
    and (isinstance(found, rules.Stream) or getattr(found, "__module__", "") == rules.__name__)
)
"""The names of ``gpu_envs.rules``."""


def outside(body: Body, name: str) -> Value:
    """What a name from outside the function means."""
    capitals = body.unit.arguments.capitals
    try:
        found = body.written.find(name)
    except KeyError:
        if name in capitals:
            return capitals[name]
        if name in _IMPORTED:
            raise RefusedError(f"{name!r} is not imported", f"from gpu_envs.rules import {name}") from None
        module = (word for word in body.written.function.__globals__ if not word.startswith("_"))
        words = {*body.names, *capitals, *body.arguments, *module} - {name}
        raise RefusedError(
            f"{name!r} is not known here{did_you_mean(name, words)}".rstrip("."),
            "Known are locals, arguments, functions and numbers of the module, and the spec's constants in capitals",
        ) from None
    return known(body, found)


def known(body: Body, found: Any) -> Value:
    """Something of the module, or of Python's."""
    if isinstance(found, rules.Constant):
        capitals = body.unit.arguments.capitals
        if found.name not in capitals:
            raise RefusedError(
                f"the spec has no constant {found.name}{did_you_mean(found.name, capitals)}".rstrip("."),
                "Constants are AGENTS, the roles and the parameters marked fixed, in capitals",
            )
        return capitals[found.name]
    if isinstance(found, rules.Stream):
        return Value("RESET" if found is rules.RESET else "STEP", STREAM)
    if isinstance(found, np.ndarray) and found.ndim == 0:
        raise RefusedError(
            "this is an array without dimensions, and not a number", "Make it one in the module: float(...)"
        )
    if isinstance(found, np.generic):
        found = found.item()
    if isinstance(found, int) and not isinstance(found, bool):
        found = int(found)  # of an enum
    return literal(found)


def indexed(of: Value, indices: list[Value], node: ast.Subscript) -> Value:
    """An element; or of a table a row, in ``p.map[row][column]``."""
    kind, given = of.type, len(indices)
    assert isinstance(kind, Elements)
    if given >= len(kind.sizes) or kind.flat:
        return element(of, indices)
    codes = [index_code(index, size) for index, size in zip(indices, kind.sizes, strict=False)]
    shifted = [f"{{{n + 1 - given}}}" for n in range(given, len(kind.sizes))]
    form = kind.form.format("{0}", *codes, *shifted)
    others = ("row", "column") if len(kind.sizes) == 2 else ("i", "j", "k")
    partly = f"{ast.unparse(node)[:-1]}, {', '.join(others[given : len(kind.sizes)])}]"
    return dataclasses.replace(of, type=dataclasses.replace(kind, sizes=kind.sizes[given:], form=form, partly=partly))


def of_constants(body: Body, of: Value, indices: list[Value], node: ast.Subscript) -> Value:
    """An element of a tuple, a list or an array of the module's."""
    if all(index.constant is not None for index in indices):
        found = of.constant
        for index in indices:
            try:
                found = found[index.constant]
            except (IndexError, TypeError):
                raise RefusedError(f"index {index.constant} is outside") from None
        return literal(found.item() if isinstance(found, np.generic) else found)
    return indexed(body.unit.constants(of.constant), indices, node)
