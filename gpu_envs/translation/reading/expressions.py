"""Expressions: each with its type, operands in the order in which Python evaluates them."""

import ast
import dataclasses
import types
from collections.abc import Mapping

import numpy as np

from gpu_envs.errors import did_you_mean
from gpu_envs.translation import arithmetic, tree
from gpu_envs.translation.arguments import element, field_of
from gpu_envs.translation.arithmetic import number, truth
from gpu_envs.translation.reading.calls import called
from gpu_envs.translation.reading.outer_names import meaning, of_constants, outside
from gpu_envs.translation.reading.reader import Reader
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.types import BOOL, STATIC, Array, Number, Several, Thing, described
from gpu_envs.translation.walk import known, literal

REFUSED: Mapping[type, tuple[str, str]] = {
    ast.Lambda: ("there are no lambdas in rules", "Write a function with def in the module"),
    ast.ListComp: ("there are no comprehensions in rules", "Write x = [0.0] * n, and fill it in a loop"),
    ast.SetComp: ("there are no sets in rules", "Use an array of bools"),
    ast.DictComp: ("there are no dicts in rules", "Use an array, indexed by int"),
    ast.GeneratorExp: ("there are no generators in rules", "Write a loop: for i in range(n):"),
    ast.Dict: ("there are no dicts in rules", "Use an array, indexed by int"),
    ast.Set: ("there are no sets in rules", "Use an array of bools"),
    ast.JoinedStr: ("there are no strings in rules", "Compare choices with words: p.start == 'fixed'"),
    ast.NamedExpr: ("there is no := in rules", "Assign in a statement of its own"),
    ast.Await: ("nothing is awaited in rules", ""),
    ast.Yield: ("rules are not generators, and yield nothing", "Return the result"),
    ast.YieldFrom: ("rules are not generators, and yield nothing", "Return the result"),
    ast.Starred: ("there is no unpacking with * in rules", "Name each element"),
    ast.Slice: ("there are no slices in rules", "Write a loop over the indices: for j in range(n):"),
}


def expression(reader: Reader, node: ast.expr) -> Expr:
    """Reads an expression."""
    if type(node) in REFUSED:
        raise reader.error(node, *REFUSED[type(node)])
    with reader.at(node):
        return dataclasses.replace(_read(reader, node), at=node)


def _read(reader: Reader, node: ast.expr) -> Expr:
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return literal(node.value)
        case ast.Constant():
            raise RefusedError(f"{node.value!r} is not a number", "Rules know ints, floats and bools")
        case ast.Name():
            return _name(reader, node)
        case ast.Attribute():
            return _attribute(reader, node)
        case ast.Subscript():
            return _subscript(reader, node)
        case ast.BinOp():
            return arithmetic.binary(node.op, expression(reader, node.left), expression(reader, node.right))
        case ast.UnaryOp(op=ast.Not()):
            return arithmetic.unary(node.op, condition(reader, node.operand))
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
            raise RefusedError(
                "a tuple or a list is not a number",
                "Lists of a fixed size are made as in x = [0.0] * n, and then indexed",
            )
    raise RefusedError(f"{type(node).__name__} is not translated")


def condition(reader: Reader, node: ast.expr) -> Expr:
    """Reads what is asked: numbers count as true unless they are zero."""
    with reader.at(node):
        if isinstance(node, ast.BoolOp):
            return arithmetic.logic(node.op, [condition(reader, part) for part in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return arithmetic.unary(node.op, condition(reader, node.operand))
        return truth(expression(reader, node))


def _name(reader: Reader, node: ast.Name) -> Expr:
    name = node.id
    variable = reader.variable(name)
    if variable is not None:
        return reader.read(name, variable, node)
    if name in reader.arguments:
        found = reader.arguments[name]
        if reader.between and isinstance(found.kind, Thing) and found.kind.name == "World":
            raise RefusedError(
                "what stands between phases does not depend on the world",
                "Move it into a phase: for i in team.agents():",
            )
        return found
    if name in reader.elsewhere:
        raise RefusedError(
            f"{name!r} was set in another phase, and nothing but fields of the world lasts from one to the next",
            "Keep it in a field: TeamSpec(scratch={...})",
        )
    return outside(reader, name)


def _attribute(reader: Reader, node: ast.Attribute) -> Expr:
    of = expression(reader, node.value)
    if isinstance(of.kind, Thing):
        return field_of(of, node.attr)
    if isinstance(of.kind, Array) and node.attr == "shape":
        return tree.Constant(STATIC, of.kind.sizes)
    value = known(of)
    if of.kind is STATIC and isinstance(value, types.ModuleType | type | types.SimpleNamespace):
        try:
            found = getattr(value, node.attr)
        except AttributeError:
            words = [name for name in vars(value) if not name.startswith("_")]
            raise RefusedError(
                f"{ast.unparse(node.value)} has no {node.attr!r}{did_you_mean(node.attr, words)}".rstrip(".")
            ) from None
        return meaning(reader, getattr(found, "value", found) if isinstance(value, type) else found)
    if node.attr == "value" and value is not None and isinstance(of.kind, Number):
        return of  # of an enum's member
    raise RefusedError(f"{described(of.kind, value)} has no {node.attr!r} in rules")


def _subscript(reader: Reader, node: ast.Subscript) -> Expr:
    of = expression(reader, node.value)
    entries = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    indices = [expression(reader, entry) for entry in entries]
    if isinstance(of.kind, Array):
        return element(of, indices)
    if of.kind is STATIC and isinstance(known(of), tuple | list | np.ndarray):
        return of_constants(reader, known(of), indices)
    if isinstance(of.kind, Several):
        left = ", ".join("abcdefgh"[: len(of.kind.kinds)])
        raise RefusedError(
            f"{described(of.kind)} are not indexed",
            f"Take them apart in an assignment: {left} = {ast.unparse(node.value)}",
        )
    raise RefusedError(f"{described(of.kind, known(of))} has no elements")


def _bool(reader: Reader, node: ast.expr) -> Expr:
    value = expression(reader, node)
    with reader.at(node):
        if number(value) is not BOOL:
            raise RefusedError(
                f"'and' and 'or' join bools, and this is {described(value.kind)}", "Write a comparison, as in x != 0"
            )
    return value


def _compare(reader: Reader, node: ast.Compare) -> Expr:
    operands = [expression(reader, node.left), *(_operand(reader, part) for part in node.comparators)]
    links = [arithmetic.compare(*link) for link in zip(node.ops, operands, operands[1:], strict=False)]
    if len(links) == 1 or all(isinstance(operand, tree.Constant) for operand in operands):
        return arithmetic.logic(ast.And(), links)
    return tree.Chain(BOOL, tuple(node.ops), tuple(operands))


def _operand(reader: Reader, node: ast.expr) -> Expr:
    """The right of a comparison: of ``in``, a tuple of constants."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        listed = []
        for part in node.elts:
            listed.append(known(expression(reader, part)))
            if listed[-1] is None:
                raise reader.error(part, "what 'in' looks into is made of constants", "Join comparisons with 'or'")
        return tree.Constant(STATIC, tuple(listed))
    return expression(reader, node)


def _conditional(reader: Reader, node: ast.IfExp) -> Expr:
    test = condition(reader, node.test)
    yes, no = expression(reader, node.body), expression(reader, node.orelse)
    if isinstance(yes.kind, Number) and isinstance(no.kind, Number):
        return arithmetic.conditional(test, yes, no)
    if yes.kind != no.kind or not _is_made(yes) or not _is_made(no):
        one, other = (described(part.kind, known(part)) for part in (yes, no))
        raise RefusedError(f"this is {one} or {other}", "Give both sides the same type")
    return tree.Choose(yes.kind, test, yes, no)


def _is_made(expr: Expr) -> bool:
    """Whether an expression that is no number can be chosen: a choice of words, actions, a new source of numbers."""
    return not isinstance(expr, tree.Constant) and not (isinstance(expr.kind, Thing) and isinstance(expr, tree.Local))
