"""Traversal of the tree, and simple queries about its nodes."""

import ast
import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from gpu_envs.translation import tree
from gpu_envs.translation.tree import Block, Expr, Stmt
from gpu_envs.translation.types import BOOL, INT, RANDOM, REAL, STATIC, Array, Number, Type

Part = TypeVar("Part", bound=Expr | Stmt)
_PLACES = ("place", "places")
"""Fields of statements that hold places."""


def parts(of: Expr | Stmt) -> list[Expr]:
    """Return the operands of an expression, or the values of a statement without its blocks, in Python's order."""
    return [] if isinstance(of, tree.Constant | tree.Local | tree.Field) else _exprs(of, places=False)


def places(stmt: Stmt) -> list[Expr]:
    """Return the places that a statement assigns."""
    return _exprs(stmt, places=True)


def _exprs(of: Expr | Stmt, *, places: bool) -> list[Expr]:
    """Return the expressions in the fields of a node: those in ``place`` or ``places``, or all others."""
    exprs: list[Expr] = []
    for name, field in vars(of).items():
        if (name in _PLACES) is places:
            if isinstance(field, Expr):
                exprs.append(field)
            elif isinstance(field, tuple) and field and isinstance(field[0], Expr):
                exprs += field
    return exprs


def assigned_variables(stmt: Stmt) -> list[tree.Variable]:
    """Return the variables that a statement assigns."""
    variables = [stmt.variable] if isinstance(stmt, tree.MakeList | tree.For) else []
    return variables + [place.variable for place in places(stmt) if isinstance(place, tree.Local)]


def assignment_counts(body: Block) -> collections.Counter[tree.Variable]:
    """Count the statements that assign each variable."""
    return collections.Counter(variable for stmt in statements(body) for variable in assigned_variables(stmt))


def blocks(stmt: Stmt) -> dict[str, Block]:
    """Return the non-empty blocks of a statement, by field name."""
    fields = {name: field for name, field in vars(stmt).items() if isinstance(field, tuple) and field}
    return {name: field for name, field in fields.items() if isinstance(field[0], Stmt)}


def with_parts(of: Part, new_parts: Sequence[Expr]) -> Part:
    """Return a copy of a node with these operands or values, in the order of ``parts``."""
    remaining = iter(new_parts)
    changes: dict[str, Any] = {}
    for name, field in vars(of).items():
        if isinstance(field, Expr) and name not in _PLACES:
            changes[name] = next(remaining)
        elif isinstance(field, tuple) and field and isinstance(field[0], Expr) and name not in _PLACES:
            changes[name] = tuple(next(remaining) for _ in field)
    return dataclasses.replace(of, **changes)


def subexpressions(expr: Expr) -> Iterator[Expr]:
    """Yield an expression and all its subexpressions, also in the statements of closures."""
    yield expr
    if isinstance(expr, tree.Closure):
        for statement in expr.before:
            yield from expressions(statement)
    for part in parts(expr):
        yield from subexpressions(part)


def statements(block: Sequence[Stmt]) -> Iterator[Stmt]:
    """Yield all statements of a block and of its inner blocks, each before its inner ones."""
    for stmt in block:
        yield stmt
        for inner in blocks(stmt).values():
            yield from statements(inner)


def expressions(stmt: Stmt) -> Iterator[Expr]:
    """Yield all expressions and subexpressions of a statement, without its blocks."""
    for expr in (*parts(stmt), *places(stmt)):
        yield from subexpressions(expr)


def always_exits(block: Sequence[Stmt]) -> bool:
    """Whether code after a block is unreachable: every path through it returns, jumps or never ends."""
    match block[-1] if block else None:
        case tree.Jump() | tree.Return():
            return True
        case tree.If(test=tree.Constant(value=condition), yes=yes, no=no):
            return always_exits(yes if condition else no)
        case tree.If(yes=yes, no=no):
            return always_exits(yes) and always_exits(no)
        case tree.While(test=tree.Constant(value=True), body=body):
            return "break" not in _jumps(body)
        case tree.For(constant_range=constant_range, body=body) if constant_range:
            return always_exits(body) and not any(_jumps(body))
    return False


def _jumps(block: Block) -> Iterator[str]:
    """Yield the break and continue keywords that refer to the loop with this body."""
    for stmt in block:
        if isinstance(stmt, tree.Jump):
            yield stmt.keyword
        elif isinstance(stmt, tree.If):
            yield from (*_jumps(stmt.yes), *_jumps(stmt.no))


def storage_type(place: Expr) -> str:
    """Return the C++ type that a place is stored as; empty if rules cannot assign it."""
    if isinstance(place, tree.Element):
        return place.of.kind.stored_type if isinstance(place.of.kind, Array) else ""
    if isinstance(place, tree.Local):
        return place.kind.cpp if isinstance(place.kind, Number) else ""
    return place.stored_type if isinstance(place, tree.Field) else ""


def field_of(place: Expr) -> tuple[str, str]:
    """Return the argument that a write to a place changes, such as ``World``, or ``""``, and the name of its field.

    Metrics get the prefix ``metrics.``, as a field of the state may have the same name.
    """
    if isinstance(place, tree.Element):
        return place.of.kind.owner if isinstance(place.of.kind, Array) else "", field_of(place.of)[1]
    if not isinstance(place, tree.Field):
        return "", ""
    return place.owner, f"metrics.{place.name}" if place.owner == "Metrics" else place.name


def constant_value(expr: Expr) -> Any:
    """Return the value of a constant; None for other expressions."""
    return expr.value if isinstance(expr, tree.Constant) else None


def is_simple(expr: Expr) -> bool:
    """Whether an expression may be evaluated twice at no cost: a constant, a variable, a scalar field."""
    return isinstance(expr, tree.Constant | tree.Local) or (
        isinstance(expr, tree.Field) and isinstance(expr.kind, Number)
    )


def literal(value: Any, at: ast.AST | None = None) -> tree.Constant:
    """Return the constant for a Python value."""
    kinds: tuple[tuple[type, Type], ...] = ((bool, BOOL), (int, INT), (float, REAL))
    return tree.Constant(next((kind for python, kind in kinds if isinstance(value, python)), STATIC), value, at=at)


def has_effects(expr: Expr) -> bool:
    """Whether evaluating an expression draws random numbers or may change an argument."""
    for part in subexpressions(expr):
        if isinstance(part, tree.Invoke):
            if part.function.effects.owners or any(p.kind == RANDOM for p in part.function.parameters):
                return True
        elif isinstance(part, tree.Draw):
            return True
    return False


def has_phases(block: Sequence[Stmt]) -> bool:
    """Whether a block contains phases, also in functions that it calls."""
    for stmt in statements(block):
        if isinstance(stmt, tree.ParallelLoop) and stmt.is_phase:
            return True
        if any(isinstance(expr, tree.Invoke) and expr.function.effects.phases for expr in expressions(stmt)):
            return True
    return False
