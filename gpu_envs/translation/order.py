"""Makes Python's order of evaluation explicit: subexpressions that C++ may reorder become separate statements."""

import ast
import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias, final

from gpu_envs.translation import arithmetic, tree
from gpu_envs.translation.reading.assignments import convert_to_place
from gpu_envs.translation.reading.reader import Reader
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import BOOL, RANDOM, Number, Struct
from gpu_envs.translation.walk import (
    blocks,
    expressions,
    field_of,
    has_effects,
    is_simple,
    parts,
    storage_type,
    subexpressions,
    with_parts,
)

Storage: TypeAlias = set[tree.Variable | tuple[str, str]]
"""Variables, and fields by owner and name; the name ``""`` means all fields of the owner."""


def order_evaluation(reader: Reader, body: Block) -> Block:
    """Return a function's statements with temporaries where C++ may evaluate in another order than Python."""
    return _Order(reader).block(body)


@final
class _Order:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.before: list[tree.Stmt] = []
        """Statements to insert before the current one."""
        self.node: ast.AST = reader.source.tree

    # --- statements ---

    def block(self, block: Block) -> Block:
        outer, result = self.before, []
        for stmt in block:
            self.before, self.node = [], stmt.at
            ordered = self.statement(stmt)
            result += [*self.before, *ordered]
        self.before = outer
        return tuple(result)

    def statement(self, stmt: tree.Stmt) -> list[tree.Stmt]:
        """Return the statements that replace ``stmt``; add the statements that must run first to ``before``."""
        match stmt:
            case tree.Assign(op=None):
                return self.assign(stmt)
            case tree.Assign(places=(place,), values=(value,), op=ast.operator() as op):
                return [self.update(stmt.at, place, op, value)]
            case tree.Atomic():
                place, value, _ = self.place_and_value(stmt.place, stmt.value)
                return [dataclasses.replace(stmt, place=place, value=value)]
            case tree.While():
                result = [self.guarded(stmt.test)]
            case tree.Reduction():
                result = [self.guarded(part, last=True) for part in parts(stmt)]
            case tree.Store(value=value) | tree.Evaluate(value=value) | tree.Return(values=(value,)):
                result = [self.value(value, last=True)]
            case _:
                result = self.sequence(parts(stmt))
        if isinstance(stmt, tree.MakeList) and stmt.times > 1:
            result = [value if is_simple(value) else self.to_temporary(value) for value in result]
        stmt = with_parts(stmt, result)
        if isinstance(stmt, tree.For) and not _is_fixed(stmt.end):
            stmt = dataclasses.replace(stmt, limit=self.reader.new_temporary("end"))
        changes: dict[str, Any] = {name: self.block(block) for name, block in blocks(stmt).items()}
        return [dataclasses.replace(stmt, **changes)]

    def assign(self, stmt: tree.Assign) -> list[tree.Stmt]:
        """Return a Store per place; values that an earlier Store would change are put into temporaries first."""
        single = len(stmt.values) == 1
        values = [self.value(stmt.values[0], last=True)] if single else self.sequence(stmt.values)
        for n, value in enumerate(values):
            if _overlap(_read(value), set().union(*map(_written_by, stmt.places[:n]))):
                values[n] = self.to_temporary(value)
        result: list[tree.Stmt] = []
        for n, place in enumerate(stmt.places):
            self.before, outer = [], self.before
            target = self.place(place)
            inner, self.before = self.before, outer
            for m in range(n, len(values)):
                must_store = inner and (has_effects(values[m]) or _overlap(_read(values[m]), _changed(inner)))
                if must_store or _overlap(_read_by(target), _changed([tree.Evaluate(self.node, values[m])])):
                    values[m] = self.to_temporary(values[m])
            result += [*inner, tree.Store(stmt.at, target, values[n])]
        return result

    def update(self, at: ast.AST, place: Expr, op: ast.operator, value: Expr) -> tree.Store:
        """Return the Store for ``place op= value``, a C++ ``+=`` if its types allow one."""
        place, value, old_value = self.place_and_value(place, value)
        old = old_value or place
        result = arithmetic.binary(op, old, value)
        plain = isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div) and place.kind == result.kind != BOOL
        if plain and old is place and (isinstance(place, tree.Local) or storage_type(place) in ("real", "int")):
            sign = arithmetic.OPERATORS[type(op)][0]
            return tree.Store(at, place, arithmetic.convert(value, result.kind), sign)
        return tree.Store(at, place, convert_to_place(place, result))

    def place_and_value(self, place: Expr, value: Expr) -> tuple[Expr, Expr, Expr | None]:
        """Order a place, then a value; return both, and the place's old value if evaluating the value changes it."""
        place, mark = self.place(place), len(self.before)
        result = self.value(value)
        changed = _changed(self.before[mark:])
        old = None
        if _overlap(_read(place), changed):
            self.before, after = self.before[:mark], self.before[mark:]
            if isinstance(place, tree.Element):
                place = with_parts(place, (place.of, *(self.to_temporary(index) for index in place.indices)))
            old = self.to_temporary(place)
            self.before += after
        return place, result, old

    # --- expressions ---

    def value(self, expr: Expr, *, last: bool = False) -> Expr:
        """Return an expression with ordered operands, in a temporary if it has effects and is not ``last`` in order."""
        match expr:
            case tree.Operation(name="real" | "int" | "bool", operands=(inner,)):
                return with_parts(expr, (self.value(inner, last=last),))
            case tree.Operation(name=",", operands=(first, second)):
                first = self.value(first)
                if not is_simple(first):
                    self.to_temporary(first)
                return self.value(second)
            case tree.Operation(name="&&" | "||" | "?:", operands=(first, *rest)):
                expr = with_parts(expr, [self.value(first), *map(self.guarded, rest)])
            case tree.Chain():
                expr = self.comparisons(expr)
            case tree.Element():
                return self.place(expr)
            case tree.Invoke():
                expr = with_parts(expr, [self.generator_variable(part) for part in self.sequence(parts(expr))])
            case _:
                expr = with_parts(expr, self.sequence(parts(expr)))
        changes = isinstance(expr, tree.Draw | tree.Invoke) and has_effects(expr)
        may_change = any(isinstance(part, tree.Closure) for part in parts(expr))
        if last or not isinstance(expr.kind, Number) or not (changes or may_change):
            return expr
        return self.to_temporary(expr)

    def sequence(self, exprs: Sequence[Expr]) -> list[Expr]:
        """Return expressions evaluated in order; a value that a later expression changes becomes a temporary."""
        result: list[Expr] = []
        for expr in exprs:
            mark = len(self.before)
            value = self.value(expr)
            self.store_changed(result, mark)
            result.append(value)
        return result

    def store_changed(self, values: list[Expr], mark: int) -> None:
        """Replace values that the statements after position ``mark`` change by temporaries, stored at ``mark``."""
        self.before, after = self.before[:mark], self.before[mark:]
        changed = _changed(after)
        for n, value in enumerate(values):
            if _overlap(_read(value), changed):
                values[n] = self.to_temporary(value)
        self.before += after

    def place(self, place: Expr) -> Expr:
        """Return a place with its indices evaluated in order."""
        if not isinstance(place, tree.Element):
            return place
        return with_parts(place, (place.of, *self.sequence(place.indices)))

    def guarded(self, expr: Expr, *, last: bool = False) -> Expr:
        """Return an expression that is evaluated conditionally or repeatedly, with its statements in a closure."""
        outer, self.before = self.before, []
        value = self.value(expr, last=last)
        inner, self.before = self.before, outer
        return tree.Closure(value.kind, tuple(inner), value, at=value.at) if inner else value

    def comparisons(self, chain: tree.Chain) -> Expr:
        """Return a chain of comparisons, ``a < b < c``, as ``a < b and b < c``, with ``b`` evaluated once."""
        (op, *later_ops), (first, second, *more_operands) = chain.ops, chain.operands
        operands = [self.value(first)]
        mark = len(self.before)
        right = self.value(second)
        self.store_changed(operands, mark)
        left = operands[0]
        if later_ops and not is_simple(right):
            right = self.to_temporary(right)
        if isinstance(op, ast.In | ast.NotIn) and not is_simple(left):
            left = self.to_temporary(left)
        comparison = arithmetic.compare(op, left, right)
        if not later_ops:
            return comparison
        rest = dataclasses.replace(chain, ops=tuple(later_ops), operands=(right, *more_operands))
        return arithmetic.logic(ast.And(), [comparison, self.guarded(rest, last=True)])

    def generator_variable(self, expr: Expr) -> Expr:
        """Return a variable for a new generator, so that a function can take a reference; other values unchanged."""
        if expr.kind != RANDOM or is_simple(expr):
            return expr
        name = tree.Local(RANDOM, self.reader.new_temporary("random"))
        self.before.append(tree.Store(self.node, name, expr, declares=True))
        return name

    def to_temporary(self, expr: Expr) -> Expr:
        """Store a value in a temporary, added to ``before``, and return the temporary; a constant needs none."""
        if isinstance(expr, tree.Constant) or (isinstance(expr, tree.Local) and expr.variable.scope < 0):
            return expr
        store, name = self.reader.store_temporary(expr, "drawn" if isinstance(expr, tree.Draw) else "value", self.node)
        self.before.append(store)
        return name


# --- conflicts ---


def _read(expr: Expr) -> Storage:
    """Return the variables and fields that an expression reads."""
    storage: Storage = set()
    for part in subexpressions(expr):
        if isinstance(part, tree.Local):
            storage.add(part.variable)
        elif field_of(part)[0]:
            storage.add(field_of(part))
        elif isinstance(part, tree.Invoke):
            storage |= {(p.kind.name, "") for p in part.function.parameters if isinstance(p.kind, Struct)}
    return storage


def _read_by(place: Expr) -> Storage:
    """Return the variables and fields that the indices of a place read."""
    return set().union(*map(_read, place.indices)) if isinstance(place, tree.Element) else set()


def _written_by(place: Expr) -> Storage:
    root = place.of if isinstance(place, tree.Element) else place
    return {root.variable} if isinstance(root, tree.Local) else {field_of(place)}


def _changed(stmts: Sequence[tree.Stmt]) -> Storage:
    """Return the fields that functions called by the statements may change."""
    storage: Storage = set()
    for part in (part for stmt in stmts for part in expressions(stmt)):
        if isinstance(part, tree.Invoke):
            effects = part.function.effects
            storage |= {(owner, field) for owner in effects.owners for field in effects.fields}
    return storage


def _is_fixed(end: Expr) -> bool:
    """Whether no iteration can change the end of a loop."""
    return isinstance(end, tree.Constant) or (isinstance(end, tree.Field) and end.of in ("", "p"))


def _overlap(read: Storage, changed: Storage) -> bool:
    """Whether something read is changed; ``(owner, "")`` reads all fields of the owner."""
    if read & changed:
        return True
    owners = {key[0] for key in read if isinstance(key, tuple) and not key[1]}
    return any(isinstance(key, tuple) and key[0] in owners for key in changed)
