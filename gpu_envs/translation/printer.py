"""The tree as C++."""

import ast
import enum
import math
from collections.abc import Iterator, Sequence
from typing import final

from gpu_envs.translation import tree
from gpu_envs.translation.arguments import SMALL
from gpu_envs.translation.declarations import read_in
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import Array, Static, Thing, Type
from gpu_envs.translation.unit import SourceLine
from gpu_envs.translation.walk import statements, stored_as

MOST_UNROLLED = 16
"""Turns of a loop that is written out by the compiler."""

INDENT = "    "


class Level(enum.IntEnum):
    """How tightly an expression holds together."""

    CONDITIONAL = 0
    OR = 1
    AND = 2
    BITS = 3
    EQUALITY = 4
    ORDER = 5
    SUM = 6
    PRODUCT = 7
    UNARY = 8
    ATOM = 9


_MACROS = {"agents": "FOR_EACH_AGENT", "elements": "FOR_EACH_ELEMENT", "columns": "FOR_EACH_COLUMN"}
_FOLDS = {"sum": "sum_over", "max": "maximum_over", "min": "minimum_over"}

_BETWEEN: dict[str, tuple[Level, Level, Level]] = {
    "||": (Level.OR, Level.EQUALITY, Level.EQUALITY),
    "&&": (Level.AND, Level.BITS, Level.BITS),
    "==": (Level.EQUALITY, Level.SUM, Level.SUM),
    "!=": (Level.EQUALITY, Level.SUM, Level.SUM),
    **dict.fromkeys(("<", "<=", ">", ">="), (Level.ORDER, Level.SUM, Level.SUM)),
    **dict.fromkeys(("&", "|", "^"), (Level.BITS, Level.UNARY, Level.UNARY)),
    **dict.fromkeys(("+", "-"), (Level.SUM, Level.SUM, Level.PRODUCT)),
    **dict.fromkeys(("*", "/"), (Level.PRODUCT, Level.PRODUCT, Level.UNARY)),
}
"""What stands between operands: how tightly it holds them, and how tightly the first and the others must hold."""


def printed(body: Block) -> list[SourceLine]:
    """The lines of a function's body."""
    return list(_Printer(read_in(body)).block(body, 1))


@final
class _Printer:
    def __init__(self, read: frozenset[tree.Variable]) -> None:
        self.read = read
        self.at: ast.AST | None = None

    # --- statements ---

    def block(self, block: Block, depth: int) -> Iterator[SourceLine]:
        for stmt in block:
            yield from self.lines(stmt, depth)

    def lines(self, stmt: tree.Stmt, depth: int, opening: str = "") -> Iterator[SourceLine]:
        """The lines of a statement; ``opening``: what stands before an ``if``."""
        self.at = stmt.at
        number, indent = _line(stmt), INDENT * depth
        match stmt:
            case tree.If(test=test, yes=body):
                known = isinstance(test, tree.Constant)
                asked = str(bool(test.value)).lower() if isinstance(test, tree.Constant) else self.text(test)
                head = f"{opening}if{' constexpr' if known else ''} ({asked})"
            case tree.While(test=test, body=body):
                head = f"while ({self.text(test)})"
            case tree.For(body=body):
                head = self.head(stmt)
            case tree.Turns(body=(tree.Fold() as fold,)):
                yield SourceLine(number, f"{indent}{self.fold(stmt, fold)};")
                return
            case tree.Turns(method=method, variables=variables, counts=counts, body=body):
                given = [*(each.cpp for each in variables), *(self.within(count, Level.UNARY) for count in counts)]
                head = f"{_MACROS[method]}({', '.join(given)})"
            case _:
                yield SourceLine(number, f"{indent}{self.simple(stmt)};")
                return
        yield SourceLine(number, f"{indent}{head} {{")
        if isinstance(stmt, tree.For) and stmt.counter is not None:
            yield SourceLine(number, f"{indent}{INDENT}{stmt.variable.cpp} = {stmt.counter.cpp};")
        yield from self.block(body, depth + 1)
        if isinstance(stmt, tree.If) and stmt.no:
            if len(stmt.no) == 1 and isinstance(stmt.no[0], tree.If):
                yield from self.lines(stmt.no[0], depth, "} else ")
                return
            yield SourceLine(_line(stmt.no[0]), f"{indent}}} else {{")
            yield from self.block(stmt.no, depth + 1)
        yield SourceLine(0, f"{indent}}}")

    def head(self, stmt: tree.For) -> str:
        counter = (stmt.counter or stmt.variable).cpp
        first, end, also = self.text(stmt.first), self.within(stmt.end, Level.SUM), ""
        if stmt.limit is not None:
            also, end = f", {stmt.limit.cpp} = {self.text(stmt.end)}", stmt.limit.cpp
        compared, sign = ("<", "+") if stmt.step > 0 else (">", "-")
        past = None if stmt.turns is None else stmt.turns[-1] + stmt.step if stmt.turns else 0
        if abs(stmt.step) == 1:
            by = f"{sign}{sign}{counter}"
        elif past is not None and abs(past) < 2**31:
            by = f"{counter} {sign}= {abs(stmt.step)}"
        else:  # the counter might go beyond the greatest int, or the least
            by = f"{counter} = python::next({counter}, {end}, {min(abs(stmt.step), 2**32 - 1)}u)"
        phases = any(isinstance(inner, tree.Turns) and inner.is_phase for inner in statements(stmt.body))
        unroll = stmt.turns is not None and len(stmt.turns) <= MOST_UNROLLED and not phases
        return f"{'UNROLL ' * unroll}for (int {counter} = {first}{also}; {counter} {compared} {end}; {by})"

    def simple(self, stmt: tree.Stmt) -> str:
        """A statement without blocks."""
        self.at = stmt.at
        match stmt:
            case tree.Store():
                return self.store(stmt)
            case tree.MakeList(kind=kind, times=times):
                zero = times > 1 and all(isinstance(v, tree.Constant) and v.value == 0 for v in stmt.values)
                filled = "" if zero else ", ".join([self.listed(stmt.values)] * times)
                return f"{self.declaration(stmt.variable, _cpp(kind.kind))}[{kind.sizes[0]}] = {{{filled}}}"
            case tree.Atomic():
                return f"{stmt.function}({self.place(stmt.place)}, {self.text(stmt.value)})"
            case tree.Evaluate(value=value):
                return self.text(value)
            case tree.Leave(word=word):
                return word
            case tree.Return(values=values, several=several):
                listed = self.listed(values)
                return f"return {{{listed}}}" if several else f"return {listed}".rstrip()
        raise AssertionError(stmt)

    def fold(self, turns: tree.Turns, stmt: tree.Fold) -> str:
        """A phase of ``sums.cuh``: of one result, or of one for each turn."""
        place, counts, variables = stmt.place, [stmt.count], [stmt.variable]
        if turns.variables[0].frame >= 0:  # the author's
            assert isinstance(place, tree.Element)
            place, counts, variables = place.of, [*turns.counts, *counts], [*turns.variables, *variables]
        numbers = ", ".join(f"int {each.cpp}" if each in self.read else "int" for each in variables)
        given = f"team, {self.place(place)}, {self.listed(counts)}"
        name = f"{_FOLDS[stmt.method]}{'<double>' * stmt.double}"
        return f"{name}({given}, [&]({numbers}) {{ return {self.text(stmt.value)}; }})"

    def store(self, stmt: tree.Store) -> str:
        value, place = self.text(stmt.value), stmt.place
        if isinstance(place, tree.Local) and stmt.declares:
            constant = "const " if stmt.constant else ""
            return f"{self.declaration(place.variable, constant + _cpp(place.kind))} = {value}"
        stored = "" if isinstance(place, tree.Local) else stored_as(place)
        if stored not in ("", "real", "int", "bool"):
            value = f"{stored}({value})"
        return f"{self.place(place)} {stmt.sign}= {value}"

    def declaration(self, variable: tree.Variable, cpp: str) -> str:
        return f"{'' if variable in self.read else '[[maybe_unused]] '}{cpp} {variable.cpp}"

    # --- expressions ---

    def text(self, expr: Expr) -> str:
        return self.expr(expr)[0]

    def listed(self, exprs: Sequence[Expr]) -> str:
        return ", ".join(map(self.text, exprs))

    def within(self, expr: Expr, level: Level) -> str:
        """The text, in parentheses where it holds together less tightly than ``level``."""
        text, own = self.expr(expr)
        return text if own >= level else f"({text})"

    def place(self, expr: Expr) -> str:
        """What is assigned."""
        match expr:
            case tree.Local(variable=variable):
                return variable.cpp
            case tree.Field(of=of, name=name):
                return f"{of}.{name}" if of else name
            case tree.Element(of=of, indices=indices):
                assert isinstance(of.kind, Array)
                form = of.kind.flat if expr.flat else of.kind.form
                return form.format(self.place(of), *(self.within(index, Level.UNARY) for index in indices))
        raise AssertionError(expr)

    def expr(self, expr: Expr) -> tuple[str, Level]:
        """The text of an expression, and how tightly it holds together."""
        match expr:
            case tree.Constant():
                return self.constant(expr)
            case tree.Local():
                return self.place(expr), Level.ATOM
            case tree.Field() | tree.Element():
                place = self.place(expr)
                return f"int({place})" if stored_as(expr) in SMALL else place, Level.ATOM
            case tree.Operation(name=name, operands=operands):
                return self.operation(name, *operands)
            case tree.Invoke(function=function, arguments=arguments):
                return f"{function.cpp}({self.listed(arguments)})", Level.ATOM
            case tree.Draw(source=source, what=what, arguments=arguments):
                drawn = f"{self.within(source, Level.ATOM)}.{what}({self.listed(arguments)})"
                return f"int({drawn})" if what == "bits" else drawn, Level.ATOM
            case tree.Closure(before=before, value=value):
                lines = " ".join(f"{self.simple(stmt)};" for stmt in before)
                return f"[&] {{ {lines} return {self.text(value)}; }}()", Level.ATOM
        raise AssertionError(expr)

    def operation(self, name: str, first: Expr, *others: Expr) -> tuple[str, Level]:
        if name == "?:":
            test, yes, no = self.within(first, Level.OR), self.within(others[0], Level.OR), self.text(others[1])
            return f"{test} ? {yes} : {no}", Level.CONDITIONAL
        if name[0] == ".":
            return f"{self.text(first)}{name}", Level.ATOM
        if others and name in _BETWEEN:
            level, one, other = _BETWEEN[name]
            return f" {name} ".join((self.within(first, one), *(self.within(each, other) for each in others))), level
        if name in ("-", "~", "!"):
            inner = self.within(first, Level.UNARY)
            return f"{name}{f'({inner})' if inner.startswith(name) else inner}", Level.UNARY
        return f"{name}({self.listed((first, *others))})", Level.ATOM

    def constant(self, expr: tree.Constant) -> tuple[str, Level]:
        value = expr.value
        sign = Level.UNARY if isinstance(value, int | float) and value < 0 else Level.ATOM
        match value:
            case _ if expr.name:
                return expr.name, Level.ATOM
            case bool():
                return "true" if value else "false", Level.ATOM
            case int() if abs(value) < 2**31:
                return str(value), sign
            case int():
                what, instead = f"{value} does not fit 32 bits", "Write a float, or a smaller number"
            case float() if math.isinf(value):
                return f"{'-' if value < 0 else ''}infinity<real>()", sign
            case float() if not math.isnan(value):
                return f"real({value!r})", Level.ATOM
            case float():
                what, instead = "a simulation cannot go on with NaN", "Leave it out"
            case _:
                what, instead = f"{value!r} is not a number", ""
        raise RefusedError(what, instead, expr.at or self.at)


def _line(stmt: tree.Stmt) -> int:
    return getattr(stmt.at, "lineno", 0)


def _cpp(kind: Type) -> str:
    """A type in C++."""
    assert not isinstance(kind, Static)
    return kind.name if isinstance(kind, Thing) else kind.cpp
