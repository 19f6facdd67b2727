"""Assignments: to locals, which are declared where they belong, and to fields."""

import ast
import dataclasses
from collections.abc import Mapping

from gpu_envs.translation import arithmetic
from gpu_envs.translation.body import Body
from gpu_envs.translation.expressions import expression
from gpu_envs.translation.lists import LIST, is_list, make_list, widen
from gpu_envs.translation.locals import parts
from gpu_envs.translation.races import note, note_copy
from gpu_envs.translation.signatures import NUMBERS
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.values import (
    BOOL,
    INT,
    RANDOM,
    REAL,
    Choice,
    Elements,
    Number,
    Several,
    Thing,
    Value,
    converted,
    described,
)

_SIGNS: Mapping[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_MOST_OF_A_BYTE = 255


def declare(body: Body, name: str, node: ast.AST) -> None:
    """Declares a variable before the statement that it first stands in."""
    if body.key(name) in body.declared:
        return
    body.declared.add(body.key(name))
    kind = body.types.get(body.key(name), REAL)
    if isinstance(kind, Elements):
        raise body.error(node, f"the list {name!r} is made in several places", "Make it once, before, and fill it")
    if isinstance(kind, Thing):
        raise body.error(
            node, f"{name!r} is made in several places", "Make it once, with a conditional expression: a if c else b"
        )
    if isinstance(kind, Number | Choice):
        zero = "false" if kind is BOOL else "0" if isinstance(kind, Number) else f"{kind.cpp}(0)"
        body.emit(f"{body.declaration(name, kind.cpp)} = {zero};", node)


def assign(body: Body, node: ast.Assign) -> None:
    """Translates ``a = b``, ``a, b = c, d`` and ``a = b = c``."""
    if len(node.targets) == 1:
        _assign_to(body, node, node.targets[0], node.value)
        return
    body.alone = node.value
    value = expression(body, node.value)
    if isinstance(value.type, Number) and not value.is_simple:
        value = body.hoisted(value)
    for target in node.targets:
        if isinstance(target, ast.Tuple | ast.List):
            raise body.error(target, "this unpacks what is assigned to several", "Write one assignment for each")
        store(body, target, value, node)


def _assign_to(body: Body, node: ast.stmt, target: ast.expr, given: ast.expr) -> None:
    if isinstance(target, ast.Tuple | ast.List):
        _unpack(body, node, parts(target), given)
    elif isinstance(target, ast.Name) and is_list(given):
        make_list(body, node, target, given)
    elif is_list(given):
        raise body.error(target, "an array is not assigned as a whole", "Assign its elements in a loop")
    else:
        body.alone = given
        store(body, target, expression(body, given), node)
        note_copy(body, target, given)


def assign_annotated(body: Body, node: ast.AnnAssign) -> None:
    """Translates ``a: float = b``."""
    if not isinstance(node.target, ast.Name):
        raise body.error(node.target, "fields have their type in the spec", "Leave the annotation out")
    kind = NUMBERS.get(ast.unparse(node.annotation))
    if node.value is None or is_list(node.value):
        if node.value is not None:
            make_list(body, node, node.target, node.value)
        return
    body.alone = node.value
    value = expression(body, node.value)
    if kind is not None:
        with body.at(node.value):
            value = converted(value, kind)
    store(body, node.target, value, node)


def assign_in_place(body: Body, node: ast.AugAssign) -> None:
    """Translates ``a += b`` and its like."""
    target = expression(body, node.target)
    value = expression(body, node.value)
    result = arithmetic.binary(node.op, target, value)
    sign = _SIGNS.get(type(node.op))
    if isinstance(node.target, ast.Name):
        kind = body.learn(node.target.id, result.type, node)
        place, plain = body.cpp_name(node.target.id), target.type == kind
    else:
        wide = widen(body, node.target, result, node)
        if wide is not None:
            target = dataclasses.replace(target, type=wide)
        _check_place(body, target, node.target)
        kind, place, plain = target.type, target.place, target.stored in ("real", "int")
        with body.at(node.value):
            result = _fitting(target, result)
    if sign is not None and plain and result.type == kind and kind is not BOOL:
        body.emit(f"{place} {sign}= {converted(value, kind).text};", node)
    else:
        body.emit(f"{place} = {_stored(converted(result, kind), target.stored)};", node)


# --- one target ---


def store(body: Body, target: ast.expr, value: Value, node: ast.stmt) -> None:
    """Assigns a value to a local, or to a field."""
    if isinstance(target, ast.Name):
        _store_local(body, target, value, node)
        return
    if not isinstance(target, ast.Attribute | ast.Subscript):
        raise body.error(target, "this cannot be assigned")
    widen(body, target, value, node)
    before, body.pending = body.pending, []
    place = expression(body, target)
    if body.pending and isinstance(value.type, Number) and not value.is_simple:  # Python computes the value first
        after, body.pending = body.pending, before
        value = body.hoisted(value)
        body.pending += after
    else:
        body.pending = before + body.pending
    _check_place(body, place, target, value)
    with body.at(getattr(node, "value", None) or node):
        text = _stored(_fitting(place, value), place.stored)
    body.emit(f"{place.place} = {text};", node)


def _fitting(place: Value, value: Value) -> Value:
    """The value in the type of the field, or an error where it does not fit."""
    assert isinstance(place.type, Number)
    if isinstance(value.type, Number) and value.type.width > place.type.width:
        how = "int(...), or make the field real" if place.type is INT else "a comparison, as in x != 0"
        kind = {"int": "int", "bool": "bool", "u8": "byte", "AgentNumber": "agent"}.get(place.stored, place.type.python)
        raise RefusedError(f"{described(value)} is assigned to {place.place}, which is of type {kind}", f"Write {how}")
    if place.stored == "u8" and value.constant is not None and not 0 <= value.constant <= _MOST_OF_A_BYTE:
        raise RefusedError(
            f"{value.constant} does not fit {place.place}, which is a byte: 0 to {_MOST_OF_A_BYTE}",
            "Write a number that it holds, or give it another type in the spec: int",
        )
    return converted(value, place.type)


def _stored(value: Value, cpp: str) -> str:
    if cpp in ("", "real", "int", "bool"):
        return value.text
    if cpp == "float" and value.constant is not None:
        return f"float({value.text})"
    return f"{cpp}({value.text})"


def _check_place(body: Body, place: Value, target: ast.expr, value: Value | None = None) -> None:
    """Refuses what rules must not write here, and notes what is written; no value of what changes in place."""
    refusal = place.type.refusal if isinstance(place.type, Elements) else place.refusal
    if refusal:
        raise body.error(target, refusal)
    if isinstance(place.type, Elements):
        raise body.error(target, "an array is not assigned as a whole", "Assign its elements in a loop")
    if not place.place:
        if not _roots(target) <= {*body.arguments, *(name for frame in body.frames for name in frame.stored)}:
            raise body.error(
                target,
                f"{ast.unparse(target)} is a constant of the module, which cannot be assigned",
                "Keep what changes in the spec's state",
            )
        raise body.error(target, f"{described(place)} cannot be assigned")
    if not place.owner:  # a list of the function's own
        return
    body.writes(place, target)
    field = place.place.partition("[")[0].partition(".")[2]
    body.effects.fields.add(field)
    if place.owner in ("Observation", "Row"):
        _note_element(body, target, field)
    if place.owner == "State" and "[" not in place.place:
        body.set(place.place)
    if place.owner == "World":
        note(body, target, "write", value)


def _note_element(body: Body, target: ast.expr, part: str) -> None:
    """Notes which element of an observation is written."""
    if isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Tuple):
        before = list(body.pending)
        index = expression(body, target.slice).constant
        body.pending = before
        if isinstance(index, int):
            of = expression(body, target.value).type
            size = of.sizes[0] if isinstance(of, Elements) else None
            body.effects.written.add((part, index % size if size else index))
            return
    body.effects.anywhere.add(part)


def _store_local(body: Body, target: ast.Name, value: Value, node: ast.stmt) -> None:
    name = target.id
    if isinstance(value.type, Elements) and value.type.cpp in ("", LIST):
        raise body.error(node, "an array has no second name", "Write its own, or copy its elements in a loop")
    if value.write_only:
        raise body.error(node, "what is observed is written and not read", "Compute it in a local first")
    if not value.code and not isinstance(value.type, Number):
        raise body.error(node, f"{described(value)} cannot be held by a local")
    if isinstance(value.type, Several):
        raise body.error(node, f"{described(value)} are assigned to one name", f"Write {name}, other = ...")
    if isinstance(value.type, Thing) and (value.type != RANDOM or value.is_simple):
        raise body.error(node, f"{described(value)} has no second name", "Write its own")
    if name in body.arguments and not isinstance(body.arguments[name].type, Number):
        raise body.error(target, f"{name!r} is {described(body.arguments[name])}", "Use another name")
    kind = body.learn(name, value.type, node)
    frame = body.frames[body.frame_with(name) or 0]
    made = converted(value, kind) if isinstance(kind, Number) else value
    assert isinstance(kind, Number | Choice | Elements | Thing)
    cpp = "Random" if isinstance(kind, Thing) else kind.cpp
    if name in frame.at_first and body.key(name) not in body.declared:
        constant = "const " if name in frame.once and not isinstance(kind, Thing) else ""
        body.emit(f"{body.declaration(name, constant + cpp)} = {made.text};", node)
        body.declared.add(body.key(name))
    else:
        body.emit(f"{body.cpp_name(name)} = {made.text};", node)
    body.set(name)


# --- several targets ---


def _unpack(body: Body, node: ast.stmt, targets: list[ast.expr], given: ast.expr) -> None:
    if isinstance(given, ast.Tuple | ast.List):
        if len(given.elts) != len(targets):
            raise body.error(node, f"{len(given.elts)} values are assigned to {len(targets)} names")
        values = [expression(body, part) for part in given.elts]
        for n, value in enumerate(values):
            earlier = {root for target in targets[:n] for root in _roots(target)}
            if isinstance(value.type, Number) and value.constant is None and earlier & _roots(given.elts[n]):
                values[n] = body.hoisted(value)
    else:
        body.alone = given
        result = expression(body, given)
        if not isinstance(result.type, Several) or len(result.type.kinds) != len(targets):
            raise body.error(given, f"{described(result)} is assigned to {len(targets)} names")
        name = body.fresh("result")
        body.pending.append(f"const {result.type.cpp} {name} = {result.text};")
        values = [Value(f"{name}.value{n}", kind) for n, kind in enumerate(result.type.kinds)]
    for target, value in zip(targets, values, strict=True):
        store(body, target, value, node)


def _roots(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
