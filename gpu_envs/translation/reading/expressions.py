"""Expressions: each with its type, operands in the order in which Python evaluates them."""

import ast
import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_envs import rules
from gpu_envs.errors import did_you_mean
from gpu_envs.translation import arithmetic, tree
from gpu_envs.translation.arguments import element
from gpu_envs.translation.arithmetic import converted, number, truth
from gpu_envs.translation.reading.calls import Calls
from gpu_envs.translation.reading.reader import not_set
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.types import BOOL, STATIC, STREAM, Array, Number, Several, Thing, described, wider
from gpu_envs.translation.walk import is_simple, known, literal

_IMPORTED = frozenset(
    name
    for name, found in vars(rules).items()
    if not name.startswith("_")
    and (isinstance(found, rules.Stream) or getattr(found, "__module__", "") == rules.__name__)
)
"""The names of ``gpu_envs.rules``."""

_NAMED_IN = {
    "State": "state=",
    "World": "state=, shared=, scratch= or shared_scratch=",
    "Params": "params=",
    "Metrics": "metrics=",
}
"""By what rules are given: where the spec names its fields."""


class Expressions(Calls):
    """The layer of a reader that reads expressions."""

    def expression(self, node: ast.expr) -> Expr:
        """Reads an expression."""
        with self.at(node):
            return dataclasses.replace(self._expression(node), at=node)

    def _expression(self, node: ast.expr) -> Expr:
        match node:
            case ast.Constant(value=bool() | int() | float() | str()):
                return literal(node.value)
            case ast.Constant():
                raise RefusedError(f"{node.value!r} is not a number", "Rules know ints, floats and bools")
            case ast.Name():
                return self._name(node.id)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return self._subscript(node)
            case ast.BinOp():
                return arithmetic.binary(node.op, self.expression(node.left), self.expression(node.right))
            case ast.UnaryOp(op=ast.Not()):
                return self.condition(node)
            case ast.UnaryOp():
                return arithmetic.unary(node.op, self.expression(node.operand))
            case ast.BoolOp():
                return arithmetic.logic(node.op, [self._bool(part) for part in node.values])
            case ast.Compare():
                return self._compare(node)
            case ast.IfExp():
                return self._conditional(node)
            case ast.Call():
                return self.called(node)
            case ast.Tuple() | ast.List():
                instead = "Lists of a fixed size are made as in x = [0.0] * n, and then indexed"
                raise RefusedError("a tuple or a list is not a number", instead)
        raise RefusedError(f"{type(node).__name__} is not translated")

    def condition(self, node: ast.expr) -> Expr:
        """Reads what is asked: numbers count as true unless they are zero."""
        with self.at(node):
            if isinstance(node, ast.BoolOp):
                return arithmetic.logic(node.op, [self.condition(part) for part in node.values])
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                return arithmetic.unary(node.op, self.condition(node.operand))
            return truth(self.expression(node))

    def _bool(self, node: ast.expr) -> Expr:
        value = self.expression(node)
        if number(value) is not BOOL:
            what = f"'and' and 'or' join bools, and this is {described(value.kind)}"
            raise RefusedError(what, "Write a comparison, as in x != 0", node)
        return value

    def _compare(self, node: ast.Compare) -> Expr:
        operands = [self.expression(node.left), *(self._operand(part) for part in node.comparators)]
        links = [arithmetic.compare(*link) for link in zip(node.ops, operands, operands[1:], strict=False)]
        twice = len(links) > 1 or (isinstance(node.ops[0], ast.In | ast.NotIn) and not is_simple(operands[0]))
        if twice and not all(isinstance(operand, tree.Constant) for operand in operands):
            return tree.Chain(BOOL, tuple(node.ops), tuple(operands))
        return arithmetic.logic(ast.And(), links)

    def _operand(self, node: ast.expr) -> Expr:
        """The right of a comparison: of ``in``, a tuple of constants."""
        if not isinstance(node, ast.Tuple | ast.List | ast.Set):
            return self.expression(node)
        listed = []
        for part in node.elts:
            listed.append(known(self.expression(part)))
            if listed[-1] is None:
                raise RefusedError("what 'in' looks into is made of constants", "Join comparisons with 'or'", part)
        return tree.Constant(STATIC, tuple(listed))

    def _conditional(self, node: ast.IfExp) -> Expr:
        test = self.condition(node.test)
        yes, no = self.expression(node.body), self.expression(node.orelse)
        if isinstance(yes.kind, Number) and isinstance(no.kind, Number):
            kind = wider(yes.kind, no.kind)
            yes, no = converted(yes, kind), converted(no, kind)
            if isinstance(test, tree.Constant):
                return yes if test.value else no
        elif yes.kind != no.kind or not _is_made(yes) or not _is_made(no):
            one, other = (described(part.kind, known(part)) for part in (yes, no))
            raise RefusedError(f"this is {one} or {other}", "Give both sides the same type")
        return tree.Operation(yes.kind, "?:", (test, yes, no))

    # --- fields and elements ---

    def _attribute(self, node: ast.Attribute) -> Expr:
        of, name = self.expression(node.value), node.attr
        value = known(of)
        if isinstance(of.kind, Thing):
            fields = of.kind.fields
            if name not in fields:
                what = f"the {of.kind.name} has no field {name!r}{did_you_mean(name, fields)}".rstrip(".")
                where = _NAMED_IN.get(of.kind.name)
                further = "" if where is None else f". The spec names others, in {where}"
                raise RefusedError(what, f"Its fields are: {', '.join(fields) or 'none'}{further}")
            found: Expr = fields[name]
            return found
        if isinstance(of.kind, Array) and name == "shape":
            return tree.Constant(STATIC, of.kind.sizes)
        if of.kind is STATIC and isinstance(value, types.ModuleType | type | types.SimpleNamespace):
            if not hasattr(value, name):
                meant = did_you_mean(name, [word for word in vars(value) if not word.startswith("_")])
                raise RefusedError(f"{ast.unparse(node.value)} has no {name!r}{meant}".rstrip("."))
            inside = getattr(value, name)
            return self._meaning(getattr(inside, "value", inside) if isinstance(value, type) else inside)
        if name == "value" and value is not None and isinstance(of.kind, Number):
            return of  # of an enum's member
        raise RefusedError(f"{described(of.kind, value)} has no {name!r} in rules")

    def _subscript(self, node: ast.Subscript) -> Expr:
        of = self.expression(node.value)
        entries = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        indices = [self.expression(entry) for entry in entries]
        if isinstance(of.kind, Array):
            return element(of, indices)
        if isinstance(of.kind, Several):
            left = ", ".join("abcdefgh"[: len(of.kind.kinds)])
            instead = f"Take them apart in an assignment: {left} = {ast.unparse(node.value)}"
            raise RefusedError(f"{described(of.kind)} are not indexed", instead)
        found = known(of)
        if of.kind is not STATIC or not isinstance(found, tuple | list | np.ndarray):
            if isinstance(found, Mapping):
                raise RefusedError("dicts cannot be used in rules", "Use a tuple or an array, indexed by whole numbers")
            raise RefusedError(f"{described(of.kind, found)} has no elements")
        if not all(isinstance(index, tree.Constant) for index in indices):
            return element(self.unit.constants(self._resolved(found)), indices)
        for index in indices:
            try:
                found = found[known(index)]
            except (IndexError, TypeError):
                raise RefusedError(f"index {known(index)} is outside") from None
        return self._meaning(found)

    def _resolved(self, values: Any) -> Any:
        """The same numbers, with those in place of the spec's constants."""
        if isinstance(values, tuple | list):
            return [self._resolved(value) for value in values]
        return known(self._meaning(values)) if isinstance(values, rules.Constant) else values

    # --- names ---

    def _name(self, name: str) -> Expr:
        variable = self.variable(name)
        if variable is not None:
            if variable not in self.types:
                raise not_set(name)
            return tree.Local(self.types[variable], variable)
        if name in self.arguments:
            found = self.arguments[name]
            if self.between and isinstance(found.kind, Thing) and found.kind.name in ("World", "Metrics"):
                instead = "Move it into a phase: for i in team.agents():"
                raise RefusedError("what stands between phases does not depend on the world", instead)
            return found
        if name in self.elsewhere:
            raise RefusedError(
                f"{name!r} was set in another phase, and nothing but fields of the world lasts from one to the next",
                "Keep it in a field: TeamSpec(scratch={...})",
            )
        return self._outside(name)

    def _outside(self, name: str) -> Expr:
        """What a name from outside the function means."""
        capitals = self.unit.arguments.capitals
        try:
            found = self.written.find(name)
        except KeyError:
            if name in capitals:
                return capitals[name]
            if name in _IMPORTED:
                raise RefusedError(f"{name!r} is not imported", f"from gpu_envs.rules import {name}") from None
            module = (word for word in self.written.function.__globals__ if not word.startswith("_"))
            words = {*self.names, *capitals, *self.arguments, *module} - {name}
            what = f"{name!r} is not known here{did_you_mean(name, words)}".rstrip(".")
            names = "locals, arguments, functions and numbers of the module, and the spec's constants in capitals"
            raise RefusedError(what, f"Known are {names}") from None
        return self._meaning(found)

    def _meaning(self, found: Any) -> Expr:
        """Something of the module, or of Python's."""
        if isinstance(found, rules.Constant):
            capitals = self.unit.arguments.capitals
            if found.name not in capitals:
                raise RefusedError(
                    f"the spec has no constant {found.name}{did_you_mean(found.name, capitals)}".rstrip("."),
                    "Constants are AGENTS, the roles and the parameters marked fixed, in capitals",
                )
            return capitals[found.name]
        if isinstance(found, rules.Stream):
            return tree.Constant(STREAM, found, "RESET" if found is rules.RESET else "STEP")
        if isinstance(found, np.ndarray) and found.ndim == 0:
            instead = "Make it one in the module: float(...)"
            raise RefusedError("this is an array without dimensions, and not a number", instead)
        if isinstance(found, np.generic):
            found = found.item()
        if isinstance(found, int) and not isinstance(found, bool):
            found = int(found)  # of an enum
        return literal(found)


def _is_made(expr: Expr) -> bool:
    """Whether an expression that is no number can be chosen: a choice of words, actions, a new source of numbers."""
    return not isinstance(expr, tree.Constant) and not (isinstance(expr.kind, Thing) and isinstance(expr, tree.Local))
