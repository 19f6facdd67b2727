"""Variables are set on every way that leads to where they are read."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias, final

from gpu_envs.translation import tree
from gpu_envs.translation.reading.reader import not_set
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.walk import field_of, parts, places, within

Known: TypeAlias = frozenset[tree.Variable | str]
"""Variables, fields of the state and metrics that are set for certain."""


def check_assigned(body: Block, parameters: frozenset[tree.Variable]) -> frozenset[str]:
    """Refuses variables that may not be set where they are read.

    Returns:
        The single numbers of the state, and the metrics, that are set wherever the function ends.
    """
    way = _Way()
    end = _where_they_meet([way.block(body, parameters), *way.left["return"]])
    return frozenset(name for name in end or () if isinstance(name, str))


def _where_they_meet(ways: list[Known | None]) -> Known | None:
    """What is set where several ways meet; None stands for one that does not lead there."""
    reached = [known for known in ways if known is not None]
    return frozenset.intersection(*reached) if reached else None


@final
class _Way:
    def __init__(self) -> None:
        self.left: dict[str, list[Known | None]] = {"return": [], "break": [], "continue": []}
        """What is set where the function, the loop at hand or its turn is left, by the word that does it."""

    def block(self, block: Block, known: Known | None) -> Known | None:
        """What is set where a block ends; None: it is left before."""
        for stmt in block:
            if known is None:
                return None
            known = self.statement(stmt, known)
        return known

    def statement(self, stmt: tree.Stmt, known: Known) -> Known | None:
        known |= {stmt.variable} if isinstance(stmt, tree.Fold) else set()
        known = self.evaluated(stmt, parts(stmt), known)
        for place in places(stmt):
            if not isinstance(place, tree.Local) or (isinstance(stmt, tree.Assign) and stmt.op):
                known = self.evaluated(stmt, (place,), known)
            if isinstance(place, tree.Local):
                known |= {place.variable}
            elif isinstance(place, tree.Field) and place.owner in ("State", "Metrics"):
                known |= {field_of(place)[1]}
        match stmt:
            case tree.MakeList(variable=variable):
                return known | {variable}
            case tree.If(test=tree.Constant(value=holds), yes=yes, no=no):
                return self.block(yes if holds else no, known)
            case tree.If(yes=yes, no=no):
                return _where_they_meet([self.block(yes, known), self.block(no, known)])
            case tree.While(test=test, body=body):
                _, broken = self.turn(body, known)
                always = isinstance(test, tree.Constant) and bool(test.value)
                return _where_they_meet([*broken, None if always else known])
            case tree.For(variable=variable, body=body):
                after, broken = self.turn(body, known | {variable})
                return _where_they_meet([*broken, after]) if stmt.turns else known
            case tree.Turns(variables=variables, body=body):
                self.turn(body, known | {*variables})
            case tree.Leave(word=word):
                self.left[word].append(known)
                return None
            case tree.Return():
                self.left["return"].append(known)
                return None
        return known

    def turn(self, body: Block, known: Known) -> tuple[Known | None, list[Known | None]]:
        """What is set after a turn of a loop, and where the loop is left."""
        outside = self.left
        self.left = {**outside, "break": [], "continue": []}
        after = _where_they_meet([self.block(body, known), *self.left["continue"]])
        broken, self.left = self.left["break"], outside
        return after, broken

    def evaluated(self, stmt: tree.Stmt, exprs: Sequence[Expr], known: Known) -> Known:
        """Looks at what is read, and adds what the functions that are called set."""
        for value in exprs:
            for expr in within(value):
                if isinstance(expr, tree.Local) and expr.variable.frame >= 0 and expr.variable not in known:
                    raise not_set(expr.variable.name, expr.at or stmt.at)
            for expr in _always(value):
                if isinstance(expr, tree.Invoke):
                    known |= expr.function.effects.certain
        return known


def _always(expr: Expr) -> Iterator[Expr]:
    """An expression, and what is evaluated wherever it is."""
    yield expr
    first = None
    if isinstance(expr, tree.Chain):
        first = 2
    elif isinstance(expr, tree.Operation) and expr.name in ("&&", "||", "?:"):
        first = 1
    for part in parts(expr)[:first]:
        yield from _always(part)
