"""Loops: over ranges, while something holds, and over the agents of a team."""

import ast

from gpu_envs.translation import tree
from gpu_envs.translation.arithmetic import converted
from gpu_envs.translation.reading.expressions import condition
from gpu_envs.translation.reading.reader import Reader
from gpu_envs.translation.reading.scope import frame_of
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import INT, Array, Thing
from gpu_envs.translation.walk import draws, ends, expressions, known, literal, statements, within


def method_of(reader: Reader, node: ast.AST) -> str:
    """``agents`` or ``columns``, where a loop goes over those."""
    match node:
        case ast.For(iter=ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr=name))) if of in reader.arguments:
            kind = reader.arguments[of].kind
            if name == "agents" and isinstance(kind, Thing) and kind.name == "Team":
                return name
            if name == "columns" and isinstance(kind, Array) and kind.owner == "Row":
                return name
    return ""


def phases_in(block: Block) -> bool:
    """Whether there are phases in a block, or in a function that it calls."""
    for stmt in statements(block):
        if isinstance(stmt, tree.Turns) and stmt.method == "agents":
            return True
        if any(isinstance(expr, tree.Invoke) and expr.function.effects.phases for expr in expressions(stmt)):
            return True
    return False


def loop(reader: Reader, node: ast.For | ast.While) -> tree.For | tree.While | tree.Turns:
    """Reads a loop."""
    if node.orelse:
        raise reader.error(
            node.orelse[0], "there is no else of a loop in rules", "Set a bool in the loop, and ask it after"
        )
    if isinstance(node, ast.While):
        return _while(reader, node)
    method = method_of(reader, node)
    return _turns(reader, node, method) if method else _range(reader, node)


def _body(reader: Reader, node: ast.For | ast.While, *, constant: bool) -> Block:
    reader.loops.append(node)
    body = reader.block(node.body)
    reader.loops.pop()
    if not constant and phases_in(body):
        raise reader.error(
            node, "all replicas go through the same phases, and this loop may differ", "Give it constant bounds"
        )
    return body


def _while(reader: Reader, node: ast.While) -> tree.While:
    test = condition(reader, node.test)
    made = tree.While(node, test, _body(reader, node, constant=False))
    if ends([made]) and not any(isinstance(inner, tree.Return) for inner in statements(made.body)):
        raise reader.error(node, "this loop never ends", "Leave it with break, or give it a condition")
    return made


# --- ranges ---


def _range(reader: Reader, node: ast.For) -> tree.For:
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
        raise reader.error(
            node, "a loop goes over a range", "Write for i in range(n):, and index what it should go over"
        )
    if node.keywords or not 1 <= len(node.args) <= 3:
        raise reader.error(node, f"range got {len(node.args)} arguments; it takes one to three")
    found = []
    for argument in node.args:
        value = reader.expression(argument)
        with reader.at(argument):
            found.append(converted(value, INT))
    first, end = (literal(0), found[0]) if len(found) == 1 else found[:2]
    step = known(found[2]) if len(found) == 3 else 1
    if not step:
        raise reader.error(node.args[-1], "the step of a range is a constant, and not zero", "Write a while loop")
    return first, end, int(step)


# --- phases, and the columns of a row ---


def _turns(reader: Reader, node: ast.For, method: str) -> tree.Turns:
    """``for i in team.agents(n)``, or ``for j in row.columns(n)``."""
    phase = method == "agents"
    if phase and not reader.between:
        raise reader.error(node, "a phase stands within a phase", "Write for j in range(AGENTS):")
    if not isinstance(node.target, ast.Name):
        raise reader.error(node.target, "a phase counts with one name", "Write for i in team.agents():")
    count, name = _count(reader, node), node.target.id
    outer = reader.frames[-1]
    around = {
        part.id
        for loop in reader.loops
        if isinstance(loop, ast.For)
        for part in [loop.target]
        if isinstance(part, ast.Name)
    }
    frame = frame_of(id(node), node.body, lambda inner: bool(method_of(reader, inner)), name)
    taken = frame.stored & (outer.stored - (outer.own - around))
    if taken:
        raise reader.error(
            node,
            f"{min(taken)!r} is set in here and outside, and turns have variables of their own",
            "Give one of them another name; what lasts is a field of the world",
        )
    outside = reader.between, reader.turn, reader.loops
    reader.between, reader.turn, reader.loops = False, node, []
    reader.frames.append(frame)
    variable = reader.learn(name, INT, node).variable
    body = reader.block(node.body)
    reader.frames.pop()
    reader.between, reader.turn, reader.loops = outside
    reader.elsewhere |= frame.stored
    return tree.Turns(node, method, variable, count, body)


def _count(reader: Reader, node: ast.For) -> Expr:
    assert isinstance(node.iter, ast.Call)
    if node.iter.keywords or len(node.iter.args) > 1:
        raise reader.error(node.iter, "this takes a number", "Write for i in team.agents(n):")
    if not node.iter.args:
        if method_of(reader, node) == "columns":
            raise reader.error(node.iter, "row.columns takes the number of columns")
        return reader.unit.arguments.capitals["AGENTS"]
    between, reader.between = reader.between, False  # the number may be a field that an earlier phase wrote
    value = reader.expression(node.iter.args[0])
    reader.between = between
    with reader.at(node.iter):
        if any(draws(part) for part in within(value)):
            raise RefusedError("the number of turns is a field or a constant", "Keep it in a field of the world")
        return converted(value, INT)
