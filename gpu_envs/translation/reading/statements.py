"""Statements: which of them are reached, and loops over ranges, while something holds, and over a team's agents."""

import ast
from collections.abc import Iterator, Sequence

from gpu_envs.translation import tree
from gpu_envs.translation.arithmetic import converted
from gpu_envs.translation.reading.assignments import Assignments
from gpu_envs.translation.reading.reader import frame_of
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import BOOL, INT, Array, Several, Thing, described
from gpu_envs.translation.walk import draws, ends, has_phases, known, literal, statements


class Statements(Assignments):
    """The layer of a reader that reads statements."""

    def block(self, nodes: Sequence[ast.stmt]) -> Block:
        """Reads a block; what follows a return, a break or a continue is never reached, and left out."""
        made: list[tree.Stmt] = []
        for node in nodes:
            with self.at(node):
                made += self._statement(node)
            if ends(made):
                break
        return tuple(made)

    def _statement(self, node: ast.stmt) -> Iterator[tree.Stmt]:
        match node:
            case ast.AnnAssign():
                yield from self.assigned_annotated(node)
            case ast.Assign():
                yield from self.assigned(node)
            case ast.AugAssign():
                yield self.updated(node)
            case ast.Break() | ast.Continue():
                word = type(node).__name__.lower()
                if word == "break" and len(self.frames) > 1 and not self.loops:
                    raise RefusedError("a turn cannot end the turns of others", "Write continue, which ends this turn")
                yield tree.Leave(node, word)
            case ast.Expr(value=ast.Constant(value=value)) if isinstance(value, str) or value is ...:
                pass
            case ast.Expr(value=ast.Call() as called):
                yield self.atomic(called, node) or tree.Evaluate(node, self.expression(called))
            case ast.Expr():
                with self.at(node.value):
                    raise RefusedError("this has no effect", "Assign it, or leave it out")
            case ast.For() | ast.While():
                if node.orelse:
                    instead = "Set a bool in the loop, and ask it after"
                    raise RefusedError("there is no else of a loop in rules", instead, node.orelse[0])
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
        test = self.condition(node.test)
        holds = bool(test.value) if isinstance(test, tree.Constant) else None
        yes = self.block(node.body) if holds is not False else ()
        no = self.block(node.orelse) if holds is not True else ()
        if holds is None and has_phases((*yes, *no)):
            what = "all replicas go through the same phases, and this condition may differ"
            raise RefusedError(what, "Ask within the phase, or make it a parameter with fixed=True", node.test)
        return tree.If(node, test, yes, no)

    # --- what a function returns ---

    def _return(self, node: ast.Return) -> tree.Return:
        if len(self.frames) > 1:
            raise RefusedError("a turn of a phase returns nothing", "Write continue, which ends this turn")
        if self.between:
            instead = "Leave out what is not wanted by conditions inside"
            raise RefusedError("all replicas go through all phases", instead)
        name, kind, value = self.written.name, self.result, node.value
        if kind is None:
            if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
                annotate = ", or annotate what it returns: -> float" if self.written.tree.returns is None else ""
                raise RefusedError(f"{name} returns nothing", f"Write return alone{annotate}")
            return tree.Return(node, ())
        outcome = isinstance(kind, Several) and kind.cpp == "Outcome"
        words = "reward, terminated" if outcome else described(kind)
        if value is None:
            raise RefusedError(f"{name} returns {words}, and this returns nothing")
        if not isinstance(kind, Several):
            return tree.Return(node, (converted(self.expression(value), kind),))
        if not isinstance(value, ast.Tuple) or len(value.elts) != len(kind.kinds):
            instead = f"Write return {'reward, terminated' if outcome else 'a, b'}"
            raise RefusedError(f"{name} returns {words}, and this is {ast.unparse(value)}", instead)
        values = []
        for part, wanted in zip(map(self.expression, value.elts), kind.kinds, strict=True):
            if outcome and wanted is BOOL and part.kind is not BOOL:
                what = f"terminated is a bool, and this is {described(part.kind)}"
                raise RefusedError(what, "Write a comparison, as in x > 0", part.at)
            values.append(converted(part, wanted))
        return tree.Return(node, tuple(values), several=True)

    # --- loops ---

    def _body(self, node: ast.For | ast.While, *, constant: bool) -> Block:
        self.loops.append(node)
        body = self.block(node.body)
        self.loops.pop()
        if not constant and has_phases(body):
            what = "all replicas go through the same phases, and this loop may differ"
            raise RefusedError(what, "Give it constant bounds")
        return body

    def _while(self, node: ast.While) -> tree.While:
        test = self.condition(node.test)
        made = tree.While(node, test, self._body(node, constant=False))
        if ends([made]) and not any(isinstance(inner, tree.Return) for inner in statements(made.body)):
            raise RefusedError("this loop never ends", "Leave it with break, or give it a condition")
        return made

    def _for(self, node: ast.For) -> tree.For | tree.Turns:
        if method := self.method_of(node):
            return self._turns(node, method)
        if not isinstance(node.target, ast.Name):
            raise RefusedError("a loop counts with one name", "Write for i in range(n):", node.target)
        first, end, step = self._bounds(node.iter)
        name = node.target.id
        variable = self.learn(name, INT, node).variable
        own = any(frame.number == variable.frame and name in frame.own for frame in self.frames)
        counter = None if own else self.fresh("at")
        constant = isinstance(first, tree.Constant) and isinstance(end, tree.Constant)
        return tree.For(node, variable, first, end, step, self._body(node, constant=constant), counter)

    def _bounds(self, node: ast.expr) -> tuple[Expr, Expr, int]:
        if isinstance(node, ast.Attribute) and node.attr in ("agents", "columns"):
            call = f"{ast.unparse(node)}({'' if node.attr == 'agents' else 'n'})"
            raise RefusedError(f"{node.attr} is called", f"Write for i in {call}:", node)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"):
            instead = "Write for i in range(n):, and index what it should go over"
            raise RefusedError("a loop goes over a range", instead, node)
        if node.keywords or not 1 <= len(node.args) <= 3:
            raise RefusedError(f"range got {len(node.args)} arguments; it takes one to three", at=node)
        found = [converted(self.expression(argument), INT) for argument in node.args]
        first, end = (literal(0), found[0]) if len(found) == 1 else found[:2]
        step = known(found[2]) if len(found) == 3 else 1
        if not step:
            raise RefusedError("the step of a range is a constant, and not zero", "Write a while loop", node.args[-1])
        return first, end, int(step)

    # --- phases, and the columns of a row ---

    def method_of(self, node: ast.AST) -> str:
        """``agents`` or ``columns``, where a loop goes over those."""
        match node:
            case ast.For(iter=ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr=name))) if of in self.arguments:
                kind = self.arguments[of].kind
                team = isinstance(kind, Thing) and kind.name == "Team"
                row = isinstance(kind, Array) and kind.owner == "Row"
                return name if (name == "agents" and team) or (name == "columns" and row) else ""
        return ""

    def _turns(self, node: ast.For, method: str) -> tree.Turns:
        """``for i in team.agents(n)``, or ``for j in row.columns(n)``."""
        if method == "agents":
            self.meet_phase("a phase stands within a phase", "Write for j in range(AGENTS):")
        if not isinstance(node.target, ast.Name):
            raise RefusedError("a phase counts with one name", "Write for i in team.agents():", node.target)
        assert isinstance(node.iter, ast.Call)
        count, name = self._count(node.iter, method), node.target.id
        outer = self.frames[-1]
        targets = [loop.target for loop in self.loops if isinstance(loop, ast.For)]
        around = {target.id for target in targets if isinstance(target, ast.Name)}
        frame = frame_of(id(node), node.body, lambda inner: bool(self.method_of(inner)), name)
        taken = frame.stored & (outer.stored - (outer.own - around))
        if taken:
            what = f"{min(taken)!r} is set in here and outside, and turns have variables of their own"
            raise RefusedError(what, "Give one of them another name; what lasts is a field of the world")
        outside = self.between, self.loops
        self.between, self.loops = False, []
        self.frames.append(frame)
        variable = self.learn(name, INT, node).variable
        body = self.block(node.body)
        self.frames.pop()
        self.between, self.loops = outside
        self.elsewhere |= frame.stored
        return tree.Turns(node, method, variable, count, body)

    def _count(self, node: ast.Call, method: str) -> Expr:
        if node.keywords or len(node.args) > 1:
            raise RefusedError("this takes a number", "Write for i in team.agents(n):", node)
        if not node.args:
            if method == "columns":
                raise RefusedError("row.columns takes the number of columns", at=node)
            return self.unit.arguments.capitals["AGENTS"]
        between, self.between = self.between, False  # the number may be a field that an earlier phase wrote
        value = self.expression(node.args[0])
        self.between = between
        if draws(value):
            instead = "Keep it in a field of the world"
            raise RefusedError("the number of turns is a field or a constant", instead, node)
        return converted(value, INT)
