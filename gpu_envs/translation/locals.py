"""Where the local variables of a function belong: which block of C++ declares them."""

import ast
import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeAlias, final

Path: TypeAlias = tuple[tuple[int, int], ...]
"""The blocks around a statement, from the outermost on, each with the place in it."""

Nested: TypeAlias = Callable[[ast.For], bool]
"""Whether a loop's turns have variables of their own: a phase, or the columns of a row."""


@final
@dataclasses.dataclass(frozen=True)
class _Use:
    name: str
    stored: bool
    path: Path
    loops: tuple[ast.For, ...]
    """The loops around it."""
    counts: bool = False
    """A loop counts with it."""


@final
@dataclasses.dataclass(frozen=True)
class Frame:
    """The variables of a function, or of a turn of a phase."""

    owner: ast.AST
    stored: frozenset[str]
    """Names that are assigned in it."""
    before: dict[tuple[int, int], tuple[str, ...]]
    """Which variables are declared before a statement, by its block and its place there."""
    at_first: frozenset[str]
    """Those that are declared where they are first assigned."""
    once: frozenset[str]
    """Those that are assigned in a single place, no loop's."""
    own: frozenset[str]
    """Those that belong to the loops that count with them."""


def frame_of(owner: ast.AST, body: list[ast.stmt], nested: Nested) -> Frame:
    """The variables of a function or of a loop, whose body this is."""
    uses: dict[str, list[_Use]] = {}
    for use in _block(body, (), (), nested):
        uses.setdefault(use.name, []).append(use)
    stored = {name: found for name, found in uses.items() if any(use.stored for use in found)}
    own = frozenset(name for name, found in stored.items() if _is_own(name, found))
    before: dict[tuple[int, int], tuple[str, ...]] = {}
    at_first: set[str] = set()
    blocks = dict(_blocks(body))
    for name, found in stored.items():
        if name in own:
            continue
        block, index = _home(found)
        if _assigns(blocks[block][index], name):
            at_first.add(name)
        else:
            before[block, index] = (*before.get((block, index), ()), name)
    once = frozenset(name for name, found in stored.items() if sum(use.stored for use in found) == 1)
    return Frame(owner, frozenset(stored), before, frozenset(at_first), once, own)


def _home(uses: list[_Use]) -> tuple[int, int]:
    """The innermost block that has all uses, and the first of its statements that has one."""
    depth = 0
    while all(len(use.path) > depth for use in uses) and len({use.path[depth][0] for use in uses}) == 1:
        depth += 1
        if len({use.path[depth - 1][1] for use in uses}) > 1:
            break
    return uses[0].path[depth - 1][0], min(use.path[depth - 1][1] for use in uses)


def _assigns(statement: ast.stmt, name: str) -> bool:
    """Whether a statement is an assignment to the name."""
    if isinstance(statement, ast.AnnAssign):
        return statement.value is not None and isinstance(statement.target, ast.Name) and statement.target.id == name
    if not isinstance(statement, ast.Assign):
        return False
    return any(isinstance(part, ast.Name) and part.id == name for target in statement.targets for part in parts(target))


def parts(target: ast.expr) -> list[ast.expr]:
    """The targets of ``a, b = ...``, or the one of ``a = ...``."""
    return list(target.elts) if isinstance(target, ast.Tuple | ast.List) else [target]


def _is_own(name: str, uses: list[_Use]) -> bool:
    """Whether all uses lie in loops that count with the name, none of them within another, and nothing else sets it."""
    counting = [[loop for loop in use.loops if _counts(loop, name)] for use in uses]
    return all(len(loops) == 1 for loops in counting) and all(use.counts for use in uses if use.stored)


def _counts(loop: ast.For, name: str) -> bool:
    return isinstance(loop.target, ast.Name) and loop.target.id == name


def _blocks(body: list[ast.stmt]) -> Iterator[tuple[int, list[ast.stmt]]]:
    yield id(body), body
    for statement in body:
        for _, value in ast.iter_fields(statement):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield from _blocks(value)


def _block(body: list[ast.stmt], path: Path, loops: tuple[ast.For, ...], nested: Nested) -> Iterator[_Use]:
    for index, statement in enumerate(body):
        yield from _statement(statement, (*path, (id(body), index)), loops, nested)


def _statement(node: ast.stmt, path: Path, loops: tuple[ast.For, ...], nested: Nested) -> Iterator[_Use]:
    if isinstance(node, ast.For):
        yield from _names(node.iter, path, loops)
        if nested(node):
            inner = list(_block(node.body, path, loops, nested))
            own = {use.name for use in inner if use.stored} | {n.id for n in _loaded(node.target)}
            yield from (dataclasses.replace(use, path=path) for use in inner if use.name not in own)
            return
        within = (*loops, node)
        for name in _loaded(node.target):
            yield _Use(name.id, True, path, within, counts=isinstance(node.target, ast.Name))
        yield from _block(node.body, path, within, nested)
        return
    for field, value in ast.iter_fields(node):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield from _block(value, path, loops, nested)
        elif isinstance(value, ast.AST):
            yield from _names(value, path, loops)
            if field == "target" and isinstance(node, ast.AugAssign) and isinstance(value, ast.Name):
                yield _Use(value.id, False, path, loops)
        elif isinstance(value, list):
            for part in value:
                if isinstance(part, ast.AST):
                    yield from _names(part, path, loops)


def _names(node: ast.AST, path: Path, loops: tuple[ast.For, ...]) -> Iterator[_Use]:
    for name in _loaded(node):
        yield _Use(name.id, isinstance(name.ctx, ast.Store), path, loops)


def _loaded(node: ast.AST) -> Iterator[ast.Name]:
    return (found for found in ast.walk(node) if isinstance(found, ast.Name))
