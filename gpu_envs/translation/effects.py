"""The side effects of a function of the rules."""

import ast
import dataclasses
from typing import final

from gpu_envs.translation import tree
from gpu_envs.translation.tree import Block
from gpu_envs.translation.types import Record
from gpu_envs.translation.walk import constant_value, expressions, field_of, has_phases, places, statements


class Span(Record):
    """Elements ``stride * i + first`` to ``stride * i + last`` of a flattened array, where ``i`` is a loop variable."""

    loop: tree.Variable
    """The loop variable of the phase."""
    stride: int
    first: int
    last: int

    def is_apart_from(self, other: "Span") -> bool:
        """Whether two different iterations never touch the same element, one in this span and one in the other."""
        if self.stride != other.stride:
            return False
        return max(self.last, other.last) - min(self.first, other.first) < abs(self.stride)


class Access(Record):
    """A read or write of a field of the world in an iteration of a phase."""

    field: str
    per_agent: int | None
    """Elements of the field per agent, as in ``tree.Field.per_agent``."""
    mode: str
    """``read``, ``write`` or ``add`` (atomic)."""
    span: Span | None
    """The elements accessed, as a function of the loop variable; None: any element."""
    only: tuple[tree.Variable, object] | None
    """A loop variable and its value, if a single iteration makes the access."""
    constant: float | None
    """The value written, if it is a constant."""
    conditional: bool
    """Whether the access depends on a condition."""


@final
@dataclasses.dataclass
class Effects:
    """The side effects of a function."""

    owners: set[str] = dataclasses.field(default_factory=set)
    """Arguments that the function changes."""
    fields: set[str] = dataclasses.field(default_factory=set)
    """Fields that the function assigns."""
    observation_writes: set[tuple[str, int | None]] = dataclasses.field(default_factory=set)
    """Elements of the observation written: key in a Dict (or ``""``), and index (None: computed at run time)."""
    phases: bool = False
    """Whether the function contains phases."""
    always_set: frozenset[str] = frozenset()
    """Scalar state fields and metrics that every path through the function sets; see ``checks.assigned``."""
    accesses: dict[Access, ast.AST | None] = dataclasses.field(default_factory=dict)
    """Accesses to fields of the world outside phases, with their source nodes; see ``checks.races``."""


def effects_of(body: Block) -> Effects:
    """Return what statements and the functions they call change; checks fill in ``always_set`` and ``accesses``."""
    effects = Effects(phases=has_phases(body))
    for stmt in statements(body):
        for place in places(stmt):
            owner, field = field_of(place)
            if not owner:  # a variable
                continue
            effects.owners.add(owner)
            effects.fields.add(field)
            if owner in ("Observation", "Row"):
                index = place.indices[0] if isinstance(place, tree.Element) and len(place.indices) == 1 else place
                effects.observation_writes.add((field, constant_value(index)))
        for expr in expressions(stmt):
            if isinstance(expr, tree.Invoke):
                called = expr.function.effects
                effects.owners |= called.owners
                effects.fields |= called.fields
                effects.observation_writes |= called.observation_writes
    return effects
