"""Code shared by the sources of single agents and of teams."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import gymnasium

from gpu_envs.backend.structs import Struct
from gpu_envs.specs.spaces import mask_entries

MemberDeclaration: TypeAlias = tuple[str | Struct, str] | tuple[Struct, str, int]
"""Type and name of a struct's member, and length if it is an array."""

Members: TypeAlias = tuple[MemberDeclaration, ...]

RESET_MEMBERS: Members = (
    ("const u8*", "mask"),
    ("const u8*", "reseed"),
    ("const u64*", "new_seeds"),
    ("u64", "first_seed"),
    ("int", "reseed_all"),
    ("int", "observe_only"),
)
"""Members of ``ResetCall`` that select replicas and their seeds."""


def selection(values: Sequence[object], index: str) -> str:
    """Return an expression that selects a constant by index, with comparisons: a table would be loaded from memory."""
    *all_but_last, last = map(str, values)
    different = len({*all_but_last, last}) > 1
    return "".join(f"{index} == {k} ? {value} : " for k, value in enumerate(all_but_last) if different) + last


def check_mask_entries(space: gymnasium.Space[Any], spec_id: str, owner: str = "") -> int:
    """Return the length of an action space's mask; raise a ValueError, which names ``owner``, if it can have none."""
    if entries := mask_entries(space):
        return entries
    advice = "masks are for Discrete and MultiDiscrete actions; give action_mask=False"
    raise ValueError(f"{spec_id}: action_mask=True, but the action space{owner} is {space}: {advice}")
