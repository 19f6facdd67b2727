"""Statements, and which of them are reached."""

import ast
from collections.abc import Iterator, Mapping, Sequence

from gpu_envs.translation import tree
from gpu_envs.translation.arithmetic import converted
from gpu_envs.translation.reading.assignments import assigned, assigned_annotated, updated
from gpu_envs.translation.reading.calls import atomic
from gpu_envs.translation.reading.expressions import condition
from gpu_envs.translation.reading.loops import loop, phases_in
from gpu_envs.translation.reading.reader import Reader
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import BOOL, Number, Several, described
from gpu_envs.translation.walk import ends

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


def block(reader: Reader, nodes: Sequence[ast.stmt]) -> Block:
    """Reads a block; what follows a return, a break or a continue is never reached, and left out."""
    made: list[tree.Stmt] = []
    for node in nodes:
        if type(node) in REFUSED:
            raise reader.error(node, *REFUSED[type(node)])
        with reader.at(node):
            made += _read(reader, node)
        if ends(made):
            break
    return tuple(made)


def _read(reader: Reader, node: ast.stmt) -> Iterator[tree.Stmt]:
    match node:
        case ast.AnnAssign():
            yield from assigned_annotated(reader, node)
        case ast.Assign():
            yield from assigned(reader, node)
        case ast.AugAssign():
            yield updated(reader, node)
        case ast.Break() | ast.Continue():
            yield _leave(reader, node)
        case ast.Expr():
            yield from _expression(reader, node)
        case ast.For() | ast.While():
            yield loop(reader, node)
        case ast.If():
            yield _branch(reader, node)
        case ast.Pass():
            pass
        case ast.Return():
            yield _return(reader, node)
        case _:
            raise RefusedError(f"{type(node).__name__} is not translated")


def _expression(reader: Reader, node: ast.Expr) -> Iterator[tree.Stmt]:
    value = node.value
    if isinstance(value, ast.Constant) and (isinstance(value.value, str) or value.value is ...):
        return
    if isinstance(value, ast.Yield | ast.YieldFrom | ast.Await):
        reader.expression(value)  # is refused
    if not isinstance(value, ast.Call):
        raise reader.error(value, "this has no effect", "Assign it, or leave it out")
    yield atomic(reader, value, node) or tree.Evaluate(node, reader.expression(value))


def _branch(reader: Reader, node: ast.If) -> tree.If:
    test = condition(reader, node.test)
    holds = bool(test.value) if isinstance(test, tree.Constant) else None
    yes = reader.block(node.body) if holds is not False else ()
    no = reader.block(node.orelse) if holds is not True else ()
    if holds is None and phases_in((*yes, *no)):
        raise reader.error(
            node.test,
            "all replicas go through the same phases, and this condition may differ",
            "Ask within the phase, or make it a parameter with fixed=True",
        )
    return tree.If(node, test, yes, no)


def _leave(reader: Reader, node: ast.Break | ast.Continue) -> tree.Leave:
    word = "break" if isinstance(node, ast.Break) else "continue"
    if reader.turn is not None and not reader.loops and word == "break":
        raise reader.error(node, "a turn cannot end the turns of others", "Write continue, which ends this turn")
    return tree.Leave(node, word)


def _return(reader: Reader, node: ast.Return) -> tree.Return:
    if reader.turn is not None:
        raise reader.error(node, "a turn of a phase returns nothing", "Write continue, which ends this turn")
    if reader.between:
        raise reader.error(
            node, "all replicas go through all phases", "Leave out what is not wanted by conditions inside"
        )
    name, kind = reader.written.name, reader.result
    if kind is None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            annotate = ", or annotate what it returns: -> float" if reader.written.tree.returns is None else ""
            raise reader.error(node, f"{name} returns nothing", f"Write return alone{annotate}")
        return tree.Return(node, ())
    if node.value is None:
        raise reader.error(node, f"{name} returns {_words(kind)}, and this returns nothing")
    if isinstance(kind, Several):
        return tree.Return(node, tuple(_elements(reader, node, kind)), several=True)
    value = reader.expression(node.value)
    with reader.at(node.value):
        return tree.Return(node, (converted(value, kind),))


def _words(kind: object) -> str:
    if isinstance(kind, Several):
        return "reward, terminated" if kind.cpp == "Outcome" else f"{len(kind.kinds)} numbers"
    return f"a {kind.python}" if isinstance(kind, Number) else "something else"


def _elements(reader: Reader, node: ast.Return, kind: Several) -> Iterator[Expr]:
    if not isinstance(node.value, ast.Tuple) or len(node.value.elts) != len(kind.kinds):
        raise reader.error(
            node,
            f"{reader.written.name} returns {_words(kind)}, and this is {ast.unparse(node.value or node)}",
            "Write return reward, terminated" if kind.cpp == "Outcome" else "Write return a, b",
        )
    for part, wanted in zip(node.value.elts, kind.kinds, strict=True):
        value = reader.expression(part)
        with reader.at(part):
            if kind.cpp == "Outcome" and wanted is BOOL and value.kind is not BOOL:
                what = f"terminated is a bool, and this is {described(value.kind)}"
                raise RefusedError(what, "Write a comparison, as in x > 0")
            yield converted(value, wanted)
