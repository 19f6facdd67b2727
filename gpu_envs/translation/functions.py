"""Whole functions: their arguments, their results, and the functions that they call."""

import ast
import functools
import re
import types
from collections.abc import Mapping
from typing import final

from gpu_envs.errors import did_you_mean
from gpu_envs.translation.body import Body, both, in_ascii
from gpu_envs.translation.effects import Effects
from gpu_envs.translation.expressions import expression
from gpu_envs.translation.locals import frame_of
from gpu_envs.translation.loops import method_of
from gpu_envs.translation.signatures import NUMBERS, PLACES, annotation, annotations_of, argument, names_of
from gpu_envs.translation.sources import Written, read
from gpu_envs.translation.statements import statements
from gpu_envs.translation.unit import Helper, SourceLine, Unit
from gpu_envs.translation.values import INT, Number, Several, Thing, Type, Value, literal


@final
class FunctionBody(Body):
    """A body with all that can stand in it."""

    def expression(self, node: ast.expr) -> Value:
        return expression(self, node)

    def statements(self, nodes: list[ast.stmt]) -> None:
        statements(self, nodes)

    def helper(self, function: types.FunctionType, node: ast.Call) -> Helper:
        helpers = self.unit.helpers
        if function not in helpers:
            helpers[function] = None
            # A name of C++ that no local has: theirs begin with a small letter, or end with an underscore.
            cpp = f"Rule_{in_ascii(function.__name__).strip('_')}_{len(helpers)}"
            helpers[function] = _helper(self.unit, read(function, ast.unparse(node.func)), cpp)
        found = helpers[function]
        if found is None:
            raise self.error(node, f"{function.__name__} calls itself", "Write a loop")
        return found


# --- a function ---


def translate(
    body: Body, heads: dict[str, str], result: str, name: str, *, between: bool, first: Mapping[str, Number]
) -> None:
    """Translates a body, and adds the function to the unit.

    Args:
        body: The function's.
        heads: The declarations of its arguments, by their names in C++; ``real x`` of plain numbers.
        result: The C++ type of what it returns.
        name: Its name in C++.
        between: Whether it has phases.
        first: Arguments that are plain numbers, and may be assigned.
    """
    written = body.written
    frame = frame_of(written.tree, written.tree.body, lambda loop: bool(method_of(body, loop)))
    while True:
        body.begin()
        body.frames = [frame]
        body.between = between
        numbers = {n for n, value in body.arguments.items() if value.type is INT and n not in frame.stored}
        body.copies = {} if between else {n: n for n in numbers}
        for argument_name, kind in first.items():
            if argument_name in frame.stored:
                body.learn(argument_name, kind, written.tree)
                body.declared.add(body.key(argument_name))
                body.set(argument_name)
        statements(body, written.tree.body)
        if not body.changed:
            break
    if body.result is not None and body.assigned is not None:
        wanted = "return reward, terminated" if result == "Outcome" else "return ..."
        raise body.error(written.tree.body[-1], f"{written.name} may end without a result", f"End it with {wanted}")
    body.assigned = functools.reduce(both, body.ends, body.assigned)
    body.effects.certain = frozenset(place for place in body.assigned or () if place.startswith("s."))
    declared = dict(heads)
    for argument_name in first:
        if argument_name in frame.stored:
            kind_now = body.types[body.key(argument_name)]
            assert isinstance(kind_now, Number)
            cpp = body.cpp_name(argument_name)
            declared[cpp] = f"{kind_now.cpp} {cpp}"
    text = "\n".join(line.text for line in body.lines)
    for macro, used in (("FOR_EACH_AGENT", "team"), ("FOR_EACH_COLUMN", "row")):
        text += f" {used}" if macro in text else ""
    arguments = ", ".join(
        made if re.search(rf"\b{cpp}\b", text) else made.removesuffix(f" {cpp}") for cpp, made in declared.items()
    )
    head = SourceLine(written.tree.lineno, f"FN {result} {name}({arguments}) {{")
    body.unit.parts.append((written.file, [head, *body.lines, SourceLine(0, "}"), SourceLine(0, "")]))


# --- a function that rules call ---


def _helper(unit: Unit, written: Written, cpp: str) -> Helper:
    names = names_of(written)
    annotations = annotations_of(written)
    known = {**NUMBERS, **{name: kind for name, kind in unit.arguments.all.items() if name in PLACES}}
    kinds: dict[str, Type] = {}
    for node in (*written.tree.args.posonlyargs, *written.tree.args.args, *written.tree.args.kwonlyargs):
        word = annotations[node.arg]
        if word not in known:
            what = f"has the annotation {word}" if word else "has no annotation"
            raise written.error(
                node,
                f"the argument {node.arg!r} {what}{did_you_mean(word, known) if word else ''}".rstrip("."),
                f"Annotate it with one of: {', '.join(known)}",
            )
        if known[word] in kinds.values() and isinstance(known[word], Thing) and word != "Random":
            raise written.error(node, f"{written.name} has two arguments of type {word}", "Give it one")
        kinds[node.arg] = known[word]
    result = _result(unit, written)
    heads: dict[str, str] = {}
    arguments: dict[str, Value] = {}
    body = FunctionBody(unit, written, arguments, frozenset())
    for name, kind in kinds.items():
        word = annotations[name]
        if isinstance(kind, Number) or word == "Random":
            own, cpp_type = body.cpp_name(name), kind.cpp if isinstance(kind, Number) else "Random&"
            heads[own], arguments[name] = f"{cpp_type} {own}", Value(own, kind)
        else:
            declared, arguments[name] = argument(unit.arguments, word, frozen=False)
            heads[arguments[name].code] = declared
    body.names |= set(names)
    body.result = result
    between = unit.has_phases_of(written)
    text = "void" if result is None else result.cpp
    first = {name: kind for name, kind in kinds.items() if isinstance(kind, Number)}
    translate(body, heads, text, cpp, between=between, first=first)
    _freeze(unit, body.effects)
    function = written.function
    given = [a.arg for a in (*written.tree.args.posonlyargs, *written.tree.args.args)]
    defaults = dict(zip(reversed(given), reversed(function.__defaults__ or ()), strict=False))
    defaults |= function.__kwdefaults__ or {}
    return Helper(written, cpp, kinds, defaults, result if result is not None else literal(None).type, body.effects)


def _freeze(unit: Unit, effects: Effects) -> None:
    """What a function does not change it takes as constant, so that it can be called by those that must not."""
    file, lines = unit.parts[-1]
    head = lines[0].text
    for name in ("State", "World"):
        if name not in effects.owners and not effects.phases:
            head = re.sub(rf"\b{name}&", f"const {name}&", head)
    unit.parts[-1] = (file, [SourceLine(lines[0].number, head), *lines[1:]])


def _result(unit: Unit, written: Written) -> Number | Several | None:
    returns = written.tree.returns
    word = annotation(returns)
    returning = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(written.tree))
    if word in ("", "None") and not (returning and not word):
        return None
    if word in NUMBERS:
        return NUMBERS[word]
    if word.startswith("tuple[") and word.endswith("]"):
        kinds = [NUMBERS.get(part.strip()) for part in word[len("tuple[") : -1].split(",")]
        found = tuple(kind for kind in kinds if kind is not None)
        if len(found) == len(kinds):
            return unit.several(found)
    what = f"returns {word}" if word else "returns something, and has no annotation of what"
    raise written.error(
        returns or written.tree,
        f"{written.name} {what}",
        "Annotate it with -> float, int, bool, None or tuple[float, ...]",
    )
