"""What the sources of single agents and of teams have in common."""

from collections.abc import Sequence
from typing import TypeAlias

from gpu_envs.backend.structs import Struct

MemberDeclaration: TypeAlias = tuple[str | Struct, str] | tuple[Struct, str, int]
"""Type and name of a struct's member, and how many of it there are."""

RESETTING: tuple[MemberDeclaration, ...] = (
    ("const u8*", "mask"),
    ("const u8*", "reseed"),
    ("const u64*", "new_seeds"),
    ("u64", "first_seed"),
    ("int", "reseed_all"),
    ("int", "observe_only"),
)
"""Which replicas begin a new episode, and with which seeds."""


def selection(values: Sequence[object], index: str) -> str:
    """The one of some constants that an index names: by comparisons, since a table would be loaded from memory."""
    *others, last = map(str, values)
    different = len({*others, last}) > 1
    return "".join(f"{index} == {k} ? {value} : " for k, value in enumerate(others) if different) + last
