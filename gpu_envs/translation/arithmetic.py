"""Operators: Python's meaning, in C++."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from gpu_envs.errors import did_you_mean
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.values import (
    BOOL,
    INT,
    REAL,
    STATIC,
    Choice,
    Level,
    Number,
    Type,
    Value,
    converted,
    described,
    literal,
    number,
    truth,
    wider,
)

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

_PLAIN = {ast.Add: ("+", Level.SUM), ast.Sub: ("-", Level.SUM), ast.Mult: ("*", Level.PRODUCT)}
_BITS = {ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>"}
_ORDER = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_EQUALITY = {ast.Eq: "==", ast.NotEq: "!="}

MOST_FACTORS = 16
"""The greatest exponent."""


def _fold(op: ast.AST, left: Value, right: Value) -> Value:
    try:
        return literal(_FOLDED[type(op)](left.constant, right.constant))
    except (ArithmeticError, TypeError, ValueError) as error:
        raise RefusedError(f"Python cannot compute this: {error}") from None


def binary(op: ast.operator, left: Value, right: Value) -> Value:
    """``left op right``."""
    both = wider(number(left), number(right))
    if left.constant is not None and right.constant is not None and not isinstance(op, ast.MatMult):
        return _fold(op, left, right)  # in Python's double precision, and rounded once
    if type(op) in _PLAIN:
        sign, level = _PLAIN[type(op)]
        return _joined(sign, level, left, right, INT if both is BOOL else both)
    match op:
        case ast.Div():
            _not_zero(right)
            return _joined("/", Level.PRODUCT, left, right, REAL)
        case ast.FloorDiv() | ast.Mod():
            _not_zero(right)
            kind = INT if both is BOOL else both
            name = "floor_divided" if isinstance(op, ast.FloorDiv) else "modulo"
            return call(f"python::{name}", kind, converted(left, kind), converted(right, kind))
        case ast.Pow():
            return power(left, right)
        case ast.BitAnd() | ast.BitOr() | ast.BitXor() | ast.LShift() | ast.RShift():
            return _bits(op, left, right, both)
    raise RefusedError("there are no matrices in rules", "Write the sums out, or in loops")


def _joined(sign: str, level: Level, left: Value, right: Value, kind: Type) -> Value:
    one, other = converted(left, kind), converted(right, kind)
    return Value(f"{one.within(level)} {sign} {other.within(Level(level + 1))}", kind, level)


def _not_zero(value: Value) -> None:
    if value.constant is not None and value.constant == 0:
        raise RefusedError("this divides by zero")


def _bits(op: ast.operator, left: Value, right: Value, both: Type) -> Value:
    if both is REAL:
        raise RefusedError("bits are of ints, and this has a float")
    shift = isinstance(op, ast.LShift | ast.RShift)
    if shift and right.constant is not None and not 0 <= right.constant < 32:
        raise RefusedError(f"an int of 32 bits cannot be shifted by {right.constant}")
    one, other = converted(left, INT), converted(right, INT)
    code = f"{one.within(Level.UNARY)} {_BITS[type(op)]} {other.within(Level.UNARY)}"
    if both is BOOL and not shift:
        return Value(f"({code}) != 0", BOOL, Level.EQUALITY)
    return Value(code, INT, Level.BITS)


def power(base: Value, exponent: Value) -> Value:
    """``base ** exponent``: a product, for a small constant exponent."""
    times = exponent.constant
    if times == 0.5:
        return call("square_root", REAL, converted(base, REAL))
    if times is None or times != int(times) or abs(times) > MOST_FACTORS:
        raise RefusedError(
            "a power with this exponent has not the same bits on every device",
            f"Write a constant whole exponent of at most {MOST_FACTORS}, math.sqrt(x), or math.exp(y * math.log(x))",
        )
    kind = REAL if isinstance(times, float) or times < 0 else wider(INT, number(base))
    x, factors = converted(base, kind), abs(int(times))
    if factors == 0:
        return converted(literal(1), kind)
    if factors == 1:
        product = x
    elif factors == 2 and x.is_simple:
        product = Value(f"{x.within(Level.PRODUCT)} * {x.within(Level.UNARY)}", kind, Level.PRODUCT)
    else:
        product = call(f"python::power<{factors}>", kind, x)
    return product if times > 0 else binary(ast.Div(), literal(1.0), product)


def call(function: str, kind: Type, *arguments: Value) -> Value:
    """A call of a C++ function."""
    return Value(f"{function}({', '.join(a.text for a in arguments)})", kind)


def unary(op: ast.unaryop, value: Value) -> Value:
    """``op value``."""
    if isinstance(op, ast.Not):
        known = truth(value)
        if known.constant is not None:
            return literal(not known.constant)
        return Value(f"!{known.within(Level.UNARY)}", BOOL, Level.UNARY)
    kind = wider(INT, number(value))
    if isinstance(op, ast.Invert) and kind is REAL:
        raise RefusedError("bits are of ints, and this is a float")
    if value.constant is not None:
        signs: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
        return literal(signs.get(type(op), operator.invert)(value.constant))
    given = converted(value, kind)
    if isinstance(op, ast.UAdd):
        return given
    sign = "-" if isinstance(op, ast.USub) else "~"
    inner = given.within(Level.UNARY)
    inner = f"({inner})" if inner.startswith(sign) else inner
    real = f"-{value.as_real}" if value.as_real and sign == "-" else ""
    return Value(f"{sign}{inner}", kind, Level.UNARY, as_real=real)


def compare(op: ast.cmpop, left: Value, right: Value) -> Value:
    """``left op right`` for two."""
    if isinstance(op, ast.Is | ast.IsNot):
        raise RefusedError("objects are not compared in rules", "Write == or !=")
    if isinstance(op, ast.In | ast.NotIn):
        return _membership(op, left, right)
    if isinstance(left.type, Choice) or isinstance(right.type, Choice):
        return _words(op, left, right)
    for one, other in ((left, right), (right, left)):
        if isinstance(one.type, Number) and isinstance(other.constant, str):
            raise RefusedError(
                f"{described(one)} is compared with the string {other.constant!r}",
                "Actions, and all that rules compute with, are numbers: name them in the module, as in LEFT = 0",
            )
    both = wider(number(left), number(right))
    if left.constant is not None and right.constant is not None:
        return _fold(op, left, right)
    if type(op) in _ORDER:
        return _compared(_ORDER[type(op)], Level.ORDER, left, right, wider(INT, both))
    return _compared(_EQUALITY[type(op)], Level.EQUALITY, left, right, both)


def _compared(sign: str, level: Level, left: Value, right: Value, kind: Type) -> Value:
    one, other = converted(left, kind), converted(right, kind)
    return Value(f"{one.within(Level.SUM)} {sign} {other.within(Level.SUM)}", BOOL, level)


def _membership(op: ast.cmpop, left: Value, right: Value) -> Value:
    if not isinstance(right.constant, tuple | list | set | frozenset | range) or not right.constant:
        raise RefusedError("'in' needs a tuple of constants", "Write a tuple of them, or comparisons")
    each = [compare(ast.Eq(), left, literal(word)) for word in right.constant]
    code = " || ".join(value.within(Level.AND) for value in each)
    found = Value(code, BOOL, Level.OR if len(each) > 1 else each[0].level)
    return unary(ast.Not(), found) if isinstance(op, ast.NotIn) else found


def _words(op: ast.cmpop, left: Value, right: Value) -> Value:
    choice, word = (left, right) if isinstance(left.type, Choice) else (right, left)
    kind = choice.type
    assert isinstance(kind, Choice)
    if type(op) not in _EQUALITY:
        raise RefusedError("words have no order", "Write == or !=")
    sign = _EQUALITY[type(op)]
    if word.type == kind:
        return Value(f"{choice.within(Level.SUM)} {sign} {word.within(Level.SUM)}", BOOL, Level.EQUALITY)
    if word.type is not STATIC or not isinstance(word.constant, str):
        raise RefusedError(f"{described(choice)} is compared with {described(word)}", "Write one of the words")
    return Value(f"{choice.within(Level.SUM)} {sign} {enumerator(kind, word.constant)}", BOOL, Level.EQUALITY)


def enumerator(kind: Choice, word: str) -> str:
    """A word of a choice in C++."""
    if word not in kind.words:
        known = ", ".join(map(repr, kind.words))
        raise RefusedError(f"{word!r} is not one of {known}{did_you_mean(word, kind.words)}".rstrip("."))
    return f"{kind.cpp}::{word.replace('-', '_')}"


def conditional(condition: Value, yes: Value, no: Value) -> Value:
    """``yes if condition else no``."""
    kind = wider(yes.type, no.type)
    one, other = converted(yes, kind), converted(no, kind)
    if condition.constant is not None:
        return one if condition.constant else other
    code = f"{condition.within(Level.OR)} ? {one.within(Level.OR)} : {other.text}"
    return Value(code, kind, Level.CONDITIONAL)


def logic(op: ast.boolop, values: list[Value]) -> Value:
    """``a and b and ...``, or ``a or b or ...``, of bools."""
    decisive = isinstance(op, ast.Or)
    left: list[Value] = []
    for value in values:
        if value.constant is None:
            left.append(value)
        elif bool(value.constant) is decisive:
            left.append(value)
            break
    if not left:
        return literal(not decisive)
    if left[0].constant is not None or len(left) == 1:
        return left[0]
    sign, level, inner = (" || ", Level.OR, Level.EQUALITY) if decisive else (" && ", Level.AND, Level.BITS)
    return Value(sign.join(value.within(inner) for value in left), BOOL, level)
