"""The tree that rules become: typed expressions, evaluated from left to right, and statements.

Reading (``reading/``) makes it of Python's tree; ``order`` makes what is evaluated before what a statement of its own
where C++ would be free; ``declarations`` puts the variables into their blocks; ``printer`` writes C++.
"""

import ast
import dataclasses
from typing import Any

from gpu_envs.translation.sources import Written
from gpu_envs.translation.types import Array, Record, Type

# --- expressions ---


class Expr(Record):
    """An expression; its parts stand in the order in which Python evaluates them."""

    kind: Type
    at: ast.AST | None = dataclasses.field(default=None, compare=False, repr=False, kw_only=True)
    """Where it stands in the author's function."""


class Constant(Expr):
    """What the translation knows: a number, a word, a module, a function."""

    value: Any
    name: str = ""
    """What C++ calls it, of a constant of the spec."""


class Variable(Record):
    """A variable of a function, or of a turn of a phase, or a temporary."""

    name: str
    cpp: str
    frame: int = 0
    """The number of the turn's loop, 0 of the function, -1 of a temporary."""


class Local(Expr):
    """A variable or an argument."""

    variable: Variable


class Field(Expr):
    """A field of an argument: a number, an array, or a part of an observation."""

    of: str
    name: str
    owner: str = ""
    """The argument that an assignment changes."""
    stored: str = ""
    """The C++ type that it is stored as; empty where it is not assigned."""
    refusal: str = ""
    """Why it is not assigned."""
    held: int | None = None
    """How many elements of it an agent has; 0 of an array that the replica has, None of a single number."""


class Element(Expr):
    """An element of an array; of fewer indices than there are dimensions, a row of it."""

    of: Expr
    indices: tuple[Expr, ...]
    flat: bool = False
    """One index counts all elements."""


class Operation(Expr):
    """An operator of C++, or a function of the dialect, which changes nothing.

    ``&&``, ``||`` and ``?:`` evaluate their first operand, and the others where it says so. A type's name stands for a
    number in that type, and ``.value0`` for one of several numbers that a function gave.
    """

    name: str
    operands: tuple[Expr, ...]


class Chain(Expr):
    """``a < b < c``: each operand is evaluated once, and only where the comparisons before it hold."""

    ops: tuple[ast.cmpop, ...]
    operands: tuple[Expr, ...]


class Invoke(Expr):
    """A function of the author's."""

    function: "Function"
    given: tuple[Expr, ...]
    """In the order in which they are evaluated."""
    order: tuple[int, ...]
    """For each parameter, the number of its argument among them."""

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """In the order of the parameters."""
        return tuple(self.given[n] for n in self.order)


class Draw(Expr):
    """A random number."""

    source: Expr
    what: str
    arguments: tuple[Expr, ...]


class Closure(Expr):
    """An expression, and what is computed before it, where it is evaluated conditionally."""

    before: tuple["Stmt", ...]
    value: Expr


# --- statements ---


class Stmt(Record):
    """A statement."""

    at: ast.AST = dataclasses.field(repr=False)
    """Where it stands in the author's function."""


Block = tuple[Stmt, ...]


class Assign(Stmt):
    """``a, b = c, d``: all values are evaluated, then stored from left to right."""

    places: tuple[Expr, ...]
    values: tuple[Expr, ...]
    op: ast.operator | None = None
    """Of ``a += b`` and its like, with one place: what stands before ``=``."""


class Store(Stmt):
    """A single assignment; one of a variable may declare it."""

    place: Expr
    value: Expr
    sign: str = ""
    """An operator before ``=``."""
    declares: bool = False
    constant: bool = False


class MakeList(Stmt):
    """``x = [a, b]`` or ``x = [a] * n``: a list of the function's own."""

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
    """An expression by itself, for what it changes."""

    value: Expr


class If(Stmt):
    """A condition; where it is constant, the other branch is empty."""

    test: Expr
    yes: Block
    no: Block


class While(Stmt):
    """A loop while something holds."""

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
    """What C++ counts with; None: with the variable itself."""
    limit: Variable | None = None
    """What holds the end, where it is not the same in every turn."""

    @property
    def turns(self) -> range | None:
        """The numbers that it counts, where they are known."""
        if isinstance(self.first, Constant) and isinstance(self.end, Constant):
            return range(self.first.value, self.end.value, self.step)
        return None


class Turns(Stmt):
    """``for i in team.agents(n)`` and ``for i, j in team.elements(n, m)``, phases, or ``for j in row.columns(n)``."""

    method: str
    variables: tuple[Variable, ...]
    counts: tuple[Expr, ...]
    body: Block

    @property
    def is_phase(self) -> bool:
        """Whether it is a phase."""
        return self.method != "columns"


class Fold(Stmt):
    """``w.total = team.sum(w.x[j] for j in team.agents(n))``: all that the turns of a phase do, often a single one."""

    method: str
    place: Expr
    count: Expr
    variable: Variable
    value: Expr
    double: bool
    """It is added up in float64."""


class Leave(Stmt):
    """``break`` or ``continue``."""

    word: str


class Return(Stmt):
    """The end of a function, with what it gives."""

    values: tuple[Expr, ...]
    several: bool = False


# --- functions ---


class Parameter(Record):
    """An argument of a function."""

    variable: Variable
    kind: Type
    declared: str
    """Its type in C++."""
    default: Any = dataclasses.field(compare=False)
    """``inspect.Parameter.empty``: a call must give it."""


class Function(Record):
    """A function of the author's."""

    written: Written
    cpp: str
    parameters: tuple[Parameter, ...]
    result: Type | None
    effects: Any
    """What it does beside computing what it returns: ``effects.Effects``."""
