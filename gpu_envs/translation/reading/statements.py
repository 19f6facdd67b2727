"""Statements: which of them are reached, loops over ranges and while something holds, and the phases of teams."""

import ast
from collections.abc import Iterator, Sequence

from gpu_envs.translation import tree
from gpu_envs.translation.arithmetic import converted
from gpu_envs.translation.reading.assignments import Assignments, fitting
from gpu_envs.translation.reading.calls import FOLDS
from gpu_envs.translation.reading.reader import Frame, frame_of
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import BOOL, INT, REAL, Array, Several, Thing, described
from gpu_envs.translation.walk import draws, ends, field_of, has_phases, known, literal, statements, stored_as, within

_LOOPS = {
    "agents": ("Team", "a phase counts with one name", "for i in team.agents():"),
    "elements": ("Team", "a phase over a matrix counts with two names", "for i, j in team.elements(rows, columns):"),
    "columns": ("Row", "a loop over columns counts with one name", "for j in row.columns(n):"),
}
"""What loops go over: whose method it is, and how it is written."""

_FOLDING = [("Team", name) for name in FOLDS]


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
            case ast.Assign(targets=[target], value=ast.Call() as call) if self._called(call) in _FOLDING:
                yield self._folded(node, target, call)
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
        first, end, step = self._bounds(node.iter)
        if not isinstance(node.target, ast.Name):
            raise RefusedError("a loop counts with one name", "Write for i in range(n):", node.target)
        name = node.target.id
        variable = self.learn(name, INT, node).variable
        own = any(frame.number == variable.frame and name in frame.own for frame in self.frames)
        counter = None if own else self.fresh("at")
        constant = isinstance(first, tree.Constant) and isinstance(end, tree.Constant)
        return tree.For(node, variable, first, end, step, self._body(node, constant=constant), counter)

    def _bounds(self, node: ast.expr) -> tuple[Expr, Expr, int]:
        if isinstance(node, ast.Attribute) and node.attr in _LOOPS:
            raise RefusedError(f"{node.attr} is called", f"Write {_LOOPS[node.attr][2]}", node)
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

    def _called(self, node: ast.AST) -> tuple[str, str]:
        """The method of an argument that is called: whose it is, and its name."""
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr=name)) if of in self.arguments:
                kind = self.arguments[of].kind
                return kind.name if isinstance(kind, Thing) else kind.owner if isinstance(kind, Array) else "", name
        return "", ""

    def method_of(self, node: ast.AST) -> str:
        """``agents``, ``elements`` or ``columns``, where a loop goes over those."""
        of, name = self._called(node.iter) if isinstance(node, ast.For) else ("", "")
        return name if name in _LOOPS and _LOOPS[name][0] == of else ""

    def _turns(self, node: ast.For, method: str) -> tree.Turns:
        """``for i in team.agents(n)``, ``for i, j in team.elements(n, m)``, or ``for j in row.columns(n)``."""
        if method != "columns":
            self.meet_phase("a phase stands within a phase", "Write for j in range(AGENTS):")
        _, what, instead = _LOOPS[method]
        parts = node.target.elts if isinstance(node.target, ast.Tuple | ast.List) else [node.target]
        names = list(dict.fromkeys(part.id for part in parts if isinstance(part, ast.Name)))
        if method == "agents" and len(parts) == 2:
            what = "team.agents counts with one name; loops over the elements of a matrix count with two"
            raise RefusedError(
                what, f"Write for {', '.join(map(ast.unparse, parts))} in team.elements(ROWS, COLUMNS):", node.target
            )
        if not len(names) == len(parts) == (2 if method == "elements" else 1):
            raise RefusedError(what, f"Write {instead}", node.target)
        assert isinstance(node.iter, ast.Call)
        counts = self._counts(node.iter, method)
        outer = self.frames[-1]
        targets = [loop.target for loop in self.loops if isinstance(loop, ast.For)]
        around = {target.id for target in targets if isinstance(target, ast.Name)}
        frame = frame_of(id(node), node.body, lambda inner: bool(self.method_of(inner)), names)
        taken = frame.stored & (outer.stored - (outer.own - around))
        if taken:
            what = f"{min(taken)!r} is set in here and outside, and turns have variables of their own"
            raise RefusedError(what, "Give one of them another name; what lasts is a field of the world")
        outside = self.between, self.loops
        self.between, self.loops = False, []
        self.frames.append(frame)
        variables = tuple(self.learn(name, INT, node).variable for name in names)
        body = self.block(node.body)
        self.frames.pop()
        self.between, self.loops = outside
        self.elsewhere |= frame.stored
        for inner in statements(body):
            if isinstance(inner, tree.Fold):
                self._check_rows(inner, method, variables, body)
        return tree.Turns(node, method, variables, counts, body)

    def _counts(self, node: ast.Call, method: str) -> tuple[Expr, ...]:
        if method == "agents" and not node.args and not node.keywords:
            return (self.unit.arguments.capitals["AGENTS"],)
        if node.keywords or len(node.args) != (2 if method == "elements" else 1):
            what = {"agents": "this takes a number", "columns": "row.columns takes the number of columns"}
            instead = f"Write {_LOOPS[method][2].replace('()', '(n)')}"
            raise RefusedError(what.get(method, "this takes the numbers of rows and of columns"), instead, node)
        between, self.between = self.between, False  # the number may be a field that an earlier phase wrote
        values = [converted(self.expression(given), INT) for given in node.args]
        self.between = between
        if any(map(draws, values)):
            instead = "Keep it in a field of the world"
            raise RefusedError("the number of turns is a field or a constant", instead, node)
        return tuple(values)

    # --- sums, greatest and least numbers ---

    def _folded(self, node: ast.Assign, target: ast.expr, call: ast.Call) -> tree.Turns | tree.Fold:
        """``w.total = team.sum(w.x[j] for j in team.agents(n))``; in a turn, of one number for each."""
        in_turn = len(self.frames) > 1
        if not in_turn:
            self.meet_phase("a phase stands within a phase", "Write it between phases")
        outside = self.between, self.loops
        self.between, self.loops = False, []
        with self.at(call):
            made = self._fold(node, target, call, self._called(call)[1], in_turn=in_turn)
        self.between, self.loops = outside
        return made if in_turn else tree.Turns(node, "agents", (self.fresh("first"),), (literal(1),), (made,))

    def _fold(self, node: ast.Assign, target: ast.expr, call: ast.Call, method: str, *, in_turn: bool) -> tree.Fold:
        match call.args:
            case [ast.GeneratorExp(elt=elt, generators=[ast.comprehension(ast.Name(name), ast.Call() as over, ifs)])]:
                ranged = isinstance(over.func, ast.Name) and over.func.id == "range" and len(over.args) == 1
            case _:
                name = ""
        if not name or not (ranged or self._called(over) == ("Team", "agents")):
            what = f"team.{method} goes over team.agents(n), or range(n)"
            raise RefusedError(what, f"Write w.total = team.{method}(w.x[i] for i in team.agents())")
        if ifs:
            other = {"sum": "0", "max": "-math.inf", "min": "math.inf"}[method]
            instead = f"Write {ast.unparse(elt)} if {ast.unparse(ifs[0])} else {other} for {name} in ..."
            raise RefusedError(f"team.{method} leaves no number out", instead, ifs[0])
        if in_turn and name in self.frames[-1].stored:
            raise RefusedError(f"{name!r} is the turn's number too", "Give one of them another name", call)
        count, place = self._counts(over, "agents")[0], self._result(target, method, in_turn=in_turn)
        words = {word.arg: known(self.expression(word.value)) for word in call.keywords}
        if words and not (method == "sum" and place.kind is REAL and words in ({"double": True}, {"double": False})):
            instead = f"Leave {' and '.join(f'{word}=' for word in words)} out"
            raise RefusedError("there is one option, double=True, of team.sum where it makes a float", instead)
        self.frames.append(Frame(id(call), frozenset({name}), frozenset()))
        variable, value = self.learn(name, INT, call).variable, fitting(place, self.expression(elt))
        self.frames.pop()
        if draws(value):
            what = f"team.{method} only reads, and this draws numbers or changes something"
            raise RefusedError(what, "Do it in a phase before, and keep what comes of it in a field", elt)
        return tree.Fold(node, method, place, count, variable, value, words.get("double") is True)

    def _result(self, target: ast.expr, method: str, *, in_turn: bool) -> Expr:
        """Where the result goes."""
        if isinstance(target, ast.Attribute | ast.Subscript):
            place = self.expression(target)
            self._check_place(place, target)
            field, indices = (place.of, place.indices) if isinstance(place, tree.Element) else (place, ())
            known_place = all(isinstance(index, tree.Constant | tree.Local) for index in indices)
            if isinstance(field, tree.Field) and field_of(place)[0] in ("World", "Metrics") and known_place:
                if stored_as(place) not in ("real", "int"):
                    what = f"team.{method} gives floats and ints, and {ast.unparse(target)} holds none"
                    raise RefusedError(what, "Write it to a field of type real or int", target)
                if in_turn or not field.held:
                    return place
        instead = "Keep it in one: TeamSpec(shared_scratch={...}); one for each agent: "
        instead += f"for i in team.agents(): w.x[i] = team.{method}(... for j in team.agents())"
        raise RefusedError(f"what team.{method} makes of all goes to a field of the replica", instead, target)

    def _check_rows(self, fold: tree.Fold, method: str, variables: Sequence[tree.Variable], body: Block) -> None:
        """Whether a phase's turns do nothing but this, of which each has a result of its own."""
        number = variables[0].name
        whole = f"for {number} in team.agents(): w.x[{number}] = team.{fold.method}(... for j in team.agents())"
        if method != "agents" or len(body) > 1 or body[0] is not fold:
            what = f"team.{fold.method} is all that a phase does, and this one does more"
            raise RefusedError(what, f"Give it a phase of its own: {whole}", fold.at)
        if any(isinstance(part, tree.Local) and part.variable in variables for part in within(fold.count)):
            instead = f"Write ... if {fold.variable.name} < n else 0 for {fold.variable.name} in team.agents()"
            raise RefusedError("how many numbers are taken is the same for every turn", instead, fold.count.at)
        match fold.place:
            case tree.Element(indices=(tree.Local(variable=index),)) if index == variables[0]:
                return
        raise RefusedError("each turn has a result of its own", f"Write {whole}; one of all stands alone", fold.at)
