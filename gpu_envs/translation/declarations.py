"""Where the variables of a function are declared: in the innermost block that has all their uses."""

import collections
import dataclasses
from typing import TypeAlias, final

from gpu_envs.translation import tree
from gpu_envs.translation.sources import Written
from gpu_envs.translation.tree import Block
from gpu_envs.translation.types import BOOL, INT, Array, Number, Thing, Type
from gpu_envs.translation.walk import blocks, expressions, literal, parts, places, statements, with_blocks, within

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
    placing = _Placing(written)
    placing.collect(body, ())
    counting = {
        stmt.variable
        for stmt in statements(body)
        if isinstance(stmt, tree.Turns) or (isinstance(stmt, tree.For) and stmt.counter is None)
    }
    for variable, uses in placing.uses.items():
        if variable.frame >= 0 and variable not in counting and variable not in parameters and uses.stores:
            placing.homes[_home(uses.paths)].append(variable)
    return placing.block(body)


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
    def __init__(self, written: Written) -> None:
        self.written = written
        self.uses: dict[tree.Variable, _Uses] = collections.defaultdict(_Uses)
        self.homes: dict[tuple[int, int], list[tree.Variable]] = collections.defaultdict(list)

    def collect(self, block: Block, path: Path) -> None:
        for index, stmt in enumerate(block):
            here = (*path, (id(block), index))
            for part in expressions(stmt):
                if isinstance(part, tree.Local):
                    self.uses[part.variable].paths.append(here)
                    self.uses[part.variable].kind = part.kind
            for variable in _stored(stmt):
                uses = self.uses[variable]
                uses.paths.append(here)
                uses.stores += 1
                if isinstance(stmt, tree.MakeList):
                    uses.kind = stmt.kind
                elif isinstance(stmt, tree.For):  # of a float, all other uses say so
                    uses.kind = uses.kind or INT
            for inner in blocks(stmt).values():
                self.collect(inner, here)

    def block(self, block: Block) -> Block:
        made: list[tree.Stmt] = []
        for index, stmt in enumerate(block):
            begun = []
            for variable in self.homes.get((id(block), index), []):
                sets = isinstance(stmt, tree.MakeList) or (isinstance(stmt, tree.Store) and not stmt.sign)
                if sets and variable in _stored(stmt):
                    begun.append(variable)
                else:
                    made.append(self.declare(variable, stmt))
            made.append(self.statement(stmt, begun))
        return tuple(made)

    def statement(self, stmt: tree.Stmt, begun: list[tree.Variable]) -> tree.Stmt:
        """A statement that declares what it begins."""
        match stmt:
            case tree.Store(place=tree.Local(variable=variable)) if variable in begun:
                uses = self.uses[variable]
                constant = uses.stores == 1 and not isinstance(uses.kind, Thing)
                return dataclasses.replace(stmt, declares=True, constant=constant)
            case tree.MakeList(variable=variable) if variable not in begun:
                raise self.several(variable, stmt)
        return with_blocks(stmt, self.block)

    def declare(self, variable: tree.Variable, stmt: tree.Stmt) -> tree.Store:
        kind = self.uses[variable].kind
        if isinstance(kind, Array | Thing):
            raise self.several(variable, next(inner for inner in statements((stmt,)) if variable in _stored(inner)))
        assert kind is not None
        zero = literal(False if kind is BOOL else 0) if isinstance(kind, Number) else tree.Constant(kind, 0, "{}")
        return tree.Store(stmt.at, tree.Local(kind, variable), zero, declares=True)

    def several(self, variable: tree.Variable, stmt: tree.Stmt) -> Exception:
        what, instead = "", "Make it once, with a conditional expression: a if c else b"
        if isinstance(stmt, tree.MakeList):
            what, instead = "the list ", "Make it once, before, and fill it"
        return self.written.error(stmt.at, f"{what}{variable.name!r} is made in several places", instead)


def _stored(stmt: tree.Stmt) -> list[tree.Variable]:
    """The variables that a statement gives a value."""
    stored = [stmt.variable] if isinstance(stmt, tree.MakeList | tree.For) else []
    return stored + [place.variable for place in places(stmt) if isinstance(place, tree.Local)]


def read_in(body: Block) -> frozenset[tree.Variable]:
    """The variables that are read."""
    read = set()
    for stmt in statements(body):
        exprs = (*parts(stmt), *places(stmt))
        if isinstance(stmt, tree.Store) and not stmt.sign and isinstance(stmt.place, tree.Local):
            exprs = parts(stmt)
        read |= {part.variable for expr in exprs for part in within(expr) if isinstance(part, tree.Local)}
    return frozenset(read)
