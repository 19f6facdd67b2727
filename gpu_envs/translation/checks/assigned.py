"""Checks that every variable is set before it is read, on every path through a function."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias, final

from gpu_envs.translation import tree
from gpu_envs.translation.reading.reader import not_set
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.walk import field_of, parts, places, subexpressions

Assigned: TypeAlias = frozenset[tree.Variable | str]
"""Variables, state fields and metrics that are set on every path so far."""


def check_assigned(body: Block, parameters: frozenset[tree.Variable]) -> frozenset[str]:
    """Refuse variables that may be read before they are set; return what every path sets.

    Returns:
        The scalar state fields and the metrics that are set on every path to the end of the function.
    """
    flow = _Flow()
    end = _set_on_all([flow.block(body, parameters), *flow.exits["return"]])
    return frozenset(name for name in end or () if isinstance(name, str))


def _set_on_all(branches: list[Assigned | None]) -> Assigned | None:
    """Return what all paths set; None marks a path that ends earlier."""
    reached = [assigned for assigned in branches if assigned is not None]
    return frozenset.intersection(*reached) if reached else None


@final
class _Flow:
    def __init__(self) -> None:
        self.exits: dict[str, list[Assigned | None]] = {"return": [], "break": [], "continue": []}
        """Sets at each return, and at each break and continue of the innermost loop, by keyword."""

    def block(self, block: Block, assigned: Assigned | None) -> Assigned | None:
        """Return what is set at the end of a block, given what is set before it; None if the end is not reached."""
        for stmt in block:
            if assigned is None:
                return None
            assigned = self.statement(stmt, assigned)
        return assigned

    def statement(self, stmt: tree.Stmt, assigned: Assigned) -> Assigned | None:
        """Return what is assigned after a statement, given what is before it; None if nothing after it is reached."""
        assigned |= {stmt.variable} if isinstance(stmt, tree.Reduction) else set()
        assigned = self.evaluated(stmt, parts(stmt), assigned)
        for place in places(stmt):
            if not isinstance(place, tree.Local) or (isinstance(stmt, tree.Assign) and stmt.op):
                assigned = self.evaluated(stmt, (place,), assigned)
            if isinstance(place, tree.Local):
                assigned |= {place.variable}
            elif isinstance(place, tree.Field) and place.owner in ("State", "Metrics"):
                assigned |= {field_of(place)[1]}
        match stmt:
            case tree.MakeList(variable=variable):
                return assigned | {variable}
            case tree.If(test=tree.Constant(value=condition), yes=yes, no=no):
                return self.block(yes if condition else no, assigned)
            case tree.If(yes=yes, no=no):
                return _set_on_all([self.block(yes, assigned), self.block(no, assigned)])
            case tree.While(test=test, body=body):
                _, breaks = self.loop_body(body, assigned)
                always = isinstance(test, tree.Constant) and bool(test.value)
                return _set_on_all([*breaks, None if always else assigned])
            case tree.For(variable=variable, body=body):
                after, breaks = self.loop_body(body, assigned | {variable})
                return _set_on_all([*breaks, after]) if stmt.constant_range else assigned
            case tree.ParallelLoop(variables=variables, body=body):
                self.loop_body(body, assigned | {*variables})
            case tree.Jump(keyword=keyword):
                self.exits[keyword].append(assigned)
                return None
            case tree.Return():
                self.exits["return"].append(assigned)
                return None
        return assigned

    def loop_body(self, body: Block, assigned: Assigned) -> tuple[Assigned | None, list[Assigned | None]]:
        """Return what is set at the end of an iteration of a loop, and at each of its breaks."""
        outer = self.exits
        self.exits = {**outer, "break": [], "continue": []}
        after = _set_on_all([self.block(body, assigned), *self.exits["continue"]])
        breaks, self.exits = self.exits["break"], outer
        return after, breaks

    def evaluated(self, stmt: tree.Stmt, exprs: Sequence[Expr], assigned: Assigned) -> Assigned:
        """Refuse reads of variables that are not set; return ``assigned`` with what called functions always set."""
        for value in exprs:
            for expr in subexpressions(value):
                if isinstance(expr, tree.Local) and expr.variable.scope >= 0 and expr.variable not in assigned:
                    raise not_set(expr.variable.name, expr.at or stmt.at)
            for expr in _always(value):
                if isinstance(expr, tree.Invoke):
                    assigned |= expr.function.effects.always_set
        return assigned


def _always(expr: Expr) -> Iterator[Expr]:
    """Yield an expression, and the parts that are evaluated whenever it is."""
    yield expr
    first = None
    if isinstance(expr, tree.Chain):
        first = 2
    elif isinstance(expr, tree.Operation) and expr.name in ("&&", "||", "?:"):
        first = 1
    for part in parts(expr)[:first]:
        yield from _always(part)
