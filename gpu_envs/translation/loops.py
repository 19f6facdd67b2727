"""Loops: over ranges, while something holds, and over the agents of a team."""

import ast
import functools

from gpu_envs.translation.body import Body, both
from gpu_envs.translation.effects import Effects
from gpu_envs.translation.expressions import condition, expression, guarded
from gpu_envs.translation.locals import frame_of
from gpu_envs.translation.races import refuse_races
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.values import INT, Level, Thing, Value, converted, literal

MOST_UNROLLED = 16
"""Turns of a loop that is written out by the compiler."""


def method_of(body: Body, node: ast.AST) -> str:
    """``agents`` or ``columns``, where a loop goes over those."""
    match node:
        case ast.For(iter=ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr=name))) if of in body.arguments:
            kind = body.arguments[of]
            is_team = isinstance(kind.type, Thing) and kind.type.name == "Team"
            if (is_team and name == "agents") or (kind.owner == "Row" and name == "columns"):
                return name
    return ""


def is_phase(body: Body, node: ast.AST) -> bool:
    """Whether a loop is a phase, or a call has some."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return body.unit.has_phases(body.written, node.func.id)
    return method_of(body, node) == "agents"


def loop(body: Body, node: ast.For | ast.While) -> None:
    """Translates a loop."""
    if node.orelse:
        raise body.error(
            node.orelse[0], "there is no else of a loop in rules", "Set a bool in the loop, and ask it after"
        )
    if isinstance(node, ast.While):
        _while(body, node)
    elif method := method_of(body, node):
        _turns(body, node, method)
    else:
        _range(body, node)


def _refuse_phases(body: Body, node: ast.stmt) -> None:
    for inner in ast.walk(node):
        if is_phase(body, inner):
            raise body.error(
                node, "all replicas go through the same phases, and this loop may differ", "Give it constant bounds"
            )


def _while(body: Body, node: ast.While) -> None:
    _refuse_phases(body, node)
    test = guarded(body, node.test, condition)
    body.emit(f"while ({test.text}) {{", node)
    before = body.assigned
    _, exits = _turn(body, node.body)
    body.emit("}")
    body.assigned = functools.reduce(both, exits, None if test.constant is True else before)
    if body.assigned is None and not any(isinstance(inner, ast.Return) for inner in ast.walk(node)):
        raise body.error(node, "this loop never ends", "Leave it with break, or give it a condition")


def _turn(body: Body, nodes: list[ast.stmt]) -> tuple[frozenset[str] | None, list[frozenset[str] | None]]:
    """Translates a loop's body; returns what is set after a turn, and where it was left."""
    body.breaks.append([])
    body.continues.append([])
    outside = body.only, body.asked
    body.depth += 1
    body.statements(nodes)
    body.depth -= 1
    body.only, body.asked = outside
    return functools.reduce(both, body.continues.pop(), body.assigned), body.breaks.pop()


# --- ranges ---


def _range(body: Body, node: ast.For) -> None:
    if not isinstance(node.target, ast.Name):
        raise body.error(node.target, "a loop counts with one name", "Write for i in range(n):")
    bounds = _bounds(body, node.iter)
    known = [bound.constant for bound in bounds]
    turns = len(range(*known)) if None not in known else None
    if turns is None:
        _refuse_phases(body, node)
    name = node.target.id
    number = body.frame_with(name)
    assert number is not None
    own = name in body.frames[number].own
    body.learn(name, INT, node)
    counter = body.cpp_name(name) if own else body.fresh("at")
    _head(body, node, counter, bounds, turns)
    before = body.assigned
    body.set(name)
    body.ranges.pop(name, None)
    if turns and own and sum(_counts(name, inner) for inner in ast.walk(node)) == 1:
        body.ranges[name] = range(*known)
    if not own:
        body.depth += 1
        body.emit(f"{body.cpp_name(name)} = {counter};", node)
        body.depth -= 1
    after, exits = _turn(body, node.body)
    body.emit("}")
    body.ranges.pop(name, None)
    body.assigned = before
    if turns:
        body.assigned = functools.reduce(both, exits, after)
        if own and body.assigned is not None:
            body.assigned -= {name}


def _counts(name: str, node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


def _bounds(body: Body, node: ast.expr) -> tuple[Value, Value, Value]:
    if isinstance(node, ast.Attribute) and node.attr in ("agents", "columns"):
        call = f"{ast.unparse(node)}({'' if node.attr == 'agents' else 'n'})"
        raise body.error(node, f"{node.attr} is called", f"Write for i in {call}:")
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"):
        raise body.error(node, "a loop goes over a range", "Write for i in range(n):, and index what it should go over")
    if node.keywords or not 1 <= len(node.args) <= 3:
        raise body.error(node, f"range got {len(node.args)} arguments; it takes one to three")
    found = []
    for argument in node.args:
        value = expression(body, argument)
        with body.at(argument):
            found.append(converted(value, INT))
    first, end = (literal(0), found[0]) if len(found) == 1 else found[:2]
    step = found[2] if len(found) == 3 else literal(1)
    if not step.constant:
        raise body.error(node.args[-1], "the step of a range is a constant, and not zero", "Write a while loop")
    return first, end, step


def _head(body: Body, node: ast.For, counter: str, bounds: tuple[Value, Value, Value], turns: int | None) -> None:
    first, end, step = bounds
    limit, also = end.within(Level.SUM), ""
    if end.constant is None and not end.code.startswith("p."):
        limit = body.fresh("end")
        also = f", {limit} = {end.text}"
    sign = "<" if step.constant > 0 else ">"
    by = {1: f"++{counter}", -1: f"--{counter}"}.get(
        step.constant, f"{counter} {'+' if step.constant > 0 else '-'}= {abs(step.constant)}"
    )
    head = f"for (int {counter} = {first.text}{also}; {counter} {sign} {limit}; {by}) {{"
    if turns is not None and turns <= MOST_UNROLLED and not any(is_phase(body, inner) for inner in ast.walk(node)):
        head = f"UNROLL {head}"
    body.emit(head, node)


# --- phases, and the columns of a row ---


def _turns(body: Body, node: ast.For, method: str) -> None:
    """``for i in team.agents(n)``, or ``for j in row.columns(n)``."""
    phase = method == "agents"
    if phase and not body.between:
        raise body.error(node, "a phase stands within a phase", "Write for j in range(AGENTS):")
    if not isinstance(node.target, ast.Name):
        raise body.error(node.target, "a phase counts with one name", "Write for i in team.agents():")
    count = _count(body, node)
    name = node.target.id
    frame = frame_of(node, node.body, lambda inner: bool(method_of(body, inner)))
    outer = body.frames[-1]
    taken = (frame.stored | {name}) & (outer.stored - (outer.own - (body.assigned or frozenset())))
    if taken:
        raise body.error(
            node,
            f"{min(taken)!r} is set in here and outside, and turns have variables of their own",
            "Give one of them another name; what lasts is a field of the world",
        )
    macro = "FOR_EACH_AGENT" if phase else "FOR_EACH_COLUMN"
    body.emit(f"{macro}({body.cpp_name(name)}, {count.within(Level.UNARY)}) {{", node)
    before, between, turn = body.assigned, body.between, body.turn
    asking, copies = (body.only, body.asked), dict(body.copies)
    loops = body.breaks, body.continues
    body.breaks, body.continues = [], []
    if phase:
        body.copies = {} if name in frame.stored else {name: name}
        body.only, body.asked = (name, "0") if count.constant == 1 else None, False
    frame = type(frame)(node, frame.stored | {name}, frame.before, frame.at_first, frame.once, frame.own)
    body.frames.append(frame)
    outside, body.effects = body.effects, Effects()
    body.between, body.turn = False, node
    body.learn(name, INT, node)
    body.set(name)
    body.depth += 1
    body.statements(node.body)
    body.depth -= 1
    body.emit("}")
    body.frames.pop()
    body.elsewhere |= frame.stored
    body.assigned, body.between, body.turn = before, between, turn
    (body.only, body.asked), body.copies = asking, copies
    body.breaks, body.continues = loops
    effects, body.effects = body.effects, outside
    if phase:
        refuse_races(body, effects, name)
        effects.accesses = {}
    outside.include(effects, phases=phase)


def _count(body: Body, node: ast.For) -> Value:
    assert isinstance(node.iter, ast.Call)
    if node.iter.keywords or len(node.iter.args) > 1:
        raise body.error(node.iter, "this takes a number", "Write for i in team.agents(n):")
    if not node.iter.args:
        if method_of(body, node) == "columns":
            raise body.error(node.iter, "row.columns takes the number of columns")
        return body.unit.arguments.capitals["AGENTS"]
    between, body.between = body.between, False  # the number may be a field that an earlier phase wrote
    value = expression(body, node.iter.args[0])
    body.between = between
    if body.pending:
        raise RefusedError("the number of turns is a field or a constant", "Keep it in a field of the world")
    with body.at(node.iter):
        return converted(value, INT)
