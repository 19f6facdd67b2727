"""Operators with Python's semantics, and the types of their results."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from gpu_envs.errors import did_you_mean
from gpu_envs.translation import tree
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.types import BOOL, INT, REAL, STATIC, Array, Choice, Number, Type, describe, wider
from gpu_envs.translation.walk import constant_value, has_effects, is_simple, literal

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
"""Operators: C++ operator or function for operands of one type, and Python function for constants."""

MAX_POWER = 16
"""Maximum constant exponent that becomes a product."""

MAX_CONSTANT_BITS = 4096
"""Maximum bits of an int computed from constants."""

TRUNCATED = "python::truncated"


# --- types ---


def number_type(expr: Expr) -> Number:
    """Return the numeric type of an expression; refuse other types, and places that rules must not read."""
    if write_only(expr):
        raise RefusedError("observations are write-only", "Compute the value in a local variable", expr.at)
    if isinstance(expr.kind, Number):
        return expr.kind
    if isinstance(expr, tree.Invoke) and expr.kind is STATIC:
        raise RefusedError("this function returns nothing", "Write the call as a statement", expr.at)
    hint = ""
    if isinstance(expr, tree.Element) and isinstance(expr.kind, Array) and expr.at is not None:
        names = ("row", "column") if len(expr.indices) + len(expr.kind.sizes) == 2 else ("i", "j", "k")
        hint = f"Write {ast.unparse(expr.at)[:-1]}, {', '.join(names[len(expr.indices) :])}]"
        if isinstance(expr.of.kind, Array) and len(expr.indices) == len(expr.of.kind.sizes):  # an action
            hint = f"Write {ast.unparse(expr.at)}[j]"
    raise RefusedError(f"this is {describe(expr.kind, constant_value(expr))} and not a number", hint, expr.at)


def write_only(expr: Expr) -> bool:
    """Whether an expression is a place that must not be read, such as an element of an observation."""
    return isinstance(expr, tree.Element) and isinstance(expr.of.kind, Array) and expr.of.kind.write_only


def convert(expr: Expr, kind: Type) -> Expr:
    """Return an expression converted to ``kind``, its own or a wider numeric type; refuse other conversions."""
    if expr.kind == kind and not write_only(expr):
        return expr
    if not isinstance(kind, Number):
        raise RefusedError(f"this is {describe(expr.kind, constant_value(expr))}", at=expr.at)
    expr_kind = number_type(expr)
    if expr_kind.width > kind.width:
        conversion = {"int": "int(...), which truncates", "bool": "a comparison, as in x != 0"}[kind.cpp]
        raise RefusedError(f"this must be {describe(kind)}, not {describe(expr_kind)}", f"Write {conversion}", expr.at)
    if isinstance(expr, tree.Constant) and not expr.name:
        try:
            return literal(int(expr.value) if kind is INT else float(expr.value), expr.at)
        except OverflowError:
            raise RefusedError("this number is too large for a float", "Write a smaller number", expr.at) from None
    if kind is REAL and (real := _as_real(expr)):
        return real
    return tree.Operation(kind, kind.cpp, (expr,), at=expr.at)


def _as_real(expr: Expr) -> Expr | None:
    """Return the integral real that an int was truncated from (round(), floor()), +0 instead of -0; else None."""
    match expr:
        case tree.Operation(name=name, operands=(integral,)) if name == TRUNCATED and _is_integral(integral):
            return call("+", REAL, integral, literal(0.0))
        case tree.Operation(name="-", operands=(inner,)) if real := _as_real(inner):
            return call("-", REAL, literal(0.0), real)
    return None


def _is_integral(expr: Expr) -> bool:
    """Whether a real was rounded by floor() or round(), so that it has no fraction; also if it is negated."""
    match expr:
        case tree.Operation(name="-", operands=(inner,)):
            return _is_integral(inner)
        case tree.Operation(name="round_down" | "python::rounded"):
            return True
    return False


def to_bool(expr: Expr) -> Expr:
    """Return a bool expression: whether a number is not zero."""
    if number_type(expr) is BOOL:
        return expr
    if isinstance(expr, tree.Constant):
        return literal(bool(expr.value))
    return tree.Operation(BOOL, "!=", (expr, literal(0)))


def call(name: str, kind: Type, *operands: Expr) -> Expr:
    """Return the operation ``name``, a C++ operator or function, its operands converted to the result's type."""
    return tree.Operation(kind, name, tuple(convert(operand, kind) for operand in operands))


# --- operators ---


def binary(op: ast.operator, left: Expr, right: Expr) -> Expr:
    """Return ``left op right``, converted as in Python; computed now if both operands are constants."""
    both = wider(number_type(left), number_type(right))
    if isinstance(op, ast.MatMult):
        raise RefusedError("rules have no matrix product", "Write loops")
    if isinstance(left, tree.Constant) and isinstance(right, tree.Constant):
        return _fold_constants(op, left, right)  # in double precision, as in Python, and rounded once
    if isinstance(op, ast.Pow):
        return power(left, right)
    if isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor | ast.LShift | ast.RShift):
        return _bit_operation(op, both, left, right)
    if isinstance(op, ast.Div | ast.FloorDiv | ast.Mod) and isinstance(right, tree.Constant) and right.value == 0:
        raise RefusedError("this divides by zero", "Write a nonzero divisor")
    return call(OPERATORS[type(op)][0], REAL if isinstance(op, ast.Div) else wider(INT, both), left, right)


def _fold_constants(op: ast.AST, left: tree.Constant, right: tree.Constant) -> Expr:
    """Return the constant ``left op right``; refuse a result that would have very many bits."""
    if isinstance(op, ast.LShift | ast.Pow) and isinstance(left.value, int) and isinstance(right.value, int):
        bits = abs(left.value).bit_length()
        if (bits + right.value if isinstance(op, ast.LShift) else bits * right.value) > MAX_CONSTANT_BITS:
            raise RefusedError("this number does not fit 32 bits", "Write a float, or a smaller number")
    return fold(OPERATORS[type(op)][1], left.value, right.value)


def fold(function: Callable[..., Any], *values: Any) -> Expr:
    """Return the constant that a Python function computes; refuse the call if Python raises an error."""
    try:
        return literal(function(*values))
    except (ArithmeticError, TypeError, ValueError) as error:
        raise RefusedError(f"Python cannot compute this: {error}") from None


def _bit_operation(op: ast.operator, both: Type, left: Expr, right: Expr) -> Expr:
    if both is REAL:
        raise RefusedError("bit operations need ints, and this has a float", "Write int(...)")
    shift = isinstance(op, ast.LShift | ast.RShift)
    by = constant_value(right)
    if shift and by is not None and not 0 <= by < 32:
        raise RefusedError(f"an int of 32 bits cannot be shifted by {by}", "Shift by 0 to 31")
    result = call(OPERATORS[type(op)][0], INT, left, right)
    return to_bool(result) if both is BOOL and not shift else result


def power(base: Expr, exponent: Expr) -> Expr:
    """Return ``base ** exponent``; a product if the exponent is a small integer constant."""
    n, kinds = constant_value(exponent), (number_type(base), number_type(exponent))
    if n == 0.5:
        return call("python::root", REAL, base)
    if n is None or not abs(n) <= MAX_POWER or n != int(n):  # NaN fails the second comparison
        if REAL not in kinds and (n is None or n > 0):
            raise RefusedError("this power of an int may be a float, or not fit 32 bits", "Write float(a) ** b")
        return call(OPERATORS[ast.Pow][0], REAL, base, exponent)
    kind = REAL if isinstance(n, float) or n < 0 else wider(INT, kinds[0])
    x, factors = convert(base, kind), abs(int(n))
    if factors == 0:  # random numbers in the base are still drawn
        one = convert(literal(1), kind)
        return tree.Operation(kind, ",", (x, one)) if has_effects(x) else one
    if factors == 1:
        product = x
    elif factors == 2 and is_simple(x):
        product = call("*", kind, x, x)
    else:
        product = call(f"python::power<{factors}>", kind, x)
    return product if n > 0 else binary(ast.Div(), literal(1.0), product)


def unary(op: ast.unaryop, operand: Expr) -> Expr:
    """Return ``op operand``, computed now if the operand is a constant."""
    if isinstance(op, ast.Not):
        test = to_bool(operand)
        return literal(not test.value) if isinstance(test, tree.Constant) else call("!", BOOL, test)
    kind = wider(INT, number_type(operand))
    if isinstance(op, ast.Invert) and kind is REAL:
        raise RefusedError("bit operations need ints, and this is a float", "Write int(...)")
    sign, compute = OPERATORS[type(op)]
    if isinstance(operand, tree.Constant):
        return literal(compute(operand.value))
    return convert(operand, kind) if isinstance(op, ast.UAdd) else call(sign, kind, operand)


# --- comparisons ---


def compare(op: ast.cmpop, left: Expr, right: Expr) -> Expr:
    """Return the comparison ``left op right``, also ``in`` a tuple of constants; refuse operands of unlike types.

    The left operand of ``in`` is repeated: unless it is simple, use the result only to check the types.
    """
    if isinstance(op, ast.Is | ast.IsNot):
        raise RefusedError("rules cannot use 'is' or 'is not'", "Write == or !=")
    if isinstance(op, ast.In | ast.NotIn):
        values = constant_value(right)
        if not isinstance(values, tuple | list | set | frozenset | range) or not values:
            raise RefusedError("'in' needs a tuple of constants", "Write a tuple of constants, or comparisons")
        result = logic(ast.Or(), [compare(ast.Eq(), left, literal(value)) for value in values])
        return unary(ast.Not(), result) if isinstance(op, ast.NotIn) else result
    for first, second in ((left, right), (right, left)):
        if isinstance(first.kind, Choice):
            return _compare_choice(op, first.kind, first, second)
    for first, second in ((left, right), (right, left)):
        if isinstance(first.kind, Number) and isinstance(constant_value(second), str):
            raise RefusedError(
                f"{describe(first.kind)} is compared with the string {constant_value(second)!r}",
                "Actions, like all values in rules, are numbers: name them in the module, as in LEFT = 0",
            )
    both = wider(number_type(left), number_type(right))
    if isinstance(left, tree.Constant) and isinstance(right, tree.Constant):
        return _fold_constants(op, left, right)
    if not isinstance(op, ast.Eq | ast.NotEq):
        both = wider(INT, both)
    return tree.Operation(BOOL, OPERATORS[type(op)][0], (convert(left, both), convert(right, both)))


def _compare_choice(op: ast.cmpop, kind: Choice, choice: Expr, string: Expr) -> Expr:
    if not isinstance(op, ast.Eq | ast.NotEq):
        raise RefusedError("the strings of a parameter have no order", "Write == or !=")
    name = constant_value(string)
    if string.kind != kind:
        if string.kind is not STATIC or not isinstance(name, str):
            other = describe(string.kind, name)
            raise RefusedError(f"{describe(kind)} is compared with {other}", "Compare it with one of these strings")
        if name not in kind.options:
            options = ", ".join(map(repr, kind.options))
            raise RefusedError(f"{name!r} is not in {options}{did_you_mean(name, kind.options)}".rstrip("."))
        string = tree.Constant(kind, name, f"{kind.cpp}::{name.replace('-', '_')}")
    return tree.Operation(BOOL, OPERATORS[type(op)][0], (choice, string))


def logic(op: ast.boolop, values: list[Expr]) -> Expr:
    """Return ``a and b and ...`` or ``a or b or ...`` of bools; operands after a decisive constant are dropped."""
    decisive = isinstance(op, ast.Or)
    operands: list[Expr] = []
    for value in values:
        if not isinstance(value, tree.Constant):
            operands.append(value)
        elif bool(value.value) is decisive:
            operands.append(value)
            break
    if not operands:
        return literal(not decisive)
    if isinstance(operands[0], tree.Constant) or len(operands) == 1:
        return operands[0]
    return tree.Operation(BOOL, "||" if decisive else "&&", tuple(operands))
