"""Whole functions: their arguments, their results, and the functions that they call."""

import ast
import dataclasses
import re
import types
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from gpu_envs.errors import did_you_mean
from gpu_envs.translation.body import Body, Effects, Line
from gpu_envs.translation.locals import frame_of
from gpu_envs.translation.loops import method_of
from gpu_envs.translation.signatures import NUMBERS, PLACES, annotation, annotations_of, argument, names_of
from gpu_envs.translation.sources import RefusedError, Written, read
from gpu_envs.translation.statements import statements
from gpu_envs.translation.things import Things
from gpu_envs.translation.values import BOOL, INT, REAL, Elements, Number, Several, Thing, Type, Value, literal

MOST_CONSTANTS = 4096
"""Numbers in a tuple of the module's."""


@final
@dataclasses.dataclass(frozen=True)
class Helper:
    """A function that rules call, translated."""

    written: Written
    cpp: str
    kinds: Mapping[str, Type]
    """Its arguments."""
    defaults: Mapping[str, Any]
    result: Type
    effects: Effects


@final
class Unit:
    """All that becomes of the rules of one spec."""

    def __init__(self, things: Things) -> None:
        """Begins with nothing."""
        self.things = things
        self.parts: list[tuple[str, list[Line]]] = []
        """Files and their lines, in the order in which they are needed."""
        self._helpers: dict[types.FunctionType, Helper | None] = {}
        self._tables: dict[str, Value] = {}
        self._structs: dict[tuple[Number, ...], Several] = {}
        self._phases: dict[types.FunctionType, bool] = {}

    def helper(self, function: types.FunctionType, caller: Body, node: ast.Call) -> Helper:
        """Translates a function when it is first called."""
        if function in self._helpers:
            found = self._helpers[function]
            if found is None:
                raise caller.error(node, f"{function.__name__} calls itself", "Write a loop")
            return found
        self._helpers[function] = None
        # A name of C++ that no local has: theirs begin with a small letter, or end with an underscore.
        written = read(function, ast.unparse(node.func))
        made = _helper(self, written, f"Rule_{_ascii(function.__name__).strip('_')}_{len(self._helpers)}")
        self._helpers[function] = made
        return made

    def has_phases(self, written: Written, name: str) -> bool:
        """Whether a function of that name has a loop over a team's agents."""
        try:
            function = written.find(name)
        except KeyError:
            return False
        if not isinstance(function, types.FunctionType):
            return False
        if function not in self._phases:
            self._phases[function] = False
            try:
                self._phases[function] = self.has_phases_of(read(function, name))
            except ValueError:
                return False
        return self._phases[function]

    def has_phases_of(self, written: Written) -> bool:
        """Whether a function has a loop over a team's agents, or calls one that has."""
        calls = (n.func.id for n in ast.walk(written.tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))
        return any(_over_agents(node) for node in ast.walk(written.tree)) or any(
            self.has_phases(written, name) for name in calls
        )

    def several(self, kinds: tuple[Number, ...]) -> Several:
        """The struct that holds numbers of these types."""
        if kinds not in self._structs:
            name = f"Results_{len(self._structs) + 1}"
            self._structs[kinds] = Several(name, kinds)
            fields = " ".join(f"{kind.cpp} value{n};" for n, kind in enumerate(kinds))
            self.parts.append(("generated", [Line(1, f"struct {name} {{ {fields} }};")]))
        return self._structs[kinds]

    def constants(self, values: Any) -> Value:
        """A table of the module's numbers, which the source holds."""
        array = np.asarray(values)
        if array.dtype.kind not in "biuf" or not 1 <= array.ndim <= 2 or not 1 <= array.size <= MOST_CONSTANTS:
            raise RefusedError(
                f"this has {array.dtype} elements of shape {array.shape}",
                f"Tuples of up to {MOST_CONSTANTS} numbers are indexed; more of them belong in EnvSpec(tables=...)",
            )
        key = f"{array.dtype} {array.tolist()}"
        if key not in self._tables:
            kind = {"b": BOOL, "f": REAL}.get(array.dtype.kind, INT)
            name = f"Constants_{len(self._tables) + 1}"
            texts = ", ".join(literal(value).text for value in array.ravel().tolist())
            code = f"static constexpr {kind.cpp} values[] = {{{texts}}}; return values[i];"
            self.parts.append(("generated", [Line(1, f"FN {kind.cpp} {name}(int i) {{ {code} }}")]))
            form = "{0}({1})" if array.ndim == 1 else f"{{0}}({{1}} * {array.shape[1]} + {{2}})"
            self._tables[key] = Value(name, Elements(kind, array.shape, form))
        return self._tables[key]


def _over_agents(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.For)
        and isinstance(node.iter, ast.Call)
        and isinstance(node.iter.func, ast.Attribute)
        and node.iter.func.attr == "agents"
    )


def _ascii(name: str) -> str:
    return "".join(c if c.isascii() else f"u{ord(c):04x}" for c in name)


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
    line = written.tree.lineno
    lines = [Line(line, f"FN {result} {name}({arguments}) {{"), *body.lines, Line(0, "}"), Line(0, "")]
    body.unit.parts.append((written.file, lines))


# --- a function that rules call ---


def _helper(unit: Unit, written: Written, cpp: str) -> Helper:
    names = names_of(written)
    annotations = annotations_of(written)
    known = {**NUMBERS, **{name: kind for name, kind in unit.things.all.items() if name in PLACES}}
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
    body = Body(unit, written, arguments, frozenset())
    for name, kind in kinds.items():
        word = annotations[name]
        if isinstance(kind, Number):
            own = body.cpp_name(name)
            heads[own], arguments[name] = f"{kind.cpp} {own}", Value(own, kind)
        elif word == "Random":
            own = body.cpp_name(name)
            heads[own], arguments[name] = f"Random& {own}", Value(own, kind)
        else:
            declared, arguments[name] = argument(unit.things, word, frozen=False)
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
    unit.parts[-1] = (file, [Line(lines[0].number, head), *lines[1:]])


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
