"""Going through the tree, and what is plain of a part of it."""

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpu_envs.translation.tree import (
    Assign,
    Atomic,
    Block,
    Closure,
    Constant,
    Draw,
    Element,
    Expr,
    Field,
    For,
    If,
    Invoke,
    Leave,
    Local,
    Return,
    Stmt,
    Store,
    Turns,
    Update,
    While,
)
from gpu_envs.translation.types import BOOL, INT, RANDOM, REAL, STATIC, Array, Number, Type


def parts(expr: Expr) -> tuple[Expr, ...]:
    """The expressions that one is made of, in the order in which Python evaluates them."""
    if isinstance(expr, Invoke):
        return tuple(expr.arguments[n] for n in expr.given)
    return tuple(_exprs(vars(expr)))


def _exprs(fields: Mapping[str, Any]) -> Iterator[Expr]:
    for value in fields.values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Expr):
                yield part


def rebuilt(expr: Expr, made: Iterable[Expr]) -> Expr:
    """The same expression of other parts, which stand in the order of ``parts``."""
    if isinstance(expr, Invoke):
        arguments = {**dict(enumerate(expr.arguments)), **dict(zip(expr.given, made, strict=True))}
        return dataclasses.replace(expr, arguments=tuple(arguments[n] for n in sorted(arguments)))
    given = iter(made)
    changes: dict[str, Any] = {}
    for name, value in vars(expr).items():
        if isinstance(value, Expr):
            changes[name] = next(given)
        elif isinstance(value, tuple) and value and isinstance(value[0], Expr):
            changes[name] = tuple(next(given) for _ in value)
    return dataclasses.replace(expr, **changes)


def replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    """The same expression with one in place of another."""
    return new if expr == old else rebuilt(expr, tuple(replaced(part, old, new) for part in parts(expr)))


def within(expr: Expr) -> Iterator[Expr]:
    """An expression, and all that it is made of."""
    yield expr
    if isinstance(expr, Closure):
        for statement in expr.before:
            yield from expressions(statement)
    for part in parts(expr):
        yield from within(part)


def values(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that a statement evaluates, besides the places that it assigns and what stands in its blocks."""
    return tuple(_exprs({name: value for name, value in vars(stmt).items() if name not in ("place", "places")}))


def places(stmt: Stmt) -> tuple[Expr, ...]:
    """What a statement assigns."""
    if isinstance(stmt, Assign):
        return stmt.places
    return (stmt.place,) if isinstance(stmt, Store | Update | Atomic) else ()


def blocks(stmt: Stmt) -> tuple[Block, ...]:
    """The blocks of a statement."""
    return (
        (stmt.yes, stmt.no) if isinstance(stmt, If) else (stmt.body,) if isinstance(stmt, While | For | Turns) else ()
    )


def statements(block: Block) -> Iterator[Stmt]:
    """All statements of a block, and those within them."""
    for stmt in block:
        yield stmt
        for inner in blocks(stmt):
            yield from statements(inner)


def expressions(stmt: Stmt) -> Iterator[Expr]:
    """The expressions of a statement and all within them, not those of its blocks."""
    for expr in (*values(stmt), *places(stmt)):
        yield from within(expr)


def ends(block: Sequence[Stmt]) -> bool:
    """Whether what follows a block is never reached."""
    if not block:
        return False
    match block[-1]:
        case Leave() | Return():
            return True
        case If(test=Constant(value=holds), yes=yes, no=no):
            return ends(yes if holds else no)
        case If(yes=yes, no=no):
            return ends(yes) and ends(no)
        case While(test=Constant(value=True), body=body):
            return not any(leave.word == "break" for leave in _leaves(body))
        case For(turns=turns, body=body) if turns:
            return ends(body) and not any(_leaves(body))
    return False


def _leaves(block: Block) -> Iterator[Leave]:
    """What leaves the loop whose body this is, or its turn."""
    for stmt in block:
        if isinstance(stmt, Leave):
            yield stmt
        elif isinstance(stmt, If):
            yield from (*_leaves(stmt.yes), *_leaves(stmt.no))


def stored_as(place: Expr) -> str:
    """The C++ type of a place; empty of what is not assigned."""
    if isinstance(place, Local):
        return place.kind.cpp if isinstance(place.kind, Number) else ""
    if isinstance(place, Element):
        return place.of.kind.stored if isinstance(place.of.kind, Array) else ""
    return place.stored if isinstance(place, Field) else ""


def owner_of(expr: Expr) -> str:
    """The argument whose field or element an expression is."""
    if isinstance(expr, Element):
        return owner_of(expr.of) or (expr.of.kind.owner if isinstance(expr.of.kind, Array) else "")
    return expr.owner if isinstance(expr, Field) else ""


def known(expr: Expr) -> Any:
    """The value of a constant; None where it is not known, or is none."""
    return expr.value if isinstance(expr, Constant) else None


def is_simple(expr: Expr) -> bool:
    """Whether it may be written twice: a constant, a variable, a field that stands by itself."""
    if isinstance(expr, Field):
        return isinstance(expr.kind, Number)
    return isinstance(expr, Constant | Local)


def literal(value: Any, at: ast.AST | None = None) -> Constant:
    """A constant of Python's."""
    kind: Type = STATIC
    if isinstance(value, bool):
        kind = BOOL
    elif isinstance(value, int):
        kind = INT
    elif isinstance(value, float):
        kind = REAL
    return Constant(kind, value, at=at)


def draws(expr: Expr) -> bool:
    """Whether evaluating it, by itself, takes random numbers or may change something."""
    match expr:
        case Draw():
            return True
        case Invoke():
            effects = expr.function.effects
            return bool(effects.owners) or any(p.kind == RANDOM for p in expr.function.parameters)
    return False
