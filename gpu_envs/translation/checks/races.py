"""Races: reads and writes of fields in the iterations of a phase, which a GPU runs in parallel and in any order."""

import ast
import collections
import dataclasses
import itertools
from typing import Any, final

from gpu_envs.translation import tree
from gpu_envs.translation.checks.indices import IndexFacts
from gpu_envs.translation.effects import Access
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import Array
from gpu_envs.translation.walk import always_exits, assignment_counts, blocks, constant_value, field_of, parts, places


def check_races(body: Block, parameters: frozenset[tree.Variable]) -> dict[Access, ast.AST | None]:
    """Refuse phases with races; return the accesses to the world outside phases, each with its source node."""
    stores = assignment_counts(body)
    loop_variables = {variable: variable for variable in parameters if not stores[variable]}
    collector = _AccessCollector(stores)
    collector.block(body, IndexFacts(loop_variables))
    return collector.accesses


@final
class _AccessCollector:
    def __init__(self, stores: collections.Counter[tree.Variable]) -> None:
        self.stores = stores
        self.accesses: dict[Access, ast.AST | None] = {}

    # --- statements ---

    def block(self, block: Block, facts: IndexFacts) -> IndexFacts:
        """Record the accesses of a block, and return the facts that hold at its end."""
        for stmt in block:
            for value in parts(stmt):
                self.read(value, facts)
            for n, place in enumerate(places(stmt)):
                for part in parts(place)[1:]:
                    self.read(part, facts)
                constant = constant_value(stmt.values[n]) if isinstance(stmt, tree.Assign) and not stmt.op else None
                self.record(place, "add" if isinstance(stmt, tree.Atomic) else "write", facts, constant)
            facts = self.statement(stmt, facts)
        return facts

    def statement(self, stmt: tree.Stmt, facts: IndexFacts) -> IndexFacts:
        """Record the accesses in the blocks of a statement, and return the facts that hold after it."""
        match stmt:
            case tree.Assign(op=None):
                for place, value in zip(stmt.places, stmt.values, strict=True):
                    if isinstance(place, tree.Local) and self.stores[place.variable] == 1:
                        facts = facts.with_definition(place.variable, value)
            case tree.If():
                return self.branch_facts(stmt, facts)
            case tree.For(variable=variable, constant_range=constant_range, counter=None) if constant_range:
                self.block(stmt.body, facts.with_range(variable, constant_range))
            case tree.ParallelLoop() if stmt.is_phase:
                self.phase(stmt, facts)
            case _:
                for inner in blocks(stmt).values():
                    self.block(inner, facts)
        return facts

    def branch_facts(self, stmt: tree.If, facts: IndexFacts) -> IndexFacts:
        """Record the accesses of both branches, and return the facts that hold after them."""
        conditional = facts.conditional or not isinstance(stmt.test, tree.Constant)
        ends = []
        for block, when in ((stmt.yes, True), (stmt.no, False)):
            only = facts.only_iteration(stmt.test, when=when) or facts.only
            ends.append(self.block(block, dataclasses.replace(facts, only=only, conditional=conditional)))
        yes, no = ends
        if isinstance(stmt.test, tree.Constant):
            return yes if stmt.test.value else no
        if always_exits(stmt.yes):  # only iterations that took the other branch get here
            return no
        return yes if always_exits(stmt.no) else facts

    def phase(self, stmt: tree.ParallelLoop, facts: IndexFacts) -> None:
        """Refuse a phase if its iterations' accesses conflict; they are not added to ``accesses``."""
        outer, self.accesses = self.accesses, {}
        for count in stmt.counts:
            self.read(count, facts)
        bounds, self.accesses = {access.field for access in self.accesses}, {}
        loop, unmodified = stmt.variables[0], not any(self.stores[variable] for variable in stmt.variables)
        here = IndexFacts({}, facts.ranges, facts.definitions)
        if stmt.method == "elements":
            here = dataclasses.replace(here, matrix_index=stmt.variables if unmodified else ())
        else:
            count = constant_value(stmt.counts[0])
            counts, only = {loop: count} if count else {}, (loop, 0) if count == 1 else None
            loop_variables = {loop: loop} if unmodified else {}
            here = dataclasses.replace(here, loop_variables=loop_variables, only=only, counts=counts)
        self.block(stmt.body, here)
        inside, self.accesses = self.accesses, outer
        for access, node in inside.items():
            if access.mode != "read" and access.field in bounds:  # threads may read the bound later
                problem = f"an iteration changes {access.field!r}, and the number of iterations depends on it"
                raise RefusedError(problem, "Change it in a later phase", node)
            if access.mode == "write":
                self.refuse_write(access, node, stmt)
        for one, other in itertools.combinations(inside, 2):
            if one.field == other.field and {one.mode, other.mode} not in ({"read"}, {"add"}):
                self.refuse_pair(one, other, inside, loop)

    # --- accesses ---

    def read(self, expr: Expr, facts: IndexFacts) -> None:
        """Record the reads of an expression, and all accesses of the functions that it calls."""
        for part in parts(expr):
            self.read(part, facts)
        if isinstance(expr, tree.Invoke):
            self.record_call(expr, facts)
        elif not isinstance(expr.kind, Array):
            self.record(expr, "read", facts)

    def record(self, place: Expr, mode: str, facts: IndexFacts, constant: Any = None) -> None:
        """Record an access to a field of the world or metric, ignore other places; ``constant``: the value written."""
        owner, name = field_of(place)
        if owner in ("World", "Metrics"):
            field = place.of if isinstance(place, tree.Element) else place
            per_agent = field.per_agent if isinstance(field, tree.Field) else None
            span = facts.span_of(place, per_agent)
            number = None if constant is None else float(constant)
            access = Access(name, per_agent, mode, span, facts.only, number, facts.conditional)
            self.accesses.setdefault(access, place.at)

    def record_call(self, call: tree.Invoke, facts: IndexFacts) -> None:
        """Record the accesses of a called function, in terms of the caller's loop variables."""
        arguments = zip(call.function.parameters, call.arguments, strict=True)
        loop_variables = {parameter.variable: facts.loop_variable(argument) for parameter, argument in arguments}
        for access in call.function.effects.accesses:
            loop = loop_variables.get(access.span.loop) if access.span else None
            span = dataclasses.replace(access.span, loop=loop) if access.span and loop else None
            only = facts.only
            if only is None and access.only is not None and (single := loop_variables.get(access.only[0])) is not None:
                only = single, access.only[1]
            conditional = access.conditional or facts.conditional
            in_caller = dataclasses.replace(access, span=span, only=only, conditional=conditional)
            self.accesses.setdefault(in_caller, call.at)

    # --- races ---

    def refuse_write(self, access: Access, node: ast.AST | None, stmt: tree.ParallelLoop) -> None:
        """Refuse a write if several iterations of the phase ``stmt`` may write the same element."""
        loop, *column = stmt.variables
        field, name, span = access.field, loop.name, access.span
        if span is not None and span.loop == loop and span.is_apart_from(span):
            return
        if column and (access.per_agent is not None or access.constant is None or not access.conditional):
            element = f"{name}, {column[0].name}"
            problem = f"the iteration of ({element}) writes {field!r} where other iterations write it, too"
            hint = f"Write w.{field}[{element}] if it is a matrix; otherwise write it in another phase"
            raise RefusedError(problem, hint, node)
        if access.per_agent:
            if constant_value(stmt.counts[0]) == 1:
                return
            hint = f"Write w.{field}[{name}]; change ints of other agents with add(...) and lower(...); one iteration, "
            hint += "for _ in team.agents(1):, may write fields of all agents"
            raise RefusedError(f"the iteration of agent {name!r} writes a field of another agent", hint, node)
        if not _is_single(access, loop) and not (access.constant is not None and access.conditional):
            hint = f"Write it in one iteration, if {name} == 0:"
            hint += "" if "." in field else f", or change an int with add(w.{field}, ...)"
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2:
                hint = f"Loop over all elements: for r, c in team.elements(ROWS, COLUMNS): w.{field}[r, c] = ..."
                hint += "; or write it in one iteration, for _ in team.agents(1):"
            raise RefusedError(f"every iteration writes {field!r}, which belongs to the whole replica", hint, node)

    def refuse_pair(self, one: Access, other: Access, nodes: dict[Access, ast.AST | None], loop: tree.Variable) -> None:
        """Refuse two accesses to a field, at least one a write, if two iterations may make them to one element."""
        if _is_single(one, loop) and one.only == other.only:
            return
        if one.span and other.span and one.span.loop == other.span.loop == loop and one.span.is_apart_from(other.span):
            return
        if one.mode == other.mode == "write" and one.constant is not None and one.constant == other.constant:
            return
        second = one if one.mode == "read" else other
        problem = f"several iterations write {one.field!r} in this phase, in no fixed order"
        hint = "Write it in one iteration, or in separate phases"
        if second.mode == "read":
            problem = f"iterations read {one.field!r} in the phase that writes it, some before the write and some after"
            hint = "Read it in another phase, before or after this one"
            hint += "; an iteration may read what it wrote for its agent"
        raise RefusedError(problem, hint, nodes[second])


def _is_single(access: Access, loop: tree.Variable) -> bool:
    """Whether a single iteration of the loop makes the access."""
    return access.only is not None and access.only[0] == loop
