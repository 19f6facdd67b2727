"""Going through the tree, and what is plain of a part of it."""

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
"""The fields of statements that hold what they assign."""


def parts(of: Expr | Stmt) -> list[Expr]:
    """What an expression is made of, or a statement evaluates besides its places and blocks, in Python's order."""
    return [] if isinstance(of, tree.Constant | tree.Local | tree.Field) else _exprs(of, places=False)


def places(stmt: Stmt) -> list[Expr]:
    """What a statement assigns."""
    return _exprs(stmt, places=True)


def _exprs(of: Expr | Stmt, *, places: bool) -> list[Expr]:
    found: list[Expr] = []
    for name, field in vars(of).items():
        if (name in _PLACES) is places:
            if isinstance(field, Expr):
                found.append(field)
            elif isinstance(field, tuple) and field and isinstance(field[0], Expr):
                found += field
    return found


def stored(stmt: Stmt) -> list[tree.Variable]:
    """The variables that a statement gives a value."""
    made = [stmt.variable] if isinstance(stmt, tree.MakeList | tree.For) else []
    return made + [place.variable for place in places(stmt) if isinstance(place, tree.Local)]


def stores_in(body: Block) -> collections.Counter[tree.Variable]:
    """How many statements give each variable a value."""
    return collections.Counter(variable for stmt in statements(body) for variable in stored(stmt))


def blocks(stmt: Stmt) -> dict[str, Block]:
    """The blocks of a statement that are not empty, by the names of its fields."""
    fields = {name: field for name, field in vars(stmt).items() if isinstance(field, tuple) and field}
    return {name: field for name, field in fields.items() if isinstance(field[0], Stmt)}


def rebuilt(of: Part, made: Sequence[Expr]) -> Part:
    """The same expression or statement of other parts, which stand in the order of ``parts``."""
    given = iter(made)
    changes: dict[str, Any] = {}
    for name, field in vars(of).items():
        if isinstance(field, Expr) and name not in _PLACES:
            changes[name] = next(given)
        elif isinstance(field, tuple) and field and isinstance(field[0], Expr) and name not in _PLACES:
            changes[name] = tuple(next(given) for _ in field)
    return dataclasses.replace(of, **changes)


def within(expr: Expr) -> Iterator[Expr]:
    """An expression, and all that it is made of."""
    yield expr
    if isinstance(expr, tree.Closure):
        for statement in expr.before:
            yield from expressions(statement)
    for part in parts(expr):
        yield from within(part)


def statements(block: Sequence[Stmt]) -> Iterator[Stmt]:
    """All statements of a block, and those within them."""
    for stmt in block:
        yield stmt
        for inner in blocks(stmt).values():
            yield from statements(inner)


def expressions(stmt: Stmt) -> Iterator[Expr]:
    """The expressions of a statement and all within them, not those of its blocks."""
    for expr in (*parts(stmt), *places(stmt)):
        yield from within(expr)


def ends(block: Sequence[Stmt]) -> bool:
    """Whether what follows a block is never reached."""
    match block[-1] if block else None:
        case tree.Leave() | tree.Return():
            return True
        case tree.If(test=tree.Constant(value=holds), yes=yes, no=no):
            return ends(yes if holds else no)
        case tree.If(yes=yes, no=no):
            return ends(yes) and ends(no)
        case tree.While(test=tree.Constant(value=True), body=body):
            return "break" not in _leaves(body)
        case tree.For(turns=turns, body=body) if turns:
            return ends(body) and not any(_leaves(body))
    return False


def _leaves(block: Block) -> Iterator[str]:
    """The words that leave the loop whose body this is, or its turn."""
    for stmt in block:
        if isinstance(stmt, tree.Leave):
            yield stmt.word
        elif isinstance(stmt, tree.If):
            yield from (*_leaves(stmt.yes), *_leaves(stmt.no))


def stored_as(place: Expr) -> str:
    """The C++ type of a place; empty of what is not assigned."""
    if isinstance(place, tree.Element):
        return place.of.kind.stored if isinstance(place.of.kind, Array) else ""
    if isinstance(place, tree.Local):
        return place.kind.cpp if isinstance(place.kind, Number) else ""
    return place.stored if isinstance(place, tree.Field) else ""


def field_of(place: Expr) -> tuple[str, str]:
    """The argument that a place belongs to, and the name of the field; empty where it has none.

    Metrics, which may be called what fields of the state are called, are told from them.
    """
    if isinstance(place, tree.Element):
        return place.of.kind.owner if isinstance(place.of.kind, Array) else "", field_of(place.of)[1]
    if not isinstance(place, tree.Field):
        return "", ""
    return place.owner, f"metrics.{place.name}" if place.owner == "Metrics" else place.name


def known(expr: Expr) -> Any:
    """The value of a constant; None where it is not known, or is none."""
    return expr.value if isinstance(expr, tree.Constant) else None


def is_simple(expr: Expr) -> bool:
    """Whether it may be written twice: a constant, a variable, a field that stands by itself."""
    return isinstance(expr, tree.Constant | tree.Local) or (
        isinstance(expr, tree.Field) and isinstance(expr.kind, Number)
    )


def literal(value: Any, at: ast.AST | None = None) -> tree.Constant:
    """A constant of Python's."""
    kinds: tuple[tuple[type, Type], ...] = ((bool, BOOL), (int, INT), (float, REAL))
    return tree.Constant(next((kind for of, kind in kinds if isinstance(value, of)), STATIC), value, at=at)


def draws(expr: Expr) -> bool:
    """Whether evaluating it takes random numbers, or may change something."""
    for part in within(expr):
        if isinstance(part, tree.Invoke):
            if part.function.effects.owners or any(p.kind == RANDOM for p in part.function.parameters):
                return True
        elif isinstance(part, tree.Draw):
            return True
    return False


def has_phases(block: Sequence[Stmt]) -> bool:
    """Whether there are phases in a block, or in a function that it calls."""
    for stmt in statements(block):
        if isinstance(stmt, tree.Turns) and stmt.is_phase:
            return True
        if any(isinstance(expr, tree.Invoke) and expr.function.effects.phases for expr in expressions(stmt)):
            return True
    return False
