"""Python's order of evaluation, made explicit: what C++ would be free to order becomes a statement of its own."""

import ast
import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

from gpu_envs.translation import arithmetic, tree
from gpu_envs.translation.effects import field_of
from gpu_envs.translation.reading.assignments import fitting
from gpu_envs.translation.reading.reader import Reader
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import BOOL, RANDOM, Number, Thing
from gpu_envs.translation.walk import draws, is_simple, owner_of, parts, rebuilt, replaced, stored_as, within

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
            case tree.Assign():
                return self.assign(stmt)
            case tree.Store():
                return [dataclasses.replace(stmt, value=self.value(stmt.value, alone=True))]
            case tree.Update():
                return [self.update(stmt)]
            case tree.Atomic():
                return [self.atomic(stmt)]
            case tree.MakeList():
                return [self.make_list(stmt)]
            case tree.Evaluate():
                return [dataclasses.replace(stmt, value=self.value(stmt.value, alone=True))]
            case tree.If():
                test = self.value(stmt.test)
                return [dataclasses.replace(stmt, test=test, yes=self.inner(stmt.yes), no=self.inner(stmt.no))]
            case tree.While():
                return [dataclasses.replace(stmt, test=self.guarded(stmt.test), body=self.inner(stmt.body))]
            case tree.For():
                first, end = self.sequence((stmt.first, stmt.end))
                fixed = isinstance(end, tree.Constant) or (isinstance(end, tree.Field) and end.of in ("", "p"))
                limit = None if fixed else self.reader.fresh("end")
                return [dataclasses.replace(stmt, first=first, end=end, limit=limit, body=self.inner(stmt.body))]
            case tree.Turns():
                count = self.value(stmt.count)
                return [dataclasses.replace(stmt, count=count, body=self.inner(stmt.body))]
            case tree.Return(values=(value,)):
                return [dataclasses.replace(stmt, values=(self.value(value, alone=True),))]
            case tree.Return():
                return [dataclasses.replace(stmt, values=tuple(self.sequence(stmt.values)))]
        return [stmt]

    def inner(self, block: Block) -> Block:
        """A block of a statement whose own expressions are in order already."""
        before, node = self.before, self.node
        made = self.block(block)
        self.before, self.node = before, node
        return made

    def assign(self, stmt: tree.Assign) -> list[tree.Stmt]:
        """All values first; one that an earlier target of the same statement changes, or the place needs, is kept."""
        alone = len(stmt.values) == 1
        values = [self.value(stmt.values[0], alone=True)] if alone else self.sequence(stmt.values)
        for n, value in enumerate(values):
            if _meet(_read(value), set().union(*(_written_by(place) for place in stmt.places[:n]))):
                values[n] = self.kept(value)
        made: list[tree.Stmt] = []
        for n, place in enumerate(stmt.places):
            self.before, outside = [], self.before
            target = self.place(place)
            inside, self.before = self.before, outside
            rest = range(n, len(values))
            for m in rest:
                impure = _changed([tree.Evaluate(self.node, values[m])])
                if (inside and (_takes(values[m]) or _meet(_read(values[m]), _changed(inside)))) or _meet(
                    _read_by(target), impure
                ):
                    values[m] = self.kept(values[m])
            made += [*inside, tree.Store(stmt.at, target, values[n])]
        return made

    def update(self, stmt: tree.Update) -> tree.Stmt:
        place, value, disturbed = self.place_and_value(stmt.place, stmt.value)
        old = disturbed or place
        sign = arithmetic.SIGNS.get(type(stmt.op), "")
        result = arithmetic.binary(stmt.op, old, value)
        plain = isinstance(place, tree.Local) or stored_as(place) in ("real", "int")
        if sign and old is place and plain and result.kind == place.kind and place.kind is not BOOL:
            return tree.Store(stmt.at, place, arithmetic.converted(value, result.kind), sign)
        return tree.Store(stmt.at, place, fitting(place, result))

    def atomic(self, stmt: tree.Atomic) -> tree.Stmt:
        place, value, _ = self.place_and_value(stmt.place, stmt.value)
        return dataclasses.replace(stmt, place=place, value=value)

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

    def make_list(self, stmt: tree.MakeList) -> tree.Stmt:
        values = self.sequence(stmt.values)
        if stmt.times > 1:
            values = [value if is_simple(value) else self.kept(value) for value in values]
        return dataclasses.replace(stmt, values=tuple(values))

    # --- expressions ---

    def value(self, expr: Expr, *, alone: bool = False) -> Expr:
        """An expression whose parts are evaluated in their order; one that stands ``alone`` may be evaluated last."""
        match expr:
            case tree.Call(function="real" | "int" | "bool", arguments=(inner,)):
                return rebuilt(expr, (self.value(inner, alone=alone),))
            case tree.Logic() | tree.Choose():
                first, *rest = parts(expr)
                made = (self.value(first), *(self.guarded(part) for part in rest))
                return self.in_turn(rebuilt(expr, made), made[1:], alone=alone)
            case tree.Chain():
                made_chain = self.links(self.value(expr.operands[0]), expr.ops, expr.operands[1:])
                return self.in_turn(made_chain, parts(made_chain), alone=alone)
            case tree.Named():
                value = self.value(expr.value)
                value = value if is_simple(value) else self.kept(value)
                return self.value(replaced(expr.body, tree.Local(value.kind, tree.IT), value), alone=alone)
            case tree.Element():
                return self.place(expr)
            case tree.Invoke():
                given = [self.lasting(part) for part in self.sequence(parts(expr))]
                return self.hoisted(rebuilt(expr, tuple(given)), alone=alone)
        return self.hoisted(rebuilt(expr, tuple(self.sequence(parts(expr)))), alone=alone)

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

    def guarded(self, expr: Expr) -> Expr:
        """What is evaluated only where something else says so, or again and again."""
        return self.closed(lambda: self.value(expr))

    def closed(self, make: Callable[[], Expr]) -> Expr:
        """A value with what is computed before it."""
        outside, self.before = self.before, []
        value = make()
        inside, self.before = self.before, outside
        return tree.Closure(value.kind, tuple(inside), value, at=value.at) if inside else value

    def links(self, left: Expr, ops: Sequence[ast.cmpop], rights: Sequence[Expr]) -> Expr:
        """``left < a < b``."""
        operands, mark = [left], len(self.before)
        right = self.value(rights[0])
        self.keep_disturbed(operands, mark)
        if len(ops) > 1 and not is_simple(right):
            right = self.kept(right)
        if isinstance(ops[0], ast.In | ast.NotIn) and not is_simple(operands[0]):
            operands = [self.kept(operands[0])]
        found = arithmetic.compare(ops[0], operands[0], right)
        if len(ops) == 1:
            return found
        others = self.closed(lambda: self.links(right, ops[1:], rights[1:]))
        return arithmetic.logic(ast.And(), [found, others])

    def in_turn(self, expr: Expr, guarded: Sequence[Expr], *, alone: bool) -> Expr:
        """What may draw numbers where a condition holds, computed in its turn."""
        if alone or not isinstance(expr.kind, Number) or not any(isinstance(part, tree.Closure) for part in guarded):
            return expr
        return self.kept(expr)

    def hoisted(self, expr: Expr, *, alone: bool) -> Expr:
        return expr if alone or not draws(expr) or not isinstance(expr.kind, Number) else self.kept(expr)

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
        elif isinstance(part, tree.Field | tree.Element) and owner_of(part):
            found.add((owner_of(part), field_of(part)))
        elif isinstance(part, tree.Invoke):
            found |= {(p.kind.name, "") for p in part.function.parameters if isinstance(p.kind, Thing)}
    return found


def _read_by(place: Expr) -> Touched:
    """What the indices of a place read."""
    return set().union(*(_read(index) for index in place.indices)) if isinstance(place, tree.Element) else set()


def _written_by(place: Expr) -> Touched:
    return {place.variable} if isinstance(place, tree.Local) else _field(place)


def _field(place: Expr) -> Touched:
    if isinstance(place, tree.Element) and isinstance(place.of, tree.Local):
        return {place.of.variable}
    return {(owner_of(place), field_of(place))}


def _changed(stmts: Sequence[tree.Stmt]) -> Touched:
    """What the functions that statements call change."""
    found: Touched = set()
    for stmt in stmts:
        value = stmt.value if isinstance(stmt, tree.Store | tree.Evaluate) else None
        for part in within(value) if value is not None else ():
            if isinstance(part, tree.Invoke):
                effects = part.function.effects
                found |= {(owner, field) for owner in effects.owners for field in effects.fields}
    return found


def _takes(expr: Expr) -> bool:
    """Whether a value, which stands alone, draws numbers or changes something."""
    return any(draws(part) for part in within(expr))


def _meet(read: Touched, changed: Touched) -> bool:
    if read & changed:
        return True
    whole = {key[0] for key in read if isinstance(key, tuple) and not key[1]}
    return any(isinstance(key, tuple) and key[0] in whole for key in changed)
