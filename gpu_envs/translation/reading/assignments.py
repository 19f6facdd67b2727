"""Assignments to local variables, to local lists, which are arrays in C++, and to fields."""

import ast
import dataclasses
from collections.abc import Iterator, Sequence

from gpu_envs.translation import arithmetic, tree, types
from gpu_envs.translation.arguments import PARAMETERS_READ_ONLY
from gpu_envs.translation.arithmetic import convert, write_only
from gpu_envs.translation.reading.expressions import Expressions
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.types import INT, LIST, Array, Number, Struct, Tuple, describe, list_of, wider
from gpu_envs.translation.walk import constant_value, field_of, is_simple, storage_type

MAX_LIST_LENGTH = 4096
"""Maximum number of elements of a list."""

_MAX_BYTE = 255


class Assignments(Expressions):
    """Layer of the reader for assignments."""

    def assignment(self, node: ast.Assign) -> Iterator[tree.Stmt]:
        """Read ``a = b``, ``a, b = c, d`` or ``a = b = c``; yield the statements that replace it."""
        match node.targets:
            case [ast.Tuple(elts=targets) | ast.List(elts=targets)]:
                yield from self._unpack(node, targets)
            case [ast.Name() as target] if _is_list(node.value):
                yield self._make_list(node, target, node.value)
            case [target] if _is_list(node.value):
                raise RefusedError("rules cannot assign a whole array", "Assign its elements in a loop", target)
            case [target]:
                yield self._assign(node, [target], [self.expression(node.value)])
            case targets:
                value = self.expression(node.value)
                if isinstance(value.kind, Number) and not is_simple(value):
                    store, value = self.store_temporary(value, "value", node)
                    yield store
                for target in targets:
                    if isinstance(target, ast.Tuple | ast.List):
                        hint = "Write separate assignments"
                        raise RefusedError("a chained assignment cannot unpack", hint, target)
                    if isinstance(value.kind, Struct):
                        hint = f"Write one name: {ast.unparse(targets[0])} = {ast.unparse(node.value)}"
                        raise RefusedError(f"{describe(value.kind)} cannot have two names", hint, target)
                    yield self._assign(node, [target], [value])

    def _unpack(self, node: ast.Assign, targets: Sequence[ast.expr]) -> Iterator[tree.Stmt]:
        value_node = node.value
        if isinstance(value_node, ast.Tuple | ast.List):
            if len(value_node.elts) != len(targets):
                raise RefusedError(f"{len(value_node.elts)} values are assigned to {len(targets)} names", at=node)
            yield self._assign(node, targets, [self.expression(part) for part in value_node.elts])
            return
        result = self.expression(value_node)
        if not isinstance(result.kind, Tuple) or len(result.kind.kinds) != len(targets):
            problem = f"{describe(result.kind, constant_value(result))} is assigned to {len(targets)} names"
            raise RefusedError(problem, at=value_node)
        store, name = self.store_temporary(result, "result", node)
        yield store
        kinds = enumerate(result.kind.kinds)
        numbers = [tree.Operation(kind, f".value{n}", (name,), at=value_node) for n, kind in kinds]
        yield self._assign(node, targets, numbers)

    def annotated_assignment(self, node: ast.AnnAssign) -> Iterator[tree.Stmt]:
        """Read ``a: float = b``, with ``b`` converted to the annotated type; without a value yield nothing."""
        if not isinstance(node.target, ast.Name):
            raise RefusedError("the spec declares the types of fields", "Remove the annotation", node.target)
        if node.value is None:
            return
        if _is_list(node.value):
            yield self._make_list(node, node.target, node.value)
            return
        value, kind = self.expression(node.value), types.NUMBERS.get(ast.unparse(node.annotation))
        yield self._assign(node, [node.target], [value if kind is None else convert(value, kind)])

    def augmented_assignment(self, node: ast.AugAssign) -> tree.Assign:
        """Read an augmented assignment, such as ``a += b``."""
        value, place = self.expression(node.value), self.expression(node.target)
        result = dataclasses.replace(arithmetic.binary(node.op, place, value), at=node.value)
        if isinstance(node.target, ast.Name):
            place = self.record_type(node.target.id, result.kind, node)
        else:
            place = self._widen_list(node.target, place, result, node)
            self._check_place(place, node.target)
            convert_to_place(place, result)
        return tree.Assign(node, (place,), (value,), node.op)

    # --- places ---

    def _assign(self, node: ast.stmt, targets: Sequence[ast.expr], values: Sequence[Expr]) -> tree.Assign:
        places, converted_values = [], []
        for target, value in zip(targets, values, strict=True):
            if isinstance(target, ast.Name):
                place: Expr = self._assigned_local(target, value, node)
                converted_values.append(convert(value, place.kind) if isinstance(place.kind, Number) else value)
            elif isinstance(target, ast.Attribute | ast.Subscript):
                place = self._widen_list(target, self.expression(target), value, node)
                self._check_place(place, target)
                if field_of(place) == ("World", "in_game") and constant_value(value) is True:
                    problem = "rules cannot set in_game to True: inactive agents stay inactive until the reset"
                    hint = "Add a bool field to the spec, such as alive, for agents that pause"
                    raise RefusedError(problem, hint, target)
                converted_values.append(convert_to_place(place, value))
            else:
                raise RefusedError("this cannot be assigned", "Assign to variables, fields and elements", target)
            places.append(place)
        return tree.Assign(node, tuple(places), tuple(converted_values))

    def _widen_list(self, target: ast.expr, place: Expr, value: Expr, node: ast.stmt) -> Expr:
        """Return the place; if it is an element of a local list, widen the list's type to the value assigned."""
        if not isinstance(place, tree.Element) or not isinstance(place.of, tree.Local):
            return place
        of, variable = place.of.kind, place.of.variable
        if not isinstance(of, Array) or of.cpp != LIST or not isinstance(value.kind, Number):
            return place
        if of.refusal:
            raise RefusedError(of.refusal, "Make it a list: [a, b]", target)
        if variable.scope != self.scopes[-1].number:
            problem = f"{variable.name!r} is created outside the loop, and its iterations cannot share a list"
            raise RefusedError(problem, "Create it in the loop; store lasting values in a field of the world", target)
        local = self.record_type(variable.name, list_of(wider(of.kind, value.kind), of.sizes), node)
        assert isinstance(local.kind, Array)
        return dataclasses.replace(place, kind=local.kind.kind, of=local)

    def _check_place(self, place: Expr, target: ast.expr) -> None:
        """Refuse a place that rules must not write."""
        array = place.of.kind if isinstance(place, tree.Element) else place.kind
        refusal = array.refusal if isinstance(array, Array) else place.refusal if isinstance(place, tree.Field) else ""
        if isinstance(place, tree.Constant) and place.name:
            refusal = PARAMETERS_READ_ONLY
        if refusal:
            raise RefusedError(refusal, at=target)
        if isinstance(place.kind, Array):
            raise RefusedError("rules cannot assign a whole array", "Assign its elements in a loop", target)
        if storage_type(place):
            return
        roots = {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
        if not roots <= {*self.arguments, *(name for scope in self.scopes for name in scope.assigned)}:
            problem = f"{ast.unparse(target)} is a constant of the module, which cannot be assigned"
            raise RefusedError(problem, "Use a field of the spec's state for values that change", target)
        hint = "Store the value in a local variable or a field"
        raise RefusedError(f"{ast.unparse(target)} is read-only", hint, target)

    def _assigned_local(self, target: ast.Name, value: Expr, node: ast.stmt) -> tree.Local:
        """Return the variable that an assignment sets, its type widened to hold the value; refuse other values."""
        name, kind = target.id, value.kind
        if isinstance(kind, Array) and kind.cpp in ("", LIST):
            raise RefusedError("an array cannot have two names", "Use the first one, or copy its elements", node)
        if write_only(value):
            raise RefusedError("observations are write-only", "Compute the value in a local variable", node)
        if isinstance(kind, Tuple):
            raise RefusedError(f"{describe(kind)} are assigned to one name", f"Write {name}, other = ...", node)
        if isinstance(kind, Struct) and isinstance(value, tree.Local | tree.Field):
            raise RefusedError(f"{describe(kind)} cannot have two names", "Use the first one", node)
        if isinstance(value, tree.Constant) and not isinstance(kind, Number):
            raise RefusedError(f"{describe(kind, value.value)} cannot be stored in a local variable", at=node)
        if kind is types.STATIC:
            raise RefusedError("this function returns nothing", "Write the call as a statement", node)
        argument = self.arguments.get(name)
        if argument is not None and not isinstance(argument.kind, Number):
            raise RefusedError(f"{name!r} is {describe(argument.kind)}", "Use another name", target)
        return self.record_type(name, kind, target)

    def _make_list(self, node: ast.stmt, target: ast.Name, value_node: ast.expr) -> tree.MakeList:
        """Read ``x = [a, b]``, ``x = [a] * n`` or ``x = (a, b)``; a tuple's elements are read-only."""
        elements, times = value_node, 1
        if isinstance(value_node, ast.BinOp):
            count = self.expression(value_node.right)
            if count.kind is not INT or constant_value(count) is None:
                hint = "Write a number, a constant of the module, or a fixed parameter"
                raise RefusedError("the length of a list must be a constant", hint, value_node.right)
            elements, times = value_node.left, constant_value(count)
        assert isinstance(elements, ast.List | ast.Tuple)
        values = [self.expression(part) for part in elements.elts]
        length = len(values) * times
        if not 1 <= length <= MAX_LIST_LENGTH:
            raise RefusedError(f"this list has {length} elements; allowed are 1 to {MAX_LIST_LENGTH}", at=value_node)
        kind: types.Type = types.BOOL
        for value in values:
            if not isinstance(value.kind, Number):
                problem = (
                    f"elements of a list must be numbers, and this is {describe(value.kind, constant_value(value))}"
                )
                raise RefusedError(problem, at=value.at)
            kind = wider(kind, value.kind)
        list_type = list_of(kind, (length,))
        if isinstance(elements, ast.Tuple):
            list_type = dataclasses.replace(list_type, refusal="the elements of a tuple cannot be assigned")
        place = self.record_type(target.id, list_type, node)
        assert isinstance(place.kind, Array)
        of = place.kind.kind
        return tree.MakeList(node, place.variable, place.kind, tuple(convert(value, of) for value in values), times)


def convert_to_place(place: Expr, value: Expr) -> Expr:
    """Return a value converted to the type of a field or element; refuse a wider type, or a byte out of range."""
    assert isinstance(place.kind, Number)
    stored = storage_type(place)
    name = ast.unparse(place.at) if place.at is not None else "it"
    if isinstance(value.kind, Number) and value.kind.width > place.kind.width:
        to_bool = "True, False, or a comparison, as in x != 0"
        conversion = "int(...), or make the field real" if place.kind is INT else to_bool
        kind = {"int": "int", "bool": "bool", "u8": "byte", "AgentNumber": "agent"}.get(stored, place.kind.python)
        problem = f"{describe(value.kind)} is assigned to {name}, which is of type {kind}"
        raise RefusedError(problem, f"Write {conversion}", value.at)
    if stored == "u8" and isinstance(value, tree.Constant) and not 0 <= value.value <= _MAX_BYTE:
        problem = f"{value.value} does not fit {name}, which is a byte: 0 to {_MAX_BYTE}"
        raise RefusedError(problem, "Use a smaller number, or the type int in the spec", value.at)
    return convert(value, place.kind)


def _is_list(node: ast.expr) -> bool:
    """Whether an expression creates a list or a tuple: ``[a, b]``, ``(a, b)`` or ``[a] * n``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        node = node.left
    return isinstance(node, ast.List | ast.Tuple)
