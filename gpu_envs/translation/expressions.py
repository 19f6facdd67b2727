"""Expressions: from Python's tree to C++, each with its type."""

import ast
import types
from collections.abc import Callable, Mapping

import numpy as np

from gpu_envs.errors import did_you_mean
from gpu_envs.translation import arithmetic
from gpu_envs.translation.arguments import field_of
from gpu_envs.translation.body import Body
from gpu_envs.translation.calls import called
from gpu_envs.translation.outer_names import indexed, known, of_constants, outside
from gpu_envs.translation.races import note
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.values import (
    BOOL,
    RANDOM,
    STATIC,
    Elements,
    Level,
    Number,
    Several,
    Thing,
    Value,
    described,
    literal,
    number,
    truth,
)

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


def expression(body: Body, node: ast.expr) -> Value:
    """Translates an expression."""
    if type(node) in REFUSED:
        raise body.error(node, *REFUSED[type(node)])
    with body.at(node):
        return _translated(body, node)


def _translated(body: Body, node: ast.expr) -> Value:
    match node:
        case ast.Constant():
            return _constant(node)
        case ast.Name():
            return _name(body, node)
        case ast.Attribute():
            return _attribute(body, node)
        case ast.Subscript():
            return _subscript(body, node)
        case ast.BinOp():
            return arithmetic.binary(node.op, expression(body, node.left), expression(body, node.right))
        case ast.UnaryOp(op=ast.Not()):
            return condition(body, node)
        case ast.UnaryOp():
            return arithmetic.unary(node.op, expression(body, node.operand))
        case ast.BoolOp():
            return _logic(body, node, _bool)
        case ast.Compare():
            return _compare(body, node)
        case ast.IfExp():
            return _conditional(body, node)
        case ast.Call():
            return called(body, node)
        case ast.Tuple() | ast.List():
            raise RefusedError(
                "a tuple or a list is not a number",
                "Lists of a fixed size are made as in x = [0.0] * n, and then indexed",
            )
    raise RefusedError(f"{type(node).__name__} is not translated")


def guarded(body: Body, node: ast.expr, translate: Callable[[Body, ast.expr], Value] = expression) -> Value:
    """Translates what is evaluated only where something else says so, or again and again."""
    return _closed(body, node, translate)[0]


def _closed(body: Body, node: ast.expr, translate: Callable[[Body, ast.expr], Value]) -> tuple[Value, bool]:
    """What is evaluated as a function of its own, where something is computed before it; and whether it is."""
    outside, body.pending = body.pending, []
    try:
        value = translate(body, node)
        inside = body.pending
    finally:
        body.pending = outside
    if not inside:
        return value, False
    return Value(f"[&] {{ {' '.join(inside)} return {value.text}; }}()", value.type), True


def _in_turn(body: Body, node: ast.expr, value: Value, *, draws: bool) -> Value:
    """A value that may draw numbers, computed before the line at hand, so that all draws come in Python's order."""
    if not draws or value.constant is not None or body.alone is node or not isinstance(value.type, Number):
        return value
    return body.hoisted(value)


def condition(body: Body, node: ast.expr) -> Value:
    """Translates what is asked: numbers count as true unless they are zero."""
    if isinstance(node, ast.BoolOp):
        with body.at(node):
            return _logic(body, node, condition)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        with body.at(node):
            return arithmetic.unary(node.op, condition(body, node.operand))
    value = expression(body, node)
    with body.at(node):
        return truth(value)


def _constant(node: ast.Constant) -> Value:
    if isinstance(node.value, bool | int | float | str):
        return literal(node.value)
    raise RefusedError(f"{node.value!r} is not a number", "Rules know ints, floats and bools")


def _name(body: Body, node: ast.Name) -> Value:
    name = node.id
    if body.frame_with(name) is not None:
        return body.variable(name, node)
    if name in body.arguments:
        value = body.arguments[name]
        if body.between and isinstance(value.type, Thing) and value.type.name == "World":
            raise RefusedError(
                "what stands between phases does not depend on the world",
                "Move it into a phase: for i in team.agents():",
            )
        return value
    if name in body.elsewhere:
        raise RefusedError(
            f"{name!r} was set in another phase, and nothing but fields of the world lasts from one to the next",
            "Keep it in a field: TeamSpec(scratch={...})",
        )
    return outside(body, name)


def _attribute(body: Body, node: ast.Attribute) -> Value:
    of = expression(body, node.value)
    if isinstance(of.type, Thing):
        found = field_of(of, node.attr)
        if isinstance(node.ctx, ast.Load) and found.owner == "World" and isinstance(found.type, Number):
            note(body, node, "read")
        return found
    if isinstance(of.type, Elements) and node.attr == "shape":
        return Value("", STATIC, constant=of.type.sizes)
    if of.type is STATIC and isinstance(of.constant, types.ModuleType | type | types.SimpleNamespace):
        try:
            found = getattr(of.constant, node.attr)
        except AttributeError:
            words = [name for name in vars(of.constant) if not name.startswith("_")]
            raise RefusedError(
                f"{ast.unparse(node.value)} has no {node.attr!r}{did_you_mean(node.attr, words)}".rstrip(".")
            ) from None
        return known(body, getattr(found, "value", found) if isinstance(of.constant, type) else found)
    if node.attr == "value" and of.constant is not None and isinstance(of.type, Number):
        return of  # of an enum's member
    raise RefusedError(f"{described(of)} has no {node.attr!r} in rules")


def _subscript(body: Body, node: ast.Subscript) -> Value:
    of = expression(body, node.value)
    entries = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    indices = [expression(body, entry) for entry in entries]
    if isinstance(of.type, Elements):
        if of.type.owner == "World" and isinstance(node.ctx, ast.Load):
            note(body, node, "read")
        return indexed(of, indices, node)
    if of.type is STATIC and isinstance(of.constant, tuple | list | np.ndarray):
        return of_constants(body, of, indices, node)
    if isinstance(of.type, Several):
        left = ", ".join("abcdefgh"[: len(of.type.kinds)])
        raise RefusedError(
            f"{described(of)} are not indexed",
            f"Take them apart in an assignment: {left} = {ast.unparse(node.value)}",
        )
    raise RefusedError(f"{described(of)} has no elements")


def _bool(body: Body, node: ast.expr) -> Value:
    value = expression(body, node)
    with body.at(node):
        if number(value) is not BOOL:
            raise RefusedError(
                f"'and' and 'or' join bools, and this is {described(value)}", "Write a comparison, as in x != 0"
            )
    return value


def _logic(body: Body, node: ast.BoolOp, translate: Callable[[Body, ast.expr], Value]) -> Value:
    first, *rest = node.values
    values, draws = [translate(body, first)], False
    for part in rest:
        value, closed = _closed(body, part, translate)
        values.append(value)
        draws = draws or closed
    return _in_turn(body, node, arithmetic.logic(node.op, values), draws=draws)


def _compare(body: Body, node: ast.Compare) -> Value:
    if len(node.ops) == 1:
        return arithmetic.compare(node.ops[0], expression(body, node.left), _operand(body, node.comparators[0]))
    left, ops, rights = node.left, node.ops, node.comparators
    chain, draws = _closed(body, node, lambda inner, _: _chain(inner, expression(inner, left), ops, rights))
    return _in_turn(body, node, chain, draws=draws)


def _chain(body: Body, left: Value, ops: list[ast.cmpop], rights: list[ast.expr]) -> Value:
    """``left < a < b``: each is evaluated once, and only where those before hold."""
    right = expression(body, rights[0])
    if len(ops) > 1 and not right.is_simple and isinstance(right.type, Number):
        right = body.hoisted(right)
    found = arithmetic.compare(ops[0], left, right)
    if len(ops) == 1:
        return found
    others = guarded(body, rights[0], lambda inner, _: _chain(inner, right, ops[1:], rights[1:]))
    return arithmetic.logic(ast.And(), [found, others])


def _operand(body: Body, node: ast.expr) -> Value:
    """The right of a comparison: of ``in``, a tuple of constants."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        listed = []
        for part in node.elts:
            listed.append(expression(body, part).constant)
            if listed[-1] is None:
                raise body.error(part, "what 'in' looks into is made of constants", "Join comparisons with 'or'")
        return Value("", STATIC, constant=tuple(listed))
    return expression(body, node)


def _conditional(body: Body, node: ast.IfExp) -> Value:
    test = condition(body, node.test)
    (yes, one_draws), (no, other_draws) = (_closed(body, part, expression) for part in (node.body, node.orelse))
    if isinstance(yes.type, Number) and isinstance(no.type, Number):
        made = arithmetic.conditional(test, yes, no)
        return _in_turn(body, node, made, draws=one_draws or other_draws)
    if yes.type != no.type or not yes.code or (yes.type == RANDOM and (yes.is_simple or no.is_simple)):
        raise RefusedError(f"this is {described(yes)} or {described(no)}", "Give both sides the same type")
    code = f"{test.within(Level.OR)} ? {yes.within(Level.OR)} : {no.text}"
    return Value(code, yes.type, Level.CONDITIONAL)
