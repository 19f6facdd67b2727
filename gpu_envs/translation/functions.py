"""Whole functions: from what their authors wrote, through the tree and its checks, to C++."""

import ast
import inspect
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, final

from gpu_envs.errors import did_you_mean
from gpu_envs.translation import tree
from gpu_envs.translation.arguments import PLACES
from gpu_envs.translation.checks.assigned import check_assigned
from gpu_envs.translation.checks.races import check_races
from gpu_envs.translation.declarations import declared
from gpu_envs.translation.effects import effects_of
from gpu_envs.translation.order import ordered
from gpu_envs.translation.printer import printed
from gpu_envs.translation.reading.reader import frame_of, in_ascii
from gpu_envs.translation.reading.statements import Statements
from gpu_envs.translation.sources import RefusedError, Written, annotation, read
from gpu_envs.translation.tree import Block
from gpu_envs.translation.types import NUMBERS, Number, Several, Thing, Type
from gpu_envs.translation.unit import SourceLine, Unit
from gpu_envs.translation.walk import ends, expressions, field_of, places, statements


@final
class FunctionReader(Statements):
    """A reader with all that can stand in a function."""

    def function(self, found: types.FunctionType, node: ast.Call) -> tree.Function:
        known = self.unit.functions
        if found not in known:
            known[found] = None
            # A name of C++ that no local has: theirs begin with a small letter, or end with an underscore.
            cpp = f"Rule_{in_ascii(found.__name__).strip('_')}_{len(known)}"
            written = read(found, ast.unparse(node.func))
            with written.at(written.tree):
                known[found] = helper(self.unit, written, cpp)
        function = known[found]
        if function is None:
            raise RefusedError(f"{found.__name__} calls itself", "Write a loop", node)
        return function

    def parameter(self, name: str, word: str, default: Any, *, entry: bool) -> tree.Parameter:
        """An argument of the function; ``entry``: of one that the driver calls."""
        kind = NUMBERS.get(word) or self.unit.arguments.all[word]
        if isinstance(kind, Number):
            return tree.Parameter(tree.Variable(name, self.cpp_name(name)), kind, kind.cpp, default)
        declared_as, cpp = PLACES[word]
        if word == "Random" and not entry:  # there may be several
            cpp = self.cpp_name(name)
        if word == "Mask" and "World" in self.unit.arguments.all:
            declared_as = f"const {declared_as}"
        return tree.Parameter(tree.Variable(name, cpp), kind, declared_as, default)

    def body(self, parameters: Sequence[tree.Parameter], result: Type | None, between: bool | None) -> Block:
        """Reads a function until the types of its variables stay what they are."""
        written, self.result, self.phased = self.written, result, between
        self.arguments = {p.variable.name: tree.Local(p.kind, p.variable) for p in parameters}
        frame = frame_of(0, written.tree.body, lambda loop: bool(self.method_of(loop)))
        body: Block = ()
        self.changed = True
        while self.changed:
            self.begin()
            self.frames, self.between = [frame], bool(self.phased)
            for name, argument in self.arguments.items():
                if isinstance(argument.kind, Number) and name in frame.stored:
                    self.learn(name, argument.kind, written.tree)
            body = self.block(written.tree.body)
        if result is not None and not ends(body):
            outcome = isinstance(result, Several) and result.cpp == "Outcome"
            instead = f"End it with {'return reward, terminated' if outcome else 'return ...'}"
            raise RefusedError(f"{written.name} may end without a result", instead, written.tree.body[-1])
        return body


def translate(
    unit: Unit,
    written: Written,
    cpp: str,
    words: Mapping[str, str],
    result: Type | None,
    *,
    between: bool | None = None,
    frozen: frozenset[str] | None = None,
) -> tree.Function:
    """Translates a function, and adds it to the unit.

    Args:
        unit: What becomes of all rules.
        written: The function as its author wrote it.
        cpp: Its name in C++.
        words: The types of its arguments by their names, in the words of annotations.
        result: What it returns; None: nothing.
        between: Whether what it says stands between phases. None: where it has phases.
        frozen: Of a function that the driver calls, the arguments that it must not change. None: rules call it.
    """
    reader = FunctionReader(unit, written)
    reader.names |= set(words)
    signature = inspect.signature(written.function).parameters
    parameters = tuple(
        reader.parameter(name, word, signature[name].default, entry=frozen is not None) for name, word in words.items()
    )
    known = frozenset(p.variable for p in parameters)
    body = reader.body(parameters, result, between)
    effects = effects_of(body)
    _refuse_changes(written.name, body, frozen or frozenset())
    effects.certain = check_assigned(body, known)
    effects.accesses = check_races(body, known)
    if frozen is None and not effects.phases:
        frozen = frozenset({"State", "World"}) - effects.owners
    lines = printed(declared(ordered(reader, body), reader.types, known))
    # A phase's macro names the team, and that of columns the row.
    text = "\n".join(line.text for line in lines)
    text = re.sub("FOR_EACH_(AGENT|ELEMENT)", "team", text).replace("FOR_EACH_COLUMN", "row")
    used = set(re.findall(r"(?<![.:\w])[A-Za-z_]\w*\b(?!::)", text))
    heads = []
    for name, parameter in zip(words, parameters, strict=True):
        kind = reader.types.get(parameter.variable, parameter.kind)
        head = kind.cpp if isinstance(kind, Number) else parameter.declared
        head = f"const {head}" if words[name] in (frozen or ()) else head
        heads.append(f"{head} {parameter.variable.cpp}" if parameter.variable.cpp in used else head)
    word = result.cpp if isinstance(result, Number | Several) else "void"
    first = SourceLine(written.tree.lineno, f"FN {word} {cpp}({', '.join(heads)}) {{")
    unit.parts.append((written.file, [first, *lines, SourceLine(0, "}"), SourceLine(0, "")]))
    return tree.Function(written, cpp, parameters, result, effects)


def _refuse_changes(name: str, body: Block, frozen: frozenset[str]) -> None:
    """Refuses changes of arguments that stay what they are."""
    for stmt in statements(body):
        changed = [(field_of(place)[0], place.at) for place in places(stmt)]
        for expr in expressions(stmt):
            if isinstance(expr, tree.Invoke):
                changed += [(owner, expr.at) for owner in sorted(expr.function.effects.owners)]
        for owner, at in changed:
            if owner in frozen:
                what = f"{name} does not change the {owner.lower()}"
                raise RefusedError(what, "Change it in step or reset", at or stmt.at)


# --- a function that rules call ---


def helper(unit: Unit, written: Written, cpp: str) -> tree.Function:
    """Translates a function that rules call."""
    words = written.annotations
    known = {**NUMBERS, **{name: kind for name, kind in unit.arguments.all.items() if name in PLACES}}
    seen: set[str] = set()
    for node, word in zip(written.arguments, words.values(), strict=True):
        if word not in known:
            what = f"has the annotation {word}" if word else "has no annotation"
            meant = did_you_mean(word, known) if word else ""
            instead = f"Annotate it with one of: {', '.join(known)}"
            raise RefusedError(f"the argument {node.arg!r} {what}{meant}".rstrip("."), instead, node)
        if word in seen and isinstance(known[word], Thing) and word != "Random":
            raise RefusedError(f"{written.name} has two arguments of type {word}", "Give it one", node)
        seen.add(word)
    return translate(unit, written, cpp, words, _result(unit, written))


def _result(unit: Unit, written: Written) -> Number | Several | None:
    returns = written.tree.returns
    word = annotation(returns)
    returning = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(written.tree))
    if word == "None" or (not word and not returning):
        return None
    if word in NUMBERS:
        return NUMBERS[word]
    if word.startswith("tuple[") and word.endswith("]"):
        parts = [part.strip() for part in word[len("tuple[") : -1].split(",")]
        if all(part in NUMBERS for part in parts):
            return unit.several(tuple(NUMBERS[part] for part in parts))
    what = f"returns {word}" if word else "returns something, and has no annotation of what"
    instead = "Annotate it with -> float, int, bool, None or tuple[float, ...]"
    raise RefusedError(f"{written.name} {what}", instead, returns)
