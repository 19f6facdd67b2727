"""Whose turn's elements an index names, in a phase whose turns each have a number."""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

from gpu_envs.translation import tree
from gpu_envs.translation.effects import Span
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.walk import known, within

Sum: TypeAlias = tuple[tree.Variable | None, int, int | None, int | None]
"""``times * turn`` and what is added to it: the turn, times, and the least and the most of what is added."""


@final
@dataclasses.dataclass(frozen=True)
class Whose:
    """What is known of whole numbers where an expression stands."""

    turns: Mapping[tree.Variable, tree.Variable]
    """Variables that hold the number of a turn, and the one that held it first."""
    ranges: Mapping[tree.Variable, range] = dataclasses.field(default_factory=dict)
    """The values of variables that count a loop over constants."""
    meanings: Mapping[tree.Variable, Expr] = dataclasses.field(default_factory=dict)
    """What is assigned to variables that are assigned once."""

    def defined(self, variable: tree.Variable, value: Expr) -> "Whose":
        """With a variable that is assigned here and nowhere else."""
        turn = self.turn_of(value)
        turns = {**self.turns, variable: turn} if turn else self.turns
        return dataclasses.replace(self, turns=turns, meanings={**self.meanings, variable: value})

    def among(self, variable: tree.Variable, values: range) -> "Whose":
        """Within a loop that counts these."""
        return dataclasses.replace(self, ranges={**self.ranges, variable: values})

    def turn_of(self, expr: Expr) -> tree.Variable | None:
        """The turn whose number an expression is, as an int or as a float."""
        if isinstance(expr, tree.Call) and expr.function == "real":
            return self.turn_of(expr.arguments[0])
        return self.turns.get(expr.variable) if isinstance(expr, tree.Local) else None

    # --- indices ---

    def span_of(self, place: tree.Element, length: int | None) -> tuple[tree.Variable | None, Span | None]:
        """The turn whose elements these are, and which; ``length``: how many an agent has, 0 of a replica's array."""
        if len(place.indices) == 2 and length:
            return self._pair(place.indices[0], place.indices[1], length)
        if len(place.indices) != 1:
            return None, None
        turn, times, least, most = self._sum(place.indices[0])
        if turn is None:
            return None, None
        if least is None or most is None:  # of an agent's own elements, as far as can be known
            own = length and length > 1 and self._is_free(place.indices[0], (turn, length, 0, 0))
            return (turn, Span(times, 0, times - 1)) if own else (None, None)
        own = times == length and 0 <= least <= most < times
        if length and not own and (times, least, most) != (1, 0, 0):  # a turn for each element of all agents
            return None, None
        return turn, Span(times, least, most)

    def _pair(self, agent: Expr, element: Expr, length: int) -> tuple[tree.Variable | None, Span | None]:
        turn = self.turn_of(agent)
        if turn is not None:
            index = known(element)
            return turn, Span(length, index or 0, length - 1 if index is None else index)
        row, column = self._meant(agent), self._meant(element)
        match row, column:
            case (
                tree.Call(function="python::floor_divided", arguments=(one, by)),
                tree.Call(function="python::modulo", arguments=(other, also)),
            ) if one == other and known(by) == known(also) == length and self.turn_of(one):
                return self.turn_of(one), Span(1, 0, 0)
        return None, None

    def _meant(self, expr: Expr) -> Expr:
        return self.meanings.get(expr.variable, expr) if isinstance(expr, tree.Local) else expr

    def _is_free(self, index: Expr, first: Sum) -> bool:
        """Whether an index is an agent's first element, and something else that the turn's number is no part of."""
        match index:
            case tree.Binary(sign="+", left=left, right=right):
                for one, rest in ((left, right), (right, left)):
                    if self._sum(one) == first and not any(self.turn_of(part) for part in within(rest)):
                        return True
        return False

    def _sum(self, expr: Expr) -> Sum:
        """An index as a multiple of the turn's number, and bounds of the rest."""
        nothing: Sum = None, 0, None, None
        turn = self.turn_of(expr)
        if turn is not None:
            return turn, 1, 0, 0
        match expr:
            case tree.Constant(value=int(value)):
                return None, 0, value, value
            case tree.Local(variable=variable) if variable in self.ranges:
                counted = self.ranges[variable]
                return None, 0, min(counted[0], counted[-1]), max(counted[0], counted[-1])
            case tree.Local(variable=variable) if variable in self.meanings:
                return self._sum(self.meanings[variable])
            case tree.Binary(sign="+" | "-" as sign, left=left, right=right):
                return _added(self._sum(left), self._sum(right), operator.add if sign == "+" else operator.sub)
            case tree.Binary(sign="*", left=left, right=right):
                for one, other in ((self._sum(left), known(right)), (self._sum(right), known(left))):
                    if isinstance(other, int):
                        return _times(one, other)
            case tree.Call(function="python::modulo", arguments=(_, by)) if (known(by) or 0) > 0:
                return None, 0, 0, known(by) - 1
            case tree.Call(function="python::floor_divided", arguments=(of, by)) if (known(by) or 0) > 0:
                inner = self._sum(of)
                if inner[0] is None and inner[2] is not None and inner[3] is not None:
                    return None, 0, inner[2] // known(by), inner[3] // known(by)
        return nothing

    # --- conditions ---

    def only_turn(self, test: Expr, *, holds: bool) -> tuple[tree.Variable, object] | None:
        """The single turn for which a condition holds (or does not): its variable, and its number."""
        match test:
            case tree.Unary(sign="!", operand=operand):
                return self.only_turn(operand, holds=not holds)
            case tree.Logic(sign=sign, parts=parts) if sign == ("&&" if holds else "||"):
                found = (self.only_turn(part, holds=holds) for part in parts)
                return next((turn for turn in found if turn is not None), None)
            case tree.Binary(sign=sign, left=left, right=right) if sign == ("==" if holds else "!="):
                for one, other in ((left, right), (right, left)):
                    turn = self.turn_of(one)
                    if turn is not None and _same_for_all(other):
                        value = known(other)
                        return turn, other if value is None else value
        return None


def _added(one: Sum, other: Sum, join: Callable[[Any, Any], Any]) -> Sum:
    if one[0] is not None and other[0] is not None:
        return None, 0, None, None
    turn, times = (one[0], one[1]) if one[0] is not None else (other[0], join(0, other[1]))
    if None in (one[2], one[3], other[2], other[3]):
        return turn, times, None, None
    least, most = (other[2], other[3]) if join is operator.add else (other[3], other[2])
    return turn, times, join(one[2], least), join(one[3], most)


def _times(of: Sum, factor: int) -> Sum:
    turn, times, least, most = of
    if least is None or most is None or factor == 0:
        return (turn if factor else None), times * factor, None, None
    ends = sorted((least * factor, most * factor))
    return turn, times * factor, ends[0], ends[1]


def _same_for_all(expr: Expr) -> bool:
    """Whether all turns find the same: what is made of constants, parameters and tables."""
    return all(
        isinstance(part, tree.Constant | tree.Element | tree.Unary | tree.Binary | tree.Choose | tree.Call)
        or (isinstance(part, tree.Field) and part.of in ("", "p"))
        for part in within(expr)
    )
