"""Which elements of an array an iteration of a phase accesses: indices as functions of the loop variable."""

import dataclasses
import math
from collections.abc import Mapping

from gpu_envs.translation import tree
from gpu_envs.translation.effects import Span
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.types import Array, Record
from gpu_envs.translation.walk import constant_value, subexpressions


class _Affine(Record):
    """An index ``factor * loop + offset``; with no offset known, only the multiple of the loop variable is certain."""

    loop: tree.Variable | None = None
    factor: int = 0
    offset: tuple[int, int] | None = None
    """Lower and upper bound, inclusive; None: not known."""

    def plus(self, other: "_Affine") -> "_Affine":
        """Return the sum of two indices."""
        if self.loop is not None and other.loop is not None:
            return _Affine()
        loop, factor, offset = self.loop or other.loop, self.factor + other.factor, None
        if self.offset is not None and other.offset is not None:
            offset = self.offset[0] + other.offset[0], self.offset[1] + other.offset[1]
        return _Affine(loop, factor, offset)

    def scaled(self, factor: int) -> "_Affine":
        """Return the product with a constant; nothing is known of the product with 0."""
        if factor == 0:
            return _Affine()
        if self.offset is None:
            return _Affine(self.loop, self.factor * factor)
        low, high = sorted(end * factor for end in self.offset)
        return _Affine(self.loop, self.factor * factor, (low, high))


class IndexFacts(Record):
    """Facts that hold at a statement: values of int variables, and which iterations of the phase reach it."""

    loop_variables: Mapping[tree.Variable, tree.Variable]
    """The loop variable of the phase and its copies, each mapped to the loop variable."""
    ranges: Mapping[tree.Variable, range] = dataclasses.field(default_factory=dict)
    """Values of the variables of inner loops over constant ranges."""
    definitions: Mapping[tree.Variable, Expr] = dataclasses.field(default_factory=dict)
    """Values of the variables that are assigned once."""
    only: tuple[tree.Variable, object] | None = None
    """The loop variable and its value, if a single iteration gets here."""
    conditional: bool = False
    """Whether some iterations may not get here."""
    counts: Mapping[tree.Variable, int] = dataclasses.field(default_factory=dict)
    """Constant numbers of iterations, by loop variable."""
    matrix_index: tuple[tree.Variable, ...] = ()
    """Loop variables for row and column, in a phase over the elements of a matrix."""

    def with_definition(self, variable: tree.Variable, value: Expr) -> "IndexFacts":
        """Return these facts with the value of a variable that has only this assignment."""
        loop = self.loop_variable(value)
        loops = {**self.loop_variables, variable: loop} if loop else self.loop_variables
        return dataclasses.replace(self, loop_variables=loops, definitions={**self.definitions, variable: value})

    def with_range(self, variable: tree.Variable, values: range) -> "IndexFacts":
        """Return these facts with the variable of an inner loop over a constant range."""
        return dataclasses.replace(self, ranges={**self.ranges, variable: values})

    def loop_variable(self, expr: Expr) -> tree.Variable | None:
        """Return the loop variable that an expression equals, as an int or as a float; None: it equals none."""
        if isinstance(expr, tree.Operation) and expr.name == "real":
            return self.loop_variable(expr.operands[0])
        return self.loop_variables.get(expr.variable) if isinstance(expr, tree.Local) else None

    # --- indices ---

    def span_of(self, place: Expr, length: int | None) -> Span | None:
        """Return the elements of a place as a function of the loop variable; None: not known.

        ``length`` is the number of elements per agent, 0 for an array of the replica.
        """
        match place:
            case tree.Element(indices=(tree.Local(variable=i), tree.Local(variable=j), *_)) if (
                i,
                j,
            ) == self.matrix_index:
                return Span(i, 1, 0, 0)
            case tree.Element(indices=(agent, index)) if length:
                return self._span_of_agent_element(agent, index, length)
            case tree.Element(indices=(agent, *_)) if length and (loop := self.loop_variable(agent)):
                return Span(loop, length, 0, length - 1)
            case tree.Element(indices=(index,)):
                pass
            case _:
                return None
        affine = self._affine(index)
        loop, factor = affine.loop, affine.factor
        if loop is None:
            return None
        if affine.offset is None:  # unknown elements, of the iteration's agent
            within_agent = length and length > 1 and self._is_first_plus_offset(index, _Affine(loop, length, (0, 0)))
            return Span(loop, factor, 0, factor - 1) if within_agent else None
        low, high = affine.offset
        within_agent = factor == length and 0 <= low <= high < factor
        if factor == length and high - low < factor and self._stays_inside(place, affine):
            return Span(loop, factor, low, high)
        if length and not within_agent and affine != _Affine(loop, 1, (0, 0)):  # over all elements
            return None
        return Span(loop, factor, low, high)

    def _stays_inside(self, place: tree.Element, index: _Affine) -> bool:
        """Whether all iterations of a phase, whose number is a constant, index inside the array."""
        count, array = self.counts.get(index.loop) if index.loop else None, place.of.kind
        if count is None or index.offset is None or not isinstance(array, Array):
            return False
        last = index.factor * (count - 1) + index.offset[1]
        return index.offset[0] >= 0 and last < math.prod(n or 0 for n in array.sizes)

    def _span_of_agent_element(self, agent: Expr, element: Expr, length: int) -> Span | None:
        """Return the elements that ``[agent, element]`` means in each iteration; ``length``: elements per agent."""
        loop = self.loop_variable(agent)
        if loop is not None:
            index = constant_value(element)
            return Span(loop, length, 0, length - 1) if index is None else Span(loop, length, index, index)
        match self._definition(agent), self._definition(element):
            case (
                tree.Operation(name="python::floor_divided", operands=(one, divisor)),
                tree.Operation(name="python::modulo", operands=(other, modulus)),
            ) if (
                one == other
                and constant_value(divisor) == constant_value(modulus) == length
                and (loop := self.loop_variable(one))
            ):
                return Span(loop, 1, 0, 0)
        return None

    def _definition(self, expr: Expr) -> Expr:
        return self.definitions.get(expr.variable, expr) if isinstance(expr, tree.Local) else expr

    def _is_first_plus_offset(self, index: Expr, first: _Affine) -> bool:
        """Whether an index in a loop over agents is ``first`` plus a term without the loop variable."""
        match index:
            case tree.Operation(name="+", operands=(left, right)):
                return any(
                    self._affine(one) == first and not any(map(self.loop_variable, subexpressions(rest)))
                    for one, rest in ((left, right), (right, left))
                )
        return False

    def _affine(self, expr: Expr) -> _Affine:
        """Return an index as a multiple of the loop variable plus a bounded offset, as far as known."""
        loop = self.loop_variable(expr)
        if loop is not None:
            return _Affine(loop, 1, (0, 0))
        match expr:
            case tree.Constant(value=int(value)):
                return _Affine(offset=(value, value))
            case tree.Local(variable=variable) if variable in self.ranges:
                low, high = sorted((self.ranges[variable][0], self.ranges[variable][-1]))
                return _Affine(offset=(low, high))
            case tree.Local(variable=variable) if variable in self.definitions:
                return self._affine(self.definitions[variable])
            case tree.Operation(name="+" | "-" as sign, operands=(left, right)):
                other = self._affine(right)
                return self._affine(left).plus(other if sign == "+" else other.scaled(-1))
            case tree.Operation(name="*", operands=(left, right)):
                for one, factor in ((left, constant_value(right)), (right, constant_value(left))):
                    if isinstance(factor, int):
                        return self._affine(one).scaled(factor)
            case tree.Operation(name="python::modulo", operands=(_, tree.Constant(value=int(n)))) if n > 0:
                return _Affine(offset=(0, n - 1))
            case tree.Operation(name="python::floor_divided", operands=(of, tree.Constant(value=int(n)))) if n > 0:
                inner = self._affine(of)
                if inner.loop is None and inner.offset is not None:
                    return _Affine(offset=(inner.offset[0] // n, inner.offset[1] // n))
        return _Affine()

    # --- conditions ---

    def only_iteration(self, test: Expr, *, when: bool) -> tuple[tree.Variable, object] | None:
        """Return the loop variable and its value, if a condition is true (or false) in a single iteration only."""
        match test:
            case tree.Operation(name="!", operands=(operand,)):
                return self.only_iteration(operand, when=not when)
            case tree.Operation(name=name, operands=parts) if name == ("&&" if when else "||"):
                results = (self.only_iteration(part, when=when) for part in parts)
                return next((result for result in results if result is not None), None)
            case tree.Operation(name=name, operands=(left, right)) if name == ("==" if when else "!="):
                for one, other in ((left, right), (right, left)):
                    loop = self.loop_variable(one)
                    if loop is not None and _same_for_all(other):
                        value = constant_value(other)
                        return loop, other if value is None else value
        return None


def _same_for_all(expr: Expr) -> bool:
    """Whether all iterations compute the same value: from constants, parameters and tables."""
    return all(
        isinstance(part, tree.Constant | tree.Element | tree.Operation)
        or (isinstance(part, tree.Field) and part.of in ("", "p"))
        for part in subexpressions(expr)
    )
