"""The functions that rules may call: Python's own, those of ``math``, and those of ``gpu_envs.rules``."""

import ast
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from gpu_envs import rules
from gpu_envs.errors import did_you_mean
from gpu_envs.translation.arithmetic import TRUNCATED, binary, call, computed, converted, number, power, truth, unary
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Constant, Expr, Operation
from gpu_envs.translation.types import BOOL, INT, REAL, Number, Record, Type, wider
from gpu_envs.translation.walk import known, literal


class Known(Record):
    """A function, and how many arguments it takes."""

    make: Callable[..., Expr]
    least: int = 1
    most: int = 1


def _named(name: str, count: int = 1, kind: Number = REAL) -> Known:
    """A function by its name in the dialect, whose arguments and result have one type."""
    return Known(functools.partial(call, name, kind), count, count)


def _joint(name: str, *values: Expr) -> Expr:
    """A function of numbers of the widest type among the arguments."""
    kinds: list[Type] = [INT, *map(number, values)]
    return call(name, functools.reduce(wider, kinds), *values)


def _extreme(name: str, most: int) -> Known:
    return Known(lambda *values: functools.reduce(functools.partial(_joint, name), values), 2, most)


def _absolute(x: Expr) -> Expr:
    number(x)
    return literal(abs(x.value)) if isinstance(x, Constant) else _joint("elementary::abs", x)


def _rounding(exact: Callable[[float], int], made: Callable[[Expr], Expr]) -> Known:
    """To a whole number, which ``made`` computes as a real."""

    def make(x: Expr) -> Expr:
        if number(x) is not REAL:
            return converted(x, INT)
        return computed(exact, x.value) if isinstance(x, Constant) else Operation(INT, TRUNCATED, (made(x),))

    return Known(make)


def _down(x: Expr) -> Expr:
    return call("round_down", REAL, x)


def _up(x: Expr) -> Expr:
    return unary(ast.USub(), _down(unary(ast.USub(), x)))


def _square_root(x: Expr) -> Expr:
    number(x)
    if isinstance(x, Constant) and x.value >= 0:
        return literal(math.sqrt(known(converted(literal(x.value), REAL))))
    return call("square_root", REAL, x)


def _log(x: Expr, base: Expr | None = None) -> Expr:
    top = call("log", REAL, x)
    return top if base is None else binary(ast.Div(), top, call("log", REAL, base))


def _times(factor: float) -> Known:
    return Known(lambda x: binary(ast.Mult(), _real(x), literal(factor)))


def _real(x: Expr) -> Expr:
    return converted(x, REAL)


def _asks(name: str) -> Known:
    """A question about a real."""
    return Known(lambda x: Operation(BOOL, f"python::{name}", (_real(x),)))


def _float(x: Expr) -> Expr:
    word = known(x)
    if isinstance(word, str) and word.strip(" +-").lower() in ("inf", "infinity"):
        sign = "-" if "-" in word else ""
        raise RefusedError(f"there are no strings in rules, and this is {word!r}", f"Write {sign}math.inf")
    return _real(x)


KNOWN: Mapping[Any, Known] = {
    abs: Known(_absolute),
    min: _extreme("minimum", 64),
    max: _extreme("maximum", 64),
    int: _rounding(int, lambda x: x),
    float: Known(_float),
    bool: Known(truth),
    round: _rounding(round, lambda x: call("python::rounded", REAL, x)),
    pow: Known(power, 2, 2),
    math.sin: _named("sin"),
    math.cos: _named("cos"),
    math.tan: _named("python::tangent"),
    math.atan: _named("elementary::atan"),
    math.atan2: _named("elementary::atan2", 2),
    math.tanh: _named("elementary::tanh"),
    math.exp: _named("exp"),
    math.expm1: _named("elementary::expm1"),
    math.log: Known(_log, 1, 2),
    math.log1p: _named("elementary::log1p"),
    math.log2: _named("elementary::log2"),
    math.log10: _named("elementary::log10"),
    math.sqrt: Known(_square_root),
    math.pow: Known(lambda x, y: power(_real(x), y), 2, 2),
    math.fabs: Known(lambda x: _absolute(_real(x))),
    math.floor: _rounding(math.floor, _down),
    math.ceil: _rounding(math.ceil, _up),
    math.trunc: _rounding(math.trunc, lambda x: x),
    math.fmod: _named("python::remainder", 2),
    math.hypot: Known(functools.partial(call, "elementary::hypot", REAL), 1, 8),
    math.copysign: _named("elementary::with_sign_of", 2),
    math.radians: _times(math.pi / 180),
    math.degrees: _times(180 / math.pi),
    math.isnan: _asks("not_a_number"),
    math.isfinite: _asks("finite"),
    rules.minimum: _extreme("minimum", 2),
    rules.maximum: _extreme("maximum", 2),
    rules.clip: Known(functools.partial(_joint, "clip"), 3, 3),
    rules.fma: _named("fma", 3),
    rules.role_of: _named("role_of", 1, INT),
    rules.first_of: _named("first_of", 1, INT),
    rules.count_of: _named("count_of", 1, INT),
    rules.features_of: _named("features_of", 1, INT),
}
"""Each function with what it becomes."""

_INSTEAD = {
    "asin": "Write math.atan2(x, math.sqrt(1 - x * x))",
    "acos": "Write math.atan2(math.sqrt(1 - x * x), x)",
    "sinh": "Write (math.exp(x) - math.exp(-x)) / 2",
    "cosh": "Write (math.exp(x) + math.exp(-x)) / 2",
    "dist": "Write math.hypot(a - c, b - d)",
    "sum": "Write a loop: for i in range(n): total += ...; of a team's numbers, as a phase: w.total = team.sum(...)",
    "range": "Write for i in range(n):",
    "enumerate": "Write for i in range(n):",
    "zip": "Write for i in range(n):",
    "divmod": "Write a // b and a % b",
    "isinstance": "Types are known where rules are translated",
}

DRAWN = {
    "random": "random.uniform(0.0, 1.0)",
    "rand": "random.uniform(0.0, 1.0)",
    "randint": "random.integer(n), which is below n",
    "randrange": "random.integer(n), which is below n",
    "choice": "random.integer(n), and index with it",
    "gauss": "random.normal(0.0, 1.0)",
    "normalvariate": "random.normal(0.0, 1.0)",
    "randn": "random.normal(0.0, 1.0)",
}
"""What rules call in place of other functions that draw random numbers."""

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
    owner = getattr(function, "__self__", None)  # of the functions of random: an instance of random.Random
    module = (getattr(function, "__module__", None) or type(owner or function).__module__).partition(".")[0]
    if module in ("numpy", "torch", "cupy", "jax", "numba"):
        other = _OF_ARRAYS.get(name, f"math.{name}" if hasattr(math, name) else "")
        return RefusedError(
            f"functions of {module} are not translated",
            f"Write {other}(...)" if other else "Rules work on single numbers: write it with math and loops",
        )
    if module == "random":
        return RefusedError(
            f"Python's random.{name} is not translated",
            f"Use the argument random of the rules: {DRAWN.get(name, 'random.uniform(0.0, 1.0)')}",
        )
    if name == "print":
        return RefusedError("rules cannot print: they run on the device", "Look at env.state from outside")
    if hasattr(function, "__wrapped__"):
        return RefusedError(f"{name} has a decorator, and is not a plain function of Python", "Remove the decorator")
    names = sorted({str(each.__name__) for each in KNOWN})
    instead = _INSTEAD.get(name, f"Known are: {', '.join(names)}")
    if module == "math":
        return RefusedError(f"there is no math.{name} with the same bits on every device", instead)
    meant = "" if name in _INSTEAD else did_you_mean(name, names)
    return RefusedError(f"{name} is not translated{meant}".rstrip("."), instead)
