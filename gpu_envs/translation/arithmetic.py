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
from gpu_envs.translation.walk import draws, is_simple, known, literal, within

_FOLDED: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

SIGNS: Mapping[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
"""Operators that mean the same in C++, once both sides have one type."""
_BITS = {ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>"}
_ORDER = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_EQUALITY = {ast.Eq: "==", ast.NotEq: "!="}

MOST_FACTORS = 16
"""The greatest exponent that becomes a product."""

MOST_FOLDED = 4096
"""Bits of the greatest int that constants may make."""

TRUNCATED = "python::truncated"
_WHOLE = ("round_down", "python::rounded")


# --- types ---


def number(expr: Expr) -> Number:
    """The type of an expression that must be a number."""
    if write_only(expr):
        raise RefusedError("what is observed is written and not read", "Compute it in a local first")
    if isinstance(expr.kind, Number):
        return expr.kind
    instead = ""
    if isinstance(expr, tree.Element) and isinstance(expr.kind, Array) and expr.at is not None:
        names = ("row", "column") if len(expr.indices) + len(expr.kind.sizes) == 2 else ("i", "j", "k")
        instead = f"Write {ast.unparse(expr.at)[:-1]}, {', '.join(names[len(expr.indices) :])}]"
        if isinstance(expr.of.kind, Array) and len(expr.indices) == len(expr.of.kind.sizes):  # an action
            instead = f"Write {ast.unparse(expr.at)}[j]"
    raise RefusedError(f"this is {described(expr.kind, known(expr))} and not a number", instead)


def write_only(expr: Expr) -> bool:
    """Whether an expression is a place that is never read."""
    return isinstance(expr, tree.Element) and isinstance(expr.of.kind, Array) and expr.of.kind.write_only


def converted(expr: Expr, kind: Type) -> Expr:
    """The expression in a wider type of numbers, or as it is."""
    if expr.kind == kind and not write_only(expr):
        return expr
    if not isinstance(kind, Number):
        raise RefusedError(f"this is {described(expr.kind, known(expr))}")
    given = number(expr)
    if given.width > kind.width:
        how = {"int": "int(...), which cuts off the fraction", "bool": "a comparison, as in x != 0"}[kind.cpp]
        raise RefusedError(f"{described(given)} is given where {described(kind)} belongs", f"Write {how}")
    if isinstance(expr, tree.Constant) and not expr.name:
        try:
            return literal(int(expr.value) if kind is INT else float(expr.value), expr.at)
        except OverflowError:
            raise RefusedError("this number is too large for a float", "Write a smaller number") from None
    if kind is REAL and (real := _as_real(expr)):
        return real
    return tree.Call(kind, kind.cpp, (expr,), at=expr.at)


def _as_real(expr: Expr) -> Expr | None:
    """A whole number as the real that it was made of, where there is one."""
    match expr:
        case tree.Call(function=name, arguments=(whole,)) if name == TRUNCATED and _is_whole(whole):
            return whole
        case tree.Unary(sign="-", operand=inner):
            real = _as_real(inner)
            return None if real is None else tree.Unary(REAL, "-", real, at=expr.at)
    return None


def _is_whole(expr: Expr) -> bool:
    return (isinstance(expr, tree.Call) and expr.function in _WHOLE) or (
        isinstance(expr, tree.Unary) and expr.sign == "-" and _is_whole(expr.operand)
    )


def truth(expr: Expr) -> Expr:
    """Whether a number counts as true."""
    if number(expr) is BOOL:
        return expr
    return literal(bool(expr.value)) if isinstance(expr, tree.Constant) else tree.Binary(BOOL, "!=", expr, literal(0))


# --- operators ---


def binary(op: ast.operator, left: Expr, right: Expr) -> Expr:
    """``left op right``."""
    both = wider(number(left), number(right))
    if isinstance(left, tree.Constant) and isinstance(right, tree.Constant) and not isinstance(op, ast.MatMult):
        return _folded(op, left, right)  # in Python's double precision, and rounded once
    whole = INT if both is BOOL else both
    match op:
        case ast.Add() | ast.Sub() | ast.Mult():
            return tree.Binary(whole, SIGNS[type(op)], converted(left, whole), converted(right, whole))
        case ast.Div():
            _refuse_zero(right)
            return tree.Binary(REAL, "/", converted(left, REAL), converted(right, REAL))
        case ast.FloorDiv() | ast.Mod():
            _refuse_zero(right)
            name = "floor_divided" if isinstance(op, ast.FloorDiv) else "modulo"
            return call(f"python::{name}", whole, left, right)
        case ast.Pow():
            return power(left, right)
        case ast.BitAnd() | ast.BitOr() | ast.BitXor() | ast.LShift() | ast.RShift():
            return _bits(op, left, right)
    raise RefusedError("there are no matrices in rules", "Write the sums out, or in loops")


def _folded(op: ast.AST, left: tree.Constant, right: tree.Constant) -> Expr:
    if isinstance(op, ast.LShift | ast.Pow) and isinstance(left.value, int) and isinstance(right.value, int):
        bits = abs(left.value).bit_length()
        if (bits + right.value if isinstance(op, ast.LShift) else bits * right.value) > MOST_FOLDED:
            raise RefusedError("this number does not fit 32 bits", "Write a float, or a smaller number")
    try:
        return literal(_FOLDED[type(op)](left.value, right.value))
    except (ArithmeticError, TypeError, ValueError) as error:
        raise RefusedError(f"Python cannot compute this: {error}") from None


def _refuse_zero(divisor: Expr) -> None:
    if known(divisor) == 0 and isinstance(divisor, tree.Constant):
        raise RefusedError("this divides by zero")


def _bits(op: ast.operator, left: Expr, right: Expr) -> Expr:
    both = wider(number(left), number(right))
    if both is REAL:
        raise RefusedError("bits are of ints, and this has a float")
    shift = isinstance(op, ast.LShift | ast.RShift)
    by = known(right)
    if shift and by is not None and not 0 <= by < 32:
        raise RefusedError(f"an int of 32 bits cannot be shifted by {by}")
    made = tree.Binary(INT, _BITS[type(op)], converted(left, INT), converted(right, INT))
    return tree.Binary(BOOL, "!=", made, literal(0)) if both is BOOL and not shift else made


def power(base: Expr, exponent: Expr) -> Expr:
    """``base ** exponent``: a product, for a small constant whole exponent."""
    times, kinds = known(exponent), (number(base), number(exponent))
    if times == 0.5:
        return call("square_root", REAL, base)
    if times is None or not abs(times) <= MOST_FACTORS or times != int(times):  # (NaN is not less either)
        if REAL not in kinds and (times is None or times > 0):
            raise RefusedError("this power of an int is an int or a float, or too large", "Write float(a) ** b")
        return call("elementary::power", REAL, base, exponent)
    kind = REAL if isinstance(times, float) or times < 0 else wider(INT, kinds[0])
    x, factors = converted(base, kind), abs(int(times))
    if factors == 0:  # what is drawn is drawn all the same
        one = converted(literal(1), kind)
        return tree.Named(kind, x, one) if any(map(draws, within(x))) else one
    if factors == 1:
        product = x
    elif factors == 2 and is_simple(x):
        product = tree.Binary(kind, "*", x, x)
    else:
        product = tree.Call(kind, f"python::power<{factors}>", (x,))
    return product if times > 0 else binary(ast.Div(), literal(1.0), product)


def call(function: str, kind: Type, *arguments: Expr) -> Expr:
    """A call of a function of the dialect, whose arguments have one type."""
    return tree.Call(kind, function, tuple(converted(argument, kind) for argument in arguments))


def unary(op: ast.unaryop, operand: Expr) -> Expr:
    """``op operand``."""
    if isinstance(op, ast.Not):
        test = truth(operand)
        return literal(not test.value) if isinstance(test, tree.Constant) else tree.Unary(BOOL, "!", test)
    kind = wider(INT, number(operand))
    if isinstance(op, ast.Invert) and kind is REAL:
        raise RefusedError("bits are of ints, and this is a float")
    if isinstance(operand, tree.Constant):
        signs: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
        return literal(signs.get(type(op), operator.invert)(operand.value))
    given = converted(operand, kind)
    return given if isinstance(op, ast.UAdd) else tree.Unary(kind, "-" if isinstance(op, ast.USub) else "~", given)


# --- comparisons ---


def compare(op: ast.cmpop, left: Expr, right: Expr) -> Expr:
    """``left op right`` for two."""
    if isinstance(op, ast.Is | ast.IsNot):
        raise RefusedError("objects are not compared in rules", "Write == or !=")
    if isinstance(op, ast.In | ast.NotIn):
        return _membership(op, left, right)
    if isinstance(left.kind, Choice) or isinstance(right.kind, Choice):
        return _words(op, left, right)
    for one, other in ((left, right), (right, left)):
        if isinstance(one.kind, Number) and isinstance(known(other), str):
            raise RefusedError(
                f"{described(one.kind)} is compared with the string {known(other)!r}",
                "Actions, and all that rules compute with, are numbers: name them in the module, as in LEFT = 0",
            )
    both = wider(number(left), number(right))
    if isinstance(left, tree.Constant) and isinstance(right, tree.Constant):
        return _folded(op, left, right)
    if type(op) in _ORDER:
        both = wider(INT, both)
    sign = {**_ORDER, **_EQUALITY}[type(op)]
    return tree.Binary(BOOL, sign, converted(left, both), converted(right, both))


def _membership(op: ast.cmpop, left: Expr, right: Expr) -> Expr:
    words = known(right)
    if not isinstance(words, tuple | list | set | frozenset | range) or not words:
        raise RefusedError("'in' needs a tuple of constants", "Write a tuple of them, or comparisons")
    asked = left if is_simple(left) else tree.Local(left.kind, tree.IT)
    found = logic(ast.Or(), [compare(ast.Eq(), asked, literal(word)) for word in words])
    found = found if asked is left else tree.Named(BOOL, left, found)
    return unary(ast.Not(), found) if isinstance(op, ast.NotIn) else found


def _words(op: ast.cmpop, left: Expr, right: Expr) -> Expr:
    choice, word = (left, right) if isinstance(left.kind, Choice) else (right, left)
    kind = choice.kind
    assert isinstance(kind, Choice)
    if type(op) not in _EQUALITY:
        raise RefusedError("words have no order", "Write == or !=")
    sign = _EQUALITY[type(op)]
    if word.kind == kind:
        return tree.Binary(BOOL, sign, choice, word)
    if word.kind is not STATIC or not isinstance(known(word), str):
        what = described(word.kind, known(word))
        raise RefusedError(f"{described(kind)} is compared with {what}", "Write one of the words")
    return tree.Binary(BOOL, sign, choice, _enumerator(kind, known(word)))


def _enumerator(kind: Choice, word: str) -> Expr:
    if word not in kind.words:
        listed = ", ".join(map(repr, kind.words))
        raise RefusedError(f"{word!r} is not one of {listed}{did_you_mean(word, kind.words)}".rstrip("."))
    return tree.Constant(kind, word, f"{kind.cpp}::{word.replace('-', '_')}")


# --- conditions ---


def conditional(test: Expr, yes: Expr, no: Expr) -> Expr:
    """``yes if test else no``, of numbers."""
    kind = wider(yes.kind, no.kind)
    one, other = converted(yes, kind), converted(no, kind)
    if isinstance(test, tree.Constant):
        return one if test.value else other
    return tree.Choose(kind, test, one, other)


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
    return tree.Logic(BOOL, "||" if decisive else "&&", tuple(left))
