"""The functions that rules may call: Python's own, those of ``math``, and those of ``gpu_envs.rules``."""

import ast
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, final

from gpu_envs import rules
from gpu_envs.errors import did_you_mean
from gpu_envs.translation.arithmetic import TRUNCATED, binary, call, converted, number, power, truth, unary
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Call, Constant, Expr
from gpu_envs.translation.types import BOOL, INT, REAL, wider
from gpu_envs.translation.walk import known, literal


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """A function, and how many arguments it takes."""

    make: Callable[..., Expr]
    least: int = 1
    most: int = 1


def _real(name: str, count: int = 1) -> Known:
    """A function of reals by its name in the dialect."""
    return Known(functools.partial(call, name, REAL), count, count)


def _extreme(name: str, most: int = 64) -> Known:
    def greater(one: Expr, other: Expr) -> Expr:
        return call(name, wider(INT, wider(number(one), number(other))), one, other)

    return Known(lambda *values: functools.reduce(greater, values), 2, most)


def _absolute(x: Expr) -> Expr:
    kind = wider(INT, number(x))
    return literal(abs(x.value)) if isinstance(x, Constant) else call("elementary::abs", kind, x)


def _rounding(exact: Callable[[float], int], made: Callable[[Expr], Expr]) -> Known:
    """To a whole number, which ``made`` computes as a real."""

    def make(x: Expr) -> Expr:
        if number(x) is not REAL:
            return converted(x, INT)
        if not isinstance(x, Constant):
            return Call(INT, TRUNCATED, (made(x),))
        try:
            return literal(exact(x.value))
        except (OverflowError, ValueError) as error:
            raise RefusedError(f"Python cannot compute this: {error}") from None

    return Known(make)


def _down(x: Expr) -> Expr:
    return call("round_down", REAL, x)


def _up(x: Expr) -> Expr:
    return unary(ast.USub(), _down(unary(ast.USub(), x)))


def _square_root(x: Expr) -> Expr:
    if isinstance(x, Constant) and x.value >= 0:
        return literal(math.sqrt(known(converted(literal(x.value), REAL))))
    return call("square_root", REAL, x)


def _log(x: Expr, base: Expr | None = None) -> Expr:
    top = call("log", REAL, x)
    return top if base is None else binary(ast.Div(), top, call("log", REAL, base))


def _log_of(base: float) -> Known:
    return Known(lambda x: binary(ast.Div(), _log(x), literal(math.log(base))))


def _hypot(*sides: Expr) -> Expr:
    squares = (power(converted(side, REAL), literal(2)) for side in sides)
    return call("square_root", REAL, functools.reduce(lambda a, b: binary(ast.Add(), a, b), squares))


def _times(factor: float) -> Known:
    return Known(lambda x: binary(ast.Mult(), converted(x, REAL), literal(factor)))


def _clip(x: Expr, low: Expr, high: Expr) -> Expr:
    return call("clip", wider(INT, wider(number(x), wider(number(low), number(high)))), x, low, high)


def _whole_call(name: str) -> Known:
    return Known(functools.partial(call, name, INT))


def _asks(name: str) -> Known:
    """A question about a real."""
    return Known(lambda x: Call(BOOL, f"python::{name}", (converted(x, REAL),)))


def _float(x: Expr) -> Expr:
    word = known(x)
    if isinstance(word, str) and word.strip(" +-").lower() in ("inf", "infinity"):
        sign = "-" if "-" in word else ""
        raise RefusedError(f"there are no strings in rules, and this is {word!r}", f"Write {sign}math.inf")
    return converted(x, REAL)


KNOWN: Mapping[Any, Known] = {
    abs: Known(_absolute),
    min: _extreme("minimum"),
    max: _extreme("maximum"),
    int: _rounding(int, lambda x: x),
    float: Known(_float),
    bool: Known(truth),
    round: _rounding(round, lambda x: call("python::rounded", REAL, x)),
    pow: Known(power, 2, 2),
    math.sin: _real("sin"),
    math.cos: _real("cos"),
    math.tan: _real("python::tangent"),
    math.atan: _real("elementary::atan"),
    math.atan2: _real("elementary::atan2", 2),
    math.tanh: _real("elementary::tanh"),
    math.exp: _real("exp"),
    math.expm1: _real("elementary::expm1"),
    math.log: Known(_log, 1, 2),
    math.log1p: _real("elementary::log1p"),
    math.log2: _log_of(2),
    math.log10: _log_of(10),
    math.sqrt: Known(_square_root),
    math.pow: Known(lambda x, y: power(converted(x, REAL), y), 2, 2),
    math.fabs: Known(lambda x: _absolute(converted(x, REAL))),
    math.floor: _rounding(math.floor, _down),
    math.ceil: _rounding(math.ceil, _up),
    math.trunc: _rounding(math.trunc, lambda x: x),
    math.fmod: _real("python::remainder", 2),
    math.hypot: Known(_hypot, 1, 8),
    math.copysign: _real("elementary::with_sign_of", 2),
    math.radians: _times(math.pi / 180),
    math.degrees: _times(180 / math.pi),
    math.isnan: _asks("not_a_number"),
    math.isfinite: _asks("finite"),
    rules.minimum: _extreme("minimum", 2),
    rules.maximum: _extreme("maximum", 2),
    rules.clip: Known(_clip, 3, 3),
    rules.fma: _real("fma", 3),
    rules.role_of: _whole_call("role_of"),
    rules.first_of: _whole_call("first_of"),
    rules.count_of: _whole_call("count_of"),
    rules.features_of: _whole_call("features_of"),
}
"""Each function with what it becomes."""

_INSTEAD = {
    "asin": "Write math.atan2(x, math.sqrt(1 - x * x))",
    "acos": "Write math.atan2(math.sqrt(1 - x * x), x)",
    "sinh": "Write (math.exp(x) - math.exp(-x)) / 2",
    "cosh": "Write (math.exp(x) + math.exp(-x)) / 2",
    "dist": "Write math.hypot(a - c, b - d)",
    "sum": "Write a loop: for i in range(n): total += ...",
    "range": "Write for i in range(n):",
    "enumerate": "Write for i in range(n):",
    "zip": "Write for i in range(n):",
    "divmod": "Write a // b and a % b",
    "isinstance": "Types are known where rules are translated",
}

_OF_ARRAYS = {
    "absolute": "abs",
    "clip": "gpu_envs.rules.clip",
    "float32": "float",
    "float64": "float",
    "int32": "int",
    "int64": "int",
    "maximum": "max",
    "minimum": "min",
}
"""What stands for functions of NumPy and its like, besides those of ``math``."""


def refusal_of(function: Any) -> RefusedError:
    """Why a function cannot be called, and what to do instead."""
    name = getattr(function, "__name__", repr(function))
    module = (getattr(function, "__module__", None) or type(function).__module__).partition(".")[0]
    if module in ("numpy", "torch", "cupy", "jax", "numba"):
        other = _OF_ARRAYS.get(name, f"math.{name}" if hasattr(math, name) else "")
        return RefusedError(
            f"functions of {module} are not translated",
            f"Write {other}(...)" if other else "Rules work on single numbers: write it with math and loops",
        )
    if module == "random":
        return RefusedError("Python's random numbers are not translated", "Write random.uniform(a, b), of the argument")
    if name == "print":
        return RefusedError("rules cannot print: they run on the device", "Look at env.state from outside")
    if hasattr(function, "__wrapped__"):
        return RefusedError(f"{name} has a decorator, and is not a plain function of Python", "Remove the decorator")
    known_names = [str(k.__name__) for k in KNOWN]
    whole = f"math.{name}" if module == "math" else name
    advice = _INSTEAD.get(name, f"Known are: {', '.join(sorted(set(known_names)))}")
    return RefusedError(
        f"there is no {whole} with the same bits on every device"
        if module == "math"
        else f"{whole} is not translated{'' if name in _INSTEAD else did_you_mean(name, known_names)}".rstrip("."),
        advice,
    )
