"""What a function of rules does beside computing what it returns."""

import ast
import dataclasses
from typing import final

from gpu_envs.translation import tree
from gpu_envs.translation.tree import Block
from gpu_envs.translation.types import Record
from gpu_envs.translation.walk import expressions, field_of, has_phases, known, places, statements


class Span(Record):
    """Elements ``times * turn + least`` to ``times * turn + most`` of an array, of all agents' elements in a row."""

    turn: tree.Variable
    """The variable with the number of the turn."""
    times: int
    least: int
    most: int

    def is_apart_from(self, other: "Span") -> bool:
        """Whether no turn has an element of these in common with another turn's of the other."""
        if self.times != other.times:
            return False
        return max(self.most, other.most) - min(self.least, other.least) < abs(self.times)


class Access(Record):
    """What a turn does with a field of the world."""

    field: str
    held: int | None
    """How many elements of it an agent has, as ``Field.held`` says."""
    how: str
    """``read``, ``write`` or ``add``."""
    span: Span | None
    """The turn whose elements these are, and which; None where they may be any turn's."""
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
    written: set[tuple[str, int | None]] = dataclasses.field(default_factory=set)
    """Elements of the observation that it writes: the part, ``""`` of one without, and the index, None: not known."""
    phases: bool = False
    """It has phases."""
    certain: frozenset[str] = frozenset()
    """The single numbers of the state, and metrics, that it sets on every way; see ``checks.assigned``."""
    accesses: dict[Access, ast.AST | None] = dataclasses.field(default_factory=dict)
    """What it does with the fields of the world outside of phases, and where; see ``checks.races``."""


def effects_of(body: Block) -> Effects:
    """What the statements of a function do; ``certain`` and ``accesses`` are found by the checks."""
    found = Effects(phases=has_phases(body))
    for stmt in statements(body):
        for place in places(stmt):
            owner, field = field_of(place)
            if not owner:  # a variable
                continue
            found.owners.add(owner)
            found.fields.add(field)
            if owner in ("Observation", "Row"):
                index = place.indices[0] if isinstance(place, tree.Element) and len(place.indices) == 1 else place
                found.written.add((field, known(index)))
        for expr in expressions(stmt):
            if isinstance(expr, tree.Invoke):
                called = expr.function.effects
                found.owners |= called.owners
                found.fields |= called.fields
                found.written |= called.written
    return found
