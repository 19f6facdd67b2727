"""Statements: from Python's tree to lines of C++."""

import ast
from collections.abc import Mapping

from gpu_envs.translation.assignments import assign, assign_annotated, assign_in_place, declare
from gpu_envs.translation.body import Body, both
from gpu_envs.translation.calls import atomic
from gpu_envs.translation.expressions import condition, expression, guarded
from gpu_envs.translation.loops import is_phase, loop
from gpu_envs.translation.races import only_turn
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.values import BOOL, Number, Several, converted, described

REFUSED: Mapping[type, tuple[str, str]] = {
    ast.Assert: ("there is no assert in rules", "Look for what must not be in a test of the environment"),
    ast.AsyncFor: ("nothing is awaited in rules", ""),
    ast.AsyncFunctionDef: ("nothing is awaited in rules", ""),
    ast.AsyncWith: ("nothing is awaited in rules", ""),
    ast.ClassDef: ("there are no classes in rules", "Keep what lasts in the spec's state"),
    ast.Delete: ("nothing is deleted in rules", "Leave it out: a local ends by itself"),
    ast.FunctionDef: ("there are no functions within functions in rules", "Write it in the module, and call it"),
    ast.Global: ("rules have no state of their own", "Keep what lasts in the spec's state"),
    ast.Import: ("nothing is imported within rules", "Import it at the top of the module"),
    ast.ImportFrom: ("nothing is imported within rules", "Import it at the top of the module"),
    ast.Match: ("there is no match in rules", "Write if, elif and else"),
    ast.Nonlocal: ("rules have no state of their own", "Keep what lasts in the spec's state"),
    ast.Raise: ("rules raise nothing", "End the episode, or clip what is out of range"),
    ast.Try: ("rules raise nothing, so there is nothing to try", "Write the lines by themselves"),
    ast.TryStar: ("rules raise nothing, so there is nothing to try", "Write the lines by themselves"),
    ast.With: ("there is no with in rules", "Write the lines by themselves"),
}


def statements(body: Body, nodes: list[ast.stmt]) -> None:
    """Translates a block; what follows a return, a break or a continue is never reached, and left out."""
    block = id(nodes)
    for index, node in enumerate(nodes):
        if body.assigned is None:
            return
        for frame in body.frames:
            for name in frame.before.get((block, index), ()):
                declare(body, name, node)
        statement(body, node)


def statement(body: Body, node: ast.stmt) -> None:
    """Translates a statement."""
    if type(node) in REFUSED:
        raise body.error(node, *REFUSED[type(node)])
    with body.at(node):
        _translate(body, node)
    body.alone = None


def _translate(body: Body, node: ast.stmt) -> None:
    match node:
        case ast.AnnAssign():
            assign_annotated(body, node)
        case ast.Assign():
            assign(body, node)
        case ast.AugAssign():
            assign_in_place(body, node)
        case ast.Break() | ast.Continue():
            _leave(body, node)
        case ast.Expr():
            _expression(body, node)
        case ast.For() | ast.While():
            loop(body, node)
        case ast.If():
            _branch(body, node, "if")
        case ast.Pass():
            pass
        case ast.Return():
            _return(body, node)
        case _:
            raise RefusedError(f"{type(node).__name__} is not translated")


def _expression(body: Body, node: ast.Expr) -> None:
    value = node.value
    if isinstance(value, ast.Constant) and (isinstance(value.value, str) or value.value is ...):
        return
    if isinstance(value, ast.Yield | ast.YieldFrom | ast.Await):
        expression(body, value)  # is refused
    if not isinstance(value, ast.Call):
        raise body.error(value, "this has no effect", "Assign it, or leave it out")
    if atomic(body, value):
        return
    body.alone = value
    result = expression(body, value)
    body.emit(f"{result.text};", node)


def _branch(body: Body, node: ast.If, word: str) -> None:
    test = condition(body, node.test) if word == "if" else guarded(body, node.test, condition)
    phases = any(is_phase(body, inner) for inner in ast.walk(node))
    if phases and test.constant is None:
        raise body.error(
            node.test,
            "all replicas go through the same phases, and this condition may differ",
            "Ask within the phase, or make it a parameter with fixed=True",
        )
    outside = body.only, body.asked
    if_so, if_not = (only_turn(body, node.test, holds=holds) or body.only for holds in (True, False))
    constexpr = " constexpr" if test.constant is not None else ""
    code = str(bool(test.constant)).lower() if constexpr else test.text
    body.emit(f"{word}{constexpr} ({code}) {{", node)
    before = body.assigned
    body.only, body.asked = if_so, body.asked or test.constant is None
    yes = _inside(body, node.body, before if test.constant is not False else None, dead=test.constant is False)
    no = before
    body.only = if_not
    if node.orelse:
        otherwise = node.orelse[0]
        if len(node.orelse) == 1 and isinstance(otherwise, ast.If) and not _declares(body, node.orelse):
            body.assigned = None if test.constant is True else before
            if test.constant is not True:
                with body.at(otherwise):
                    _branch(body, otherwise, "} else if")
                body.only, body.asked = outside
                body.assigned = both(yes, body.assigned)
                return
        body.emit("} else {", otherwise)
        no = _inside(body, node.orelse, before, dead=test.constant is True)
    body.emit("}")
    body.only, body.asked = outside
    if test.constant is not None:
        body.assigned = yes if test.constant else no
        return
    body.assigned = both(yes, no)
    if yes is None or no is None:  # what follows in this block is for the turns that did not go away
        body.only, body.asked = if_not if yes is None else if_so, True


def _declares(body: Body, block: list[ast.stmt]) -> bool:
    return any((id(block), 0) in frame.before for frame in body.frames)


def _inside(body: Body, nodes: list[ast.stmt], assigned: frozenset[str] | None, *, dead: bool) -> frozenset[str] | None:
    """Translates a branch; one that a constant excludes is left empty."""
    if dead:
        return None
    outside = body.only, body.asked
    body.assigned = assigned
    body.depth += 1
    statements(body, nodes)
    body.depth -= 1
    body.only, body.asked = outside
    return body.assigned


def _leave(body: Body, node: ast.Break | ast.Continue) -> None:
    word = "break" if isinstance(node, ast.Break) else "continue"
    if body.turn is not None and not body.breaks:
        if word == "break":
            raise body.error(node, "a turn cannot end the turns of others", "Write continue, which ends this turn")
        body.emit("continue;", node)
    else:
        (body.breaks if word == "break" else body.continues)[-1].append(body.assigned)
        body.emit(f"{word};", node)
    body.assigned = None


def _return(body: Body, node: ast.Return) -> None:
    if body.turn is not None:
        raise body.error(node, "a turn of a phase returns nothing", "Write continue, which ends this turn")
    if body.between:
        raise body.error(
            node, "all replicas go through all phases", "Leave out what is not wanted by conditions inside"
        )
    name, kind = body.written.name, body.result
    if kind is None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            annotate = ", or annotate what it returns: -> float" if body.written.tree.returns is None else ""
            raise body.error(node, f"{name} returns nothing", f"Write return alone{annotate}")
        body.emit("return;", node)
    elif node.value is None:
        raise body.error(node, f"{name} returns {_words(kind)}, and this returns nothing")
    elif isinstance(kind, Several):
        body.emit(f"return {{{', '.join(_elements(body, node, kind))}}};", node)
    else:
        body.alone = node.value
        value = expression(body, node.value)
        with body.at(node.value):
            body.emit(f"return {converted(value, kind).text};", node)
    body.ends.append(body.assigned)
    body.assigned = None


def _words(kind: object) -> str:
    if isinstance(kind, Several):
        return "reward, terminated" if kind.cpp == "Outcome" else f"{len(kind.kinds)} numbers"
    return f"a {kind.python}" if isinstance(kind, Number) else "something else"


def _elements(body: Body, node: ast.Return, kind: Several) -> list[str]:
    assert node.value is not None
    if not isinstance(node.value, ast.Tuple) or len(node.value.elts) != len(kind.kinds):
        raise body.error(
            node,
            f"{body.written.name} returns {_words(kind)}, and this is {ast.unparse(node.value)}",
            "Write return reward, terminated" if kind.cpp == "Outcome" else "Write return a, b",
        )
    found: list[str] = []
    for part, wanted in zip(node.value.elts, kind.kinds, strict=True):
        value = expression(body, part)
        with body.at(part):
            if kind.cpp == "Outcome" and wanted is BOOL and value.type is not BOOL:
                what = f"terminated is a bool, and this is {described(value)}"
                raise RefusedError(what, "Write a comparison, as in x > 0")
            found.append(converted(value, wanted).text)
    return found
