"""Intermediate representation of rules: typed expressions, evaluated from left to right, and statements.

``reading/`` builds this tree from Python's; ``order`` adds statements where C++ leaves the order of evaluation open;
``declarations`` puts each variable into the innermost block that has all its uses; ``printer`` writes C++.
A place is an expression that can be assigned: a variable, a field or an element.
"""

import ast
import dataclasses
from typing import Any

from gpu_envs.translation.sources import FunctionSource
from gpu_envs.translation.types import Array, Record, Type

# --- expressions ---


class Expr(Record):
    """An expression; its operands are in Python's order of evaluation."""

    kind: Type
    at: ast.AST | None = dataclasses.field(default=None, compare=False, repr=False, kw_only=True)
    """Node of the author's function, for messages."""


class Constant(Expr):
    """A compile-time value: a number, a string, a module, a function."""

    value: Any
    name: str = ""
    """Name of a spec's constant in C++; empty for a literal."""


class Variable(Record):
    """A variable of a function or of a parallel loop, or a temporary."""

    name: str
    cpp: str
    scope: int = 0
    """0 for the function, -1 for a temporary, otherwise the number of the parallel loop."""


class Local(Expr):
    """The value of a variable or an argument."""

    variable: Variable


class Field(Expr):
    """A field of an argument: a number, an array, or a part of an observation."""

    of: str
    """C++ variable that has the field, such as ``s`` or ``p``; empty for a global constant."""
    name: str
    owner: str = ""
    """Argument that an assignment changes."""
    stored_type: str = ""
    """C++ type that the field is stored as; empty if it may not be assigned."""
    refusal: str = ""
    """Why the field may not be assigned."""
    per_agent: int | None = None
    """Elements per agent; 0 for an array of the replica, None for a scalar."""


class Element(Expr):
    """An element of an array; with fewer indices than dimensions, a row."""

    of: Expr
    indices: tuple[Expr, ...]
    flat: bool = False
    """Whether the single index is into the flattened array."""


class Operation(Expr):
    """A C++ operator or a function of the dialect, without side effects.

    ``&&``, ``||`` and ``?:`` always evaluate their first operand, and the others depending on it. A type's name is a
    conversion, and ``.value0`` reads the first number of a function's result.
    """

    name: str
    operands: tuple[Expr, ...]


class Chain(Expr):
    """``a < b < c``: each operand is evaluated once, and only if the comparisons before it are true."""

    ops: tuple[ast.cmpop, ...]
    operands: tuple[Expr, ...]


class Invoke(Expr):
    """A call of a function that the author wrote."""

    function: "Function"
    evaluated: tuple[Expr, ...]
    """Arguments in order of evaluation."""
    order: tuple[int, ...]
    """For each parameter, the index of its argument in ``evaluated``."""

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """Arguments in order of the parameters."""
        return tuple(self.evaluated[n] for n in self.order)


class Draw(Expr):
    """A random number drawn from a generator."""

    generator: Expr
    method: str
    arguments: tuple[Expr, ...]


class Closure(Expr):
    """An expression with statements that run before it; a lambda in C++, since it is evaluated conditionally."""

    before: tuple["Stmt", ...]
    value: Expr


# --- statements ---


class Stmt(Record):
    """A statement."""

    at: ast.AST = dataclasses.field(repr=False)
    """Node of the author's function, for messages."""


Block = tuple[Stmt, ...]


class Assign(Stmt):
    """``a, b = c, d``: all values are evaluated, then stored from left to right."""

    places: tuple[Expr, ...]
    values: tuple[Expr, ...]
    op: ast.operator | None = None
    """Operator of an augmented assignment, ``a += b``, which has one place."""


class Store(Stmt):
    """A C++ assignment to one place; may declare a variable."""

    place: Expr
    value: Expr
    sign: str = ""
    """Operator before ``=``; empty for a plain assignment."""
    declares: bool = False
    constant: bool = False


class MakeList(Stmt):
    """``x = [a, b]`` or ``x = [a] * n``: a local list."""

    variable: Variable
    kind: Array
    values: tuple[Expr, ...]
    times: int


class Atomic(Stmt):
    """``add(place, value)`` or ``lower(place, value)``."""

    function: str
    place: Expr
    value: Expr


class Evaluate(Stmt):
    """An expression statement, for its side effects."""

    value: Expr


class If(Stmt):
    """A branch; if the condition is constant, the branch not taken is empty."""

    test: Expr
    yes: Block
    no: Block


class While(Stmt):
    """A while loop."""

    test: Expr
    body: Block


class For(Stmt):
    """A loop over ``range(first, end, step)``."""

    variable: Variable
    first: Expr
    end: Expr
    step: int
    body: Block
    counter: Variable | None = None
    """C++ loop counter, if it is not the variable itself."""
    limit: Variable | None = None
    """Temporary for the end, if iterations may change it."""

    @property
    def constant_range(self) -> range | None:
        """The values of the variable; None unless the bounds are constants."""
        if isinstance(self.first, Constant) and isinstance(self.end, Constant):
            return range(self.first.value, self.end.value, self.step)
        return None


class ParallelLoop(Stmt):
    """A phase, ``for i in team.agents(n)`` or ``for i, j in team.elements(n, m)``; or ``for j in row.columns(n)``."""

    method: str
    variables: tuple[Variable, ...]
    counts: tuple[Expr, ...]
    body: Block

    @property
    def is_phase(self) -> bool:
        return self.method != "columns"


class Reduction(Stmt):
    """``w.total = team.sum(w.x[j] for j in team.agents(n))``: the only statement of a phase.

    The phase has one iteration, or one for each of several results.
    """

    method: str
    place: Expr
    count: Expr
    variable: Variable
    value: Expr
    double: bool
    """Whether the sum is accumulated in float64."""


class Jump(Stmt):
    """``break`` or ``continue``."""

    keyword: str


class Return(Stmt):
    """A return, with the values."""

    values: tuple[Expr, ...]
    as_tuple: bool = False


# --- functions ---


class Parameter(Record):
    """A parameter of a function."""

    variable: Variable
    kind: Type
    cpp_type: str
    default: Any = dataclasses.field(compare=False)
    """``inspect.Parameter.empty`` if a call must pass the argument."""


class Function(Record):
    """A function that the author wrote."""

    source: FunctionSource
    cpp: str
    parameters: tuple[Parameter, ...]
    result: Type | None
    effects: Any
    """Side effects, an ``effects.Effects``."""
