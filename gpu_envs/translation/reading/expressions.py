"""Typed expressions, with operands in Python's order of evaluation."""

import ast
import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_envs import rules
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.base import Spec
from gpu_envs.translation import arithmetic, tree
from gpu_envs.translation.arguments import element
from gpu_envs.translation.arithmetic import convert, number_type, to_bool
from gpu_envs.translation.reading.calls import Calls
from gpu_envs.translation.reading.reader import not_set
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.types import BOOL, STATIC, STREAM, Array, Number, Struct, Tuple, describe, wider
from gpu_envs.translation.walk import constant_value, is_simple, literal

_RULES_NAMES = frozenset(
    name
    for name, value in vars(rules).items()
    if not name.startswith("_")
    and (isinstance(value, rules.Stream) or getattr(value, "__module__", "") == rules.__name__)
)
"""The names of ``gpu_envs.rules``."""

_SPEC_ARGUMENTS = {
    "State": "state=",
    "World": "state=, shared=, scratch= or shared_scratch=",
    "Params": "params=",
    "Metrics": "metrics=",
}
"""Arguments of the spec that define the fields of each argument of the rules."""


class Expressions(Calls):
    """Layer of the reader for expressions."""

    def expression(self, node: ast.expr) -> Expr:
        with self.at(node):
            return dataclasses.replace(self._expression(node), at=node)

    def _expression(self, node: ast.expr) -> Expr:
        match node:
            case ast.Constant(value=bool() | int() | float() | str()):
                return literal(node.value)
            case ast.Constant():
                raise RefusedError(f"{node.value!r} is not a number", "Use an int, a float or a bool")
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
                return arithmetic.logic(node.op, [self._bool_operand(part) for part in node.values])
            case ast.Compare():
                return self._compare(node)
            case ast.IfExp():
                return self._conditional(node)
            case ast.Call():
                return self.call(node)
            case ast.Tuple() | ast.List():
                hint = "Create a list of fixed size with x = [0.0] * n, and index it"
                raise RefusedError("a tuple or a list is not a number", hint)
        raise RefusedError(f"{type(node).__name__} is not translated")

    def condition(self, node: ast.expr) -> Expr:
        """Read a condition as a bool; numbers are true unless they are zero."""
        with self.at(node):
            if isinstance(node, ast.BoolOp):
                return arithmetic.logic(node.op, [self.condition(part) for part in node.values])
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                return arithmetic.unary(node.op, self.condition(node.operand))
            return to_bool(self.expression(node))

    def _bool_operand(self, node: ast.expr) -> Expr:
        value = self.expression(node)
        if number_type(value) is not BOOL:
            problem = f"'and' and 'or' join bools, and this is {describe(value.kind)}"
            raise RefusedError(problem, "Write a comparison, as in x != 0", node)
        return value

    def _compare(self, node: ast.Compare) -> Expr:
        """Read a comparison, also chained or with ``in``, which evaluates each operand once."""
        operands = [self.expression(node.left), *(self._operand(part) for part in node.comparators)]
        links = [arithmetic.compare(*link) for link in zip(node.ops, operands, operands[1:], strict=False)]
        is_chained = len(links) > 1 or (isinstance(node.ops[0], ast.In | ast.NotIn) and not is_simple(operands[0]))
        if is_chained and not all(isinstance(operand, tree.Constant) for operand in operands):
            return tree.Chain(BOOL, tuple(node.ops), tuple(operands))
        return arithmetic.logic(ast.And(), links)

    def _operand(self, node: ast.expr) -> Expr:
        """Read a right operand of a comparison: a value, or a constant tuple for ``in``."""
        if not isinstance(node, ast.Tuple | ast.List | ast.Set):
            return self.expression(node)
        values = []
        for part in node.elts:
            values.append(constant_value(self.expression(part)))
            if values[-1] is None:
                raise RefusedError("'in' needs a tuple of constants", "Write comparisons joined with 'or'", part)
        return tree.Constant(STATIC, tuple(values))

    def _conditional(self, node: ast.IfExp) -> Expr:
        test = self.condition(node.test)
        yes, no = self.expression(node.body), self.expression(node.orelse)
        if isinstance(yes.kind, Number) and isinstance(no.kind, Number):
            kind = wider(yes.kind, no.kind)
            yes, no = convert(yes, kind), convert(no, kind)
            if isinstance(test, tree.Constant):
                return yes if test.value else no
        elif yes.kind != no.kind or not _is_selectable(yes) or not _is_selectable(no):
            one, other = (describe(part.kind, constant_value(part)) for part in (yes, no))
            hint = "Give two numbers, such as LEFT = 0 of the module, or write if and else"
            raise RefusedError(f"a conditional expression selects {one} or {other}", hint)
        return tree.Operation(yes.kind, "?:", (test, yes, no))

    # --- fields and elements ---

    def _attribute(self, node: ast.Attribute) -> Expr:
        owner, name = self.expression(node.value), node.attr
        value = constant_value(owner)
        if isinstance(owner.kind, Struct):
            fields = owner.kind.fields
            if name not in fields:
                problem = f"the {owner.kind.name} has no field {name!r}{did_you_mean(name, fields)}".rstrip(".")
                spec_arguments = _SPEC_ARGUMENTS.get(owner.kind.name)
                more = "" if spec_arguments is None else f". The spec defines more with {spec_arguments}"
                raise RefusedError(problem, f"Its fields are: {', '.join(fields) or 'none'}{more}")
            field: Expr = fields[name]
            return field
        if isinstance(owner.kind, Array) and name == "shape":
            return tree.Constant(STATIC, owner.kind.sizes)
        if owner.kind is STATIC and isinstance(value, types.ModuleType | type | types.SimpleNamespace):
            if not hasattr(value, name):
                suggestion = did_you_mean(name, [other for other in vars(value) if not other.startswith("_")])
                raise RefusedError(f"{ast.unparse(node.value)} has no {name!r}{suggestion}".rstrip("."))
            member = getattr(value, name)
            return self._value(getattr(member, "value", member) if isinstance(value, type) else member)
        if name == "value" and value is not None and isinstance(owner.kind, Number):
            return owner  # the value of an enum member
        hint = f"Write {ast.unparse(node.value)}.shape[0]" if isinstance(owner.kind, Array) and name == "size" else ""
        raise RefusedError(f"{describe(owner.kind, value)} has no {name!r} in rules", hint)

    def _subscript(self, node: ast.Subscript) -> Expr:
        owner = self.expression(node.value)
        index_nodes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        indices = [self.expression(index_node) for index_node in index_nodes]
        if isinstance(owner.kind, Array):
            return element(owner, indices)
        if isinstance(owner.kind, Tuple):
            targets = ", ".join("abcdefgh"[: len(owner.kind.kinds)])
            hint = f"Unpack the result in an assignment: {targets} = {ast.unparse(node.value)}"
            raise RefusedError(f"{describe(owner.kind)} cannot be indexed", hint)
        value = constant_value(owner)
        if owner.kind is not STATIC or not isinstance(value, tuple | list | np.ndarray):
            if isinstance(value, Mapping):
                raise RefusedError("rules cannot use dicts", "Use a tuple or an array, indexed by int")
            raise RefusedError(f"{describe(owner.kind, value)} has no elements")
        if not all(isinstance(index, tree.Constant) for index in indices):
            return element(self.unit.constant_table(self._with_spec_constants(value)), indices)
        for index in indices:
            try:
                value = value[constant_value(index)]
            except (IndexError, TypeError):
                raise RefusedError(f"index {constant_value(index)} is out of range") from None
        return self._value(value)

    def _with_spec_constants(self, values: Any) -> Any:
        """Return nested tuples as lists, with constants of the spec, such as ``AGENTS``, replaced by their values."""
        if isinstance(values, tuple | list):
            return [self._with_spec_constants(value) for value in values]
        return constant_value(self._value(values)) if isinstance(values, rules.Constant) else values

    # --- names ---

    def _name(self, name: str) -> Expr:
        variable = self.variable(name)
        if variable is not None:
            if variable not in self.types:
                raise not_set(name)
            return tree.Local(self.types[variable], variable)
        if name in self.arguments:
            argument = self.arguments[name]
            if self.between_phases and isinstance(argument.kind, Struct) and argument.kind.name in ("World", "Metrics"):
                hint = "Move it into a phase: for i in team.agents():, or team.agents(n) for n iterations"
                raise RefusedError("code between phases must not depend on the world", hint)
            return argument
        if name in self.earlier_names:
            raise RefusedError(
                f"{name!r} was set in another phase; only fields of the world keep their values between phases",
                "Store it in a field: TeamSpec(scratch={...})",
            )
        return self._global(name)

    def _global(self, name: str) -> Expr:
        """Return the constant that a name means in the module, builtins or spec; refuse an unknown name."""
        spec_constants = self.unit.arguments.spec_constants
        try:
            value = self.source.find(name)
        except KeyError:
            if name in spec_constants:
                return spec_constants[name]
            if name in _RULES_NAMES:
                raise RefusedError(f"{name!r} is not imported", f"from gpu_envs.rules import {name}") from None
            module = (other for other in self.source.function.__globals__ if not other.startswith("_"))
            candidates = {*self.names, *spec_constants, *self.arguments, *module} - {name}
            problem = f"{name!r} is not defined here{did_you_mean(name, candidates)}".rstrip(".")
            names = "locals, arguments, functions and numbers of the module, and the spec's constants in upper case"
            raise RefusedError(problem, f"Use {names}") from None
        if name in spec_constants and isinstance(value, Spec):
            raise RefusedError(f"{name} is a constant of the rules, and the spec in the module", "Rename the spec")
        return self._value(value)

    def _value(self, value: Any) -> Expr:
        """Return the constant for a Python value; the spec gives the values of constants such as ``AGENTS``."""
        if isinstance(value, rules.Constant):
            spec_constants = self.unit.arguments.spec_constants
            if value.name not in spec_constants:
                raise RefusedError(
                    f"the spec has no constant {value.name}{did_you_mean(value.name, spec_constants)}".rstrip("."),
                    "Constants are AGENTS, the roles and the parameters with fixed=True, in upper case",
                )
            return spec_constants[value.name]
        if isinstance(value, rules.Stream):
            return tree.Constant(STREAM, value, "RESET" if value is rules.RESET else "STEP")
        if isinstance(value, np.ndarray) and value.ndim == 0:
            hint = "Convert it in the module: float(...)"
            raise RefusedError("this is an array without dimensions, and not a number", hint)
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, int) and not isinstance(value, bool):
            value = int(value)  # a member of an IntEnum
        return literal(value)


def _is_selectable(expr: Expr) -> bool:
    """Whether a conditional expression may select a value that is not a number: a choice, an action, a generator."""
    return not isinstance(expr, tree.Constant) and not (isinstance(expr.kind, Struct) and isinstance(expr, tree.Local))
