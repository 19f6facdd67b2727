"""What a function of rules does beside computing what it returns."""

import ast
import dataclasses
from typing import final


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """What a turn does with a field of the world."""

    field: str
    how: str
    """``read``, ``write`` or ``add``."""
    agent: str
    """The variable with the number of the turn whose it is; ``""`` where it may be any turn's."""
    element: str
    """Which of several of that turn's."""
    only: tuple[str, str] | None
    """The single turn that does it: a variable, and what that must be."""
    constant: str
    """What is written, where that is a constant."""
    asked: bool
    """It is done under a condition."""


@final
@dataclasses.dataclass
class Effects:
    """What a function does beside computing what it returns."""

    owners: set[str] = dataclasses.field(default_factory=set)
    """The arguments that it changes."""
    fields: set[str] = dataclasses.field(default_factory=set)
    """The fields that it assigns."""
    accesses: dict[Access, ast.AST] = dataclasses.field(default_factory=dict)
    """What it does with the fields of the world, and where."""
    written: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    """Elements of the observation that it writes: the part, ``""`` of one without, and the index."""
    anywhere: set[str] = dataclasses.field(default_factory=set)
    """Parts of the observation of which it writes elements, and it is not known which they are."""
    certain: frozenset[str] = frozenset()
    """The single numbers of the state that it sets on every way."""
    phases: bool = False
    """It has phases."""

    def include(self, other: "Effects", *, phases: bool = False) -> None:
        """Adds what a part of the function, or a function that it calls, does."""
        self.owners |= other.owners
        self.fields |= other.fields
        self.accesses |= other.accesses
        self.written |= other.written
        self.anywhere |= other.anywhere
        self.phases |= other.phases or phases
