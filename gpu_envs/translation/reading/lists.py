"""Lists of a fixed length of the function's own, which are arrays in C++."""

import ast
import dataclasses

from gpu_envs.translation.arithmetic import converted
from gpu_envs.translation.reading.reader import Reader
from gpu_envs.translation.tree import MakeList
from gpu_envs.translation.types import BOOL, INT, Array, Number, Type, described, list_of, wider
from gpu_envs.translation.walk import known

LONGEST_LIST = 4096
"""Elements of a list."""


def is_list(node: ast.expr) -> bool:
    """Whether an expression makes a list, or a tuple."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        node = node.left
    return isinstance(node, ast.List | ast.Tuple)


def made_list(reader: Reader, node: ast.stmt, target: ast.Name, given: ast.expr) -> MakeList:
    """``x = [a, b]`` or ``x = [a] * n``; a tuple's elements stay."""
    listed, times = given, 1
    if isinstance(given, ast.BinOp):
        count = reader.expression(given.right)
        if count.kind is not INT or known(count) is None:
            raise reader.error(
                given.right,
                "a list's length is a constant",
                "Write a number, one of the module's, or a fixed parameter",
            )
        listed, times = given.left, known(count)
    assert isinstance(listed, ast.List | ast.Tuple)
    values = [reader.expression(part) for part in listed.elts]
    length = len(values) * times
    if not 1 <= length <= LONGEST_LIST:
        raise reader.error(given, f"this list has {length} elements; 1 to {LONGEST_LIST} are possible")
    kind: Type = BOOL
    for value, part in zip(values, listed.elts, strict=True):
        if not isinstance(value.kind, Number):
            what = described(value.kind, known(value))
            raise reader.error(part, f"lists are of numbers, and this is {what}")
        kind = wider(kind, value.kind)
    made = list_of(kind, (length,))
    if isinstance(listed, ast.Tuple):
        made = dataclasses.replace(made, refusal="the elements of a tuple are not assigned")
    place = reader.learn(target.id, made, node)
    assert isinstance(place.kind, Array)
    of = place.kind.kind
    return MakeList(node, place.variable, place.kind, tuple(converted(value, of) for value in values), times)
