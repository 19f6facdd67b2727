"""What is known while a function is read: its variables and their types, and where in it we are."""

import abc
import ast
import contextlib
import re
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from gpu_envs.specs.names import CPP_WORDS
from gpu_envs.translation.sources import RefusedError, Written
from gpu_envs.translation.tree import Expr, Function, Local, Store, Variable
from gpu_envs.translation.types import Record, Type, wider
from gpu_envs.translation.unit import Unit

_DIALECT = frozenset(
    "real u8 u16 u32 i64 u64 sin cos sincos exp log square_root round_down quotient clip minimum maximum fma add "
    "lower python infinity largest bits_of from_bits role_of first_of count_of features_of gather nearest own s p w "
    "random action actions observation mask metrics team row reset step observe look allow measure polynomial lesser "
    "greater about static_assert sum_over maximum_over minimum_over".split()
)
"""Names that mean something in a header."""


_REFUSED: tuple[tuple[tuple[type, ...], str, str], ...] = (
    ((ast.Assert,), "there is no assert in rules", "Look for what must not be in a test of the environment"),
    ((ast.AsyncFor, ast.AsyncFunctionDef, ast.AsyncWith, ast.Await), "nothing is awaited in rules", ""),
    ((ast.ClassDef,), "there are no classes in rules", "Keep what lasts in the spec's state"),
    ((ast.Delete,), "nothing is deleted in rules", "Leave it out: a local ends by itself"),
    ((ast.Dict, ast.DictComp), "there are no dicts in rules", "Use an array, indexed by int"),
    ((ast.FunctionDef,), "there are no functions within functions in rules", "Write it in the module, and call it"),
    ((ast.GeneratorExp,), "there are no generators in rules", "Write a loop; teams have w.total = team.sum(...)"),
    ((ast.Global, ast.Nonlocal), "rules have no state of their own", "Keep what lasts in the spec's state"),
    ((ast.Import, ast.ImportFrom), "nothing is imported within rules", "Import it at the top of the module"),
    ((ast.JoinedStr,), "there are no strings in rules", "Compare choices with words: p.start == 'fixed'"),
    ((ast.Lambda,), "there are no lambdas in rules", "Write a function with def in the module"),
    ((ast.ListComp,), "there are no comprehensions in rules", "Write x = [0.0] * n, and fill it in a loop"),
    ((ast.Match,), "there is no match in rules", "Write if, elif and else"),
    ((ast.NamedExpr,), "there is no := in rules", "Assign in a statement of its own"),
    ((ast.Raise,), "rules raise nothing", "End the episode, or clip what is out of range"),
    ((ast.Set, ast.SetComp), "there are no sets in rules", "Use an array of bools"),
    ((ast.Slice,), "there are no slices in rules", "Write a loop over the indices: for j in range(n):"),
    ((ast.Starred,), "there is no unpacking with * in rules", "Name each element"),
    ((ast.Try, ast.TryStar), "rules raise nothing, so there is nothing to try", "Write the lines by themselves"),
    ((ast.With,), "there is no with in rules", "Write the lines by themselves"),
    ((ast.Yield, ast.YieldFrom), "rules are not generators, and yield nothing", "Return the result"),
)
"""What Python has and rules have not, and what to do instead."""


class Frame(Record):
    """The variables of a function, or of a turn of a phase."""

    number: int
    stored: frozenset[str]
    """Names that are assigned in it."""
    own: frozenset[str]
    """Those that belong to the loops that count with them: all uses lie in such loops, none of them within another."""


Nested: TypeAlias = Callable[[ast.For], bool]
"""Whether a loop's turns have variables of their own: a phase, or the columns of a row."""


def frame_of(number: int, body: list[ast.stmt], nested: Nested, counts: Sequence[str] = ()) -> Frame:
    """The variables of a function, or of a turn that ``counts``, whose body this is."""
    uses = [use for statement in body for use in _uses(statement, (), nested)]
    stored = frozenset(name.id for name, _ in uses if isinstance(name.ctx, ast.Store))
    own = frozenset(n for n in stored if all(_belongs(use, loops) for use, loops in uses if use.id == n))
    return Frame(number, stored | {*counts}, own)


def _uses(node: ast.AST, loops: tuple[ast.For, ...], nested: Nested) -> Iterator[tuple[ast.Name, tuple[ast.For, ...]]]:
    """Each name, and the loops around it; names that belong to a turn within are left out."""
    if isinstance(node, ast.Name):
        yield node, loops
    elif isinstance(node, ast.For) and nested(node):
        yield from _uses(node.iter, loops, nested)
        inner = [use for part in node.body for use in _uses(part, loops, nested)]
        own = {use.id for use, _ in inner if isinstance(use.ctx, ast.Store)}
        own |= {part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)}
        yield from (use for use in inner if use[0].id not in own)
    elif isinstance(node, ast.GeneratorExp):
        inner = [use for part in ast.iter_child_nodes(node) for use in _uses(part, loops, nested)]
        own = {use.id for use, _ in inner if isinstance(use.ctx, ast.Store)}
        yield from (use for use in inner if use[0].id not in own)
    else:
        for part in ast.iter_child_nodes(node):
            within = (*loops, node) if isinstance(node, ast.For) and part is not node.iter else loops
            yield from _uses(part, within, nested)


def _belongs(use: ast.Name, loops: tuple[ast.For, ...]) -> bool:
    counting = [loop for loop in loops if isinstance(loop.target, ast.Name) and loop.target.id == use.id]
    return len(counting) == 1 and (use is counting[0].target or isinstance(use.ctx, ast.Load))


class Reader(abc.ABC):
    """A function that is read; again and again until the types of its variables stay what they are.

    Each of the other modules adds a layer: calls, expressions, assignments, statements. Expressions hold calls, and
    calls read expressions and whole functions: what a layer needs of a higher one is abstract here.
    """

    def __init__(self, unit: Unit, written: Written) -> None:
        self.unit = unit
        self.written = written
        self.arguments: dict[str, Expr] = {}
        self.result: Type | None = None
        self.types: dict[Variable, Type] = {}
        self.names = {n.id for n in ast.walk(written.tree) if isinstance(n, ast.Name)}
        self.frames: list[Frame] = []
        self.phased: bool | None = None
        """Whether what the function says stands between phases; None: where it has phases."""
        self.begin()

    def begin(self) -> None:
        """Goes back to the function's first line, and keeps the types."""
        self.changed = False
        self.between = False
        """What is being read stands between phases."""
        self.loops: list[ast.For | ast.While] = []
        """The loops of the turn, or of the function, that we are in."""
        self.elsewhere: frozenset[str] = frozenset()
        """Variables of phases that came before."""
        self.counters = 0

    def meet_phase(self, what: str, instead: str) -> None:
        """Refuses phases where none may be; a function's first one says that it has phases."""
        if not self.between:
            if self.phased is not None or len(self.frames) > 1:
                raise RefusedError(what, instead)
            self.phased = self.between = self.changed = True

    # --- what stands above ---

    @abc.abstractmethod
    def expression(self, node: ast.expr) -> Expr:
        """Reads an expression."""

    @abc.abstractmethod
    def function(self, found: types.FunctionType, node: ast.Call) -> Function:
        """The function that ``node`` calls, translated when it is first called."""

    @contextlib.contextmanager
    def at(self, node: ast.AST) -> Iterator[None]:
        """Shows where what is refused in this block stands; refuses a node of a kind that rules do not have."""
        with self.written.at(node):
            for kinds, what, instead in _REFUSED:
                if isinstance(node, kinds):
                    raise RefusedError(what, instead)
            yield

    # --- variables ---

    def fresh(self, what: str) -> Variable:
        """A variable for something in between."""
        while True:
            self.counters += 1
            name = f"{what}{self.counters}_"
            if name not in self.names:
                return Variable(name, name, -1)

    def kept(self, value: Expr, what: str, at: ast.AST) -> tuple[Store, Local]:
        """A temporary that holds a value."""
        held = Local(value.kind, self.fresh(what), at=value.at)
        return Store(at, held, value, declares=True, constant=True), held

    def cpp_name(self, name: str) -> str:
        """A variable's name in C++."""
        plain = in_ascii(name)
        if plain in CPP_WORDS or plain in _DIALECT or not re.match(r"[a-z]|_[a-z]|_$", plain) or plain != name:
            plain += "_"
            while plain in self.names:
                plain += "_"
        return plain

    def variable(self, name: str) -> Variable | None:
        """The variable of that name, of the innermost turn that has one."""
        for frame in reversed(self.frames):
            if name in frame.stored:
                return Variable(name, self.cpp_name(name), frame.number)
        return None

    def learn(self, name: str, kind: Type, node: ast.AST) -> Local:
        """A variable that is assigned ``kind`` too."""
        variable = self.variable(name)
        assert variable is not None
        before = self.types.get(variable)
        try:
            joined = kind if before is None else wider(before, kind)
        except RefusedError:
            what = f"{name!r} is one thing here and another elsewhere"
            raise RefusedError(what, "Use a name for each of them", node) from None
        if joined != before:
            self.types[variable] = joined
            self.changed = True
        return Local(joined, variable, at=node)


def not_set(name: str, at: ast.AST | None = None) -> RefusedError:
    """What is wrong with a variable that is read before it is set."""
    instead = f"Set it on every way that leads here, or first: {name} = 0.0"
    return RefusedError(f"{name!r} may not be set here", instead, at)


def in_ascii(name: str) -> str:
    """A name of Python's in letters that C++ takes."""
    return "".join(c if c.isascii() else f"u{ord(c):04x}" for c in name)
