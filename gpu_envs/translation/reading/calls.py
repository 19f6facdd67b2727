"""Calls: of known functions, of random numbers, and of functions that the author wrote."""

import ast
import inspect
import types
from collections.abc import Mapping

from gpu_envs import rules
from gpu_envs.errors import TranslationError, did_you_mean
from gpu_envs.translation import tree
from gpu_envs.translation.arithmetic import converted
from gpu_envs.translation.mathematics import DRAWN, KNOWN, refusal_of
from gpu_envs.translation.reading.reader import Reader
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.types import INT, RANDOM, REAL, STATIC, STREAM, Array, Number, Thing, Type, described
from gpu_envs.translation.walk import field_of, known, literal, stored_as

DRAWS: Mapping[str, tuple[tuple[Number, ...], Number]] = {
    "uniform": ((REAL, REAL), REAL),
    "integer": ((INT,), INT),
    "normal": ((REAL, REAL), REAL),
    "bits": ((), INT),
}
"""What is drawn: arguments, and result."""

FOLDS = ("sum", "max", "min")
"""What makes one number of many."""

_ATOMIC = {rules.add: "add", rules.lower: "lower"}


class Calls(Reader):
    """The layer of a reader that reads calls."""

    def called(self, node: ast.Call) -> Expr:
        """Reads a call."""
        if isinstance(node.func, ast.Attribute):
            of = self.expression(node.func.value)
            if isinstance(of.kind, Thing):
                return self._method(node, of, of.kind.name, node.func.attr)
        function = self.expression(node.func)
        if function.kind is not STATIC:
            raise RefusedError(f"{described(function.kind)} is not called")
        target = known(function)
        if target is len:
            return self._length(node)
        try:
            known_function, atomic_name = KNOWN.get(target), _ATOMIC.get(target)
        except TypeError:  # it cannot be looked up, so it is not among them
            known_function = atomic_name = None
        if atomic_name:
            raise RefusedError(f"{atomic_name}(...) is a statement of its own", "It has no value")
        if known_function is not None:
            arguments = self._plain(node)
            if not known_function.least <= len(arguments) <= known_function.most:
                _advise(node, target, arguments)
                wanted = f"{known_function.least}" + (" or more" if known_function.least != known_function.most else "")
                raise RefusedError(f"{ast.unparse(node.func)} got {len(arguments)} arguments; it takes {wanted}")
            return known_function.make(*arguments)
        module = str(getattr(target, "__module__", ""))
        elsewhere = module == rules.__name__ or module.partition(".")[0] in ("numpy", "random")
        if elsewhere or not isinstance(target, types.FunctionType):
            raise refusal_of(target)
        return self._invoked(node, target)

    def _plain(self, node: ast.Call) -> list[Expr]:
        """The arguments of a function that does not name them."""
        if node.keywords:
            raise RefusedError("this function's arguments have no names", "Give them in their order")
        return [self.expression(argument) for argument in node.args]

    def _length(self, node: ast.Call) -> Expr:
        given = self._plain(node)
        of = given[0] if len(given) == 1 else literal(None)
        if isinstance(of.kind, Array) and of.kind.sizes[0] is not None:
            return literal(of.kind.sizes[0])
        if of.kind is STATIC and hasattr(known(of), "__len__"):
            return literal(len(known(of)))
        raise RefusedError("this has no known length")

    def atomic(self, node: ast.Call, at: ast.stmt) -> tree.Atomic | None:
        """Reads ``add(field, value)`` and ``lower(field, value)``, where the statement is one."""
        if not isinstance(node.func, ast.Name | ast.Attribute):
            return None
        try:
            name = _ATOMIC.get(known(self.expression(node.func)), "")
        except (RefusedError, TranslationError, TypeError):
            return None
        if not name:
            return None
        with self.at(node):
            given = self._plain(node)
            if len(given) != 2:
                raise RefusedError(f"{name} got {len(given)} arguments; it takes a field and a number")
            place, value = given
            if field_of(place)[0] != "World" or stored_as(place) != "int" or place.kind is not INT:
                instead = "Give it one: Field('int') in the spec"
                raise RefusedError(f"{name} changes a field of the world of type int", instead)
            return tree.Atomic(at, name, place, converted(value, INT))

    # --- methods ---

    def _method(self, node: ast.Call, of: Expr, thing: str, name: str) -> Expr:
        if thing == "Random":
            return self._draw(node, of, name)
        if thing == "Team" and name in ("random", "shared_random"):
            return self._stream(node, name)
        if thing == "Team" and name in ("agents", "elements"):
            numbers = "i" if name == "agents" else "i, j"
            raise RefusedError(f"{name}(...) stands in a for statement", f"Write for {numbers} in {ast.unparse(node)}:")
        if thing == "Team" and name in FOLDS:
            instead = (
                f"Write w.total = team.{name}(w.x[i] for i in team.agents()), and read w.total in a later phase; "
                f"a factor stands within, team.{name}(2 * w.x[i] for ...)"
            )
            raise RefusedError(f"team.{name}(...) is a phase, and assigned to a field by itself", instead)
        methods = ("agents", "elements", "random", "shared_random", *FOLDS)
        meant = did_you_mean(name, methods if thing == "Team" else ())
        raise RefusedError(f"the {thing} has no method {name!r}{meant}".rstrip("."))

    def _draw(self, node: ast.Call, of: Expr, name: str) -> Expr:
        if name not in DRAWS:
            if name in DRAWN:
                raise RefusedError(f"there is no random.{name}", f"Write {DRAWN[name]}")
            what = f"there is no random.{name}{did_you_mean(name, DRAWS)}".rstrip(".")
            raise RefusedError(what, f"Random numbers come from: {', '.join(f'random.{draw}' for draw in DRAWS)}")
        kinds, result = DRAWS[name]
        given = self._plain(node)
        if len(given) != len(kinds):
            raise RefusedError(f"random.{name} got {len(given)} arguments; it takes {len(kinds)}")
        return tree.Draw(result, of, name, tuple(map(converted, given, kinds)))

    def _stream(self, node: ast.Call, name: str) -> Expr:
        given = self._plain(node)
        most = 3 if name == "random" else 2
        if not 2 <= len(given) <= most:
            also = ", or in a step team.random(STEP, i, w.elapsed)" if most == 3 else ""
            raise RefusedError(f"team.{name} got {len(given)} arguments", f"Write team.{name}(RESET, i){also}")
        stream, *numbers = given
        if stream.kind != STREAM or not isinstance(stream, tree.Constant):
            raise RefusedError("a stream is RESET or STEP", "from gpu_envs.rules import RESET, STEP", node.args[0])
        team, agent = ast.unparse(node.func), ast.unparse(node.args[1])
        if name == "random" and stream.value is rules.STEP and len(given) == 2:
            raise RefusedError(
                "this draws the same numbers in every step, as it does not say which step it is",
                f"Write {team}(STEP, {agent}, w.elapsed)",
            )
        if stream.value is rules.RESET and len(given) == 3:
            raise RefusedError("a reset has no step's number, and this gives it one", f"Write {team}(RESET, {agent})")
        return tree.Operation(RANDOM, f"team.{name}", (stream, *(converted(number, INT) for number in numbers)))

    # --- functions of the author's ---

    def _invoked(self, node: ast.Call, target: types.FunctionType) -> Expr:
        function = self.function(target, node)
        name, parameters = function.written.name, {p.variable.name: p for p in function.parameters}
        takes = f"it takes {len(parameters)}: {', '.join(parameters)}".rstrip(": ")
        if len(node.args) > len(parameters):
            raise RefusedError(f"{name} got {len(node.args)} arguments; {takes}")
        given = dict(zip(parameters, node.args, strict=False))
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg not in parameters or keyword.arg in given:
                raise RefusedError(f"{name} has no argument {keyword.arg!r} left to give")
            given[keyword.arg] = keyword.value
        left = {word: p.default for word, p in parameters.items() if word not in given}
        lacks = ", ".join(repr(word) for word, default in left.items() if default is inspect.Parameter.empty)
        if lacks:
            raise RefusedError(f"{name} got {len(given)} arguments, and no {lacks}; {takes}")
        if function.effects.phases:
            self.meet_phase(f"{name} has phases, and is called within one", "Call it between phases")
        between, self.between = self.between, self.between and not function.effects.phases
        made = {word: _argument(self.expression(value), parameters[word].kind) for word, value in given.items()}
        self.between = between
        made |= {word: converted(literal(default), parameters[word].kind) for word, default in left.items()}
        order = tuple(list(made).index(word) for word in parameters)
        return tree.Invoke(function.result or STATIC, function, tuple(made.values()), order)


def _advise(node: ast.Call, target: object, given: list[Expr]) -> None:
    """What to write in place of a call that Python knows, and rules do not."""
    name, first = ast.unparse(node.func), ast.unparse(node.args[0]) if node.args else ""
    if target in (min, max) and len(given) == 1 and isinstance(given[0].kind, Array):
        size = given[0].kind.sizes[0] or "n"
        instead = f"Write a loop: for k in range({size}): found = {name}(found, {first}[k])"
        raise RefusedError(f"{name} of an array is not translated", instead)
    if target is round and len(given) == 2:
        digits = known(given[1])
        factor = str(10.0**digits) if isinstance(digits, int) else f"10.0 ** {ast.unparse(node.args[1])}"
        raise RefusedError("round gives whole numbers here", f"Write round({first} * {factor}) / {factor}")


def _argument(value: Expr, kind: Type) -> Expr:
    if isinstance(kind, Number):
        return converted(value, kind)
    same = isinstance(kind, Thing) and isinstance(value.kind, Thing) and value.kind.name == kind.name
    if value.kind != kind and not same:
        wanted = kind.name if isinstance(kind, Thing) else "array that its annotation names"
        what = f"{described(value.kind, known(value))} is given where the {wanted} belongs"
        raise RefusedError(what, at=value.at)
    return value
