"""Where the variables of a function are declared: in the innermost block that has all their uses."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import TypeAlias, final

from gpu_envs.translation import tree
from gpu_envs.translation.sources import Written
from gpu_envs.translation.tree import Block
from gpu_envs.translation.types import BOOL, INT, Array, Number, Thing, Type
from gpu_envs.translation.walk import blocks, literal, places, statements, values, within

Path: TypeAlias = tuple[tuple[int, int], ...]
"""The blocks around a statement, from the outermost on, each with the place in it."""


@final
@dataclasses.dataclass
class _Uses:
    paths: list[Path] = dataclasses.field(default_factory=list)
    stores: int = 0
    kind: Type | None = None


def declared(written: Written, body: Block, parameters: frozenset[tree.Variable]) -> Block:
    """The statements of a function, in which every variable begins where it belongs."""
    found: dict[tree.Variable, _Uses] = collections.defaultdict(_Uses)
    _collect(body, (), found)
    counting = {
        stmt.variable
        for stmt in statements(body)
        if isinstance(stmt, tree.Turns) or (isinstance(stmt, tree.For) and stmt.counter is None)
    }
    homes: dict[tuple[int, int], list[tree.Variable]] = collections.defaultdict(list)
    for variable, uses in found.items():
        if variable.frame >= 0 and variable not in counting and variable not in parameters and uses.stores:
            homes[_home(uses.paths)].append(variable)
    return _Placing(written, found, homes).block(body)


def _collect(block: Block, path: Path, found: dict[tree.Variable, _Uses]) -> None:
    for index, stmt in enumerate(block):
        here = (*path, (id(block), index))
        for expr in (*values(stmt), *places(stmt)):
            for part in within(expr):
                if isinstance(part, tree.Local):
                    found[part.variable].paths.append(here)
                    found[part.variable].kind = part.kind
        for variable in _stored(stmt):
            found[variable].paths.append(here)
            found[variable].stores += 1
            if isinstance(stmt, tree.MakeList):
                found[variable].kind = stmt.kind
            elif isinstance(stmt, tree.For):  # of a float, all other uses say so
                found[variable].kind = found[variable].kind or INT
        for inner in blocks(stmt):
            _collect(inner, here, found)


def _stored(stmt: tree.Stmt) -> Iterator[tree.Variable]:
    if isinstance(stmt, tree.MakeList | tree.For):
        yield stmt.variable
    for place in places(stmt):
        if isinstance(place, tree.Local):
            yield place.variable


def _home(paths: list[Path]) -> tuple[int, int]:
    """The innermost block that has all uses, and the first of its statements that has one."""
    depth = 0
    while all(len(path) > depth for path in paths) and len({path[depth][0] for path in paths}) == 1:
        depth += 1
        if len({path[depth - 1][1] for path in paths}) > 1:
            break
    return paths[0][depth - 1][0], min(path[depth - 1][1] for path in paths)


@final
class _Placing:
    def __init__(
        self,
        written: Written,
        found: Mapping[tree.Variable, _Uses],
        homes: Mapping[tuple[int, int], list[tree.Variable]],
    ) -> None:
        self.written = written
        self.found = found
        self.homes = homes

    def block(self, block: Block) -> Block:
        made: list[tree.Stmt] = []
        for index, stmt in enumerate(block):
            begins = self.homes.get((id(block), index), [])
            at_once = [variable for variable in begins if variable in _begun(stmt)]
            made += [self.declare(variable, stmt) for variable in begins if variable not in at_once]
            made.append(self.statement(stmt, at_once))
        return tuple(made)

    def statement(self, stmt: tree.Stmt, at_once: list[tree.Variable]) -> tree.Stmt:
        match stmt:
            case tree.Store(place=tree.Local(variable=variable)) if variable in at_once:
                uses = self.found[variable]
                return dataclasses.replace(
                    stmt, declares=True, constant=uses.stores == 1 and not isinstance(uses.kind, Thing)
                )
            case tree.MakeList(variable=variable) if variable not in at_once:
                raise self.several(variable, stmt)
            case tree.If():
                return dataclasses.replace(stmt, yes=self.block(stmt.yes), no=self.block(stmt.no))
            case tree.While() | tree.For() | tree.Turns():
                return dataclasses.replace(stmt, body=self.block(stmt.body))
        return stmt

    def declare(self, variable: tree.Variable, stmt: tree.Stmt) -> tree.Store:
        kind = self.found[variable].kind
        if isinstance(kind, Array | Thing):
            raise self.several(variable, next(inner for inner in statements((stmt,)) if variable in _stored(inner)))
        assert kind is not None
        known = isinstance(kind, Number)
        zero = literal(False if kind is BOOL else 0) if known else tree.Constant(kind, 0, "{}")
        return tree.Store(stmt.at, tree.Local(kind, variable), zero, declares=True)

    def several(self, variable: tree.Variable, stmt: tree.Stmt) -> Exception:
        made = "Make it once, before, and fill it"
        if not isinstance(stmt, tree.MakeList):
            made = "Make it once, with a conditional expression: a if c else b"
        what = "the list " if isinstance(stmt, tree.MakeList) else ""
        return self.written.error(stmt.at, f"{what}{variable.name!r} is made in several places", made)


def _begun(stmt: tree.Stmt) -> list[tree.Variable]:
    """The variables that a statement gives their first value."""
    if isinstance(stmt, tree.MakeList):
        return [stmt.variable]
    if isinstance(stmt, tree.Store) and not stmt.sign and isinstance(stmt.place, tree.Local):
        return [stmt.place.variable]
    return []


def read_in(body: Block) -> frozenset[tree.Variable]:
    """The variables that are read."""
    read = set()
    for stmt in statements(body):
        exprs = list(values(stmt))
        for place in places(stmt):
            if isinstance(stmt, tree.Store) and not stmt.sign and isinstance(place, tree.Local):
                continue
            exprs.append(place)
        read |= {part.variable for expr in exprs for part in within(expr) if isinstance(part, tree.Local)}
    return frozenset(read)
