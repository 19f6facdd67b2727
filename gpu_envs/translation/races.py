"""Which turns of a phase read and write what: on a GPU they run at the same time, in no order."""

import ast
import dataclasses
import itertools
from collections.abc import Mapping

from gpu_envs.translation.body import Body
from gpu_envs.translation.effects import Access, Effects
from gpu_envs.translation.values import Value


def own_turn(body: Body, node: ast.AST) -> str:
    """The variable that holds the turn's number, where ``node`` is it or a copy of it; else ``""``."""
    return body.copies.get(node.id, "") if isinstance(node, ast.Name) else ""


def note_copy(body: Body, target: ast.expr, given: ast.expr) -> None:
    """Notes ``j = i``, where nothing else is assigned to ``j``."""
    if isinstance(target, ast.Name) and own_turn(body, given):
        number = body.frame_with(target.id)
        if number is not None and target.id in body.frames[number].once:
            body.copies[target.id] = own_turn(body, given)


def note(body: Body, node: ast.expr, how: str, given: Value | None = None) -> None:
    """Notes that a field of the world is read, written or added to."""
    made = _access(body, node, how, given)
    body.effects.accesses.setdefault(made, node)


def forget_read(body: Body, node: ast.expr, before: Mapping[Access, ast.AST]) -> None:
    """Takes back the read that was noted of a field which ``add`` changes."""
    made = _access(body, node, "read", None)
    if made not in before:
        body.effects.accesses.pop(made, None)


def _access(body: Body, node: ast.expr, how: str, given: Value | None) -> Access:
    constant = "" if given is None or given.constant is None else repr(float(given.constant))
    place = node.value if isinstance(node, ast.Subscript) else node
    field = place.attr if isinstance(place, ast.Attribute) else ast.unparse(place)
    held = body.unit.arguments.held(field)
    agent = element = ""
    if isinstance(node, ast.Subscript):
        agent, element = _index(body, node.slice, held)
    return Access(field, how, agent, element, body.only, constant, body.asked)


def _index(body: Body, node: ast.expr, held: int | None) -> tuple[str, str]:
    """Whose element an index is: the variable with the turn's number, and which of that turn's."""
    first = node.elts[0] if isinstance(node, ast.Tuple) else node
    if held and (held == 1 or isinstance(node, ast.Tuple)):
        return own_turn(body, first), ""
    if own_turn(body, node):
        return ("" if held else own_turn(body, node)), ""
    return (_strided(body, node, held), "") if held else (_apart(body, node), ast.unparse(node))


def _strided(body: Body, node: ast.expr, length: int | None) -> str:
    """The turn of ``i * length + k``; of an array of the replica's (no length), where it is known that k is less."""
    for times, more in _both_ways(node, ast.Add):
        for turn, factor in _both_ways(times, ast.Mult):
            name, stride = own_turn(body, turn), _known(body, factor)
            if not name or stride is None or len(stride) != 1 or stride[0] < 1 or length not in (None, stride[0]):
                continue
            among = _known(body, more)
            if among is None and length is not None and not any(own_turn(body, part) for part in ast.walk(more)):
                return name
            if among is not None and all(0 <= value < stride[0] for value in (among[0], among[-1])):
                return name
    firsts = (own_turn(body, i) for i, n in _both_ways(node, ast.Mult) if length and _constant(body, n) == length)
    return next(firsts, "")


def _apart(body: Body, node: ast.expr) -> str:
    """The turn of an index that differs from turn to turn."""
    if own_turn(body, node):
        return own_turn(body, node)
    for inner, other in (*_both_ways(node, ast.Add), *_both_ways(node, ast.Sub), *_both_ways(node, ast.Mult)):
        known, name = _known(body, other), _apart(body, inner)
        if name and known is not None and len(known) == 1 and (known[0] or not _both_ways(node, ast.Mult)):
            return name
    return _strided(body, node, None)


def _both_ways(node: ast.expr, kind: type[ast.operator]) -> list[tuple[ast.expr, ast.expr]]:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, kind):
        return []
    return [(node.left, node.right), (node.right, node.left)]


def _known(body: Body, node: ast.expr) -> range | None:
    """The whole numbers that an expression may be, where it is a constant or counts a loop over constants."""
    if isinstance(node, ast.Name) and node.id in body.ranges:
        return body.ranges[node.id]
    value = _constant(body, node)
    return range(value, value + 1) if isinstance(value, int) else None


def _constant(body: Body, node: ast.expr) -> object:
    """What a constant expression is; nothing is drawn or noted by looking."""
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    if any(not _is_fixed(body, part.id) for part in names):
        return None
    return None if any(isinstance(part, ast.Call) for part in ast.walk(node)) else body.expression(node).constant


# --- whose turn it is ---


def only_turn(body: Body, test: ast.expr, *, holds: bool) -> tuple[str, str] | None:
    """The single turn for which a condition holds (or does not): its variable, and its number."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return only_turn(body, test.operand, holds=not holds)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if holds else ast.Or):
        found = (only_turn(body, part, holds=holds) for part in test.values)
        return next((turn for turn in found if turn is not None), None)
    if own_turn(body, test):
        return None if holds else (own_turn(body, test), "0")
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    if not isinstance(test.ops[0], ast.Eq if holds else ast.NotEq):
        return None
    for one, other in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
        if own_turn(body, one) and _same_for_all(body, other):
            value = _constant(body, other)
            return own_turn(body, one), ast.unparse(other) if value is None else repr(value)
    return None


def _same_for_all(body: Body, node: ast.expr) -> bool:
    """Whether all turns find the same: constants, parameters, and a role's first and last agents."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and ast.unparse(part.func).rpartition(".")[2] not in ("first_of", "count_of"):
            return False
        if isinstance(part, ast.Name) and not _is_fixed(body, part.id):
            return False
    return True


def _is_fixed(body: Body, name: str) -> bool:
    """Whether a name is of the module's or the spec's, or the parameters."""
    given = body.arguments.get(name)
    return body.frame_with(name) is None and (given is None or given.owner == "params")


def seen_from(body: Body, effects: Effects, given: Mapping[str, ast.expr], name: str, node: ast.AST) -> Effects:
    """What a function that is called does, in the names of its caller."""
    turns = {argument: own_turn(body, value) for argument, value in given.items()}
    seen: dict[Access, ast.AST] = {}
    for access in effects.accesses:
        only = body.only
        if only is None and access.only is not None and turns.get(access.only[0]):
            only = turns[access.only[0]], access.only[1]
        element = f"{name}: {access.element}" if access.element else ""
        agent, asked = turns.get(access.agent, ""), access.asked or body.asked
        seen[dataclasses.replace(access, agent=agent, element=element, only=only, asked=asked)] = node
    return dataclasses.replace(effects, accesses=seen)


# --- a whole phase ---


def refuse_races(body: Body, effects: Effects, turn: str) -> None:
    """Refuses a phase whose turns meet."""
    for access, node in effects.accesses.items():
        if access.how == "write":
            _refuse_write(body, access, node, turn)
    for one, other in itertools.combinations(effects.accesses, 2):
        if one.field == other.field and {one.how, other.how} not in ({"read"}, {"add"}):
            _refuse_both(body, effects, one, other, turn)


def _is_single(access: Access, turn: str) -> bool:
    return access.only is not None and access.only[0] == turn


def _refuse_write(body: Body, access: Access, node: ast.AST, turn: str) -> None:
    field = access.field
    if access.agent == turn:
        return
    if body.unit.arguments.held(field):
        raise body.error(
            node,
            f"the turn of agent {turn!r} writes a field of another's",
            f"Write w.{field}[{turn}]; ints of others are changed by add(...) and lower(...)",
        )
    if not _is_single(access, turn) and not (access.constant and access.asked):
        raise body.error(
            node,
            f"every turn writes {field!r}, of which the replica has one",
            f"Let one turn do it, if {turn} == 0:, or change an int with add(w.{field}, ...)",
        )


def _refuse_both(body: Body, effects: Effects, one: Access, other: Access, turn: str) -> None:
    if _is_single(one, turn) and one.only == other.only:
        return
    if one.agent == other.agent == turn and one.element == other.element:
        return
    if one.how == other.how == "write" and one.constant and one.constant == other.constant:
        return
    second = one if one.how == "read" else other
    if second.how == "read":
        raise body.error(
            effects.accesses[second],
            f"turns read {one.field!r} in the phase that writes it, some before and some after",
            "Read it in a phase of its own, after this one or before; a turn reads what it wrote of its own agent",
        )
    raise body.error(
        effects.accesses[second],
        f"several turns write {one.field!r} in this phase, and the last one is not always the same",
        "Let one turn do it, or write in phases of their own",
    )
