"""Variables are set on every way that leads to where they are read."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import TypeAlias, final

from gpu_envs.translation import tree
from gpu_envs.translation.reading.reader import not_set
from gpu_envs.translation.sources import Written
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.walk import parts, places, values, within

Known: TypeAlias = frozenset[tree.Variable | str] | None
"""Variables and fields of the state that are set for certain; None where nothing is ever reached."""


def check_assigned(written: Written, body: Block, parameters: frozenset[tree.Variable]) -> frozenset[str]:
    """Refuses variables that may not be set where they are read.

    Returns:
        The single numbers of the state that are set wherever the function ends.
    """
    way = _Way(written)
    end = functools.reduce(both, way.ends, way.block(body, parameters))
    return frozenset(name for name in end or () if isinstance(name, str))


def both(one: Known, other: Known) -> Known:
    """What is set where two ways meet."""
    if one is None:
        return other
    return one if other is None else one & other


@final
@dataclasses.dataclass
class _Way:
    written: Written
    ends: list[Known] = dataclasses.field(default_factory=list)
    leaves: list[tuple[str, Known]] = dataclasses.field(default_factory=list)
    """Where the loop at hand is left, and by which word."""

    def block(self, block: Block, known: Known) -> Known:
        for stmt in block:
            if known is None:
                return None
            known = self.statement(stmt, known)
        return known

    def statement(self, stmt: tree.Stmt, known: frozenset[tree.Variable | str]) -> Known:
        known = self.evaluated((*values(stmt), *((stmt.place,) if isinstance(stmt, tree.Update) else ())), stmt, known)
        for place in places(stmt):
            known = self.stored(place, stmt, known)
        match stmt:
            case tree.MakeList(variable=variable):
                return known | {variable}
            case tree.If(test=test, yes=yes, no=no):
                ways = [(yes, True), (no, False)]
                if isinstance(test, tree.Constant):
                    ways = [(block, side) for block, side in ways if side is bool(test.value)]
                return functools.reduce(both, [self.block(block, known) for block, _ in ways])
            case tree.While(test=test):
                after, broken = self.turn(stmt.body, known)
                always = isinstance(test, tree.Constant) and bool(test.value)
                return functools.reduce(both, broken, None if always else known)
            case tree.For(variable=variable):
                after, broken = self.turn(stmt.body, known | {variable})
                return functools.reduce(both, broken, after) if stmt.turns else known
            case tree.Turns(variable=variable):
                self.turn(stmt.body, known | {variable})
            case tree.Leave(word=word):
                self.leaves.append((word, known))
                return None
            case tree.Return():
                self.ends.append(known)
                return None
        return known

    def turn(self, body: Block, known: frozenset[tree.Variable | str]) -> tuple[Known, list[Known]]:
        """What is set after a turn of a loop, and where the loop is left."""
        outside, self.leaves = self.leaves, []
        after = self.block(body, known)
        inside, self.leaves = self.leaves, outside
        after = functools.reduce(both, [at for word, at in inside if word == "continue"], after)
        return after, [at for word, at in inside if word == "break"]

    def stored(
        self, place: Expr, stmt: tree.Stmt, known: frozenset[tree.Variable | str]
    ) -> frozenset[tree.Variable | str]:
        if isinstance(place, tree.Local):
            return known | {place.variable}
        known = self.evaluated((place,), stmt, known)
        return known | {place.name} if isinstance(place, tree.Field) and place.owner == "State" else known

    def evaluated(
        self, values: tuple[Expr, ...], stmt: tree.Stmt, known: frozenset[tree.Variable | str]
    ) -> frozenset[tree.Variable | str]:
        """Looks at what is read, and adds what the functions that are called set."""
        for value in values:
            for expr in within(value):
                if isinstance(expr, tree.Local) and expr.variable.frame >= 0 and expr.variable not in known:
                    raise self.written.error(expr.at or stmt.at, *not_set(expr.variable.name))
            for expr in _always(value):
                if isinstance(expr, tree.Invoke):
                    known |= expr.function.effects.certain
        return known


def _always(expr: Expr) -> Iterator[Expr]:
    """An expression, and what is evaluated wherever it is."""
    yield expr
    first = {tree.Logic: 1, tree.Choose: 1, tree.Chain: 2}.get(type(expr))
    for part in parts(expr)[:first]:
        yield from _always(part)
