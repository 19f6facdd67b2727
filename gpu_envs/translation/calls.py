"""Calls: of known functions, of random numbers, and of functions that the author wrote."""

import ast
import types
from collections.abc import Mapping

from gpu_envs import rules
from gpu_envs.errors import TranslationError, did_you_mean
from gpu_envs.translation.body import Body
from gpu_envs.translation.mathematics import KNOWN, refusal_of
from gpu_envs.translation.races import forget_read, note, seen_from
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.values import (
    INT,
    RANDOM,
    REAL,
    STATIC,
    STREAM,
    Elements,
    Level,
    Number,
    Thing,
    Type,
    Value,
    converted,
    described,
    literal,
)

_DRAWS: Mapping[str, tuple[tuple[Number, ...], Number, str]] = {
    "uniform": ((REAL, REAL), REAL, "{}"),
    "integer": ((INT,), INT, "{}"),
    "normal": ((REAL, REAL), REAL, "{}"),
    "bits": ((), INT, "int({})"),
}
"""What is drawn: arguments, result, and how it becomes one."""

_ATOMIC = {rules.add: "add", rules.lower: "lower"}


def called(body: Body, node: ast.Call) -> Value:
    """Translates a call."""
    if isinstance(node.func, ast.Attribute):
        of = body.expression(node.func.value)
        if isinstance(of.type, Thing):
            return _method(body, node, of, node.func.attr)
    function = body.expression(node.func)
    if function.type is not STATIC:
        raise RefusedError(f"{described(function)} is not called")
    target = function.constant
    if isinstance(target, types.FunctionType) and target not in KNOWN and target not in _ATOMIC:
        if target.__module__ == rules.__name__ or target.__module__.partition(".")[0] in ("numpy", "random"):
            raise refusal_of(target)
        return _helper(body, node, target)
    if target is len:
        return _length(body, node)
    if target in _ATOMIC:
        raise RefusedError(f"{_ATOMIC[target]}(...) is a statement of its own", "It has no value")
    try:
        known = KNOWN.get(target)
    except TypeError:  # it cannot be looked up, so it is not among them
        known = None
    if known is None:
        raise refusal_of(target)
    _plain(node)
    arguments = [body.expression(argument) for argument in node.args]
    if not known.least <= len(arguments) <= known.most:
        _advise(node, target, arguments)
        wanted = f"{known.least}" if known.least == known.most else f"{known.least} or more"
        raise RefusedError(f"{ast.unparse(node.func)} got {len(arguments)} arguments; it takes {wanted}")
    return known.make(*arguments)


def _advise(node: ast.Call, target: object, given: list[Value]) -> None:
    """What to write in place of a call that Python knows, and rules do not."""
    if target in (min, max) and len(given) == 1 and isinstance(given[0].type, Elements):
        of, size = ast.unparse(node.args[0]), given[0].type.sizes[0] or "n"
        name = ast.unparse(node.func)
        raise RefusedError(
            f"{name} of an array is not translated",
            f"Write a loop: for k in range({size}): found = {name}(found, {of}[k])",
        )
    if target is round and len(given) == 2:
        digits = given[1].constant
        factor = str(10.0**digits) if isinstance(digits, int) else f"10.0 ** {ast.unparse(node.args[1])}"
        raise RefusedError(
            "round gives whole numbers here", f"Write round({ast.unparse(node.args[0])} * {factor}) / {factor}"
        )


def _plain(node: ast.Call) -> None:
    if node.keywords:
        raise RefusedError("this function's arguments have no names", "Give them in their order")


def _length(body: Body, node: ast.Call) -> Value:
    _plain(node)
    of = body.expression(node.args[0]) if len(node.args) == 1 else literal(None)
    if isinstance(of.type, Elements) and of.type.sizes[0] is not None:
        return literal(of.type.sizes[0])
    if of.type is STATIC and hasattr(of.constant, "__len__"):
        return literal(len(of.constant))
    raise RefusedError("this has no known length")


def atomic(body: Body, node: ast.Call) -> bool:
    """Translates ``add(field, value)`` and ``lower(field, value)``, where the statement is one."""
    try:
        name = (
            _ATOMIC.get(body.expression(node.func).constant) if isinstance(node.func, ast.Name | ast.Attribute) else ""
        )
    except (RefusedError, TranslationError, TypeError):
        return False
    if not name:
        return False
    with body.at(node):
        _plain(node)
        if len(node.args) != 2:
            raise RefusedError(f"{name} got {len(node.args)} arguments; it takes a field and a number")
        before = dict(body.effects.accesses)
        field = body.expression(node.args[0])
        value = body.expression(node.args[1])
        if field.owner != "World" or field.stored != "int":
            raise RefusedError(
                f"{name} changes a field of the world of type int", "Give it one: Field('int') in the spec"
            )
        forget_read(body, node.args[0], before)
        note(body, node.args[0], "add")
        body.writes(field, node)
        body.effects.fields.add(field.place.partition("[")[0].removeprefix("w."))
        body.emit(f"{name}({field.place}, {converted(value, INT).text});", node)
    return True


# --- methods ---


def _method(body: Body, node: ast.Call, of: Value, name: str) -> Value:
    thing = of.type
    assert isinstance(thing, Thing)
    if thing.name == "Random":
        return _draw(body, node, of, name)
    if thing.name == "Team" and name in ("random", "shared_random"):
        return _stream(body, node, name)
    if (thing.name, name) in (("Team", "agents"), ("Row", "columns")):
        raise RefusedError(f"{name}(...) stands in a for statement", f"Write for i in {ast.unparse(node)}:")
    meant = did_you_mean(name, ("agents", "random", "shared_random") if thing.name == "Team" else ())
    raise RefusedError(f"the {thing.name} has no method {name!r}{meant}".rstrip("."))


def _draw(body: Body, node: ast.Call, of: Value, name: str) -> Value:
    if name not in _DRAWS:
        what = f"there is no random.{name}{did_you_mean(name, _DRAWS)}".rstrip(".")
        raise RefusedError(what, f"What can be drawn: {', '.join(_DRAWS)}")
    kinds, result, form = _DRAWS[name]
    _plain(node)
    if len(node.args) != len(kinds):
        raise RefusedError(f"random.{name} got {len(node.args)} arguments; it takes {len(kinds)}")
    given = [_given(body, argument, kind) for argument, kind in zip(node.args, kinds, strict=True)]
    drawn = Value(form.format(f"{of.within(Level.ATOM)}.{name}({', '.join(given)})"), result)
    return drawn if body.alone is node else body.hoisted(drawn, "drawn")


def _given(body: Body, node: ast.expr, kind: Type) -> str:
    value = body.expression(node)
    with body.at(node):
        return converted(value, kind).text


def _stream(body: Body, node: ast.Call, name: str) -> Value:
    _plain(node)
    most = 3 if name == "random" else 2
    if not 2 <= len(node.args) <= most:
        raise RefusedError(
            f"team.{name} got {len(node.args)} arguments",
            f"Write team.{name}(RESET, i)" + (", or in a step team.random(STEP, i, w.elapsed)" if most == 3 else ""),
        )
    stream = body.expression(node.args[0])
    if stream.type != STREAM:
        raise body.error(node.args[0], "a stream is RESET or STEP", "from gpu_envs.rules import RESET, STEP")
    if name == "random":
        _check_step(stream, node)
    others = [_given(body, argument, INT) for argument in node.args[1:]]
    return Value(f"team.{name}({', '.join([stream.code, *others])})", RANDOM)


def _check_step(stream: Value, node: ast.Call) -> None:
    """Each step has numbers of its own, and a reset has no steps."""
    team, agent = ast.unparse(node.func), ast.unparse(node.args[1])
    if stream.code == "STEP" and len(node.args) == 2:
        raise RefusedError(
            "this draws the same numbers in every step, as it does not say which step it is",
            f"Write {team}(STEP, {agent}, w.elapsed)",
        )
    if stream.code == "RESET" and len(node.args) == 3:
        raise RefusedError("a reset has no step's number, and this gives it one", f"Write {team}(RESET, {agent})")


# --- functions of the author's ---


def _helper(body: Body, node: ast.Call, function: types.FunctionType) -> Value:
    helper = body.helper(function, node)
    written, effects = helper.written, helper.effects
    given: dict[str, ast.expr] = dict(zip(helper.kinds, node.args, strict=False))
    takes = f"it takes {len(helper.kinds)}: {', '.join(helper.kinds)}".rstrip(": ")
    if len(node.args) > len(helper.kinds):
        raise RefusedError(f"{written.name} got {len(node.args)} arguments; {takes}")
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg not in helper.kinds or keyword.arg in given:
            raise RefusedError(f"{written.name} has no argument {keyword.arg!r} left to give")
        given[keyword.arg] = keyword.value
    missing = [name for name in helper.kinds if name not in given and name not in helper.defaults]
    if missing:
        lacks = ", ".join(map(repr, missing))
        raise RefusedError(f"{written.name} got {len(given)} arguments, and no {lacks}; {takes}")
    if effects.phases and not body.between:
        raise RefusedError(f"{written.name} has phases, and is called within one", "Call it between phases")
    arguments = []
    for name, kind in helper.kinds.items():
        if name in given:
            arguments.append(_argument(body, given[name], kind, phases=effects.phases))
        else:
            arguments.append(converted(literal(helper.defaults[name]), kind).text)
    for owner in effects.owners:
        body.writes(Value("", STATIC, owner=owner), node)
    body.effects.include(seen_from(body, effects, given, helper.cpp, node))
    for place in effects.certain:
        body.set(place)
    value = Value(f"{helper.cpp}({', '.join(arguments)})", helper.result)
    if body.alone is node:
        return value
    if effects.owners:
        raise RefusedError(
            f"{written.name} changes the {min(effects.owners)}, and is called within an expression",
            "Let the call stand alone: name = ...",
        )
    if any(kind == RANDOM for kind in helper.kinds.values()) and isinstance(value.type, Number):
        return body.hoisted(value)
    return value


def _argument(body: Body, node: ast.expr, kind: Type, *, phases: bool) -> str:
    between, body.between = body.between, body.between and not phases
    try:
        value = body.expression(node)
    finally:
        body.between = between
    with body.at(node):
        if isinstance(kind, Number):
            return converted(value, kind).text
        matches = value.type == kind or (
            isinstance(kind, Thing) and isinstance(value.type, Thing) and value.type.name == kind.name
        )
        if not matches:
            wanted = kind.name if isinstance(kind, Thing) else "array that its annotation names"
            raise RefusedError(f"{described(value)} is given where the {wanted} belongs")
        if kind == RANDOM and not value.is_simple:
            name = body.fresh("random")
            body.pending.append(f"Random {name} = {value.text};")
            return name
        return value.code
