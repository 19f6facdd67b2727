"""What is known while a function is translated: its variables, where in it we are, and the lines so far."""

import abc
import ast
import contextlib
import dataclasses
import re
import types
from collections.abc import Iterator

from gpu_envs.errors import TranslationError
from gpu_envs.specs.names import CPP_WORDS
from gpu_envs.translation.effects import Effects
from gpu_envs.translation.locals import Frame
from gpu_envs.translation.sources import RefusedError, Written
from gpu_envs.translation.unit import Helper, SourceLine, Unit
from gpu_envs.translation.values import Elements, Number, Type, Value, wider

_DIALECT = frozenset(
    "real u8 u16 u32 i64 u64 sin cos sincos exp log square_root round_down quotient clip minimum maximum fma add lower "
    "python infinity largest bits_of from_bits role_of first_of count_of features_of gather nearest own s p w random "
    "action actions observation mask team row reset step observe look allow polynomial lesser greater about "
    "static_assert".split()
)
"""Names that mean something in a header."""

Assigned = frozenset[str] | None
"""The variables that are set for certain; None where nothing is ever reached."""


class Body(abc.ABC):
    """A function on its way to C++; it is gone through until the types of its variables stay what they are.

    Expressions hold calls, calls translate whole functions, and those hold statements and expressions: where a module
    needs one that stands above it, it asks the body.
    """

    def __init__(self, unit: Unit, written: Written, arguments: dict[str, Value], frozen: frozenset[str]) -> None:
        self.unit = unit
        self.written = written
        self.arguments = arguments
        self.frozen = frozen
        """The arguments that it must not change."""
        self.types: dict[tuple[int, str], Type] = {}
        self.names = {n.id for n in ast.walk(written.tree) if isinstance(n, ast.Name)} | set(arguments)
        self.loaded = {n.id for n in ast.walk(written.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        self.result: Type | None = None
        self.begin()

    def begin(self) -> None:
        """Goes back to the function's first line, and keeps the types."""
        self.changed = False
        self.effects = Effects()
        self.lines: list[SourceLine] = []
        self.pending: list[str] = []
        self.frames: list[Frame] = []
        self.assigned: Assigned = frozenset()
        self.ends: list[Assigned] = []
        """The variables that are set at each return."""
        self.breaks: list[list[Assigned]] = []
        self.continues: list[list[Assigned]] = []
        self.depth = 1
        self.turn: ast.For | None = None
        """The phase, or the columns of a row, that we are in."""
        self.between = False
        """What is being translated stands between phases."""
        self.alone: ast.AST | None = None
        """An expression that is the whole of what a statement evaluates."""
        self.only: tuple[str, str] | None = None
        """The single turn that comes here: the variable with its number, and what that must be."""
        self.asked = False
        """Not every turn comes here."""
        self.copies: dict[str, str] = {}
        """Variables that hold the number of a turn, and the one that held it first."""
        self.ranges: dict[str, range] = {}
        """The values of variables that count a loop over constants."""
        self.counters = 0
        self.declared: set[tuple[int, str]] = set()
        """Variables whose declaration is among the lines."""
        self.elsewhere: frozenset[str] = frozenset()
        """Variables of phases that came before."""

    # --- what stands in it ---

    @abc.abstractmethod
    def expression(self, node: ast.expr) -> Value:
        """Translates an expression."""

    @abc.abstractmethod
    def statements(self, nodes: list[ast.stmt]) -> None:
        """Translates a block; what follows a return, a break or a continue is never reached, and left out."""

    @abc.abstractmethod
    def helper(self, function: types.FunctionType, node: ast.Call) -> Helper:
        """The function that ``node`` calls, translated when it is first called."""

    # --- errors ---

    def error(self, node: ast.AST, what: str, instead: str = "") -> TranslationError:
        """An error at a place."""
        return self.written.error(node, what, instead)

    @contextlib.contextmanager
    def at(self, node: ast.AST) -> Iterator[None]:
        """Gives errors of what stands in this block their place."""
        try:
            yield
        except RefusedError as refused:
            raise self.error(node, refused.what, refused.instead) from None

    # --- lines ---

    def emit(self, text: str, node: ast.AST | None = None) -> None:
        """Adds a line, after what it needs computed before."""
        number = getattr(node, "lineno", 0)
        waiting, self.pending = self.pending, []
        for line in (*waiting, text):
            self.lines.append(SourceLine(number, "    " * self.depth + line))

    def fresh(self, what: str) -> str:
        """A name for something in between."""
        while True:
            self.counters += 1
            name = f"{what}{self.counters}_"
            if name not in self.names:
                return name

    def hoisted(self, value: Value, what: str = "value") -> Value:
        """The value, computed before the line at hand: what it takes from a stream has its turn in order."""
        name, kind = self.fresh(what), value.type
        assert isinstance(kind, Number)
        self.pending.append(f"const {kind.cpp} {name} = {value.text};")
        return Value(name, kind)

    # --- variables ---

    def cpp_name(self, name: str) -> str:
        """A variable's name in C++."""
        plain = in_ascii(name)
        if plain in CPP_WORDS or plain in _DIALECT or not re.match(r"[a-z]|_[a-z]|_$", plain) or plain != name:
            plain += "_"
            while plain in self.names:
                plain += "_"
        return plain

    def declaration(self, name: str, cpp: str) -> str:
        """How a variable is declared: its type and its name, and whether it is never read."""
        return f"{'' if name in self.loaded else '[[maybe_unused]] '}{cpp} {self.cpp_name(name)}"

    def frame_with(self, name: str) -> int | None:
        """The number of the frame that has a variable of that name."""
        return next((n for n in reversed(range(len(self.frames))) if name in self.frames[n].stored), None)

    def key(self, name: str) -> tuple[int, str]:
        """A variable's key in ``types`` and ``declared``."""
        number = self.frame_with(name)
        assert number is not None
        return id(self.frames[number].owner), name

    def learn(self, name: str, kind: Type, node: ast.AST) -> Type:
        """The type of a variable that is assigned ``kind`` too."""
        key = self.key(name)
        known = self.types.get(key)
        try:
            joined = kind if known is None else _joined(known, kind)
        except RefusedError:
            what = f"{name!r} is one thing here and another elsewhere"
            raise self.error(node, what, "Use a name for each of them") from None
        if joined != known:
            self.types[key] = joined
            self.changed = True
        return joined

    def variable(self, name: str, node: ast.AST) -> Value:
        """A variable that is read."""
        key = self.key(name)
        if self.assigned is not None and name not in self.assigned:
            raise self.error(
                node, f"{name!r} may not be set here", f"Set it on every way that leads here, or first: {name} = 0.0"
            )
        kind = self.types.get(key)
        if kind is None:  # nothing leads here
            raise self.error(node, f"{name!r} is never set before this", f"Set it first: {name} = 0.0")
        return Value(self.cpp_name(name), kind)

    def set(self, name: str) -> None:
        """Notes that a variable is set from here on."""
        if self.assigned is not None:
            self.assigned |= {name}

    def writes(self, value: Value, node: ast.AST) -> None:
        """Notes that an argument is changed, or refuses it."""
        if value.owner in self.frozen:
            what = f"{self.written.name} does not change the {value.owner.lower()}"
            raise self.error(node, what, "Change it in step or reset")
        self.effects.owners.add(value.owner)


def in_ascii(name: str) -> str:
    """A name of Python's in letters that C++ takes."""
    return "".join(c if c.isascii() else f"u{ord(c):04x}" for c in name)


def _joined(known: Type, kind: Type) -> Type:
    if isinstance(known, Elements) and isinstance(kind, Elements) and known.sizes == kind.sizes:
        inner = wider(known.kind, kind.kind)
        return dataclasses.replace(known, kind=inner, stored=inner.cpp if isinstance(inner, Number) else "")
    return wider(known, kind)


def both(one: Assigned, other: Assigned) -> Assigned:
    """The variables that are set where two branches meet."""
    if one is None:
        return other
    return one if other is None else one & other
