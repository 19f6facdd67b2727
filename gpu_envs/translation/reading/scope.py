"""Whose a name is: the variables of a function and of its phases' turns."""

import ast
from collections.abc import Callable, Iterator
from typing import TypeAlias

from gpu_envs.translation.reading.reader import Frame

Nested: TypeAlias = Callable[[ast.For], bool]
"""Whether a loop's turns have variables of their own: a phase, or the columns of a row."""


def frame_of(number: int, body: list[ast.stmt], nested: Nested, counts: str = "") -> Frame:
    """The variables of a function, or of a turn that ``counts``, whose body this is."""
    uses = [use for statement in body for use in _uses(statement, (), nested)]
    stored = frozenset(name.id for name, _ in uses if isinstance(name.ctx, ast.Store))
    own = frozenset(n for n in stored if all(_belongs(use, loops) for use, loops in uses if use.id == n))
    return Frame(number, stored | ({counts} if counts else set()), own)


def _uses(node: ast.AST, loops: tuple[ast.For, ...], nested: Nested) -> Iterator[tuple[ast.Name, tuple[ast.For, ...]]]:
    """Each name, and the loops around it; names that belong to a turn within are left out."""
    if isinstance(node, ast.Name):
        yield node, loops
    elif isinstance(node, ast.For) and nested(node):
        yield from _uses(node.iter, loops, nested)
        inner = [use for part in node.body for use in _uses(part, loops, nested)]
        own = {use.id for use, _ in inner if isinstance(use.ctx, ast.Store)}
        own |= {part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)}
        yield from (use for use in inner if use[0].id not in own)
    elif isinstance(node, ast.For):
        yield from _uses(node.iter, loops, nested)
        for part in (node.target, *node.body, *node.orelse):
            yield from _uses(part, (*loops, node), nested)
    else:
        for part in ast.iter_child_nodes(node):
            yield from _uses(part, loops, nested)


def _belongs(use: ast.Name, loops: tuple[ast.For, ...]) -> bool:
    counting = [loop for loop in loops if isinstance(loop.target, ast.Name) and loop.target.id == use.id]
    return len(counting) == 1 and (use is counting[0].target or isinstance(use.ctx, ast.Load))
