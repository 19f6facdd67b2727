"""Which turns of a phase read and write what: on a GPU they run at the same time, in no order."""

import ast
import collections
import dataclasses
import itertools
from typing import Any, final

from gpu_envs.translation import tree
from gpu_envs.translation.checks.whose import Whose
from gpu_envs.translation.effects import Access
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import Array
from gpu_envs.translation.walk import blocks, ends, field_of, known, parts, places, stores_in


def check_races(body: Block, parameters: frozenset[tree.Variable]) -> dict[Access, ast.AST | None]:
    """Refuses phases whose turns meet; returns what the function does with the world outside of phases."""
    stores = stores_in(body)
    numbers = {variable: variable for variable in parameters if not stores[variable]}
    found = _Look(stores)
    found.block(body, Whose(numbers))
    return found.accesses


@final
class _Look:
    def __init__(self, stores: collections.Counter[tree.Variable]) -> None:
        self.stores = stores
        self.accesses: dict[Access, ast.AST | None] = {}

    # --- statements ---

    def block(self, block: Block, at: Whose) -> Whose:
        """Notes what the statements do; returns which turns come to their end, and what is known there."""
        for stmt in block:
            for value in parts(stmt):
                self.read(value, at)
            for number, place in enumerate(places(stmt)):
                for part in parts(place)[1:]:
                    self.read(part, at)
                given = known(stmt.values[number]) if isinstance(stmt, tree.Assign) and not stmt.op else None
                self.note(place, "add" if isinstance(stmt, tree.Atomic) else "write", at, given)
            at = self.after(stmt, at)
        return at

    def after(self, stmt: tree.Stmt, at: Whose) -> Whose:
        """Looks into the blocks of a statement; returns which turns come to the next, and what is known there."""
        match stmt:
            case tree.Assign(op=None):
                for place, value in zip(stmt.places, stmt.values, strict=True):
                    if isinstance(place, tree.Local) and self.stores[place.variable] == 1:
                        at = at.defined(place.variable, value)
            case tree.If():
                return self.branches(stmt, at)
            case tree.For(variable=variable, turns=turns, counter=None) if turns:
                self.block(stmt.body, at.among(variable, turns))
            case tree.Turns() if stmt.is_phase:
                self.phase(stmt, at)
            case _:
                for inner in blocks(stmt).values():
                    self.block(inner, at)
        return at

    def branches(self, stmt: tree.If, at: Whose) -> Whose:
        asked = at.asked or not isinstance(stmt.test, tree.Constant)
        yes, no = (
            self.block(
                block, dataclasses.replace(at, only=at.only_turn(stmt.test, holds=holds) or at.only, asked=asked)
            )
            for block, holds in ((stmt.yes, True), (stmt.no, False))
        )
        if isinstance(stmt.test, tree.Constant):
            return yes if stmt.test.value else no
        if ends(stmt.yes):  # what follows is for the turns that did not go away
            return no
        return yes if ends(stmt.no) else at

    def phase(self, stmt: tree.Turns, at: Whose) -> None:
        outside, self.accesses = self.accesses, {}
        for count in stmt.counts:
            self.read(count, at)
        bounds, self.accesses = {access.field for access in self.accesses}, {}
        turn, counted = stmt.variables[0], not any(self.stores[variable] for variable in stmt.variables)
        here = Whose({}, at.ranges, at.meanings)
        if stmt.method == "elements":
            here = dataclasses.replace(here, pair=stmt.variables if counted else ())
        else:
            count = known(stmt.counts[0])
            counts, only = {turn: count} if count else {}, (turn, 0) if count == 1 else None
            here = dataclasses.replace(here, turns={turn: turn} if counted else {}, only=only, counts=counts)
        self.block(stmt.body, here)
        inside, self.accesses = self.accesses, outside
        for access, node in inside.items():
            if access.how != "read" and access.field in bounds:  # a GPU's threads read it while others change it
                what = f"a turn changes {access.field!r}, on which the number of turns depends"
                raise RefusedError(what, "Change it in a phase of its own, after this one", node)
            if access.how == "write":
                self.refuse_write(access, node, stmt)
        for one, other in itertools.combinations(inside, 2):
            if one.field == other.field and {one.how, other.how} not in ({"read"}, {"add"}):
                self.refuse_both(one, other, inside, turn)

    # --- what it does ---

    def read(self, expr: Expr, at: Whose) -> None:
        for part in parts(expr):
            self.read(part, at)
        if isinstance(expr, tree.Invoke):
            self.invoked(expr, at)
        elif not isinstance(expr.kind, Array):
            self.note(expr, "read", at)

    def note(self, place: Expr, how: str, at: Whose, given: Any = None) -> None:
        """Notes an access, if it is one of a field of the world."""
        owner, name = field_of(place)
        if owner in ("World", "Metrics"):
            field = place.of if isinstance(place, tree.Element) else place
            held = field.held if isinstance(field, tree.Field) else None
            span = at.span_of(place, held)
            access = Access(name, held, how, span, at.only, None if given is None else float(given), at.asked)
            self.accesses.setdefault(access, place.at)

    def invoked(self, call: tree.Invoke, at: Whose) -> None:
        """What a function that is called does, in the names of its caller."""
        given = zip(call.function.parameters, call.arguments, strict=True)
        turns = {parameter.variable: at.turn_of(argument) for parameter, argument in given}
        for access in call.function.effects.accesses:
            turn = turns.get(access.span.turn) if access.span else None
            span = dataclasses.replace(access.span, turn=turn) if access.span and turn else None
            only = at.only
            if only is None and access.only is not None and (mine := turns.get(access.only[0])) is not None:
                only = mine, access.only[1]
            seen = dataclasses.replace(access, span=span, only=only, asked=access.asked or at.asked)
            self.accesses.setdefault(seen, call.at)

    # --- a whole phase ---

    def refuse_write(self, access: Access, node: ast.AST | None, stmt: tree.Turns) -> None:
        turn, *column = stmt.variables
        field, name, span = access.field, turn.name, access.span
        if span is not None and span.turn == turn and span.is_apart_from(span):
            return
        if column and (access.held is not None or access.constant is None or not access.asked):
            element = f"{name}, {column[0].name}"
            instead = f"Write w.{field}[{element}], of a matrix; what else is written needs a phase of its own"
            raise RefusedError(f"the turn of element ({element}) writes what other turns write too", instead, node)
        if access.held:
            instead = f"Write w.{field}[{name}]; ints of others are changed by add(...) and lower(...)"
            raise RefusedError(f"the turn of agent {name!r} writes a field of another's", instead, node)
        if not _is_single(access, turn) and not (access.constant is not None and access.asked):
            instead = f"Let one turn do it, if {name} == 0:"
            instead += "" if "." in field else f", or change an int with add(w.{field}, ...)"
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2:
                instead = (
                    f"Write a loop over all elements: for r, c in team.elements(ROWS, COLUMNS): w.{field}[r, c] = ..."
                )
            raise RefusedError(f"every turn writes {field!r}, of which the replica has one", instead, node)

    def refuse_both(
        self, one: Access, other: Access, inside: dict[Access, ast.AST | None], turn: tree.Variable
    ) -> None:
        if _is_single(one, turn) and one.only == other.only:
            return
        if one.span and other.span and one.span.turn == other.span.turn == turn and one.span.is_apart_from(other.span):
            return
        if one.how == other.how == "write" and one.constant is not None and one.constant == other.constant:
            return
        second = one if one.how == "read" else other
        what = f"several turns write {one.field!r} in this phase, and the last one is not always the same"
        instead = "Let one turn do it, or write in phases of their own"
        if second.how == "read":
            what = f"turns read {one.field!r} in the phase that writes it, some before and some after"
            instead = "Read it in a phase of its own, after this one or before"
            instead += "; a turn reads what it wrote of its own agent"
        raise RefusedError(what, instead, inside[second])


def _is_single(access: Access, turn: tree.Variable) -> bool:
    return access.only is not None and access.only[0] == turn
