"""Operators, with Python's meaning and the types of their results."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from gpu_envs.errors import did_you_mean
from gpu_envs.translation import tree
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.types import BOOL, INT, REAL, STATIC, Array, Choice, Number, Type, described, wider
from gpu_envs.translation.walk import draws, is_simple, known, literal

OPERATORS: Mapping[type, tuple[str, Callable[..., Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("python::floor_divided", operator.floordiv),
    ast.Mod: ("python::modulo", operator.mod),
    ast.Pow: ("elementary::power", operator.pow),
    ast.LShift: ("python::shifted_left", operator.lshift),
    ast.RShift: ("python::shifted_right", operator.rshift),
    ast.BitAnd: ("&", operator.and_),
    ast.BitOr: ("|", operator.or_),
    ast.BitXor: ("^", operator.xor),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.USub: ("-", operator.neg),
    ast.UAdd: ("+", operator.pos),
    ast.Invert: ("~", operator.invert),
}
"""What each operator is in C++, once its operands have one type, and what it is of constants."""

MOST_FACTORS = 16
"""The greatest exponent that becomes a product."""

MOST_FOLDED = 4096
"""Bits of the greatest int that constants may make."""

TRUNCATED = "python::truncated"


# --- types ---


def number(expr: Expr) -> Number:
    """The type of an expression that must be a number."""
    if write_only(expr):
        raise RefusedError("what is observed is written and not read", "Compute it in a local first", expr.at)
    if isinstance(expr.kind, Number):
        return expr.kind
    instead = ""
    if isinstance(expr, tree.Element) and isinstance(expr.kind, Array) and expr.at is not None:
        names = ("row", "column") if len(expr.indices) + len(expr.kind.sizes) == 2 else ("i", "j", "k")
        instead = f"Write {ast.unparse(expr.at)[:-1]}, {', '.join(names[len(expr.indices) :])}]"
        if isinstance(expr.of.kind, Array) and len(expr.indices) == len(expr.of.kind.sizes):  # an action
            instead = f"Write {ast.unparse(expr.at)}[j]"
    raise RefusedError(f"this is {described(expr.kind, known(expr))} and not a number", instead, expr.at)


def write_only(expr: Expr) -> bool:
    """Whether an expression is a place that is never read."""
    return isinstance(expr, tree.Element) and isinstance(expr.of.kind, Array) and expr.of.kind.write_only


def converted(expr: Expr, kind: Type) -> Expr:
    """The expression in a wider type of numbers, or as it is."""
    if expr.kind == kind and not write_only(expr):
        return expr
    if not isinstance(kind, Number):
        raise RefusedError(f"this is {described(expr.kind, known(expr))}", at=expr.at)
    given = number(expr)
    if given.width > kind.width:
        how = {"int": "int(...), which cuts off the fraction", "bool": "a comparison, as in x != 0"}[kind.cpp]
        raise RefusedError(f"{described(given)} is given where {described(kind)} belongs", f"Write {how}", expr.at)
    if isinstance(expr, tree.Constant) and not expr.name:
        try:
            return literal(int(expr.value) if kind is INT else float(expr.value), expr.at)
        except OverflowError:
            raise RefusedError("this number is too large for a float", "Write a smaller number", expr.at) from None
    if kind is REAL and (real := _as_real(expr)):
        return real
    return tree.Operation(kind, kind.cpp, (expr,), at=expr.at)


def _as_real(expr: Expr) -> Expr | None:
    """A whole number as the real that it was made of, where there is one; an int has no negative zero."""
    match expr:
        case tree.Operation(name=name, operands=(whole,)) if name == TRUNCATED and _is_whole(whole):
            return call("+", REAL, whole, literal(0.0))
        case tree.Operation(name="-", operands=(inner,)) if real := _as_real(inner):
            return call("-", REAL, literal(0.0), real)
    return None


def _is_whole(expr: Expr) -> bool:
    match expr:
        case tree.Operation(name="-", operands=(inner,)):
            return _is_whole(inner)
        case tree.Operation(name="round_down" | "python::rounded"):
            return True
    return False


def truth(expr: Expr) -> Expr:
    """Whether a number counts as true."""
    if number(expr) is BOOL:
        return expr
    if isinstance(expr, tree.Constant):
        return literal(bool(expr.value))
    return tree.Operation(BOOL, "!=", (expr, literal(0)))


def call(name: str, kind: Type, *operands: Expr) -> Expr:
    """An operation whose operands have the type of the result."""
    return tree.Operation(kind, name, tuple(converted(operand, kind) for operand in operands))


# --- operators ---


def binary(op: ast.operator, left: Expr, right: Expr) -> Expr:
    """``left op right``."""
    both = wider(number(left), number(right))
    if isinstance(op, ast.MatMult):
        raise RefusedError("there are no matrices in rules", "Write the sums out, or in loops")
    if isinstance(left, tree.Constant) and isinstance(right, tree.Constant):
        return _folded(op, left, right)  # in Python's double precision, and rounded once
    if isinstance(op, ast.Pow):
        return power(left, right)
    if isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor | ast.LShift | ast.RShift):
        return _bits(op, both, left, right)
    if isinstance(op, ast.Div | ast.FloorDiv | ast.Mod) and isinstance(right, tree.Constant) and right.value == 0:
        raise RefusedError("this divides by zero")
    return call(OPERATORS[type(op)][0], REAL if isinstance(op, ast.Div) else wider(INT, both), left, right)


def _folded(op: ast.AST, left: tree.Constant, right: tree.Constant) -> Expr:
    if isinstance(op, ast.LShift | ast.Pow) and isinstance(left.value, int) and isinstance(right.value, int):
        bits = abs(left.value).bit_length()
        if (bits + right.value if isinstance(op, ast.LShift) else bits * right.value) > MOST_FOLDED:
            raise RefusedError("this number does not fit 32 bits", "Write a float, or a smaller number")
    return computed(OPERATORS[type(op)][1], left.value, right.value)


def computed(function: Callable[..., Any], *values: Any) -> Expr:
    """What Python computes of constants."""
    try:
        return literal(function(*values))
    except (ArithmeticError, TypeError, ValueError) as error:
        raise RefusedError(f"Python cannot compute this: {error}") from None


def _bits(op: ast.operator, both: Type, left: Expr, right: Expr) -> Expr:
    if both is REAL:
        raise RefusedError("bits are of ints, and this has a float")
    shift = isinstance(op, ast.LShift | ast.RShift)
    by = known(right)
    if shift and by is not None and not 0 <= by < 32:
        raise RefusedError(f"an int of 32 bits cannot be shifted by {by}")
    made = call(OPERATORS[type(op)][0], INT, left, right)
    return truth(made) if both is BOOL and not shift else made


def power(base: Expr, exponent: Expr) -> Expr:
    """``base ** exponent``: a product, for a small constant whole exponent."""
    times, kinds = known(exponent), (number(base), number(exponent))
    if times == 0.5:
        return call("python::root", REAL, base)
    if times is None or not abs(times) <= MOST_FACTORS or times != int(times):  # (NaN is not less either)
        if REAL not in kinds and (times is None or times > 0):
            raise RefusedError("this power of an int is an int or a float, or too large", "Write float(a) ** b")
        return call(OPERATORS[ast.Pow][0], REAL, base, exponent)
    kind = REAL if isinstance(times, float) or times < 0 else wider(INT, kinds[0])
    x, factors = converted(base, kind), abs(int(times))
    if factors == 0:  # what is drawn is drawn all the same
        one = converted(literal(1), kind)
        return tree.Operation(kind, ",", (x, one)) if draws(x) else one
    if factors == 1:
        product = x
    elif factors == 2 and is_simple(x):
        product = call("*", kind, x, x)
    else:
        product = call(f"python::power<{factors}>", kind, x)
    return product if times > 0 else binary(ast.Div(), literal(1.0), product)


def unary(op: ast.unaryop, operand: Expr) -> Expr:
    """``op operand``."""
    if isinstance(op, ast.Not):
        test = truth(operand)
        return literal(not test.value) if isinstance(test, tree.Constant) else call("!", BOOL, test)
    kind = wider(INT, number(operand))
    if isinstance(op, ast.Invert) and kind is REAL:
        raise RefusedError("bits are of ints, and this is a float")
    sign, compute = OPERATORS[type(op)]
    if isinstance(operand, tree.Constant):
        return literal(compute(operand.value))
    return converted(operand, kind) if isinstance(op, ast.UAdd) else call(sign, kind, operand)


# --- comparisons ---


def compare(op: ast.cmpop, left: Expr, right: Expr) -> Expr:
    """``left op right`` for two; of ``in``, the left is simple, or the result only says that it is possible."""
    if isinstance(op, ast.Is | ast.IsNot):
        raise RefusedError("objects are not compared in rules", "Write == or !=")
    if isinstance(op, ast.In | ast.NotIn):
        words = known(right)
        if not isinstance(words, tuple | list | set | frozenset | range) or not words:
            raise RefusedError("'in' needs a tuple of constants", "Write a tuple of them, or comparisons")
        found = logic(ast.Or(), [compare(ast.Eq(), left, literal(word)) for word in words])
        return unary(ast.Not(), found) if isinstance(op, ast.NotIn) else found
    for one, other in ((left, right), (right, left)):
        if isinstance(one.kind, Choice):
            return _words(op, one.kind, one, other)
    for one, other in ((left, right), (right, left)):
        if isinstance(one.kind, Number) and isinstance(known(other), str):
            raise RefusedError(
                f"{described(one.kind)} is compared with the string {known(other)!r}",
                "Actions, and all that rules compute with, are numbers: name them in the module, as in LEFT = 0",
            )
    both = wider(number(left), number(right))
    if isinstance(left, tree.Constant) and isinstance(right, tree.Constant):
        return _folded(op, left, right)
    if not isinstance(op, ast.Eq | ast.NotEq):
        both = wider(INT, both)
    return tree.Operation(BOOL, OPERATORS[type(op)][0], (converted(left, both), converted(right, both)))


def _words(op: ast.cmpop, kind: Choice, choice: Expr, word: Expr) -> Expr:
    if not isinstance(op, ast.Eq | ast.NotEq):
        raise RefusedError("words have no order", "Write == or !=")
    name = known(word)
    if word.kind != kind:
        if word.kind is not STATIC or not isinstance(name, str):
            what = described(word.kind, name)
            raise RefusedError(f"{described(kind)} is compared with {what}", "Write one of the words")
        if name not in kind.words:
            listed = ", ".join(map(repr, kind.words))
            raise RefusedError(f"{name!r} is not one of {listed}{did_you_mean(name, kind.words)}".rstrip("."))
        word = tree.Constant(kind, name, f"{kind.cpp}::{name.replace('-', '_')}")
    return tree.Operation(BOOL, OPERATORS[type(op)][0], (choice, word))


def logic(op: ast.boolop, values: list[Expr]) -> Expr:
    """``a and b and ...``, or ``a or b or ...``, of bools."""
    decisive = isinstance(op, ast.Or)
    left: list[Expr] = []
    for value in values:
        if not isinstance(value, tree.Constant):
            left.append(value)
        elif bool(value.value) is decisive:
            left.append(value)
            break
    if not left:
        return literal(not decisive)
    if isinstance(left[0], tree.Constant) or len(left) == 1:
        return left[0]
    return tree.Operation(BOOL, "||" if decisive else "&&", tuple(left))
