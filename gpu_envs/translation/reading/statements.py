"""Statements: which of them are reached, and loops over ranges, while something holds, and over a team's agents."""

import ast
from collections.abc import Iterator, Sequence

from gpu_envs.translation import tree
from gpu_envs.translation.arithmetic import converted
from gpu_envs.translation.reading.assignments import assigned, assigned_annotated, updated
from gpu_envs.translation.reading.calls import atomic
from gpu_envs.translation.reading.expressions import condition
from gpu_envs.translation.reading.reader import Reader, frame_of
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import BOOL, INT, Array, Several, Thing, described
from gpu_envs.translation.walk import draws, ends, has_phases, known, literal, statements


def block(reader: Reader, nodes: Sequence[ast.stmt]) -> Block:
    """Reads a block; what follows a return, a break or a continue is never reached, and left out."""
    made: list[tree.Stmt] = []
    for node in nodes:
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
            word = type(node).__name__.lower()
            if word == "break" and len(reader.frames) > 1 and not reader.loops:
                raise RefusedError("a turn cannot end the turns of others", "Write continue, which ends this turn")
            yield tree.Leave(node, word)
        case ast.Expr(value=ast.Constant(value=value)) if isinstance(value, str) or value is ...:
            pass
        case ast.Expr(value=ast.Call() as called):
            yield atomic(reader, called, node) or tree.Evaluate(node, reader.expression(called))
        case ast.Expr():
            with reader.at(node.value):
                raise RefusedError("this has no effect", "Assign it, or leave it out")
        case ast.For() | ast.While():
            if node.orelse:
                instead = "Set a bool in the loop, and ask it after"
                raise reader.error(node.orelse[0], "there is no else of a loop in rules", instead)
            yield _while(reader, node) if isinstance(node, ast.While) else _for(reader, node)
        case ast.If():
            yield _branch(reader, node)
        case ast.Pass():
            pass
        case ast.Return():
            yield _return(reader, node)
        case _:
            raise RefusedError(f"{type(node).__name__} is not translated")


def _branch(reader: Reader, node: ast.If) -> tree.If:
    test = condition(reader, node.test)
    holds = bool(test.value) if isinstance(test, tree.Constant) else None
    yes = reader.block(node.body) if holds is not False else ()
    no = reader.block(node.orelse) if holds is not True else ()
    if holds is None and has_phases((*yes, *no)):
        raise reader.error(
            node.test,
            "all replicas go through the same phases, and this condition may differ",
            "Ask within the phase, or make it a parameter with fixed=True",
        )
    return tree.If(node, test, yes, no)


# --- what a function returns ---


def _return(reader: Reader, node: ast.Return) -> tree.Return:
    if len(reader.frames) > 1:
        raise RefusedError("a turn of a phase returns nothing", "Write continue, which ends this turn")
    if reader.between:
        instead = "Leave out what is not wanted by conditions inside"
        raise RefusedError("all replicas go through all phases", instead)
    name, kind, value = reader.written.name, reader.result, node.value
    if kind is None:
        if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            annotate = ", or annotate what it returns: -> float" if reader.written.tree.returns is None else ""
            raise RefusedError(f"{name} returns nothing", f"Write return alone{annotate}")
        return tree.Return(node, ())
    outcome = isinstance(kind, Several) and kind.cpp == "Outcome"
    words = "reward, terminated" if outcome else described(kind)
    if value is None:
        raise RefusedError(f"{name} returns {words}, and this returns nothing")
    if not isinstance(kind, Several):
        return tree.Return(node, (converted(reader.expression(value), kind),))
    if not isinstance(value, ast.Tuple) or len(value.elts) != len(kind.kinds):
        instead = f"Write return {'reward, terminated' if outcome else 'a, b'}"
        raise RefusedError(f"{name} returns {words}, and this is {ast.unparse(value)}", instead)
    values = []
    for part, wanted in zip(map(reader.expression, value.elts), kind.kinds, strict=True):
        if outcome and wanted is BOOL and part.kind is not BOOL:
            what = f"terminated is a bool, and this is {described(part.kind)}"
            raise RefusedError(what, "Write a comparison, as in x > 0", part.at)
        values.append(converted(part, wanted))
    return tree.Return(node, tuple(values), several=True)


# --- loops ---


def _body(reader: Reader, node: ast.For | ast.While, *, constant: bool) -> Block:
    reader.loops.append(node)
    body = reader.block(node.body)
    reader.loops.pop()
    if not constant and has_phases(body):
        raise RefusedError(
            "all replicas go through the same phases, and this loop may differ", "Give it constant bounds"
        )
    return body


def _while(reader: Reader, node: ast.While) -> tree.While:
    test = condition(reader, node.test)
    made = tree.While(node, test, _body(reader, node, constant=False))
    if ends([made]) and not any(isinstance(inner, tree.Return) for inner in statements(made.body)):
        raise RefusedError("this loop never ends", "Leave it with break, or give it a condition")
    return made


def _for(reader: Reader, node: ast.For) -> tree.For | tree.Turns:
    if method := method_of(reader, node):
        return _turns(reader, node, method)
    if not isinstance(node.target, ast.Name):
        raise reader.error(node.target, "a loop counts with one name", "Write for i in range(n):")
    first, end, step = _bounds(reader, node.iter)
    name = node.target.id
    variable = reader.learn(name, INT, node).variable
    own = any(frame.number == variable.frame and name in frame.own for frame in reader.frames)
    counter = None if own else reader.fresh("at")
    constant = isinstance(first, tree.Constant) and isinstance(end, tree.Constant)
    return tree.For(node, variable, first, end, step, _body(reader, node, constant=constant), counter)


def _bounds(reader: Reader, node: ast.expr) -> tuple[Expr, Expr, int]:
    if isinstance(node, ast.Attribute) and node.attr in ("agents", "columns"):
        call = f"{ast.unparse(node)}({'' if node.attr == 'agents' else 'n'})"
        raise reader.error(node, f"{node.attr} is called", f"Write for i in {call}:")
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"):
        instead = "Write for i in range(n):, and index what it should go over"
        raise reader.error(node, "a loop goes over a range", instead)
    if node.keywords or not 1 <= len(node.args) <= 3:
        raise reader.error(node, f"range got {len(node.args)} arguments; it takes one to three")
    found = [converted(reader.expression(argument), INT) for argument in node.args]
    first, end = (literal(0), found[0]) if len(found) == 1 else found[:2]
    step = known(found[2]) if len(found) == 3 else 1
    if not step:
        raise reader.error(node.args[-1], "the step of a range is a constant, and not zero", "Write a while loop")
    return first, end, int(step)


# --- phases, and the columns of a row ---


def method_of(reader: Reader, node: ast.AST) -> str:
    """``agents`` or ``columns``, where a loop goes over those."""
    match node:
        case ast.For(iter=ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr=name))) if of in reader.arguments:
            kind = reader.arguments[of].kind
            team = isinstance(kind, Thing) and kind.name == "Team"
            row = isinstance(kind, Array) and kind.owner == "Row"
            return name if (name == "agents" and team) or (name == "columns" and row) else ""
    return ""


def _turns(reader: Reader, node: ast.For, method: str) -> tree.Turns:
    """``for i in team.agents(n)``, or ``for j in row.columns(n)``."""
    if method == "agents" and not reader.between:
        raise RefusedError("a phase stands within a phase", "Write for j in range(AGENTS):")
    if not isinstance(node.target, ast.Name):
        raise reader.error(node.target, "a phase counts with one name", "Write for i in team.agents():")
    assert isinstance(node.iter, ast.Call)
    count, name = _count(reader, node.iter, method), node.target.id
    outer = reader.frames[-1]
    targets = [loop.target for loop in reader.loops if isinstance(loop, ast.For)]
    around = {target.id for target in targets if isinstance(target, ast.Name)}
    frame = frame_of(id(node), node.body, lambda inner: bool(method_of(reader, inner)), name)
    taken = frame.stored & (outer.stored - (outer.own - around))
    if taken:
        what = f"{min(taken)!r} is set in here and outside, and turns have variables of their own"
        raise RefusedError(what, "Give one of them another name; what lasts is a field of the world")
    outside = reader.between, reader.loops
    reader.between, reader.loops = False, []
    reader.frames.append(frame)
    variable = reader.learn(name, INT, node).variable
    body = reader.block(node.body)
    reader.frames.pop()
    reader.between, reader.loops = outside
    reader.elsewhere |= frame.stored
    return tree.Turns(node, method, variable, count, body)


def _count(reader: Reader, node: ast.Call, method: str) -> Expr:
    if node.keywords or len(node.args) > 1:
        raise reader.error(node, "this takes a number", "Write for i in team.agents(n):")
    if not node.args:
        if method == "columns":
            raise reader.error(node, "row.columns takes the number of columns")
        return reader.unit.arguments.capitals["AGENTS"]
    between, reader.between = reader.between, False  # the number may be a field that an earlier phase wrote
    value = reader.expression(node.args[0])
    reader.between = between
    if draws(value):
        instead = "Keep it in a field of the world"
        raise reader.error(node, "the number of turns is a field or a constant", instead)
    return converted(value, INT)
