"""Calls: of known functions, of random numbers, and of functions that the author wrote."""

import ast
import dataclasses
import types
from collections.abc import Mapping

from gpu_envs import rules
from gpu_envs.errors import TranslationError, did_you_mean
from gpu_envs.translation import tree
from gpu_envs.translation.arithmetic import converted
from gpu_envs.translation.mathematics import KNOWN, refusal_of
from gpu_envs.translation.reading.reader import Reader
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.types import INT, RANDOM, REAL, STATIC, STREAM, Array, Number, Thing, Type, described
from gpu_envs.translation.walk import known, literal

DRAWS: Mapping[str, tuple[tuple[Number, ...], Number]] = {
    "uniform": ((REAL, REAL), REAL),
    "integer": ((INT,), INT),
    "normal": ((REAL, REAL), REAL),
    "bits": ((), INT),
}
"""What is drawn: arguments, and result."""

_ATOMIC = {rules.add: "add", rules.lower: "lower"}


def called(reader: Reader, node: ast.Call) -> Expr:
    """Reads a call."""
    if isinstance(node.func, ast.Attribute):
        of = reader.expression(node.func.value)
        if isinstance(of.kind, Thing):
            return _method(reader, node, of, node.func.attr)
    function = reader.expression(node.func)
    if function.kind is not STATIC:
        raise RefusedError(f"{described(function.kind)} is not called")
    target = known(function)
    if isinstance(target, types.FunctionType) and target not in KNOWN and target not in _ATOMIC:
        if target.__module__ == rules.__name__ or target.__module__.partition(".")[0] in ("numpy", "random"):
            raise refusal_of(target)
        return _invoked(reader, node, target)
    if target is len:
        return _length(reader, node)
    try:
        known_function, atomic_name = KNOWN.get(target), _ATOMIC.get(target)
    except TypeError:  # it cannot be looked up, so it is not among them
        known_function = atomic_name = None
    if atomic_name:
        raise RefusedError(f"{atomic_name}(...) is a statement of its own", "It has no value")
    if known_function is None:
        raise refusal_of(target)
    _plain(node)
    arguments = [reader.expression(argument) for argument in node.args]
    if not known_function.least <= len(arguments) <= known_function.most:
        _advise(node, target, arguments)
        wanted = f"{known_function.least}" + (" or more" if known_function.least != known_function.most else "")
        raise RefusedError(f"{ast.unparse(node.func)} got {len(arguments)} arguments; it takes {wanted}")
    return known_function.make(*arguments)


def _advise(node: ast.Call, target: object, given: list[Expr]) -> None:
    """What to write in place of a call that Python knows, and rules do not."""
    if target in (min, max) and len(given) == 1 and isinstance(given[0].kind, Array):
        of, size = ast.unparse(node.args[0]), given[0].kind.sizes[0] or "n"
        name = ast.unparse(node.func)
        raise RefusedError(
            f"{name} of an array is not translated",
            f"Write a loop: for k in range({size}): found = {name}(found, {of}[k])",
        )
    if target is round and len(given) == 2:
        digits = known(given[1])
        factor = str(10.0**digits) if isinstance(digits, int) else f"10.0 ** {ast.unparse(node.args[1])}"
        raise RefusedError(
            "round gives whole numbers here", f"Write round({ast.unparse(node.args[0])} * {factor}) / {factor}"
        )


def _plain(node: ast.Call) -> None:
    if node.keywords:
        raise RefusedError("this function's arguments have no names", "Give them in their order")


def _length(reader: Reader, node: ast.Call) -> Expr:
    _plain(node)
    of = reader.expression(node.args[0]) if len(node.args) == 1 else literal(None)
    if isinstance(of.kind, Array) and of.kind.sizes[0] is not None:
        return literal(of.kind.sizes[0])
    if of.kind is STATIC and hasattr(known(of), "__len__"):
        return literal(len(known(of)))
    raise RefusedError("this has no known length")


def atomic(reader: Reader, node: ast.Call, at: ast.stmt) -> tree.Atomic | None:
    """Reads ``add(field, value)`` and ``lower(field, value)``, where the statement is one."""
    if not isinstance(node.func, ast.Name | ast.Attribute):
        return None
    try:
        name = _ATOMIC.get(known(reader.expression(node.func)), "")
    except (RefusedError, TranslationError, TypeError):
        return None
    if not name:
        return None
    with reader.at(node):
        _plain(node)
        if len(node.args) != 2:
            raise RefusedError(f"{name} got {len(node.args)} arguments; it takes a field and a number")
        place, value = (reader.expression(argument) for argument in node.args)
        of = place.of.kind if isinstance(place, tree.Element) else None
        stored = of.stored if isinstance(of, Array) else place.stored if isinstance(place, tree.Field) else ""
        owner = of.owner if isinstance(of, Array) else place.owner if isinstance(place, tree.Field) else ""
        if owner != "World" or stored != "int" or place.kind is not INT:
            raise RefusedError(
                f"{name} changes a field of the world of type int", "Give it one: Field('int') in the spec"
            )
        return tree.Atomic(at, name, place, converted(value, INT))


# --- methods ---


def _method(reader: Reader, node: ast.Call, of: Expr, name: str) -> Expr:
    thing = of.kind
    assert isinstance(thing, Thing)
    if thing.name == "Random":
        return _draw(reader, node, of, name)
    if thing.name == "Team" and name in ("random", "shared_random"):
        return _stream(reader, node, name)
    if (thing.name, name) == ("Team", "agents"):
        raise RefusedError("agents(...) stands in a for statement", f"Write for i in {ast.unparse(node)}:")
    meant = did_you_mean(name, ("agents", "random", "shared_random") if thing.name == "Team" else ())
    raise RefusedError(f"the {thing.name} has no method {name!r}{meant}".rstrip("."))


def _draw(reader: Reader, node: ast.Call, of: Expr, name: str) -> Expr:
    if name not in DRAWS:
        what = f"there is no random.{name}{did_you_mean(name, DRAWS)}".rstrip(".")
        raise RefusedError(what, f"What can be drawn: {', '.join(DRAWS)}")
    kinds, result = DRAWS[name]
    _plain(node)
    if len(node.args) != len(kinds):
        raise RefusedError(f"random.{name} got {len(node.args)} arguments; it takes {len(kinds)}")
    given = (_given(reader, argument, kind) for argument, kind in zip(node.args, kinds, strict=True))
    return tree.Draw(result, of, name, tuple(given))


def _given(reader: Reader, node: ast.expr, kind: Type) -> Expr:
    value = reader.expression(node)
    with reader.at(node):
        return converted(value, kind)


def _stream(reader: Reader, node: ast.Call, name: str) -> Expr:
    _plain(node)
    most = 3 if name == "random" else 2
    if not 2 <= len(node.args) <= most:
        raise RefusedError(
            f"team.{name} got {len(node.args)} arguments",
            f"Write team.{name}(RESET, i)" + (", or in a step team.random(STEP, i, w.elapsed)" if most == 3 else ""),
        )
    stream = reader.expression(node.args[0])
    if stream.kind != STREAM or not isinstance(stream, tree.Constant):
        raise reader.error(node.args[0], "a stream is RESET or STEP", "from gpu_envs.rules import RESET, STEP")
    team, agent = ast.unparse(node.func), ast.unparse(node.args[1])
    if name == "random" and stream.value is rules.STEP and len(node.args) == 2:
        raise RefusedError(
            "this draws the same numbers in every step, as it does not say which step it is",
            f"Write {team}(STEP, {agent}, w.elapsed)",
        )
    if stream.value is rules.RESET and len(node.args) == 3:
        raise RefusedError("a reset has no step's number, and this gives it one", f"Write {team}(RESET, {agent})")
    return tree.Call(RANDOM, f"team.{name}", (stream, *(_given(reader, argument, INT) for argument in node.args[1:])))


# --- functions of the author's ---


def _invoked(reader: Reader, node: ast.Call, target: types.FunctionType) -> Expr:
    function = reader.function(target, node)
    name, names = function.written.name, [parameter.name for parameter in function.parameters]
    takes = f"it takes {len(names)}: {', '.join(names)}".rstrip(": ")
    if len(node.args) > len(names):
        raise RefusedError(f"{name} got {len(node.args)} arguments; {takes}")
    given: dict[str, ast.expr] = dict(zip(names, node.args, strict=False))
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg not in names or keyword.arg in given:
            raise RefusedError(f"{name} has no argument {keyword.arg!r} left to give")
        given[keyword.arg] = keyword.value
    lacks = [p.name for p in function.parameters if p.name not in given and p.default is dataclasses.MISSING]
    if lacks:
        listed = ", ".join(map(repr, lacks))
        raise RefusedError(f"{name} got {len(given)} arguments, and no {listed}; {takes}")
    phases = function.effects.phases
    if phases and not reader.between:
        raise RefusedError(f"{name} has phases, and is called within one", "Call it between phases")
    kinds = {parameter.name: parameter.kind for parameter in function.parameters}
    made = {word: _argument(reader, value, kinds[word], phases=phases) for word, value in given.items()}
    arguments = tuple(
        made[p.name] if p.name in made else converted(literal(p.default), p.kind) for p in function.parameters
    )
    kind = function.result if function.result is not None else STATIC
    return tree.Invoke(kind, function, arguments, tuple(names.index(word) for word in given))


def _argument(reader: Reader, node: ast.expr, kind: Type, *, phases: bool) -> Expr:
    between, reader.between = reader.between, reader.between and not phases
    try:
        value = reader.expression(node)
    finally:
        reader.between = between
    with reader.at(node):
        if isinstance(kind, Number):
            return converted(value, kind)
        same = isinstance(kind, Thing) and isinstance(value.kind, Thing) and value.kind.name == kind.name
        if value.kind != kind and not same:
            wanted = kind.name if isinstance(kind, Thing) else "array that its annotation names"
            raise RefusedError(f"{described(value.kind, known(value))} is given where the {wanted} belongs")
        return value
