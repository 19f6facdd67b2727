"""What a function of rules does beside computing what it returns."""

import ast
import dataclasses
from typing import final

from gpu_envs.translation import tree
from gpu_envs.translation.tree import Block, Expr
from gpu_envs.translation.types import Array
from gpu_envs.translation.walk import expressions, known, owner_of, places, statements


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Elements ``times * turn + least`` to ``times * turn + most`` of an array, of all agents' elements in a row."""

    times: int
    least: int
    most: int

    @property
    def is_apart(self) -> bool:
        """Whether no two turns have an element of it in common."""
        return self.most - self.least < abs(self.times)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """What a turn does with a field of the world."""

    field: str
    how: str
    """``read``, ``write`` or ``add``."""
    turn: tree.Variable | None
    """The variable with the number of the turn whose elements these are; None where they may be any turn's."""
    span: Span | None
    only: tuple[tree.Variable, object] | None
    """The single turn that does it: a variable, and what that must be."""
    constant: float | None
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
    written: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    """Elements of the observation that it writes: the part, ``""`` of one without, and the index."""
    anywhere: set[str] = dataclasses.field(default_factory=set)
    """Parts of the observation of which it writes elements, and it is not known which they are."""
    phases: bool = False
    """It has phases."""
    certain: frozenset[str] = frozenset()
    """The single numbers of the state that it sets on every way; see ``checks.assigned``."""
    accesses: dict[Access, ast.AST] = dataclasses.field(default_factory=dict)
    """What it does with the fields of the world outside of phases, and where; see ``checks.races``."""


def effects_of(body: Block) -> Effects:
    """What the statements of a function do; ``certain`` and ``accesses`` are found by the checks."""
    found = Effects()
    for stmt in statements(body):
        found.phases |= isinstance(stmt, tree.Turns) and stmt.method == "agents"
        for place in places(stmt):
            _note(found, place)
        for expr in expressions(stmt):
            if isinstance(expr, tree.Invoke):
                called = expr.function.effects
                found.owners |= called.owners
                found.fields |= called.fields
                found.written |= called.written
                found.anywhere |= called.anywhere
                found.phases |= called.phases
    return found


def field_of(place: Expr) -> str:
    """The name of the field that a place belongs to; empty of what has no fields."""
    if isinstance(place, tree.Element):
        return field_of(place.of)
    return place.name if isinstance(place, tree.Field) else ""


def _note(found: Effects, place: Expr) -> None:
    owner = owner_of(place)
    if not owner:  # a variable
        return
    found.owners.add(owner)
    found.fields.add(field_of(place))
    if owner not in ("Observation", "Row"):
        return
    index = known(place.indices[0]) if isinstance(place, tree.Element) and len(place.indices) == 1 else None
    if index is None:
        found.anywhere.add(field_of(place))
    else:
        assert isinstance(place, tree.Element)
        assert isinstance(place.of.kind, Array)
        found.written.add((field_of(place), index))
