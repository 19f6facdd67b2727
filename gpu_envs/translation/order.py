"""Python's order of evaluation, made explicit: what C++ would be free to order becomes a statement of its own."""

import ast
import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias, final

from gpu_envs.translation import arithmetic, tree
from gpu_envs.translation.reading.assignments import fitting
from gpu_envs.translation.reading.reader import Reader
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import BOOL, RANDOM, Number, Thing
from gpu_envs.translation.walk import blocks, draws, expressions, field_of, is_simple, parts, rebuilt, stored_as, within

Touched: TypeAlias = set[tree.Variable | tuple[str, str]]
"""Variables, and fields by owner and name; ``""`` for all of an owner's."""


def ordered(reader: Reader, body: Block) -> Block:
    """The statements of a function with every evaluation in its place."""
    return _Order(reader).block(body)


@final
class _Order:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.before: list[tree.Stmt] = []
        """What is computed before the statement at hand."""
        self.node: ast.AST = reader.written.tree

    # --- statements ---

    def block(self, block: Block) -> Block:
        outside, made = self.before, []
        for stmt in block:
            self.before, self.node = [], stmt.at
            last = self.statement(stmt)
            made += [*self.before, *last]
        self.before = outside
        return tuple(made)

    def statement(self, stmt: tree.Stmt) -> list[tree.Stmt]:
        match stmt:
            case tree.Assign(op=None):
                return self.assign(stmt)
            case tree.Assign(places=(place,), values=(value,), op=ast.operator() as op):
                return [self.update(stmt.at, place, op, value)]
            case tree.Atomic():
                place, given, _ = self.place_and_value(stmt.place, stmt.value)
                return [dataclasses.replace(stmt, place=place, value=given)]
            case tree.While():
                made = [self.guarded(stmt.test)]
            case tree.Fold():
                made = [self.guarded(part, alone=True) for part in parts(stmt)]
            case tree.Store(value=value) | tree.Evaluate(value=value) | tree.Return(values=(value,)):
                made = [self.value(value, alone=True)]
            case _:
                made = self.sequence(parts(stmt))
        if isinstance(stmt, tree.MakeList) and stmt.times > 1:
            made = [value if is_simple(value) else self.kept(value) for value in made]
        stmt = rebuilt(stmt, made)
        if isinstance(stmt, tree.For) and not _is_fixed(stmt.end):
            stmt = dataclasses.replace(stmt, limit=self.reader.fresh("end"))
        changes: dict[str, Any] = {name: self.block(block) for name, block in blocks(stmt).items()}
        return [dataclasses.replace(stmt, **changes)]

    def assign(self, stmt: tree.Assign) -> list[tree.Stmt]:
        """All values first; one that an earlier target of the same statement changes, or the place needs, is kept."""
        alone = len(stmt.values) == 1
        values = [self.value(stmt.values[0], alone=True)] if alone else self.sequence(stmt.values)
        for n, value in enumerate(values):
            if _meet(_read(value), set().union(*map(_written_by, stmt.places[:n]))):
                values[n] = self.kept(value)
        made: list[tree.Stmt] = []
        for n, place in enumerate(stmt.places):
            self.before, outside = [], self.before
            target = self.place(place)
            inside, self.before = self.before, outside
            for m in range(n, len(values)):
                later = inside and (draws(values[m]) or _meet(_read(values[m]), _changed(inside)))
                if later or _meet(_read_by(target), _changed([tree.Evaluate(self.node, values[m])])):
                    values[m] = self.kept(values[m])
            made += [*inside, tree.Store(stmt.at, target, values[n])]
        return made

    def update(self, at: ast.AST, place: Expr, op: ast.operator, value: Expr) -> tree.Store:
        place, value, disturbed = self.place_and_value(place, value)
        old = disturbed or place
        result = arithmetic.binary(op, old, value)
        plain = isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div) and place.kind == result.kind != BOOL
        if plain and old is place and (isinstance(place, tree.Local) or stored_as(place) in ("real", "int")):
            sign = arithmetic.OPERATORS[type(op)][0]
            return tree.Store(at, place, arithmetic.converted(value, result.kind), sign)
        return tree.Store(at, place, fitting(place, result))

    def place_and_value(self, place: Expr, value: Expr) -> tuple[Expr, Expr, Expr | None]:
        """A place, then a value; with what the place held, where evaluating the value changes that."""
        place, mark = self.place(place), len(self.before)
        made = self.value(value)
        changed = _changed(self.before[mark:])
        old = None
        if _meet(_read(place), changed):
            self.before, after = self.before[:mark], self.before[mark:]
            if isinstance(place, tree.Element):
                place = rebuilt(place, (place.of, *(self.kept(index) for index in place.indices)))
            old = self.kept(place)
            self.before += after
        return place, made, old

    # --- expressions ---

    def value(self, expr: Expr, *, alone: bool = False) -> Expr:
        """An expression whose parts are evaluated in their order; one that stands ``alone`` may be evaluated last."""
        match expr:
            case tree.Operation(name="real" | "int" | "bool", operands=(inner,)):
                return rebuilt(expr, (self.value(inner, alone=alone),))
            case tree.Operation(name=",", operands=(first, second)):
                first = self.value(first)
                if not is_simple(first):
                    self.kept(first)
                return self.value(second)
            case tree.Operation(name="&&" | "||" | "?:", operands=(first, *rest)):
                expr = rebuilt(expr, [self.value(first), *map(self.guarded, rest)])
            case tree.Chain():
                expr = self.links(expr)
            case tree.Element():
                return self.place(expr)
            case tree.Invoke():
                expr = rebuilt(expr, [self.lasting(part) for part in self.sequence(parts(expr))])
            case _:
                expr = rebuilt(expr, self.sequence(parts(expr)))
        changes = isinstance(expr, tree.Draw | tree.Invoke) and draws(expr)
        may_change = any(isinstance(part, tree.Closure) for part in parts(expr))
        if alone or not isinstance(expr.kind, Number) or not (changes or may_change):
            return expr
        return self.kept(expr)

    def sequence(self, exprs: Sequence[Expr]) -> list[Expr]:
        """Expressions one after another: what a later one changes is kept as it was."""
        made: list[Expr] = []
        for expr in exprs:
            mark = len(self.before)
            value = self.value(expr)
            self.keep_disturbed(made, mark)
            made.append(value)
        return made

    def keep_disturbed(self, values: list[Expr], mark: int) -> None:
        """Keeps those values, as they were at ``mark``, that what has been computed since then changes."""
        self.before, after = self.before[:mark], self.before[mark:]
        changed = _changed(after)
        for n, value in enumerate(values):
            if _meet(_read(value), changed):
                values[n] = self.kept(value)
        self.before += after

    def place(self, place: Expr) -> Expr:
        """A place, whose indices are evaluated."""
        if not isinstance(place, tree.Element):
            return place
        return rebuilt(place, (place.of, *self.sequence(place.indices)))

    def guarded(self, expr: Expr, *, alone: bool = False) -> Expr:
        """What is evaluated only where something else says so, or again and again, with what is computed before it."""
        outside, self.before = self.before, []
        value = self.value(expr, alone=alone)
        inside, self.before = self.before, outside
        return tree.Closure(value.kind, tuple(inside), value, at=value.at) if inside else value

    def links(self, chain: tree.Chain) -> Expr:
        """``a < b < c``."""
        (op, *later), (first, second, *others) = chain.ops, chain.operands
        operands = [self.value(first)]
        mark = len(self.before)
        right = self.value(second)
        self.keep_disturbed(operands, mark)
        left = operands[0]
        if later and not is_simple(right):
            right = self.kept(right)
        if isinstance(op, ast.In | ast.NotIn) and not is_simple(left):
            left = self.kept(left)
        found = arithmetic.compare(op, left, right)
        if not later:
            return found
        rest = dataclasses.replace(chain, ops=tuple(later), operands=(right, *others))
        return arithmetic.logic(ast.And(), [found, self.guarded(rest, alone=True)])

    def lasting(self, expr: Expr) -> Expr:
        """A source of numbers as a variable, which a function draws from."""
        if expr.kind != RANDOM or is_simple(expr):
            return expr
        name = tree.Local(RANDOM, self.reader.fresh("random"))
        self.before.append(tree.Store(self.node, name, expr, declares=True))
        return name

    def kept(self, expr: Expr) -> Expr:
        """A value that is computed here, and used later."""
        if isinstance(expr, tree.Constant) or (isinstance(expr, tree.Local) and expr.variable.frame < 0):
            return expr
        store, name = self.reader.kept(expr, "drawn" if isinstance(expr, tree.Draw) else "value", self.node)
        self.before.append(store)
        return name


# --- what meets ---


def _read(expr: Expr) -> Touched:
    """What an expression reads."""
    found: Touched = set()
    for part in within(expr):
        if isinstance(part, tree.Local):
            found.add(part.variable)
        elif field_of(part)[0]:
            found.add(field_of(part))
        elif isinstance(part, tree.Invoke):
            found |= {(p.kind.name, "") for p in part.function.parameters if isinstance(p.kind, Thing)}
    return found


def _read_by(place: Expr) -> Touched:
    """What the indices of a place read."""
    return set().union(*map(_read, place.indices)) if isinstance(place, tree.Element) else set()


def _written_by(place: Expr) -> Touched:
    root = place.of if isinstance(place, tree.Element) else place
    return {root.variable} if isinstance(root, tree.Local) else {field_of(place)}


def _changed(stmts: Sequence[tree.Stmt]) -> Touched:
    """What the functions that statements call change."""
    found: Touched = set()
    for part in (part for stmt in stmts for part in expressions(stmt)):
        if isinstance(part, tree.Invoke):
            effects = part.function.effects
            found |= {(owner, field) for owner in effects.owners for field in effects.fields}
    return found


def _is_fixed(end: Expr) -> bool:
    """Whether the end of a loop is the same in every turn."""
    return isinstance(end, tree.Constant) or (isinstance(end, tree.Field) and end.of in ("", "p"))


def _meet(read: Touched, changed: Touched) -> bool:
    if read & changed:
        return True
    whole = {key[0] for key in read if isinstance(key, tuple) and not key[1]}
    return any(isinstance(key, tuple) and key[0] in whole for key in changed)
