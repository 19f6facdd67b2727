"""Local lists of a fixed length, which are arrays in C++."""

import ast
import dataclasses

from gpu_envs.translation.body import Body
from gpu_envs.translation.values import INT, Elements, Number, Type, Value, converted, described, wider

LIST = "list"
"""What stands for the C++ type of a local list."""

LONGEST_LIST = 4096
"""Elements of a local list."""


def is_list(node: ast.expr) -> bool:
    """Whether an expression makes a list."""
    return isinstance(node, ast.List) or (
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List)
    )


def make_list(body: Body, node: ast.stmt, target: ast.Name, given: ast.expr) -> None:
    """``x = [a, b]`` or ``x = [a] * n``: an array, declared here."""
    listed, times = given, 1
    if isinstance(given, ast.BinOp):
        count = body.expression(given.right)
        if count.type is not INT or count.constant is None:
            raise body.error(
                given.right,
                "a list's length is a constant",
                "Write a number, one of the module's, or a fixed parameter",
            )
        listed, times = given.left, count.constant
    assert isinstance(listed, ast.List)
    values = [body.expression(part) for part in listed.elts]
    length = len(values) * times
    if not 1 <= length <= LONGEST_LIST:
        raise body.error(given, f"this list has {length} elements; 1 to {LONGEST_LIST} are possible")
    kind: Type = values[0].type
    for value, part in zip(values, listed.elts, strict=True):
        if not isinstance(value.type, Number):
            raise body.error(part, f"lists are of numbers, and this is {described(value)}")
        kind = wider(kind, value.type)
    stored = kind.cpp if isinstance(kind, Number) else ""
    learned = body.learn(target.id, Elements(kind, (length,), stored=stored, cpp=LIST), node)
    frame = body.frames[body.frame_with(target.id) or 0]
    assert isinstance(learned, Elements)
    if target.id not in frame.at_first or body.key(target.id) in body.declared:
        raise body.error(node, f"the list {target.id!r} is made in several places", "Make it once, before, and fill it")
    assert isinstance(learned.kind, Number)
    kept = []
    for value in values:
        made = converted(value, learned.kind)
        kept.append(body.hoisted(made).text if times > 1 and not made.is_simple else made.text)
    zero = times > 1 and all(value.constant == 0 for value in values)
    filled = "{}" if zero else f"{{{', '.join(kept * times)}}}"
    body.declared.add(body.key(target.id))
    body.emit(f"{body.declaration(target.id, learned.kind.cpp)}[{length}] = {filled};", node)
    body.set(target.id)


def widen(body: Body, target: ast.expr, value: Value, node: ast.stmt) -> Type | None:
    """Has a local list hold what one of its elements is assigned; returns the type of its elements."""
    if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)):
        return None
    of = body.expression(target.value)
    if isinstance(of.type, Elements) and of.type.cpp == LIST and isinstance(value.type, Number):
        kind = wider(of.type.kind, value.type)
        body.learn(target.value.id, dataclasses.replace(of.type, kind=kind), node)
        return kind
    return None
