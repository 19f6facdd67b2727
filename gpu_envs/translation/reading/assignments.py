"""Assignments: to locals, to lists of the function's own, which are arrays in C++, and to fields."""

import ast
import dataclasses
from collections.abc import Iterator, Sequence

from gpu_envs.translation import arithmetic, tree, types
from gpu_envs.translation.arguments import PARAMETERS_STAY
from gpu_envs.translation.arithmetic import converted, write_only
from gpu_envs.translation.reading.expressions import Expressions
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Expr
from gpu_envs.translation.types import INT, LIST, Array, Number, Several, Thing, described, list_of, wider
from gpu_envs.translation.walk import field_of, is_simple, known, stored_as

LONGEST_LIST = 4096
"""Elements of a list."""

_MOST_OF_A_BYTE = 255


class Assignments(Expressions):
    """The layer of a reader that reads assignments."""

    def assigned(self, node: ast.Assign) -> Iterator[tree.Stmt]:
        """``a = b``, ``a, b = c, d`` and ``a = b = c``."""
        match node.targets:
            case [ast.Tuple(elts=targets) | ast.List(elts=targets)]:
                yield from self._unpacked(node, targets)
            case [ast.Name() as target] if _is_list(node.value):
                yield self._made_list(node, target, node.value)
            case [target] if _is_list(node.value):
                raise RefusedError("an array is not assigned as a whole", "Assign its elements in a loop", target)
            case [target]:
                yield self._stored(node, [target], [self.expression(node.value)])
            case targets:
                value = self.expression(node.value)
                if isinstance(value.kind, Number) and not is_simple(value):
                    held, value = self.kept(value, "value", node)
                    yield held
                for target in targets:
                    if isinstance(target, ast.Tuple | ast.List):
                        instead = "Write one assignment for each"
                        raise RefusedError("this unpacks what is assigned to several", instead, target)
                    if isinstance(value.kind, Thing):
                        raise RefusedError(f"{described(value.kind)} has no second name", "Write its own", target)
                    yield self._stored(node, [target], [value])

    def _unpacked(self, node: ast.Assign, targets: Sequence[ast.expr]) -> Iterator[tree.Stmt]:
        given = node.value
        if isinstance(given, ast.Tuple | ast.List):
            if len(given.elts) != len(targets):
                raise RefusedError(f"{len(given.elts)} values are assigned to {len(targets)} names", at=node)
            yield self._stored(node, targets, [self.expression(part) for part in given.elts])
            return
        result = self.expression(given)
        if not isinstance(result.kind, Several) or len(result.kind.kinds) != len(targets):
            raise RefusedError(f"{described(result.kind, known(result))} is assigned to {len(targets)} names", at=given)
        held, name = self.kept(result, "result", node)
        yield held
        numbers = [tree.Operation(kind, f".value{n}", (name,), at=given) for n, kind in enumerate(result.kind.kinds)]
        yield self._stored(node, targets, numbers)

    def assigned_annotated(self, node: ast.AnnAssign) -> Iterator[tree.Stmt]:
        """``a: float = b``."""
        if not isinstance(node.target, ast.Name):
            raise RefusedError("fields have their type in the spec", "Leave the annotation out", node.target)
        if node.value is None:
            return
        if _is_list(node.value):
            yield self._made_list(node, node.target, node.value)
            return
        value, kind = self.expression(node.value), types.NUMBERS.get(ast.unparse(node.annotation))
        yield self._stored(node, [node.target], [value if kind is None else converted(value, kind)])

    def updated(self, node: ast.AugAssign) -> tree.Assign:
        """``a += b`` and its like."""
        value, place = self.expression(node.value), self.expression(node.target)
        result = dataclasses.replace(arithmetic.binary(node.op, place, value), at=node.value)
        if isinstance(node.target, ast.Name):
            place = self.learn(node.target.id, result.kind, node)
        else:
            place = self._widened(node.target, place, result, node)
            self._check_place(place, node.target)
            fitting(place, result)
        return tree.Assign(node, (place,), (value,), node.op)

    # --- places ---

    def _stored(self, node: ast.stmt, targets: Sequence[ast.expr], values: Sequence[Expr]) -> tree.Assign:
        places, fitted = [], []
        for target, value in zip(targets, values, strict=True):
            if isinstance(target, ast.Name):
                place: Expr = self._local(target, value, node)
                fitted.append(converted(value, place.kind) if isinstance(place.kind, Number) else value)
            elif isinstance(target, ast.Attribute | ast.Subscript):
                place = self._widened(target, self.expression(target), value, node)
                self._check_place(place, target)
                if field_of(place) == ("World", "in_game") and known(value) is True:
                    instead = "Use a bool field of your own, such as alive, for agents that pause"
                    raise RefusedError("agents that are out of the game do not come back", instead, target)
                fitted.append(fitting(place, value))
            else:
                raise RefusedError("this cannot be assigned", at=target)
            places.append(place)
        return tree.Assign(node, tuple(places), tuple(fitted))

    def _widened(self, target: ast.expr, place: Expr, value: Expr, node: ast.stmt) -> Expr:
        """Has a list of the function's own hold what one of its elements is assigned."""
        if not (
            isinstance(place, tree.Element) and isinstance(place.of, tree.Local) and isinstance(value.kind, Number)
        ):
            return place
        of, variable = place.of.kind, place.of.variable
        if not isinstance(of, Array) or of.cpp != LIST:
            return place
        if of.refusal:
            raise RefusedError(of.refusal, "Make it a list: [a, b]", target)
        if variable.frame != self.frames[-1].number:
            what = f"{variable.name!r} is made outside, and turns have lists of their own"
            raise RefusedError(what, "Make it in the turn; what lasts is a field of the world", target)
        learned = self.learn(variable.name, list_of(wider(of.kind, value.kind), of.sizes), node)
        assert isinstance(learned.kind, Array)
        return dataclasses.replace(place, kind=learned.kind.kind, of=learned)

    def _check_place(self, place: Expr, target: ast.expr) -> None:
        """Refuses what rules must not write here."""
        array = place.of.kind if isinstance(place, tree.Element) else place.kind
        refusal = array.refusal if isinstance(array, Array) else place.refusal if isinstance(place, tree.Field) else ""
        if isinstance(place, tree.Constant) and place.name:
            refusal = PARAMETERS_STAY
        if refusal:
            raise RefusedError(refusal, at=target)
        if isinstance(place.kind, Array):
            raise RefusedError("an array is not assigned as a whole", "Assign its elements in a loop", target)
        if stored_as(place):
            return
        roots = {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
        if not roots <= {*self.arguments, *(name for frame in self.frames for name in frame.stored)}:
            what = f"{ast.unparse(target)} is a constant of the module, which cannot be assigned"
            raise RefusedError(what, "Keep what changes in the spec's state", target)
        raise RefusedError(f"{described(place.kind, known(place))} cannot be assigned", at=target)

    def _local(self, target: ast.Name, value: Expr, node: ast.stmt) -> tree.Local:
        name, kind = target.id, value.kind
        if isinstance(kind, Array) and kind.cpp in ("", LIST):
            raise RefusedError("an array has no second name", "Write its own, or copy its elements in a loop", node)
        if write_only(value):
            raise RefusedError("what is observed is written and not read", "Compute it in a local first", node)
        if isinstance(kind, Several):
            raise RefusedError(f"{described(kind)} are assigned to one name", f"Write {name}, other = ...", node)
        if isinstance(kind, Thing) and isinstance(value, tree.Local | tree.Field):
            raise RefusedError(f"{described(kind)} has no second name", "Write its own", node)
        if isinstance(value, tree.Constant) and not isinstance(kind, Number):
            raise RefusedError(f"{described(kind, value.value)} cannot be held by a local", at=node)
        if kind is types.STATIC:
            raise RefusedError("a function that returns nothing has no value", "Let the call stand alone", node)
        given = self.arguments.get(name)
        if given is not None and not isinstance(given.kind, Number):
            raise RefusedError(f"{name!r} is {described(given.kind)}", "Use another name", target)
        return self.learn(name, kind, target)

    def _made_list(self, node: ast.stmt, target: ast.Name, given: ast.expr) -> tree.MakeList:
        """``x = [a, b]`` or ``x = [a] * n``; a tuple's elements stay."""
        listed, times = given, 1
        if isinstance(given, ast.BinOp):
            count = self.expression(given.right)
            if count.kind is not INT or known(count) is None:
                instead = "Write a number, one of the module's, or a fixed parameter"
                raise RefusedError("a list's length is a constant", instead, given.right)
            listed, times = given.left, known(count)
        assert isinstance(listed, ast.List | ast.Tuple)
        values = [self.expression(part) for part in listed.elts]
        length = len(values) * times
        if not 1 <= length <= LONGEST_LIST:
            raise RefusedError(f"this list has {length} elements; 1 to {LONGEST_LIST} are possible", at=given)
        kind: types.Type = types.BOOL
        for value in values:
            if not isinstance(value.kind, Number):
                raise RefusedError(
                    f"lists are of numbers, and this is {described(value.kind, known(value))}", at=value.at
                )
            kind = wider(kind, value.kind)
        made = list_of(kind, (length,))
        if isinstance(listed, ast.Tuple):
            made = dataclasses.replace(made, refusal="the elements of a tuple are not assigned")
        place = self.learn(target.id, made, node)
        assert isinstance(place.kind, Array)
        of = place.kind.kind
        return tree.MakeList(node, place.variable, place.kind, tuple(converted(value, of) for value in values), times)


def fitting(place: Expr, value: Expr) -> Expr:
    """The value in the type of the place, or an error where it does not fit."""
    assert isinstance(place.kind, Number)
    stored = stored_as(place)
    name = ast.unparse(place.at) if place.at is not None else "it"
    if isinstance(value.kind, Number) and value.kind.width > place.kind.width:
        how = "int(...), or make the field real" if place.kind is INT else "a comparison, as in x != 0"
        kind = {"int": "int", "bool": "bool", "u8": "byte", "AgentNumber": "agent"}.get(stored, place.kind.python)
        what = f"{described(value.kind)} is assigned to {name}, which is of type {kind}"
        raise RefusedError(what, f"Write {how}", value.at)
    if stored == "u8" and isinstance(value, tree.Constant) and not 0 <= value.value <= _MOST_OF_A_BYTE:
        what = f"{value.value} does not fit {name}, which is a byte: 0 to {_MOST_OF_A_BYTE}"
        raise RefusedError(what, "Write a number that it holds, or give it another type in the spec: int", value.at)
    return converted(value, place.kind)


def _is_list(node: ast.expr) -> bool:
    """Whether an expression makes a list, or a tuple."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        node = node.left
    return isinstance(node, ast.List | ast.Tuple)
