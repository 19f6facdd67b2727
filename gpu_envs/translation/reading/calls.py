"""Calls of builtin functions, of methods, and of the author's functions."""

import ast
import inspect
import types
from collections.abc import Mapping

from gpu_envs import rules
from gpu_envs.errors import TranslationError, did_you_mean
from gpu_envs.translation import tree
from gpu_envs.translation.arithmetic import convert
from gpu_envs.translation.mathematics import BUILTINS, RANDOM_REPLACEMENTS, refusal_of
from gpu_envs.translation.reading.reader import Reader
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.types import INT, RANDOM, REAL, STATIC, STREAM, Array, Number, Struct, Type, describe
from gpu_envs.translation.walk import constant_value, field_of, literal, storage_type

DRAWS: Mapping[str, tuple[tuple[Number, ...], Number]] = {
    "uniform": ((REAL, REAL), REAL),
    "integer": ((INT,), INT),
    "normal": ((REAL, REAL), REAL),
    "exponential": ((REAL,), REAL),
    "poisson": ((REAL,), INT),
    "binomial": ((INT, REAL), INT),
    "bits": ((), INT),
}
"""Methods of a random number generator: types of the arguments and of the result. ``choice`` takes a list."""

MAX_WEIGHTS = 64
"""Maximum number of weights of ``random.choice``, which are read one by one."""

REDUCTIONS = ("sum", "max", "min")
"""Methods of ``team`` that reduce many numbers to one."""

_ATOMIC = {rules.add: "add", rules.lower: "lower"}


class Calls(Reader):
    """Layer of the reader for calls."""

    def call(self, node: ast.Call) -> Expr:
        """Read a call of a builtin, of a method or of an author's function; refuse other calls."""
        if isinstance(node.func, ast.Attribute):
            owner = self.expression(node.func.value)
            if isinstance(owner.kind, Struct):
                return self._method(node, owner, owner.kind.name, node.func.attr)
        function = self.expression(node.func)
        if function.kind is not STATIC:
            raise RefusedError(f"{describe(function.kind)} cannot be called", "Call a function of the module")
        target = constant_value(function)
        if target is len:
            return self._length(node)
        try:
            builtin, atomic_name = BUILTINS.get(target), _ATOMIC.get(target)
        except TypeError:  # an unhashable value is not a builtin
            builtin = atomic_name = None
        if atomic_name:
            raise RefusedError(f"{atomic_name}(...) returns nothing", "Write it as a separate statement")
        if builtin is not None:
            arguments = self._positional(node)
            if not builtin.min_arguments <= len(arguments) <= builtin.max_arguments:
                _suggest(node, target, arguments)
                takes = " to ".join(map(str, dict.fromkeys((builtin.min_arguments, builtin.max_arguments))))
                raise RefusedError(f"{ast.unparse(node.func)} got {len(arguments)} arguments; it takes {takes}")
            return builtin.make(*arguments)
        module = str(getattr(target, "__module__", ""))
        is_untranslated = module == rules.__name__ or module.partition(".")[0] in ("numpy", "random")
        if is_untranslated or not isinstance(target, types.FunctionType):
            raise refusal_of(target)
        return self._call_helper(node, target)

    def _positional(self, node: ast.Call) -> list[Expr]:
        """Return the arguments of a call; refuse keyword arguments."""
        if node.keywords:
            raise RefusedError("this function takes no keyword arguments", "Pass the arguments by position")
        return [self.expression(argument) for argument in node.args]

    def _length(self, node: ast.Call) -> Expr:
        arguments = self._positional(node)
        owner = arguments[0] if len(arguments) == 1 else literal(None)
        if isinstance(owner.kind, Array) and owner.kind.sizes[0] is not None:
            return literal(owner.kind.sizes[0])
        if owner.kind is STATIC and hasattr(constant_value(owner), "__len__"):
            return literal(len(constant_value(owner)))
        raise RefusedError("this has no known length", "Write len(...) of an array or a tuple")

    def atomic(self, node: ast.Call, at: ast.stmt) -> tree.Atomic | None:
        """Read ``add(field, value)`` or ``lower(field, value)``; return None for another call."""
        if not isinstance(node.func, ast.Name | ast.Attribute):
            return None
        try:
            name = _ATOMIC.get(constant_value(self.expression(node.func)), "")
        except (RefusedError, TranslationError, TypeError):
            return None
        if not name:
            return None
        with self.at(node):
            arguments = self._positional(node)
            if len(arguments) != 2:
                problem = f"{name} got {len(arguments)} arguments; it takes a field and a number"
                raise RefusedError(problem, f"Write {name}(w.FIELD, number)")
            place, value = arguments
            if field_of(place)[0] != "World" or storage_type(place) != "int" or place.kind is not INT:
                hint = "Declare the field as Field('int') in the spec"
                raise RefusedError(f"the first argument of {name} must be an int field of the world", hint)
            return tree.Atomic(at, name, place, convert(value, INT))

    # --- methods ---

    def _method(self, node: ast.Call, owner: Expr, type_name: str, name: str) -> Expr:
        """Read a method call that returns a number or a generator; refuse loops, reductions and unknown methods."""
        if type_name == "Random":
            return self._draw(node, owner, name)
        if type_name == "Team" and name in ("random", "shared_random"):
            return self._team_random(node, name)
        if type_name == "Team" and name in ("agents", "elements"):
            names = "i" if name == "agents" else "i, j"
            raise RefusedError(f"{name}(...) must be in a for statement", f"Write for {names} in {ast.unparse(node)}:")
        if type_name == "Team" and name in REDUCTIONS:
            hint = (
                f"Write w.total = team.{name}(w.x[i] for i in team.agents()), and read w.total in a later phase; "
                f"put a factor inside, team.{name}(2 * w.x[i] for ...)"
            )
            raise RefusedError(f"team.{name}(...) is a phase: assign it to a field, without other operators", hint)
        methods = ("agents", "elements", "random", "shared_random", *REDUCTIONS)
        suggestion = did_you_mean(name, methods if type_name == "Team" else ())
        raise RefusedError(f"the {type_name} has no method {name!r}{suggestion}".rstrip("."))

    def _draw(self, node: ast.Call, owner: Expr, name: str) -> Expr:
        """Read a call of a generator's method, such as ``random.uniform(a, b)``; refuse an unknown method."""
        if name == "choice":
            return tree.Draw(INT, owner, name, self._weights(node))
        if name not in DRAWS:
            if name in RANDOM_REPLACEMENTS:
                raise RefusedError(f"rules have no random.{name}", f"Write {RANDOM_REPLACEMENTS[name]}")
            methods = (*DRAWS, "choice")
            problem = f"rules have no random.{name}{did_you_mean(name, methods)}".rstrip(".")
            raise RefusedError(problem, f"Use one of: {', '.join(f'random.{method}' for method in methods)}")
        kinds, result = DRAWS[name]
        arguments = self._positional(node)
        if name == "uniform" and not arguments:
            arguments = [literal(0.0), literal(1.0)]
        if len(arguments) != len(kinds):
            raise RefusedError(f"random.{name} got {len(arguments)} arguments; it takes {len(kinds)}")
        return tree.Draw(result, owner, name, tuple(map(convert, arguments, kinds)))

    def _weights(self, node: ast.Call) -> tuple[Expr, ...]:
        """Return the weights that ``random.choice`` gets as a list, a tuple or an array; refuse other arguments."""
        hint = "Write random.choice([a, b, c]), or give a list's name; it returns the index of the chosen weight"
        refusal = RefusedError(f"random.choice takes a list of 1 to {MAX_WEIGHTS} weights", hint)
        if len(node.args) != 1 or node.keywords:
            raise refusal
        (given,) = node.args
        if isinstance(given, ast.List | ast.Tuple):
            weights = given.elts
        else:
            value = self.expression(given)
            size = value.kind.sizes[0] if isinstance(value.kind, Array) else None
            if value.kind is STATIC and hasattr(constant_value(value), "__len__"):
                size = len(constant_value(value))
            weights = [ast.Subscript(given, ast.Constant(i)) for i in range(min(size or 0, MAX_WEIGHTS + 1))]
        if not 1 <= len(weights) <= MAX_WEIGHTS:
            raise refusal
        return tuple(convert(self.expression(ast.copy_location(weight, node)), REAL) for weight in weights)

    def _team_random(self, node: ast.Call, name: str) -> Expr:
        """Read ``team.random(...)`` or ``team.shared_random(...)``, which return an agent's random number generator."""
        arguments = self._positional(node)
        maximum = 3 if name == "random" else 2
        if not 2 <= len(arguments) <= maximum:
            or_step = ", or in step team.random(STEP, i, w.elapsed)" if maximum == 3 else ""
            raise RefusedError(f"team.{name} got {len(arguments)} arguments", f"Write team.{name}(RESET, i){or_step}")
        stream, *numbers = arguments
        if stream.kind != STREAM or not isinstance(stream, tree.Constant):
            hint = "from gpu_envs.rules import RESET, STEP"
            raise RefusedError("the stream must be RESET or STEP", hint, node.args[0])
        team, agent = ast.unparse(node.func), ast.unparse(node.args[1])
        if name == "random" and stream.value is rules.STEP and len(arguments) == 2:
            raise RefusedError("this draws the same numbers in every step", f"Write {team}(STEP, {agent}, w.elapsed)")
        if stream.value is rules.RESET and len(arguments) == 3:
            raise RefusedError("the stream RESET takes no step number", f"Write {team}(RESET, {agent})")
        return tree.Operation(RANDOM, f"team.{name}", (stream, *(convert(number, INT) for number in numbers)))

    # --- the author's functions ---

    def _call_helper(self, node: ast.Call, target: types.FunctionType) -> Expr:
        function = self.function(target, node)
        name, parameters = function.source.name, {p.variable.name: p for p in function.parameters}
        takes = f"it takes {len(parameters)}: {', '.join(parameters)}".rstrip(": ")
        if len(node.args) > len(parameters):
            raise RefusedError(f"{name} got {len(node.args)} arguments; {takes}")
        arguments = dict(zip(parameters, node.args, strict=False))
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg not in parameters or keyword.arg in arguments:
                raise RefusedError(f"{name} takes no other argument {keyword.arg!r}; {takes}")
            arguments[keyword.arg] = keyword.value
        omitted = {key: p.default for key, p in parameters.items() if key not in arguments}
        missing = ", ".join(repr(key) for key, default in omitted.items() if default is inspect.Parameter.empty)
        if missing:
            raise RefusedError(f"{name} got {len(arguments)} arguments, and no {missing}; {takes}")
        if function.effects.phases:
            self.enter_phase(f"{name} contains phases, and is called inside one", "Call it between phases")
        between_phases, self.between_phases = self.between_phases, self.between_phases and not function.effects.phases
        values = {key: _argument(self.expression(value), parameters[key].kind) for key, value in arguments.items()}
        self.between_phases = between_phases
        values |= {key: convert(literal(default), parameters[key].kind) for key, default in omitted.items()}
        order = tuple(list(values).index(key) for key in parameters)
        return tree.Invoke(function.result or STATIC, function, tuple(values.values()), order)


def _suggest(node: ast.Call, target: object, arguments: list[Expr]) -> None:
    """Refuse ``min`` of an array and ``round`` to digits, with a replacement; do nothing for other calls."""
    name, first = ast.unparse(node.func), ast.unparse(node.args[0]) if node.args else ""
    if target in (min, max) and len(arguments) == 1 and isinstance(arguments[0].kind, Array):
        size = arguments[0].kind.sizes[0] or "n"
        hint = f"Write a loop: for k in range({size}): result = {name}(result, {first}[k])"
        raise RefusedError(f"{name} of an array is not translated", hint)
    if target is round and len(arguments) == 2:
        digits = constant_value(arguments[1])
        factor = str(10.0**digits) if isinstance(digits, int) else f"10.0 ** {ast.unparse(node.args[1])}"
        raise RefusedError("round takes one argument in rules", f"Write round({first} * {factor}) / {factor}")


def _argument(value: Expr, kind: Type) -> Expr:
    """Return an argument converted to the type of its parameter; refuse another struct or array."""
    if isinstance(kind, Number):
        return convert(value, kind)
    same_struct = isinstance(kind, Struct) and isinstance(value.kind, Struct) and value.kind.name == kind.name
    if value.kind != kind and not same_struct:
        expected = kind.name if isinstance(kind, Struct) else "array in its annotation"
        problem = f"the argument must be the {expected}, and is {describe(value.kind, constant_value(value))}"
        raise RefusedError(problem, at=value.at)
    return value
