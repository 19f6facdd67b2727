"""Declares the variables of a function, each in the innermost block that has all its uses."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from gpu_envs.translation import tree
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Block
from gpu_envs.translation.types import BOOL, Array, Number, Struct, Type
from gpu_envs.translation.walk import (
    assigned_variables,
    assignment_counts,
    blocks,
    expressions,
    literal,
    parts,
    places,
    statements,
    subexpressions,
)


def declare_variables(body: Block, types: Mapping[tree.Variable, Type], parameters: frozenset[tree.Variable]) -> Block:
    """Return the statements of a function with a declaration of every variable that it assigns."""
    declarations = _Declarations(types, assignment_counts(body))
    already_declared = set(parameters)
    for stmt in statements(body):
        if isinstance(stmt, tree.ParallelLoop):
            already_declared |= {*stmt.variables}
        elif isinstance(stmt, tree.For) and stmt.counter is None:
            already_declared.add(stmt.variable)
    used = dict.fromkeys(variable for stmt in statements(body) for variable in _used(stmt))
    undeclared = [v for v in used if v.scope >= 0 and declarations.assignments[v] and v not in already_declared]
    return declarations.block(body, undeclared)


def _used(stmt: tree.Stmt) -> Iterator[tree.Variable]:
    """Yield the variables that a statement reads and assigns, without its blocks."""
    yield from (part.variable for part in expressions(stmt) if isinstance(part, tree.Local))
    yield from assigned_variables(stmt)


def _used_within(block: Block) -> set[tree.Variable]:
    return {variable for stmt in statements(block) for variable in _used(stmt)}


def _can_declare(stmt: tree.Stmt, variable: tree.Variable) -> bool:
    """Whether a statement can declare the variable: a plain assignment of it."""
    plain = isinstance(stmt, tree.MakeList) or (isinstance(stmt, tree.Store) and not stmt.sign)
    return plain and variable in assigned_variables(stmt)


@final
class _Declarations:
    def __init__(self, types: Mapping[tree.Variable, Type], assignments: collections.Counter[tree.Variable]) -> None:
        self.types = types
        self.assignments = assignments

    def block(self, block: Block, variables: Sequence[tree.Variable]) -> Block:
        """Return a block with declarations of these variables, each in the innermost block that has all its uses."""
        result: list[tree.Stmt] = []
        uses = [_used_within((stmt,)) for stmt in block]
        use_counts = collections.Counter(variable for used in uses for variable in used)
        for stmt, used in zip(block, uses, strict=True):
            declared, used_here, pushed_down = [], set(_used(stmt)), collections.defaultdict(list)
            inside = {name: _used_within(inner) for name, inner in blocks(stmt).items()}
            for variable in [variable for variable in variables if variable in used]:
                candidates = [name for name, inner in inside.items() if variable in inner]
                if use_counts[variable] == len(candidates) == 1 and variable not in used_here:
                    pushed_down[candidates[0]].append(variable)
                elif _can_declare(stmt, variable):
                    declared.append(variable)
                else:
                    result.append(self.declare(variable, stmt))
            variables = [variable for variable in variables if variable not in used]
            changes: dict[str, Any] = {name: self.block(b, pushed_down[name]) for name, b in blocks(stmt).items()}
            result.append(self.statement(dataclasses.replace(stmt, **changes), declared))
        return tuple(result)

    def statement(self, stmt: tree.Stmt, declared: list[tree.Variable]) -> tree.Stmt:
        """Return the statement, as a declaration of the variable that it assigns if that is among ``declared``."""
        match stmt:
            case tree.Store(place=tree.Local(variable=variable)) if variable in declared:
                constant = self.assignments[variable] == 1 and not isinstance(self.types[variable], Struct)
                return dataclasses.replace(stmt, declares=True, constant=constant)
            case tree.MakeList(variable=variable) if variable not in declared:
                raise self._created_twice(variable, stmt)
        return stmt

    def declare(self, variable: tree.Variable, stmt: tree.Stmt) -> tree.Store:
        """Return a declaration to insert before ``stmt``, with the value 0; refuse a list or struct."""
        kind = self.types[variable]
        if isinstance(kind, Array | Struct):
            first = next(inner for inner in statements((stmt,)) if variable in assigned_variables(inner))
            raise self._created_twice(variable, first)
        zero = literal(False if kind is BOOL else 0) if isinstance(kind, Number) else tree.Constant(kind, 0, "{}")
        return tree.Store(stmt.at, tree.Local(kind, variable), zero, declares=True)

    def _created_twice(self, variable: tree.Variable, stmt: tree.Stmt) -> RefusedError:
        problem, hint = "", "Assign it once, with a conditional expression: a if c else b"
        if isinstance(stmt, tree.MakeList):
            problem, hint = "the list ", "Create it once, before the branches, and set its elements there"
        return RefusedError(f"{problem}{variable.name!r} is created in several places", hint, stmt.at)


def read_variables(body: Block) -> frozenset[tree.Variable]:
    """Return the variables that a block and its inner blocks read, also to update them."""
    read = set()
    for stmt in statements(body):
        exprs = [*parts(stmt), *places(stmt)]
        if isinstance(stmt, tree.Store) and not stmt.sign and isinstance(stmt.place, tree.Local):
            exprs = parts(stmt)
        read |= {part.variable for expr in exprs for part in subexpressions(expr) if isinstance(part, tree.Local)}
    return frozenset(read)
