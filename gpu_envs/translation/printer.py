"""The tree as C++."""

import ast
import enum
import math
from collections.abc import Iterator, Sequence
from typing import final

from gpu_envs.translation import tree
from gpu_envs.translation.arguments import SMALL
from gpu_envs.translation.declarations import read_in
from gpu_envs.translation.sources import Written
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import BOOL, Array, Choice, Number, Several, Thing, Type
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


_LEVELS = {"+": Level.SUM, "-": Level.SUM, "*": Level.PRODUCT, "/": Level.PRODUCT}
_COMPARED = {"==": Level.EQUALITY, "!=": Level.EQUALITY}


def printed(written: Written, body: Block) -> list[SourceLine]:
    """The lines of a function's body."""
    return list(_Printer(written, read_in(body)).block(body, 1))


@final
class _Printer:
    def __init__(self, written: Written, read: frozenset[tree.Variable]) -> None:
        self.written = written
        self.read = read
        self.at: ast.AST = written.tree

    # --- statements ---

    def block(self, block: Block, depth: int) -> Iterator[SourceLine]:
        for stmt in block:
            yield from self.lines(stmt, depth)

    def lines(self, stmt: tree.Stmt, depth: int, opening: str = "") -> Iterator[SourceLine]:
        """The lines of a statement; ``opening``: what stands before an ``if``."""
        self.at = stmt.at
        number, indent = getattr(stmt.at, "lineno", 0), INDENT * depth
        match stmt:
            case tree.If():
                known = isinstance(stmt.test, tree.Constant)
                test = (
                    str(bool(stmt.test.value)).lower() if isinstance(stmt.test, tree.Constant) else self.text(stmt.test)
                )
                yield SourceLine(number, f"{indent}{opening}if{' constexpr' if known else ''} ({test}) {{")
                yield from self.block(stmt.yes, depth + 1)
                if len(stmt.no) == 1 and isinstance(stmt.no[0], tree.If):
                    yield from self.lines(stmt.no[0], depth, "} else ")
                    return
                if stmt.no:
                    yield SourceLine(getattr(stmt.no[0].at, "lineno", 0), f"{indent}}} else {{")
                    yield from self.block(stmt.no, depth + 1)
            case tree.While():
                yield SourceLine(number, f"{indent}while ({self.text(stmt.test)}) {{")
                yield from self.block(stmt.body, depth + 1)
            case tree.For():
                yield SourceLine(number, f"{indent}{self.head(stmt)} {{")
                if stmt.counter is not None:
                    yield SourceLine(number, f"{indent}{INDENT}{stmt.variable.cpp} = {stmt.counter.cpp};")
                yield from self.block(stmt.body, depth + 1)
            case tree.Turns():
                macro = "FOR_EACH_AGENT" if stmt.method == "agents" else "FOR_EACH_COLUMN"
                count = self.within(stmt.count, Level.UNARY)
                yield SourceLine(number, f"{indent}{macro}({stmt.variable.cpp}, {count}) {{")
                yield from self.block(stmt.body, depth + 1)
            case _:
                yield SourceLine(number, f"{indent}{self.simple(stmt)};")
                return
        yield SourceLine(0, f"{indent}}}")

    def simple(self, stmt: tree.Stmt) -> str:
        """A statement without blocks."""
        self.at = stmt.at
        match stmt:
            case tree.Store():
                return self.store(stmt)
            case tree.MakeList():
                return self.make_list(stmt)
            case tree.Atomic():
                return f"{stmt.function}({self.place(stmt.place)}, {self.text(stmt.value)})"
            case tree.Evaluate(value=value):
                return self.text(value)
            case tree.Leave(word=word):
                return word
            case tree.Return(several=True):
                return f"return {{{self.listed(stmt.values)}}}"
            case tree.Return():
                return f"return {self.listed(stmt.values)}".rstrip()
        raise AssertionError(stmt)

    def store(self, stmt: tree.Store) -> str:
        value, place = self.text(stmt.value), stmt.place
        if stmt.declares:
            assert isinstance(place, tree.Local)
            constant = "const " if stmt.constant else ""
            return f"{self.declaration(place.variable, constant + _cpp(place.kind))} = {value}"
        stored = "" if isinstance(place, tree.Local) else stored_as(place)
        if stored not in ("", "real", "int", "bool"):
            value = f"{stored}({value})"
        return f"{self.place(place)} {stmt.sign}= {value}"

    def declaration(self, variable: tree.Variable, cpp: str) -> str:
        return f"{'' if variable in self.read else '[[maybe_unused]] '}{cpp} {variable.cpp}"

    def make_list(self, stmt: tree.MakeList) -> str:
        kept = [self.text(value) for value in stmt.values]
        zero = stmt.times > 1 and all(isinstance(v, tree.Constant) and v.value == 0 for v in stmt.values)
        filled = "{}" if zero else f"{{{', '.join(kept * stmt.times)}}}"
        return f"{self.declaration(stmt.variable, _cpp(stmt.kind.kind))}[{stmt.kind.sizes[0]}] = {filled}"

    def head(self, stmt: tree.For) -> str:
        counter = (stmt.counter or stmt.variable).cpp
        first, end, also = self.text(stmt.first), self.within(stmt.end, Level.SUM), ""
        if stmt.limit is not None:
            also, end = f", {stmt.limit.cpp} = {self.text(stmt.end)}", stmt.limit.cpp
        sign = "<" if stmt.step > 0 else ">"
        by = {1: f"++{counter}", -1: f"--{counter}"}.get(
            stmt.step, f"{counter} {'+' if stmt.step > 0 else '-'}= {abs(stmt.step)}"
        )
        phases = any(isinstance(inner, tree.Turns) and inner.method == "agents" for inner in statements(stmt.body))
        unroll = stmt.turns is not None and len(stmt.turns) <= MOST_UNROLLED and not phases
        return f"{'UNROLL ' * unroll}for (int {counter} = {first}{also}; {counter} {sign} {end}; {by})"

    # --- expressions ---

    def text(self, expr: Expr) -> str:
        return self.expr(expr)[0]

    def listed(self, exprs: Sequence[Expr]) -> str:
        return ", ".join(self.text(expr) for expr in exprs)

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
        match expr:
            case tree.Constant():
                return self.constant(expr)
            case tree.Local():
                return self.place(expr), Level.ATOM
            case tree.Field() | tree.Element():
                place = self.place(expr)
                return f"int({place})" if stored_as(expr) in SMALL else place, Level.ATOM
            case tree.Member(of=of, number=number):
                return f"{of.variable.cpp}.value{number}", Level.ATOM
            case tree.Unary(sign=sign, operand=operand):
                inner = self.within(operand, Level.UNARY)
                return f"{sign}{f'({inner})' if inner.startswith(sign) else inner}", Level.UNARY
            case tree.Binary():
                return self.binary(expr)
            case tree.Logic(sign=sign, parts=parts):
                level, least = (Level.OR, Level.EQUALITY) if sign == "||" else (Level.AND, Level.BITS)
                return f" {sign} ".join(self.within(part, least) for part in parts), level
            case tree.Choose(test=test, yes=yes, no=no):
                asked = f"{self.within(test, Level.OR)} ? {self.within(yes, Level.OR)} : {self.text(no)}"
                return asked, Level.CONDITIONAL
            case tree.Call(function=name, arguments=arguments):
                return f"{name}({self.listed(arguments)})", Level.ATOM
            case tree.Invoke(function=function, arguments=arguments):
                return f"{function.cpp}({self.listed(arguments)})", Level.ATOM
            case tree.Draw(source=source, what=what, arguments=arguments):
                drawn = f"{self.within(source, Level.ATOM)}.{what}({self.listed(arguments)})"
                return f"int({drawn})" if what == "bits" else drawn, Level.ATOM
            case tree.Closure(before=before, value=value):
                lines = " ".join(f"{self.simple(stmt)};" for stmt in before)
                return f"[&] {{ {lines} return {self.text(value)}; }}()", Level.ATOM
        raise AssertionError(expr)

    def binary(self, expr: tree.Binary) -> tuple[str, Level]:
        sign, left, right = expr.sign, expr.left, expr.right
        if sign in _LEVELS:
            level = _LEVELS[sign]
            one, other = self.within(left, level), self.within(right, Level(level + 1))
        elif expr.kind is BOOL:
            level = _COMPARED.get(sign, Level.ORDER)
            one, other = self.within(left, Level.SUM), self.within(right, Level.SUM)
        else:
            level = Level.BITS
            one, other = self.within(left, Level.UNARY), self.within(right, Level.UNARY)
        return f"{one} {sign} {other}", level

    def constant(self, expr: tree.Constant) -> tuple[str, Level]:
        value = expr.value
        if expr.name:
            return expr.name, Level.ATOM
        if isinstance(value, bool):
            return "true" if value else "false", Level.ATOM
        if isinstance(value, int):
            if abs(value) >= 2**31:
                raise self.refused(expr, f"{value} does not fit 32 bits", "Write a float, or a smaller number")
            return str(value), Level.UNARY if value < 0 else Level.ATOM
        if isinstance(value, float):
            if math.isnan(value):
                raise self.refused(expr, "a simulation cannot go on with NaN", "Leave it out")
            if math.isinf(value):
                return ("-" if value < 0 else "") + "infinity<real>()", Level.UNARY if value < 0 else Level.ATOM
            return f"real({value!r})", Level.ATOM
        raise self.refused(expr, f"{value!r} is not a number", "")

    def refused(self, expr: Expr, what: str, instead: str) -> Exception:
        return self.written.error(expr.at or self.at, what, instead)


def _cpp(kind: Type) -> str:
    """A type in C++."""
    match kind:
        case Number(cpp=cpp) | Choice(cpp=cpp) | Several(cpp=cpp) | Array(cpp=cpp):
            return cpp
        case Thing(name=name):
            return name
    raise AssertionError(kind)
