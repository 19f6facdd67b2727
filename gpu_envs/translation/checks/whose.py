"""Whose turn's elements an index names, in a phase whose turns each have a number."""

import dataclasses
import math
from collections.abc import Mapping

from gpu_envs.translation import tree
from gpu_envs.translation.effects import Span
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.types import Array, Record
from gpu_envs.translation.walk import known, within


class _Sum(Record):
    """``times * turn`` and what is added to it, as far as it is known."""

    turn: tree.Variable | None = None
    times: int = 0
    added: tuple[int, int] | None = None
    """The least and the most."""

    def plus(self, other: "_Sum") -> "_Sum":
        """The sum of two."""
        if self.turn is not None and other.turn is not None:
            return _Sum()
        turn, times, added = self.turn or other.turn, self.times + other.times, None
        if self.added is not None and other.added is not None:
            added = self.added[0] + other.added[0], self.added[1] + other.added[1]
        return _Sum(turn, times, added)

    def scaled(self, factor: int) -> "_Sum":
        """The product with a number."""
        if factor == 0:
            return _Sum()
        if self.added is None:
            return _Sum(self.turn, self.times * factor)
        least, most = sorted(end * factor for end in self.added)
        return _Sum(self.turn, self.times * factor, (least, most))


class Whose(Record):
    """What is known of whole numbers where a statement stands, and which turns come to it."""

    turns: Mapping[tree.Variable, tree.Variable]
    """Variables that hold the number of a turn, and the one that held it first."""
    ranges: Mapping[tree.Variable, range] = dataclasses.field(default_factory=dict)
    """The values of variables that count a loop over constants."""
    meanings: Mapping[tree.Variable, Expr] = dataclasses.field(default_factory=dict)
    """What is assigned to variables that are assigned once."""
    only: tuple[tree.Variable, object] | None = None
    """The single turn that comes here: the variable with its number, and what that must be."""
    asked: bool = False
    """Not every turn comes here."""
    counts: Mapping[tree.Variable, int] = dataclasses.field(default_factory=dict)
    """How many turns there are, by their first variable, where that is known."""
    pair: tuple[tree.Variable, ...] = ()
    """Row and column of the turn, in a phase over the elements of a matrix."""

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
        if isinstance(expr, tree.Operation) and expr.name == "real":
            return self.turn_of(expr.operands[0])
        return self.turns.get(expr.variable) if isinstance(expr, tree.Local) else None

    # --- indices ---

    def span_of(self, place: Expr, length: int | None) -> Span | None:
        """The turn whose elements these are, and which; ``length``: how many an agent has, 0 of a replica's array."""
        match place:
            case tree.Element(indices=(tree.Local(variable=row), tree.Local(variable=column), *_)) if (
                row,
                column,
            ) == self.pair:
                return Span(row, 1, 0, 0)
            case tree.Element(indices=(agent, index)) if length:
                return self._pair(agent, index, length)
            case tree.Element(indices=(agent, *_)) if length and (turn := self.turn_of(agent)):
                return Span(turn, length, 0, length - 1)
            case tree.Element(indices=(index,)):
                pass
            case _:
                return None
        found = self._sum(index)
        turn, times = found.turn, found.times
        if turn is None:
            return None
        if found.added is None:  # of an agent's own elements, as far as can be known
            own = length and length > 1 and self._is_free(index, _Sum(turn, length, (0, 0)))
            return Span(turn, times, 0, times - 1) if own else None
        least, most = found.added
        own = times == length and 0 <= least <= most < times
        if times == length and most - least < times and self._are_agents(place, found):
            return Span(turn, times, least, most)
        if length and not own and found != _Sum(turn, 1, (0, 0)):  # a turn for each element of all agents
            return None
        return Span(turn, times, least, most)

    def _are_agents(self, place: tree.Element, index: _Sum) -> bool:
        """Whether every turn's index is of an agent, such as one of a role that does not come first."""
        count, array = self.counts.get(index.turn) if index.turn else None, place.of.kind
        if count is None or index.added is None or not isinstance(array, Array):
            return False
        return index.added[0] >= 0 and index.times * (count - 1) + index.added[1] < math.prod(
            n or 0 for n in array.sizes
        )

    def _pair(self, agent: Expr, element: Expr, length: int) -> Span | None:
        turn = self.turn_of(agent)
        if turn is not None:
            index = known(element)
            return Span(turn, length, 0, length - 1) if index is None else Span(turn, length, index, index)
        match self._meant(agent), self._meant(element):
            case (
                tree.Operation(name="python::floor_divided", operands=(one, by)),
                tree.Operation(name="python::modulo", operands=(other, also)),
            ) if one == other and known(by) == known(also) == length and (turn := self.turn_of(one)):
                return Span(turn, 1, 0, 0)
        return None

    def _meant(self, expr: Expr) -> Expr:
        return self.meanings.get(expr.variable, expr) if isinstance(expr, tree.Local) else expr

    def _is_free(self, index: Expr, first: _Sum) -> bool:
        """Whether an index is an agent's first element, and something else that the turn's number is no part of."""
        match index:
            case tree.Operation(name="+", operands=(left, right)):
                return any(
                    self._sum(one) == first and not any(map(self.turn_of, within(rest)))
                    for one, rest in ((left, right), (right, left))
                )
        return False

    def _sum(self, expr: Expr) -> _Sum:
        """An index as a multiple of the turn's number, and bounds of the rest."""
        turn = self.turn_of(expr)
        if turn is not None:
            return _Sum(turn, 1, (0, 0))
        match expr:
            case tree.Constant(value=int(value)):
                return _Sum(added=(value, value))
            case tree.Local(variable=variable) if variable in self.ranges:
                least, most = sorted((self.ranges[variable][0], self.ranges[variable][-1]))
                return _Sum(added=(least, most))
            case tree.Local(variable=variable) if variable in self.meanings:
                return self._sum(self.meanings[variable])
            case tree.Operation(name="+" | "-" as sign, operands=(left, right)):
                other = self._sum(right)
                return self._sum(left).plus(other if sign == "+" else other.scaled(-1))
            case tree.Operation(name="*", operands=(left, right)):
                for one, factor in ((left, known(right)), (right, known(left))):
                    if isinstance(factor, int):
                        return self._sum(one).scaled(factor)
            case tree.Operation(name="python::modulo", operands=(_, by)) if (known(by) or 0) > 0:
                return _Sum(added=(0, known(by) - 1))
            case tree.Operation(name="python::floor_divided", operands=(of, by)) if (known(by) or 0) > 0:
                inner = self._sum(of)
                if inner.turn is None and inner.added is not None:
                    return _Sum(added=(inner.added[0] // known(by), inner.added[1] // known(by)))
        return _Sum()

    # --- conditions ---

    def only_turn(self, test: Expr, *, holds: bool) -> tuple[tree.Variable, object] | None:
        """The single turn for which a condition holds (or does not): its variable, and its number."""
        match test:
            case tree.Operation(name="!", operands=(operand,)):
                return self.only_turn(operand, holds=not holds)
            case tree.Operation(name=name, operands=parts) if name == ("&&" if holds else "||"):
                found = (self.only_turn(part, holds=holds) for part in parts)
                return next((turn for turn in found if turn is not None), None)
            case tree.Operation(name=name, operands=(left, right)) if name == ("==" if holds else "!="):
                for one, other in ((left, right), (right, left)):
                    turn = self.turn_of(one)
                    if turn is not None and _same_for_all(other):
                        value = known(other)
                        return turn, other if value is None else value
        return None


def _same_for_all(expr: Expr) -> bool:
    """Whether all turns find the same: what is made of constants, parameters and tables."""
    return all(
        isinstance(part, tree.Constant | tree.Element | tree.Operation)
        or (isinstance(part, tree.Field) and part.of in ("", "p"))
        for part in within(expr)
    )
