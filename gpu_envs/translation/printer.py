"""Prints the tree as C++."""

import ast
import enum
import math
from collections.abc import Iterator, Sequence
from typing import final

from gpu_envs.translation import tree
from gpu_envs.translation.arguments import SMALL
from gpu_envs.translation.declarations import read_variables
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import Array, Static, Struct, Type
from gpu_envs.translation.unit import SourceLine
from gpu_envs.translation.walk import statements, storage_type

MAX_UNROLLED = 16
"""Maximum number of iterations of a loop that the compiler unrolls."""

INDENT = "    "


class Precedence(enum.IntEnum):
    """Operator precedence in C++, lowest first."""

    CONDITIONAL = 0
    OR = 1
    AND = 2
    BITS = 3
    EQUALITY = 4
    ORDER = 5
    SUM = 6
    PRODUCT = 7
    UNARY = 8
    PRIMARY = 9


_MACROS = {"agents": "FOR_EACH_AGENT", "elements": "FOR_EACH_ELEMENT", "columns": "FOR_EACH_COLUMN"}
_REDUCTIONS = {"sum": "sum_over", "max": "maximum_over", "min": "minimum_over"}

_BINARY: dict[str, tuple[Precedence, Precedence, Precedence]] = {
    "||": (Precedence.OR, Precedence.EQUALITY, Precedence.EQUALITY),
    "&&": (Precedence.AND, Precedence.BITS, Precedence.BITS),
    "==": (Precedence.EQUALITY, Precedence.SUM, Precedence.SUM),
    "!=": (Precedence.EQUALITY, Precedence.SUM, Precedence.SUM),
    **dict.fromkeys(("<", "<=", ">", ">="), (Precedence.ORDER, Precedence.SUM, Precedence.SUM)),
    **dict.fromkeys(("&", "|", "^"), (Precedence.BITS, Precedence.UNARY, Precedence.UNARY)),
    **dict.fromkeys(("+", "-"), (Precedence.SUM, Precedence.SUM, Precedence.PRODUCT)),
    **dict.fromkeys(("*", "/"), (Precedence.PRODUCT, Precedence.PRODUCT, Precedence.UNARY)),
}
"""Binary operators: precedence of the result, and minimum precedence of the first and of the other operands."""


def print_body(body: Block) -> list[SourceLine]:
    """Return the C++ lines of a function's body, indented once."""
    return list(_Printer(read_variables(body)).block(body, 1))


@final
class _Printer:
    def __init__(self, read: frozenset[tree.Variable]) -> None:
        self.read = read
        self.at: ast.AST | None = None

    # --- statements ---

    def block(self, block: Block, depth: int) -> Iterator[SourceLine]:
        for stmt in block:
            yield from self.lines(stmt, depth)

    def lines(self, stmt: tree.Stmt, depth: int, prefix: str = "") -> Iterator[SourceLine]:
        """Yield the C++ lines of a statement; ``prefix`` is text before an ``if``, such as ``} else ``."""
        self.at = stmt.at
        number, indent = _line(stmt), INDENT * depth
        match stmt:
            case tree.If(test=test, yes=body):
                constant = isinstance(test, tree.Constant)
                condition = str(bool(test.value)).lower() if isinstance(test, tree.Constant) else self.text(test)
                header = f"{prefix}if{' constexpr' if constant else ''} ({condition})"
            case tree.While(test=test, body=body):
                header = f"while ({self.text(test)})"
            case tree.For(body=body):
                header = self.for_header(stmt)
            case tree.ParallelLoop(body=(tree.Reduction() as reduction,)):
                yield SourceLine(number, f"{indent}{self.reduction(stmt, reduction)};")
                return
            case tree.ParallelLoop(method=method, variables=variables, counts=counts, body=body):
                numbers = [self.parenthesized(count, Precedence.UNARY) for count in counts]
                header = f"{_MACROS[method]}({', '.join([*(variable.cpp for variable in variables), *numbers])})"
            case _:
                yield SourceLine(number, f"{indent}{self.simple(stmt)};")
                return
        yield SourceLine(number, f"{indent}{header} {{")
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

    def for_header(self, stmt: tree.For) -> str:
        """The header of a C++ for loop, with UNROLL before it for few constant values and no phases."""
        counter = (stmt.counter or stmt.variable).cpp
        first, end, limit = self.text(stmt.first), self.parenthesized(stmt.end, Precedence.SUM), ""
        if stmt.limit is not None:
            limit, end = f", {stmt.limit.cpp} = {self.text(stmt.end)}", stmt.limit.cpp
        comparison, sign = ("<", "+") if stmt.step > 0 else (">", "-")
        values = stmt.constant_range
        past_end = None if values is None else values[-1] + stmt.step if values else 0
        if abs(stmt.step) == 1:
            increment = f"{sign}{sign}{counter}"
        elif past_end is not None and abs(past_end) < 2**31:
            increment = f"{counter} {sign}= {abs(stmt.step)}"
        else:  # a plain increment might overflow
            increment = f"{counter} = python::next({counter}, {end}, {min(abs(stmt.step), 2**32 - 1)}u)"
        phases = any(isinstance(inner, tree.ParallelLoop) and inner.is_phase for inner in statements(stmt.body))
        unroll = values is not None and len(values) <= MAX_UNROLLED and not phases
        return f"{'UNROLL ' * unroll}for (int {counter} = {first}{limit}; {counter} {comparison} {end}; {increment})"

    def simple(self, stmt: tree.Stmt) -> str:
        """Return the C++ of a statement without blocks, without its semicolon."""
        self.at = stmt.at
        match stmt:
            case tree.Store():
                return self.store(stmt)
            case tree.MakeList(kind=kind, times=times):
                zero = times > 1 and all(isinstance(v, tree.Constant) and v.value == 0 for v in stmt.values)
                initializer = "" if zero else ", ".join([self.comma_separated(stmt.values)] * times)
                return f"{self.declaration(stmt.variable, _cpp(kind.kind))}[{kind.sizes[0]}] = {{{initializer}}}"
            case tree.Atomic():
                return f"{stmt.function}({self.place(stmt.place)}, {self.text(stmt.value)})"
            case tree.Evaluate(value=value):
                return self.text(value)
            case tree.Jump(keyword=keyword):
                return keyword
            case tree.Return(values=values, as_tuple=as_tuple):
                text = self.comma_separated(values)
                return f"return {{{text}}}" if as_tuple else f"return {text}".rstrip()
        raise AssertionError(stmt)

    def reduction(self, loop: tree.ParallelLoop, stmt: tree.Reduction) -> str:
        """Return a C++ call of ``sums.cuh``, with one result or one per iteration of the loop."""
        place, counts, variables = stmt.place, [stmt.count], [stmt.variable]
        if loop.variables[0].scope >= 0:  # a loop that the author wrote
            assert isinstance(place, tree.Element)
            place, counts, variables = place.of, [*loop.counts, *counts], [*loop.variables, *variables]
        numbers = ", ".join(f"int {variable.cpp}" if variable in self.read else "int" for variable in variables)
        arguments = f"team, {self.place(place)}, {self.comma_separated(counts)}"
        name = f"{_REDUCTIONS[stmt.method]}{'<double>' * stmt.double}"
        return f"{name}({arguments}, [&]({numbers}) {{ return {self.text(stmt.value)}; }})"

    def store(self, stmt: tree.Store) -> str:
        value, place = self.text(stmt.value), stmt.place
        if isinstance(place, tree.Local) and stmt.declares:
            constant = "const " if stmt.constant else ""
            return f"{self.declaration(place.variable, constant + _cpp(place.kind))} = {value}"
        cast = "" if isinstance(place, tree.Local) else storage_type(place)
        if cast not in ("", "real", "int", "bool"):
            value = f"{cast}({value})"
        return f"{self.place(place)} {stmt.sign}= {value}"

    def declaration(self, variable: tree.Variable, cpp: str) -> str:
        return f"{'' if variable in self.read else '[[maybe_unused]] '}{cpp} {variable.cpp}"

    # --- expressions ---

    def text(self, expr: Expr) -> str:
        return self.expr(expr)[0]

    def comma_separated(self, exprs: Sequence[Expr]) -> str:
        return ", ".join(map(self.text, exprs))

    def parenthesized(self, expr: Expr, minimum: Precedence) -> str:
        """Return the C++ of an expression, in parentheses if its precedence is below the minimum."""
        text, precedence = self.expr(expr)
        return text if precedence >= minimum else f"({text})"

    def place(self, expr: Expr) -> str:
        """Return the C++ of a variable, field or array element."""
        match expr:
            case tree.Local(variable=variable):
                return variable.cpp
            case tree.Field(of=of, name=name):
                return f"{of}.{name}" if of else name
            case tree.Element(of=of, indices=indices):
                assert isinstance(of.kind, Array)
                form = of.kind.flat if expr.flat else of.kind.form
                return form.format(self.place(of), *(self.parenthesized(index, Precedence.UNARY) for index in indices))
        raise AssertionError(expr)

    def expr(self, expr: Expr) -> tuple[str, Precedence]:
        """Return the C++ of an expression, and its precedence."""
        match expr:
            case tree.Constant():
                return self.constant(expr)
            case tree.Local():
                return self.place(expr), Precedence.PRIMARY
            case tree.Field() | tree.Element():
                place = self.place(expr)
                return f"int({place})" if storage_type(expr) in SMALL else place, Precedence.PRIMARY
            case tree.Operation(name=name, operands=operands):
                return self.operation(name, *operands)
            case tree.Invoke(function=function, arguments=arguments):
                return f"{function.cpp}({self.comma_separated(arguments)})", Precedence.PRIMARY
            case tree.Draw(generator=generator, method=method, arguments=arguments):
                owner = self.parenthesized(generator, Precedence.PRIMARY)
                drawn = f"{owner}.{method}({self.comma_separated(arguments)})"
                return f"int({drawn})" if method == "bits" else drawn, Precedence.PRIMARY
            case tree.Closure(before=before, value=value):
                lines = " ".join(f"{self.simple(stmt)};" for stmt in before)
                return f"[&] {{ {lines} return {self.text(value)}; }}()", Precedence.PRIMARY
        raise AssertionError(expr)

    def operation(self, name: str, first: Expr, *rest: Expr) -> tuple[str, Precedence]:
        if name == "?:":
            test, yes = (self.parenthesized(expr, Precedence.OR) for expr in (first, rest[0]))
            return f"{test} ? {yes} : {self.text(rest[1])}", Precedence.CONDITIONAL
        if name[0] == ".":
            return f"{self.text(first)}{name}", Precedence.PRIMARY
        if rest and name in _BINARY:
            precedence, first_minimum, rest_minimum = _BINARY[name]
            others = (self.parenthesized(expr, rest_minimum) for expr in rest)
            return f" {name} ".join((self.parenthesized(first, first_minimum), *others)), precedence
        if name in ("-", "~", "!"):
            inner = self.parenthesized(first, Precedence.UNARY)
            return f"{name}{f'({inner})' if inner.startswith(name) else inner}", Precedence.UNARY
        return f"{name}({self.comma_separated((first, *rest))})", Precedence.PRIMARY

    def constant(self, expr: tree.Constant) -> tuple[str, Precedence]:
        value = expr.value
        sign = Precedence.UNARY if isinstance(value, int | float) and value < 0 else Precedence.PRIMARY
        match value:
            case _ if expr.name:
                return expr.name, Precedence.PRIMARY
            case bool():
                return "true" if value else "false", Precedence.PRIMARY
            case int() if abs(value) < 2**31:
                return str(value), sign
            case int():
                problem, hint = f"{value} does not fit 32 bits", "Write a float, or a smaller number"
            case float() if math.isinf(value):
                return f"{'-' if value < 0 else ''}infinity<real>()", sign
            case float() if not math.isnan(value):
                return f"real({value!r})", Precedence.PRIMARY
            case float():
                problem, hint = "rules cannot use NaN", "Remove it"
            case _:
                problem, hint = f"{value!r} is not a number", ""
        raise RefusedError(problem, hint, expr.at or self.at)


def _line(stmt: tree.Stmt) -> int:
    return getattr(stmt.at, "lineno", 0)


def _cpp(kind: Type) -> str:
    """Return the C++ name of a type that values have at run time."""
    assert not isinstance(kind, Static)
    return kind.name if isinstance(kind, Struct) else kind.cpp
