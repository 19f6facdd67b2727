"""Expressions: each with its type, operands in the order in which Python evaluates them."""

import ast
import dataclasses
import types
from typing import Any

import numpy as np

from gpu_envs import rules
from gpu_envs.errors import did_you_mean
from gpu_envs.translation import arithmetic, tree
from gpu_envs.translation.arguments import element
from gpu_envs.translation.arithmetic import number, truth
from gpu_envs.translation.reading.calls import called
from gpu_envs.translation.reading.reader import Reader
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.types import BOOL, STATIC, STREAM, Array, Number, Several, Thing, described
from gpu_envs.translation.walk import is_simple, known, literal

_IMPORTED = frozenset(
    name
    for name, found in vars(rules).items()
    if not name.startswith("_")
    and (isinstance(found, rules.Stream) or getattr(found, "__module__", "") == rules.__name__)
)
"""The names of ``gpu_envs.rules``."""


def expression(reader: Reader, node: ast.expr) -> Expr:
    """Reads an expression."""
    with reader.at(node):
        return dataclasses.replace(_read(reader, node), at=node)


def _read(reader: Reader, node: ast.expr) -> Expr:
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return literal(node.value)
        case ast.Constant():
            raise RefusedError(f"{node.value!r} is not a number", "Rules know ints, floats and bools")
        case ast.Name():
            return _name(reader, node.id, node)
        case ast.Attribute():
            return _attribute(reader, node)
        case ast.Subscript():
            return _subscript(reader, node)
        case ast.BinOp():
            return arithmetic.binary(node.op, expression(reader, node.left), expression(reader, node.right))
        case ast.UnaryOp(op=ast.Not()):
            return condition(reader, node)
        case ast.UnaryOp():
            return arithmetic.unary(node.op, expression(reader, node.operand))
        case ast.BoolOp():
            return arithmetic.logic(node.op, [_bool(reader, part) for part in node.values])
        case ast.Compare():
            return _compare(reader, node)
        case ast.IfExp():
            return _conditional(reader, node)
        case ast.Call():
            return called(reader, node)
        case ast.Tuple() | ast.List():
            instead = "Lists of a fixed size are made as in x = [0.0] * n, and then indexed"
            raise RefusedError("a tuple or a list is not a number", instead)
    raise RefusedError(f"{type(node).__name__} is not translated")


def condition(reader: Reader, node: ast.expr) -> Expr:
    """Reads what is asked: numbers count as true unless they are zero."""
    with reader.at(node):
        if isinstance(node, ast.BoolOp):
            return arithmetic.logic(node.op, [condition(reader, part) for part in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return arithmetic.unary(node.op, condition(reader, node.operand))
        return truth(expression(reader, node))


def _bool(reader: Reader, node: ast.expr) -> Expr:
    value = expression(reader, node)
    if number(value) is not BOOL:
        what = f"'and' and 'or' join bools, and this is {described(value.kind)}"
        raise RefusedError(what, "Write a comparison, as in x != 0", node)
    return value


def _compare(reader: Reader, node: ast.Compare) -> Expr:
    operands = [expression(reader, node.left), *(_operand(reader, part) for part in node.comparators)]
    links = [arithmetic.compare(*link) for link in zip(node.ops, operands, operands[1:], strict=False)]
    twice = len(links) > 1 or (isinstance(node.ops[0], ast.In | ast.NotIn) and not is_simple(operands[0]))
    if twice and not all(isinstance(operand, tree.Constant) for operand in operands):
        return tree.Chain(BOOL, tuple(node.ops), tuple(operands))
    return arithmetic.logic(ast.And(), links)


def _operand(reader: Reader, node: ast.expr) -> Expr:
    """The right of a comparison: of ``in``, a tuple of constants."""
    if not isinstance(node, ast.Tuple | ast.List | ast.Set):
        return expression(reader, node)
    listed = []
    for part in node.elts:
        listed.append(known(expression(reader, part)))
        if listed[-1] is None:
            raise reader.error(part, "what 'in' looks into is made of constants", "Join comparisons with 'or'")
    return tree.Constant(STATIC, tuple(listed))


def _conditional(reader: Reader, node: ast.IfExp) -> Expr:
    test = condition(reader, node.test)
    yes, no = expression(reader, node.body), expression(reader, node.orelse)
    if isinstance(yes.kind, Number) and isinstance(no.kind, Number):
        return arithmetic.conditional(test, yes, no)
    if yes.kind != no.kind or not _is_made(yes) or not _is_made(no):
        one, other = (described(part.kind, known(part)) for part in (yes, no))
        raise RefusedError(f"this is {one} or {other}", "Give both sides the same type")
    return tree.Operation(yes.kind, "?:", (test, yes, no))


def _is_made(expr: Expr) -> bool:
    """Whether an expression that is no number can be chosen: a choice of words, actions, a new source of numbers."""
    return not isinstance(expr, tree.Constant) and not (isinstance(expr.kind, Thing) and isinstance(expr, tree.Local))


# --- fields and elements ---


def _attribute(reader: Reader, node: ast.Attribute) -> Expr:
    of, name = expression(reader, node.value), node.attr
    value = known(of)
    if isinstance(of.kind, Thing):
        fields = of.kind.fields
        if name not in fields:
            what = f"the {of.kind.name} has no field {name!r}{did_you_mean(name, fields)}".rstrip(".")
            raise RefusedError(what, f"Its fields are: {', '.join(fields) or 'none'}")
        found: Expr = fields[name]
        return found
    if isinstance(of.kind, Array) and name == "shape":
        return tree.Constant(STATIC, of.kind.sizes)
    if of.kind is STATIC and isinstance(value, types.ModuleType | type | types.SimpleNamespace):
        if not hasattr(value, name):
            meant = did_you_mean(name, [word for word in vars(value) if not word.startswith("_")])
            raise RefusedError(f"{ast.unparse(node.value)} has no {name!r}{meant}".rstrip("."))
        inside = getattr(value, name)
        return _meaning(reader, getattr(inside, "value", inside) if isinstance(value, type) else inside)
    if name == "value" and value is not None and isinstance(of.kind, Number):
        return of  # of an enum's member
    raise RefusedError(f"{described(of.kind, value)} has no {name!r} in rules")


def _subscript(reader: Reader, node: ast.Subscript) -> Expr:
    of = expression(reader, node.value)
    entries = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    indices = [expression(reader, entry) for entry in entries]
    if isinstance(of.kind, Array):
        return element(of, indices)
    if isinstance(of.kind, Several):
        left = ", ".join("abcdefgh"[: len(of.kind.kinds)])
        instead = f"Take them apart in an assignment: {left} = {ast.unparse(node.value)}"
        raise RefusedError(f"{described(of.kind)} are not indexed", instead)
    found = known(of)
    if of.kind is not STATIC or not isinstance(found, tuple | list | np.ndarray):
        raise RefusedError(f"{described(of.kind, found)} has no elements")
    if not all(isinstance(index, tree.Constant) for index in indices):
        return element(reader.unit.constants(_resolved(reader, found)), indices)
    for index in indices:
        try:
            found = found[known(index)]
        except (IndexError, TypeError):
            raise RefusedError(f"index {known(index)} is outside") from None
    return _meaning(reader, found)


def _resolved(reader: Reader, values: Any) -> Any:
    """The same numbers, with those in place of the spec's constants."""
    if isinstance(values, tuple | list):
        return [_resolved(reader, value) for value in values]
    return known(_meaning(reader, values)) if isinstance(values, rules.Constant) else values


# --- names ---


def _name(reader: Reader, name: str, node: ast.Name) -> Expr:
    variable = reader.variable(name)
    if variable is not None:
        return reader.read(name, variable, node)
    if name in reader.arguments:
        found = reader.arguments[name]
        if reader.between and isinstance(found.kind, Thing) and found.kind.name == "World":
            instead = "Move it into a phase: for i in team.agents():"
            raise RefusedError("what stands between phases does not depend on the world", instead)
        return found
    if name in reader.elsewhere:
        raise RefusedError(
            f"{name!r} was set in another phase, and nothing but fields of the world lasts from one to the next",
            "Keep it in a field: TeamSpec(scratch={...})",
        )
    return _outside(reader, name)


def _outside(reader: Reader, name: str) -> Expr:
    """What a name from outside the function means."""
    capitals = reader.unit.arguments.capitals
    try:
        found = reader.written.find(name)
    except KeyError:
        if name in capitals:
            return capitals[name]
        if name in _IMPORTED:
            raise RefusedError(f"{name!r} is not imported", f"from gpu_envs.rules import {name}") from None
        module = (word for word in reader.written.function.__globals__ if not word.startswith("_"))
        words = {*reader.names, *capitals, *reader.arguments, *module} - {name}
        raise RefusedError(
            f"{name!r} is not known here{did_you_mean(name, words)}".rstrip("."),
            "Known are locals, arguments, functions and numbers of the module, and the spec's constants in capitals",
        ) from None
    return _meaning(reader, found)


def _meaning(reader: Reader, found: Any) -> Expr:
    """Something of the module, or of Python's."""
    if isinstance(found, rules.Constant):
        capitals = reader.unit.arguments.capitals
        if found.name not in capitals:
            raise RefusedError(
                f"the spec has no constant {found.name}{did_you_mean(found.name, capitals)}".rstrip("."),
                "Constants are AGENTS, the roles and the parameters marked fixed, in capitals",
            )
        return capitals[found.name]
    if isinstance(found, rules.Stream):
        return tree.Constant(STREAM, found, "RESET" if found is rules.RESET else "STEP")
    if isinstance(found, np.ndarray) and found.ndim == 0:
        instead = "Make it one in the module: float(...)"
        raise RefusedError("this is an array without dimensions, and not a number", instead)
    if isinstance(found, np.generic):
        found = found.item()
    if isinstance(found, int) and not isinstance(found, bool):
        found = int(found)  # of an enum
    return literal(found)
