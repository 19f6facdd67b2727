"""Builtin functions of rules, from Python, ``math`` and ``gpu_envs.rules``."""

import ast
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from gpu_envs import rules
from gpu_envs.errors import did_you_mean
from gpu_envs.translation.arithmetic import TRUNCATED, binary, call, convert, fold, number_type, power, to_bool, unary
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Constant, Expr, Operation
from gpu_envs.translation.types import BOOL, INT, REAL, Number, Record, Type, wider
from gpu_envs.translation.walk import constant_value, literal


class Builtin(Record):
    """How to translate a function, and its number of arguments."""

    make: Callable[..., Expr]
    min_arguments: int = 1
    max_arguments: int = 1


def _function(name: str, count: int = 1, kind: Number = REAL) -> Builtin:
    """Return a builtin that calls a C++ function, whose arguments and result have one type."""
    return Builtin(functools.partial(call, name, kind), count, count)


def _widest_call(name: str, *values: Expr) -> Expr:
    """Call a function with all arguments converted to the widest of their types."""
    kinds: list[Type] = [INT, *map(number_type, values)]
    return call(name, functools.reduce(wider, kinds), *values)


def _minmax(name: str, max_arguments: int) -> Builtin:
    return Builtin(lambda *values: functools.reduce(functools.partial(_widest_call, name), values), 2, max_arguments)


def _absolute(x: Expr) -> Expr:
    number_type(x)
    return literal(abs(x.value)) if isinstance(x, Constant) else _widest_call("elementary::abs", x)


def _rounding(exact: Callable[[float], int], to_real: Callable[[Expr], Expr]) -> Builtin:
    """Return a builtin that rounds to an int: by ``exact`` for a constant, else by truncating ``to_real`` of it."""

    def make(x: Expr) -> Expr:
        if number_type(x) is not REAL:
            return convert(x, INT)
        return fold(exact, x.value) if isinstance(x, Constant) else Operation(INT, TRUNCATED, (to_real(x),))

    return Builtin(make)


def _floor(x: Expr) -> Expr:
    return call("round_down", REAL, x)


def _ceil(x: Expr) -> Expr:
    return unary(ast.USub(), _floor(unary(ast.USub(), x)))


def _square_root(x: Expr) -> Expr:
    number_type(x)
    if isinstance(x, Constant) and x.value >= 0:
        return literal(math.sqrt(constant_value(convert(literal(x.value), REAL))))
    return call("square_root", REAL, x)


def _log(x: Expr, base: Expr | None = None) -> Expr:
    top = call("log", REAL, x)
    return top if base is None else binary(ast.Div(), top, call("log", REAL, base))


def _scaled(factor: float) -> Builtin:
    return Builtin(lambda x: binary(ast.Mult(), _real(x), literal(factor)))


def _real(x: Expr) -> Expr:
    return convert(x, REAL)


def _predicate(name: str) -> Builtin:
    """Return a function from a real to a bool."""
    return Builtin(lambda x: Operation(BOOL, f"python::{name}", (_real(x),)))


def _float(x: Expr) -> Expr:
    word = constant_value(x)
    if isinstance(word, str) and word.strip(" +-").lower() in ("inf", "infinity"):
        sign = "-" if "-" in word else ""
        raise RefusedError(f"rules cannot convert the string {word!r}", f"Write {sign}math.inf")
    return _real(x)


BUILTINS: Mapping[Any, Builtin] = {
    abs: Builtin(_absolute),
    min: _minmax("minimum", 64),
    max: _minmax("maximum", 64),
    int: _rounding(int, lambda x: x),
    float: Builtin(_float),
    bool: Builtin(to_bool),
    round: _rounding(round, lambda x: call("python::rounded", REAL, x)),
    pow: Builtin(power, 2, 2),
    math.sin: _function("sin"),
    math.cos: _function("cos"),
    math.tan: _function("python::tangent"),
    math.atan: _function("elementary::atan"),
    math.atan2: _function("elementary::atan2", 2),
    math.tanh: _function("elementary::tanh"),
    math.exp: _function("exp"),
    math.expm1: _function("elementary::expm1"),
    math.log: Builtin(_log, 1, 2),
    math.log1p: _function("elementary::log1p"),
    math.log2: _function("elementary::log2"),
    math.log10: _function("elementary::log10"),
    math.sqrt: Builtin(_square_root),
    math.pow: Builtin(lambda x, y: power(_real(x), y), 2, 2),
    math.fabs: Builtin(lambda x: _absolute(_real(x))),
    math.floor: _rounding(math.floor, _floor),
    math.ceil: _rounding(math.ceil, _ceil),
    math.trunc: _rounding(math.trunc, lambda x: x),
    math.fmod: _function("python::remainder", 2),
    math.hypot: Builtin(functools.partial(call, "elementary::hypot", REAL), 1, 8),
    math.copysign: _function("elementary::with_sign_of", 2),
    math.radians: _scaled(math.pi / 180),
    math.degrees: _scaled(180 / math.pi),
    math.isnan: _predicate("not_a_number"),
    math.isfinite: _predicate("finite"),
    rules.minimum: _minmax("minimum", 2),
    rules.maximum: _minmax("maximum", 2),
    rules.clip: Builtin(functools.partial(_widest_call, "clip"), 3, 3),
    rules.fma: _function("fma", 3),
    rules.role_of: _function("role_of", 1, INT),
    rules.first_of: _function("first_of", 1, INT),
    rules.count_of: _function("count_of", 1, INT),
    rules.features_of: _function("features_of", 1, INT),
}
"""Builtin functions by Python object."""

_HINTS = {
    "asin": "Write math.atan2(x, math.sqrt(1 - x * x))",
    "acos": "Write math.atan2(math.sqrt(1 - x * x), x)",
    "sinh": "Write (math.exp(x) - math.exp(-x)) / 2",
    "cosh": "Write (math.exp(x) + math.exp(-x)) / 2",
    "dist": "Write math.hypot(a - c, b - d)",
    "sum": "Write a loop, for i in range(n): total += ..., or in a team w.total = team.sum(...)",
    "range": "Write for i in range(n):",
    "enumerate": "Write for i in range(n):",
    "zip": "Write for i in range(n):",
    "divmod": "Write a // b and a % b",
    "isinstance": "Remove it: types are fixed at translation",
}

RANDOM_REPLACEMENTS = {
    "random": "random.uniform()",
    "rand": "random.uniform()",
    "randint": "random.integer(n), from 0 to n - 1",
    "randrange": "random.integer(n), from 0 to n - 1",
    "choice": "random.choice(weights), the index of the chosen weight, or random.integer(n)",
    "choices": "random.choice(weights), the index of the chosen weight",
    "expovariate": "random.exponential(rate)",
    "binomialvariate": "random.binomial(n, p)",
    "gauss": "random.normal(0.0, 1.0)",
    "normalvariate": "random.normal(0.0, 1.0)",
    "randn": "random.normal(0.0, 1.0)",
}
"""Replacements of functions of ``random`` and NumPy."""

_NUMPY_REPLACEMENTS = {
    "absolute": "abs",
    "clip": "gpu_envs.rules.clip",
    "float32": "float",
    "float64": "float",
    "int32": "int",
    "int64": "int",
    "maximum": "max",
    "minimum": "min",
}
"""Replacements of array libraries' functions that have another name or place than in ``math``."""


def refusal_of(function: Any) -> RefusedError:
    """Return the error for a Python function that rules cannot call, with a replacement if there is one."""
    name = getattr(function, "__name__", repr(function))
    owner = getattr(function, "__self__", None)  # an instance of random.Random for the functions of random
    module = (getattr(function, "__module__", None) or type(owner or function).__module__).partition(".")[0]
    if module in ("numpy", "torch", "cupy", "jax", "numba"):
        replacement = _NUMPY_REPLACEMENTS.get(name, f"math.{name}" if hasattr(math, name) else "")
        return RefusedError(
            f"functions of {module} are not translated",
            f"Write {replacement}(...)" if replacement else "Rules compute with single numbers: use math and loops",
        )
    if module == "random":
        return RefusedError(
            f"Python's random.{name} is not translated",
            f"Use the argument random: {RANDOM_REPLACEMENTS.get(name, 'random.uniform()')}",
        )
    if name == "print":
        return RefusedError("rules cannot print: they run on the device", "Print env.state after a step")
    if hasattr(function, "__wrapped__"):
        return RefusedError(f"{name} has a decorator", "Remove the decorator")
    names = sorted({str(builtin.__name__) for builtin in BUILTINS})
    hint = _HINTS.get(name, f"Use one of: {', '.join(names)}")
    if module == "math":
        return RefusedError(f"rules have no math.{name} that is bit-identical on all devices", hint)
    suggestion = "" if name in _HINTS else did_you_mean(name, names)
    return RefusedError(f"{name} is not translated{suggestion}".rstrip("."), hint)
