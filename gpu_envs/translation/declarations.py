"""Where the variables of a function are declared: in the innermost block that has all their uses."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from gpu_envs.translation import tree
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Block
from gpu_envs.translation.types import BOOL, Array, Number, Thing, Type
from gpu_envs.translation.walk import blocks, expressions, literal, parts, places, statements, stored, stores_in, within


def declared(body: Block, types: Mapping[tree.Variable, Type], parameters: frozenset[tree.Variable]) -> Block:
    """The statements of a function, in which every variable begins where it belongs."""
    placing = _Placing(types, stores_in(body))
    elsewhere = set(parameters)
    for stmt in statements(body):
        if isinstance(stmt, tree.Turns):
            elsewhere |= {*stmt.variables}
        elif isinstance(stmt, tree.For) and stmt.counter is None:
            elsewhere.add(stmt.variable)
    used = dict.fromkeys(variable for stmt in statements(body) for variable in _used(stmt))
    return placing.block(body, [v for v in used if v.frame >= 0 and placing.stores[v] and v not in elsewhere])


def _used(stmt: tree.Stmt) -> Iterator[tree.Variable]:
    """The variables that a statement reads and assigns, besides those of its blocks."""
    yield from (part.variable for part in expressions(stmt) if isinstance(part, tree.Local))
    yield from stored(stmt)


def _used_within(block: Block) -> set[tree.Variable]:
    return {variable for stmt in statements(block) for variable in _used(stmt)}


def _gives_first(stmt: tree.Stmt, variable: tree.Variable) -> bool:
    """Whether a statement can declare a variable."""
    whole = isinstance(stmt, tree.MakeList) or (isinstance(stmt, tree.Store) and not stmt.sign)
    return whole and variable in stored(stmt)


@final
class _Placing:
    def __init__(self, types: Mapping[tree.Variable, Type], stores: collections.Counter[tree.Variable]) -> None:
        self.types = types
        self.stores = stores

    def block(self, block: Block, variables: Sequence[tree.Variable]) -> Block:
        """The statements of a block in which, or within which, these variables begin."""
        made: list[tree.Stmt] = []
        uses = [_used_within((stmt,)) for stmt in block]
        times = collections.Counter(variable for used in uses for variable in used)
        for stmt, used in zip(block, uses, strict=True):
            begun, own, further = [], set(_used(stmt)), collections.defaultdict(list)
            inside = {name: _used_within(inner) for name, inner in blocks(stmt).items()}
            for variable in [variable for variable in variables if variable in used]:
                homes = [name for name, inner in inside.items() if variable in inner]
                if times[variable] == len(homes) == 1 and variable not in own:
                    further[homes[0]].append(variable)
                elif _gives_first(stmt, variable):
                    begun.append(variable)
                else:
                    made.append(self.declare(variable, stmt))
            variables = [variable for variable in variables if variable not in used]
            changes: dict[str, Any] = {name: self.block(b, further[name]) for name, b in blocks(stmt).items()}
            made.append(self.statement(dataclasses.replace(stmt, **changes), begun))
        return tuple(made)

    def statement(self, stmt: tree.Stmt, begun: list[tree.Variable]) -> tree.Stmt:
        """A statement that declares what it begins."""
        match stmt:
            case tree.Store(place=tree.Local(variable=variable)) if variable in begun:
                constant = self.stores[variable] == 1 and not isinstance(self.types[variable], Thing)
                return dataclasses.replace(stmt, declares=True, constant=constant)
            case tree.MakeList(variable=variable) if variable not in begun:
                raise self.several(variable, stmt)
        return stmt

    def declare(self, variable: tree.Variable, stmt: tree.Stmt) -> tree.Store:
        kind = self.types[variable]
        if isinstance(kind, Array | Thing):
            raise self.several(variable, next(inner for inner in statements((stmt,)) if variable in stored(inner)))
        zero = literal(False if kind is BOOL else 0) if isinstance(kind, Number) else tree.Constant(kind, 0, "{}")
        return tree.Store(stmt.at, tree.Local(kind, variable), zero, declares=True)

    def several(self, variable: tree.Variable, stmt: tree.Stmt) -> RefusedError:
        what, instead = "", "Make it once, with a conditional expression: a if c else b"
        if isinstance(stmt, tree.MakeList):
            what, instead = "the list ", "Make it once, before, and fill it"
        return RefusedError(f"{what}{variable.name!r} is made in several places", instead, stmt.at)


def read_in(body: Block) -> frozenset[tree.Variable]:
    """The variables that are read."""
    read = set()
    for stmt in statements(body):
        exprs = [*parts(stmt), *places(stmt)]
        if isinstance(stmt, tree.Store) and not stmt.sign and isinstance(stmt.place, tree.Local):
            exprs = parts(stmt)
        read |= {part.variable for expr in exprs for part in within(expr) if isinstance(part, tree.Local)}
    return frozenset(read)
