"""Statements: branches, loops, returns, and the phases of teams; unreachable statements are dropped."""

import ast
from collections.abc import Iterator, Sequence

from gpu_envs.translation import tree
from gpu_envs.translation.arithmetic import convert
from gpu_envs.translation.reading.assignments import Assignments, convert_to_place
from gpu_envs.translation.reading.calls import REDUCTIONS
from gpu_envs.translation.reading.reader import Scope, scope_of
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import BOOL, INT, REAL, Array, Struct, Tuple, describe
from gpu_envs.translation.walk import (
    always_exits,
    constant_value,
    field_of,
    has_effects,
    has_phases,
    literal,
    statements,
    storage_type,
    subexpressions,
)

_LOOPS = {
    "agents": ("Team", "a phase has one variable", "for i in team.agents():"),
    "elements": ("Team", "a phase over a matrix has two variables", "for i, j in team.elements(rows, columns):"),
    "columns": ("Row", "a loop over columns has one variable", "for j in row.columns(n):"),
}
"""Methods that a for statement may call: owner, message if the names are wrong, and example."""

_REDUCTION_METHODS = [("Team", name) for name in REDUCTIONS]


class Statements(Assignments):
    """Layer of the reader for statements."""

    def block(self, nodes: Sequence[ast.stmt]) -> Block:
        """Read a block, up to a statement after which the rest is unreachable."""
        result: list[tree.Stmt] = []
        for node in nodes:
            with self.at(node):
                result += self._statement(node)
            if always_exits(result):
                break
        return tuple(result)

    def _statement(self, node: ast.stmt) -> Iterator[tree.Stmt]:
        match node:
            case ast.AnnAssign():
                yield from self.annotated_assignment(node)
            case ast.Assign(targets=[target], value=ast.Call() as call) if (
                self._called_method(call) in _REDUCTION_METHODS
            ):
                yield self._read_reduction(node, target, call)
            case ast.Assign():
                yield from self.assignment(node)
            case ast.AugAssign():
                yield self.augmented_assignment(node)
            case ast.Break() | ast.Continue():
                keyword = type(node).__name__.lower()
                if keyword == "break" and len(self.scopes) > 1 and not self.loops:
                    hint = "Write continue, which ends this iteration"
                    raise RefusedError("break cannot end the other iterations of a phase", hint)
                yield tree.Jump(node, keyword)
            case ast.Expr(value=ast.Constant(value=value)) if isinstance(value, str) or value is ...:
                pass
            case ast.Expr(value=ast.Call() as call):
                yield self.atomic(call, node) or tree.Evaluate(node, self.expression(call))
            case ast.Expr():
                with self.at(node.value):
                    raise RefusedError("this has no effect", "Assign the value, or remove the statement")
            case ast.For() | ast.While():
                if node.orelse:
                    hint = "Set a bool in the loop, and test it after the loop"
                    raise RefusedError("rules cannot use else after a loop", hint, node.orelse[0])
                yield self._while(node) if isinstance(node, ast.While) else self._for(node)
            case ast.If():
                yield self._branch(node)
            case ast.Pass():
                pass
            case ast.Return():
                yield self._return(node)
            case _:
                raise RefusedError(f"{type(node).__name__} is not translated")

    def _branch(self, node: ast.If) -> tree.If:
        """Read an if: with a constant condition only the branch that runs; otherwise branches may not have phases."""
        test = self.condition(node.test)
        test_value = bool(test.value) if isinstance(test, tree.Constant) else None
        yes = self.block(node.body) if test_value is not False else ()
        no = self.block(node.orelse) if test_value is not True else ()
        if test_value is None and has_phases((*yes, *no)):
            problem = "all replicas run the same phases, but this condition may differ between replicas"
            raise RefusedError(problem, "Test it inside the phase, or make it a parameter with fixed=True", node.test)
        return tree.If(node, test, yes, no)

    # --- return ---

    def _return(self, node: ast.Return) -> tree.Return:
        if len(self.scopes) > 1:
            raise RefusedError("an iteration of a phase returns nothing", "Write continue, which ends this iteration")
        if self.between_phases:
            problem = "all replicas run all phases, so a function with phases cannot return between them"
            raise RefusedError(problem, "Write conditions inside the phases")
        name, kind, value = self.source.name, self.result, node.value
        if kind is None:
            if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
                raise RefusedError(f"{name} returns nothing", "Write return without a value")
            return tree.Return(node, ())
        is_step = isinstance(kind, Tuple) and kind.cpp == "Outcome"
        results = "reward, terminated" if is_step else describe(kind)
        if value is None:
            raise RefusedError(f"{name} returns {results}, but this returns nothing")
        if not isinstance(kind, Tuple):
            return tree.Return(node, (convert(self.expression(value), kind),))
        if not isinstance(value, ast.Tuple) or len(value.elts) != len(kind.kinds):
            hint = f"Write return {'reward, terminated' if is_step else 'a, b'}"
            raise RefusedError(f"{name} returns {results}, but this is {ast.unparse(value)}", hint)
        values = []
        for part, expected in zip(map(self.expression, value.elts), kind.kinds, strict=True):
            if is_step and expected is BOOL and part.kind is not BOOL:
                problem = f"terminated is a bool, but this is {describe(part.kind)}"
                raise RefusedError(problem, "Write a comparison, as in x > 0", part.at)
            values.append(convert(part, expected))
        return tree.Return(node, tuple(values), as_tuple=True)

    # --- loops ---

    def _body(self, node: ast.For | ast.While, *, constant: bool) -> Block:
        """Return a loop's body; refuse phases in it unless the loop's bounds are ``constant``."""
        self.loops.append(node)
        body = self.block(node.body)
        self.loops.pop()
        if not constant and has_phases(body):
            problem = "all replicas run the same phases, but this loop may differ between replicas"
            raise RefusedError(problem, "Use constant bounds")
        return body

    def _while(self, node: ast.While) -> tree.While:
        test = self.condition(node.test)
        loop = tree.While(node, test, self._body(node, constant=False))
        if always_exits([loop]) and not any(isinstance(inner, tree.Return) for inner in statements(loop.body)):
            raise RefusedError("this loop never ends", "Leave it with break, or give it a condition")
        return loop

    def _for(self, node: ast.For) -> tree.For | tree.ParallelLoop:
        if method := self.method_of(node):
            return self._parallel_loop(node, method)
        first, end, step = self._bounds(node.iter)
        if not isinstance(node.target, ast.Name):
            raise RefusedError("a loop has one variable", "Write for i in range(n):", node.target)
        name = node.target.id
        variable = self.record_type(name, INT, node).variable
        is_counter = any(scope.number == variable.scope and name in scope.loop_counters for scope in self.scopes)
        counter = None if is_counter else self.new_temporary("at")
        constant = isinstance(first, tree.Constant) and isinstance(end, tree.Constant)
        return tree.For(node, variable, first, end, step, self._body(node, constant=constant), counter)

    def _bounds(self, node: ast.expr) -> tuple[Expr, Expr, int]:
        """Return first value, end and step of the ``range(...)`` of a for statement; refuse other iterables."""
        if isinstance(node, ast.Attribute) and node.attr in _LOOPS:
            raise RefusedError(f"{node.attr} is a method", f"Write {_LOOPS[node.attr][2]}", node)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"):
            hint = "Write for i in range(n):, and use i as an index"
            raise RefusedError("rules can only loop over a range", hint, node)
        if node.keywords or not 1 <= len(node.args) <= 3:
            raise RefusedError(f"range got {len(node.args)} arguments; it takes one to three", at=node)
        bounds = [convert(self.expression(argument), INT) for argument in node.args]
        first, end = (literal(0), bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = constant_value(bounds[2]) if len(bounds) == 3 else 1
        if not step:
            raise RefusedError("the step of a range must be a nonzero constant", "Write a while loop", node.args[-1])
        return first, end, int(step)

    # --- phases, and the columns of a row ---

    def _called_method(self, node: ast.AST) -> tuple[str, str]:
        """Return the type and method of a call ``argument.method(...)``, as Team and agents; else two empty strings."""
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=type_name), attr=name)) if type_name in self.arguments:
                kind = self.arguments[type_name].kind
                return kind.name if isinstance(kind, Struct) else kind.owner if isinstance(kind, Array) else "", name
        return "", ""

    def method_of(self, node: ast.AST) -> str:
        """Return ``agents``, ``elements`` or ``columns`` for a loop over that method, otherwise an empty string."""
        type_name, name = self._called_method(node.iter) if isinstance(node, ast.For) else ("", "")
        return name if name in _LOOPS and _LOOPS[name][0] == type_name else ""

    def _parallel_loop(self, node: ast.For, method: str) -> tree.ParallelLoop:
        """Read ``for i in team.agents(n)``, ``for i, j in team.elements(n, m)`` or ``for j in row.columns(n)``."""
        if method != "columns":
            self.enter_phase("this is a phase inside a phase", "Write for j in range(AGENTS):")
        _, problem, hint = _LOOPS[method]
        parts = node.target.elts if isinstance(node.target, ast.Tuple | ast.List) else [node.target]
        names = list(dict.fromkeys(part.id for part in parts if isinstance(part, ast.Name)))
        if method == "agents" and len(parts) == 2:
            problem = "team.agents has one variable; a loop over the elements of a matrix has two"
            hint = f"for {', '.join(map(ast.unparse, parts))} in team.elements(ROWS, COLUMNS):"
        if not len(names) == len(parts) == (2 if method == "elements" else 1):
            raise RefusedError(problem, f"Write {hint}", node.target)
        assert isinstance(node.iter, ast.Call)
        counts = self._counts(node.iter, method)
        outer_scope = self.scopes[-1]
        targets = [loop.target for loop in self.loops if isinstance(loop, ast.For)]
        outer_loop_names = {target.id for target in targets if isinstance(target, ast.Name)}
        scope = scope_of(id(node), node.body, lambda inner: bool(self.method_of(inner)), names)
        shared_names = scope.assigned & (outer_scope.assigned - (outer_scope.loop_counters - outer_loop_names))
        if shared_names:
            problem = f"{min(shared_names)!r} is set inside and outside the loop, but iterations cannot share variables"
            raise RefusedError(problem, "Use another name; store lasting values in a field of the world")
        saved = self.between_phases, self.loops
        self.between_phases, self.loops = False, []
        self.scopes.append(scope)
        variables = tuple(self.record_type(name, INT, node).variable for name in names)
        body = self.block(node.body)
        self.scopes.pop()
        self.between_phases, self.loops = saved
        self.earlier_names |= scope.assigned
        for inner in statements(body):
            if isinstance(inner, tree.Reduction):
                self._check_rows(inner, method, variables, body)
        return tree.ParallelLoop(node, method, variables, counts, body)

    def _counts(self, node: ast.Call, method: str) -> tuple[Expr, ...]:
        """Return the numbers of iterations in a call of ``agents``, ``elements`` or ``columns``, converted to int."""
        if method == "agents" and not node.args and not node.keywords:
            return (self.unit.arguments.spec_constants["AGENTS"],)
        if node.keywords or len(node.args) != (2 if method == "elements" else 1):
            problem = {"agents": "team.agents takes a number", "columns": "row.columns takes the number of columns"}
            hint = f"Write {_LOOPS[method][2].replace('()', '(n)')}"
            raise RefusedError(problem.get(method, "team.elements takes the numbers of rows and columns"), hint, node)
        between_phases, self.between_phases = self.between_phases, False  # n may be a field
        values = [convert(self.expression(argument), INT) for argument in node.args]
        self.between_phases = between_phases
        if any(map(has_effects, values)):
            hint = "Store it in a field of the world"
            raise RefusedError("the number of iterations must be a field or a constant", hint, node)
        return tuple(values)

    # --- sums, maxima and minima ---

    def _read_reduction(self, node: ast.Assign, target: ast.expr, call: ast.Call) -> tree.ParallelLoop | tree.Reduction:
        """Read ``w.total = team.sum(w.x[j] for j in team.agents(n))``, as a phase unless it is already inside one."""
        in_loop = len(self.scopes) > 1
        if not in_loop:
            self.enter_phase("this is a phase inside a phase", "Write it between phases")
        saved = self.between_phases, self.loops
        self.between_phases, self.loops = False, []
        with self.at(call):
            reduction = self._reduction(node, target, call, self._called_method(call)[1], in_loop=in_loop)
        self.between_phases, self.loops = saved
        if in_loop:
            return reduction
        return tree.ParallelLoop(node, "agents", (self.new_temporary("first"),), (literal(1),), (reduction,))

    def _reduction(
        self, node: ast.Assign, target: ast.expr, call: ast.Call, method: str, *, in_loop: bool
    ) -> tree.Reduction:
        """Read the assignment of ``team.sum``, ``max`` or ``min`` of a generator, ``call``, to a field, ``target``."""
        match call.args:
            case [ast.GeneratorExp(elt=elt, generators=[ast.comprehension(ast.Name(name), ast.Call() as over, ifs)])]:
                over_range = isinstance(over.func, ast.Name) and over.func.id == "range" and len(over.args) == 1
            case _:
                name = ""
        if not name or not (over_range or self._called_method(over) == ("Team", "agents")):
            problem = f"team.{method} needs a generator over team.agents(n) or range(n)"
            raise RefusedError(problem, f"Write w.total = team.{method}(w.x[i] for i in team.agents())")
        if ifs:
            neutral = {"sum": "0", "max": "-math.inf", "min": "math.inf"}[method]
            hint = f"Write {ast.unparse(elt)} if {ast.unparse(ifs[0])} else {neutral} for {name} in ..."
            raise RefusedError(f"the generator of team.{method} cannot have an if", hint, ifs[0])
        if in_loop and name in self.scopes[-1].assigned:
            problem = f"{name!r} is already a variable of the loop around this team.{method}"
            raise RefusedError(problem, "Use another name in the generator", call)
        count, place = self._counts(over, "agents")[0], self._result(target, method, in_loop=in_loop)
        flags = {keyword.arg: constant_value(self.expression(keyword.value)) for keyword in call.keywords}
        if flags and not (method == "sum" and place.kind is REAL and flags in ({"double": True}, {"double": False})):
            hint = f"Remove {' and '.join(f'{keyword}=' for keyword in flags)}"
            raise RefusedError("the only option is double=True, for a team.sum of floats", hint)
        self.scopes.append(Scope(id(call), frozenset({name}), frozenset()))
        variable, value = self.record_type(name, INT, call).variable, convert_to_place(place, self.expression(elt))
        self.scopes.pop()
        if has_effects(value):
            problem = f"team.{method} must only read, but this draws random numbers or writes"
            raise RefusedError(problem, "Do it in an earlier phase, and store the result in a field", elt)
        return tree.Reduction(node, method, place, count, variable, value, flags.get("double") is True)

    def _result(self, target: ast.expr, method: str, *, in_loop: bool) -> Expr:
        """Return the place that a reduction writes; refuse all but int and float fields of the world and metrics."""
        if isinstance(target, ast.Attribute | ast.Subscript):
            place = self.expression(target)
            self._check_place(place, target)
            field, indices = (place.of, place.indices) if isinstance(place, tree.Element) else (place, ())
            constant_place = all(isinstance(index, tree.Constant | tree.Local) for index in indices)
            if isinstance(field, tree.Field) and field_of(place)[0] in ("World", "Metrics") and constant_place:
                if storage_type(place) not in ("real", "int"):
                    problem = f"team.{method} returns a float or an int, but {ast.unparse(target)} stores neither"
                    raise RefusedError(problem, "Assign it to a field of type real or int", target)
                if in_loop or not field.per_agent:
                    return place
        hint = "Use TeamSpec(shared_scratch={...}); for one result per agent, write "
        hint += f"for i in team.agents(): w.x[i] = team.{method}(... for j in team.agents())"
        raise RefusedError(f"the result of team.{method} must go to a field of the replica", hint, target)

    def _check_rows(
        self, reduction: tree.Reduction, method: str, variables: Sequence[tree.Variable], body: Block
    ) -> None:
        """Refuse a reduction that is not its phase's only statement, or does not have one result per iteration."""
        number = variables[0].name
        example = f"for {number} in team.agents(): w.x[{number}] = team.{reduction.method}(... for j in team.agents())"
        if method != "agents" or len(body) > 1 or body[0] is not reduction:
            problem = f"team.{reduction.method} must be the only statement of a phase"
            raise RefusedError(problem, f"Write a separate phase: {example}", reduction.at)
        if any(isinstance(part, tree.Local) and part.variable in variables for part in subexpressions(reduction.count)):
            hint = f"Write ... if {reduction.variable.name} < n else 0 for {reduction.variable.name} in team.agents()"
            problem = "the iterations of this loop reduce different numbers of values; all must reduce the same number"
            raise RefusedError(problem, hint, reduction.count.at)
        match reduction.place:
            case tree.Element(indices=(tree.Local(variable=index),)) if index == variables[0]:
                return
        hint = f"Write {example}; for a single result, write it outside the loop"
        problem = f"the result of team.{reduction.method} must go to the element of the iteration: w.x[{number}]"
        raise RefusedError(problem, hint, reduction.at)
