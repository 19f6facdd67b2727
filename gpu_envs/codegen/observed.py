"""Observations of single-agent environments: the boxes they are made of, and where the kernels write them."""

import dataclasses
import math
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.backend.structs import Struct
from gpu_envs.specs.names import check_name

MOST_STAGED = 64
"""Floats in a row of observations up to which a tile's rows are gathered and written together."""

ELEMENT_TYPES = {"float32": "float", "uint8": "u8", "int32": "int"}
"""The C++ types of what observations may be made of."""


@final
@dataclasses.dataclass(frozen=True)
class Part:
    """One box of an observation."""

    key: str
    """Its name in a Dict; empty where the observation is that box."""
    space: gymnasium.spaces.Box

    @property
    def affix(self) -> str:
        """What ends the names of its arrays."""
        return f".{self.key}" if self.key else ""

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.space.shape)

    @property
    def dtype(self) -> str:
        """Their type in Python."""
        return str(self.space.dtype)

    @property
    def cpp(self) -> str:
        """Their type in C++."""
        return ELEMENT_TYPES[self.dtype]


def parts_of(space: gymnasium.Space[Any], env_id: str) -> tuple[Part, ...]:
    """The boxes of an observation space, or raises what is wrong with it."""
    if not isinstance(space, gymnasium.spaces.Dict):
        return (Part("", _checked(space, f"{env_id}: the observation space")),)
    if not space.spaces:
        raise ValueError(f"{env_id}: the observation space is an empty Dict; name at least one Box")
    found = []
    for key, part in space.spaces.items():
        check_name(key, f"{env_id}: the observation's part")
        found.append(Part(key, _checked(part, f"{env_id}: the observation space's part {key!r}")))
    return tuple(found)


def _checked(space: gymnasium.Space[Any], what: str) -> gymnasium.spaces.Box:
    if isinstance(space, gymnasium.spaces.Box) and str(space.dtype) in ELEMENT_TYPES and math.prod(space.shape) > 0:
        return space
    raise ValueError(
        f"{what} is {space}; it must be a Box of float32, uint8 or int32 numbers, or for several a Dict of such Boxes, "
        "such as Box(0, 255, (16, 16, 3), numpy.uint8)"
    )


def is_staged(parts: tuple[Part, ...]) -> bool:
    """Whether it is one short row of floats, which has a way of its own: ``staged.cuh``."""
    first = parts[0]
    short = len(first.space.shape) == 1 and first.size <= MOST_STAGED
    return not first.key and short and first.space.dtype == np.float32


def observation_type(parts: tuple[Part, ...], *, checked: bool) -> str:
    """``Observation``, which in a checked build knows its length, and what keeps a tile's on their way out."""
    if is_staged(parts):
        row = "CheckedArray<float, OfObservation, OBSERVATION_SIZE>" if checked else "float[OBSERVATION_SIZE]"
        return (
            f"constexpr int OBSERVATION_SIZE = {parts[0].size};\nusing Observation = {row};\n"
            "using ObservationTile = float[OBSERVATION_SIZE][LANES];"
        )
    if not parts[0].key:
        return f"using Observation = Elements<{parts[0].cpp}>;\nstruct ObservationTile {{}};"
    members = "\n".join(f"    Elements<{part.cpp}> {part.key};" for part in parts)
    return f"struct Observation {{\n{members}\n}};\nstruct ObservationTile {{}};"


def observation_members(
    parts: tuple[Part, ...],
) -> tuple[list[tuple[str | Struct, str] | tuple[Struct, str, int]], list[tuple[str | Struct, str]]]:
    """The members of calls that point to observations, and to the last ones of episodes; ``kept_final`` is our own."""
    if is_staged(parts):
        return [("float*", "observations")], [("float*", "final_obs")]
    if not parts[0].key:
        return [("void*", "observations")], [("void*", "final_obs"), ("void*", "kept_final")]
    part = Struct.of("Part", "", ("void*", "observations"), ("void*", "final_obs"), ("void*", "kept_final"))
    return [(part, "part", len(parts))], []


def observation_rows(parts: tuple[Part, ...]) -> str:
    """Where the kernels write the observations of replica ``i``, and how those kept are zeroed."""

    def rows(of: str) -> str:
        places = [f'{{{_row(parts, k, of)}, {p.size}, "{p.key or "the observation"}"}}' for k, p in enumerate(parts)]
        return places[0] if not parts[0].key else f"{{{', '.join(places)}}}"

    zeroes = [
        f"    for (int j = 0; j < {p.size}; ++j) ({_row(parts, k, 'kept_final')})[j] = 0;" for k, p in enumerate(parts)
    ]
    return "\n".join(
        [
            "// Rows of replica i, and of its last observation where an episode has ended.",
            "template <class Call> FN Observation observed_rows(const Call& call, Index i) {",
            f"    return {rows('observations')};",
            "}",
            f"FN Observation final_rows(const StepCall& call, Index i) {{ return {rows('final_obs')}; }}",
            "// Zeroes what was kept of replica i's.",
            "FN void clear_kept(const StepCall& call, Index i) {",
            *zeroes,
            "}",
        ]
    )


def _row(parts: tuple[Part, ...], k: int, of: str) -> str:
    owner = f"call.part[{k}]" if parts[k].key else "call"
    return f"static_cast<{parts[k].cpp}*>({owner}.{of}) + i * {parts[k].size}"
