"""Base of the reader of a function: its variables, their types, and the current position."""

import abc
import ast
import contextlib
import re
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from gpu_envs.specs.names import CPP_WORDS
from gpu_envs.translation.sources import FunctionSource, RefusedError
from gpu_envs.translation.tree import Expr, Function, Local, Store, Variable
from gpu_envs.translation.types import Record, Type, wider
from gpu_envs.translation.unit import Unit

_DIALECT = frozenset(
    "real u8 u16 u32 i64 u64 sin cos sincos exp log square_root round_down quotient clip minimum maximum fma add "
    "lower python infinity largest bits_of from_bits role_of first_of count_of features_of gather nearest own s p w "
    "random action actions observation mask metrics team row reset step observe look allow measure polynomial "
    "fast_minimum fast_maximum multiply_add static_assert sum_over maximum_over minimum_over".split()
)
"""Names that a header already uses."""


_REFUSED: tuple[tuple[tuple[type, ...], str, str], ...] = (
    ((ast.Assert,), "rules cannot use assert", "Check it in a test of the environment"),
    ((ast.AsyncFor, ast.AsyncFunctionDef, ast.AsyncWith, ast.Await), "rules cannot use async or await", ""),
    ((ast.ClassDef,), "rules cannot define classes", "Store lasting values in the spec's state"),
    ((ast.Delete,), "rules cannot use del", "Remove it: a local variable ends with the function"),
    ((ast.Dict, ast.DictComp), "rules cannot use dicts", "Use an array, indexed by int"),
    ((ast.FunctionDef,), "rules cannot define nested functions", "Write it in the module, and call it"),
    ((ast.GeneratorExp,), "rules cannot use generators", "Write a loop; teams have w.total = team.sum(...)"),
    ((ast.Global, ast.Nonlocal), "rules cannot use global or nonlocal", "Store lasting values in the spec's state"),
    ((ast.Import, ast.ImportFrom), "rules cannot import", "Import at the top of the module"),
    ((ast.JoinedStr,), "rules cannot format strings", "Compare a choice with a string: p.start == 'fixed'"),
    ((ast.Lambda,), "rules cannot use lambda", "Write a function with def in the module"),
    ((ast.ListComp,), "rules cannot use comprehensions", "Write x = [0.0] * n, and fill it in a loop"),
    ((ast.Match,), "rules cannot use match", "Write if, elif and else"),
    ((ast.NamedExpr,), "rules cannot use :=", "Assign in a separate statement"),
    ((ast.Raise,), "rules cannot raise", "End the episode, or clip the value"),
    ((ast.Set, ast.SetComp), "rules cannot use sets", "Use an array of bools"),
    ((ast.Slice,), "rules cannot use slices", "Write a loop over the indices: for j in range(n):"),
    ((ast.Starred,), "rules cannot unpack with *", "Name each element"),
    ((ast.Try, ast.TryStar), "rules cannot use try", "Remove it: rules raise no exceptions"),
    ((ast.With,), "rules cannot use with", "Write its statements directly"),
    ((ast.Yield, ast.YieldFrom), "rules cannot yield", "Return the result"),
)
"""Python syntax that rules cannot use: nodes, message, and what to write instead."""


class Scope(Record):
    """The variables of a function, or of an iteration of a parallel loop."""

    number: int
    assigned: frozenset[str]
    """Names that are assigned."""
    loop_counters: frozenset[str]
    """Assigned names that are only used as the variable of range loops, inside the loop."""


IsNested: TypeAlias = Callable[[ast.For], bool]
"""Whether a loop's iterations have a separate scope: a phase, or a loop over the columns of a row."""


def scope_of(number: int, body: list[ast.stmt], is_nested: IsNested, loop_variables: Sequence[str] = ()) -> Scope:
    """Return the scope of a function or parallel loop with this body; ``number`` identifies the scope."""
    uses = [use for statement in body for use in _uses(statement, (), is_nested)]
    assigned = frozenset(name.id for name, _ in uses if isinstance(name.ctx, ast.Store))
    loop_counters = frozenset(n for n in assigned if all(_is_counter(use, loops) for use, loops in uses if use.id == n))
    return Scope(number, assigned | {*loop_variables}, loop_counters)


def _uses(
    node: ast.AST, loops: tuple[ast.For, ...], is_nested: IsNested
) -> Iterator[tuple[ast.Name, tuple[ast.For, ...]]]:
    """Yield each use of a name with the loops around it, without variables of inner scopes."""
    if isinstance(node, ast.Name):
        yield node, loops
    elif isinstance(node, ast.For) and is_nested(node):
        yield from _uses(node.iter, loops, is_nested)
        inner = [use for part in node.body for use in _uses(part, loops, is_nested)]
        inner_names = {use.id for use, _ in inner if isinstance(use.ctx, ast.Store)}
        inner_names |= {part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)}
        yield from (use for use in inner if use[0].id not in inner_names)
    elif isinstance(node, ast.GeneratorExp):
        inner = [use for part in ast.iter_child_nodes(node) for use in _uses(part, loops, is_nested)]
        inner_names = {use.id for use, _ in inner if isinstance(use.ctx, ast.Store)}
        yield from (use for use in inner if use[0].id not in inner_names)
    else:
        for part in ast.iter_child_nodes(node):
            within = (*loops, node) if isinstance(node, ast.For) and part is not node.iter else loops
            yield from _uses(part, within, is_nested)


def _is_counter(use: ast.Name, loops: tuple[ast.For, ...]) -> bool:
    """Whether a name is the variable of a loop around it, and is only read there."""
    counting_loops = [loop for loop in loops if isinstance(loop.target, ast.Name) and loop.target.id == use.id]
    return len(counting_loops) == 1 and (use is counting_loops[0].target or isinstance(use.ctx, ast.Load))


class Reader(abc.ABC):
    """Reads a function, repeatedly until the types of its variables no longer change.

    Subclasses add one layer each: calls, expressions, assignments, statements. A method that a lower layer needs from
    a higher one is abstract here, as calls read expressions and other functions.
    """

    def __init__(self, unit: Unit, source: FunctionSource) -> None:
        self.unit = unit
        self.source = source
        self.arguments: dict[str, Expr] = {}
        self.result: Type | None = None
        self.types: dict[Variable, Type] = {}
        self.names = {n.id for n in ast.walk(source.tree) if isinstance(n, ast.Name)}
        self.scopes: list[Scope] = []
        self.is_phased: bool | None = None
        """Whether the function's top level lies between phases; None: it does if the function has phases."""
        self.restart()

    def restart(self) -> None:
        """Restart at the function's first line, but keep the types found so far."""
        self.types_changed = False
        self.between_phases = False
        """Whether the current statement lies between phases."""
        self.loops: list[ast.For | ast.While] = []
        """Loops around the current statement, in the current scope."""
        self.earlier_names: frozenset[str] = frozenset()
        """Variables of earlier phases."""
        self.temporaries = 0

    def enter_phase(self, problem: str, hint: str) -> None:
        """Refuse a phase, with this message, where none is allowed; an undecided function gets phases."""
        if not self.between_phases:
            if self.is_phased is not None or len(self.scopes) > 1:
                raise RefusedError(problem, hint)
            self.is_phased = self.between_phases = self.types_changed = True

    # --- higher layers ---

    @abc.abstractmethod
    def expression(self, node: ast.expr) -> Expr:
        """Return the typed expression for a node; refuse what cannot be translated."""

    @abc.abstractmethod
    def function(self, python_function: types.FunctionType, node: ast.Call) -> Function:
        """Return the function that ``node`` calls; the first call translates it."""

    @contextlib.contextmanager
    def at(self, node: ast.AST) -> Iterator[None]:
        """Add the line of ``node`` to errors of this block; refuse a node that rules cannot use."""
        with self.source.at(node):
            for kinds, problem, hint in _REFUSED:
                if isinstance(node, kinds):
                    raise RefusedError(problem, hint)
            yield

    # --- variables ---

    def new_temporary(self, prefix: str) -> Variable:
        """Return a new variable, with a name that the function does not use."""
        while True:
            self.temporaries += 1
            name = f"{prefix}{self.temporaries}_"
            if name not in self.names:
                return Variable(name, name, -1)

    def store_temporary(self, value: Expr, prefix: str, at: ast.AST) -> tuple[Store, Local]:
        """Return a statement that stores a value in a temporary, and the temporary."""
        temporary = Local(value.kind, self.new_temporary(prefix), at=value.at)
        return Store(at, temporary, value, declares=True, constant=True), temporary

    def cpp_name(self, name: str) -> str:
        """Return a variable's name in C++, with underscores if C++ or the headers use the name."""
        cpp = ascii_name(name)
        if cpp in CPP_WORDS or cpp in _DIALECT or not re.match(r"[a-z]|_[a-z]|_$", cpp) or cpp != name:
            cpp += "_"
            while cpp in self.names:
                cpp += "_"
        return cpp

    def variable(self, name: str) -> Variable | None:
        """Return the variable of that name in the innermost scope that assigns it; None if it is no local variable."""
        for scope in reversed(self.scopes):
            if name in scope.assigned:
                return Variable(name, self.cpp_name(name), scope.number)
        return None

    def record_type(self, name: str, kind: Type, node: ast.AST) -> Local:
        """Widen a variable's type by an assignment of ``kind``, and return the variable."""
        variable = self.variable(name)
        assert variable is not None
        previous = self.types.get(variable)
        try:
            wide_kind = kind if previous is None else wider(previous, kind)
        except TypeError:
            raise RefusedError(f"{name!r} has another type elsewhere", "Use two names", node) from None
        if wide_kind != previous:
            self.types[variable] = wide_kind
            self.types_changed = True
        return Local(wide_kind, variable, at=node)


def not_set(name: str, at: ast.AST | None = None) -> RefusedError:
    """Return the error for a variable that may be read before it is set."""
    hint = f"Set it on every path that leads here, or before: {name} = 0.0"
    return RefusedError(f"{name!r} may not be set here", hint, at)


def ascii_name(name: str) -> str:
    """Return a Python name in ASCII, for C++: other letters become ``u`` and their code."""
    return "".join(c if c.isascii() else f"u{ord(c):04x}" for c in name)
