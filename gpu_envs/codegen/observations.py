"""Observations of single-agent environments: their boxes, and the memory that kernels write them to."""

import dataclasses
import math
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.backend.structs import Struct
from gpu_envs.codegen.shared import MemberDeclaration
from gpu_envs.specs.names import check_name

MAX_STAGED = 64
"""Maximum floats per observation, for which a tile gathers its rows and writes them together."""

ELEMENT_TYPES = {"float32": "float", "uint8": "u8", "int32": "int"}
"""C++ types of elements of observations, by dtype."""


@final
@dataclasses.dataclass(frozen=True)
class Part:
    """A Box of an observation."""

    key: str
    """Key in a Dict; empty if the observation is this Box."""
    space: gymnasium.spaces.Box

    @property
    def suffix(self) -> str:
        """Suffix of the names of its arrays."""
        return f".{self.key}" if self.key else ""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.space.shape)

    @property
    def dtype(self) -> str:
        """NumPy type of an element."""
        return str(self.space.dtype)

    @property
    def cpp(self) -> str:
        """C++ type of an element."""
        return ELEMENT_TYPES[self.dtype]


def parts_of(space: gymnasium.Space[Any], env_id: str) -> tuple[Part, ...]:
    """Return the Box, or each Box of a Dict, as parts; raise a ValueError for other observation spaces."""
    if not isinstance(space, gymnasium.spaces.Dict):
        return (Part("", _check_box(space, f"{env_id}: the observation space")),)
    if not space.spaces:
        raise ValueError(f"{env_id}: the observation space is an empty Dict; add at least one Box")
    parts = []
    for key, part in space.spaces.items():
        check_name(key, f"{env_id}: the observation's part")
        parts.append(Part(key, _check_box(part, f"{env_id}: the observation space's part {key!r}")))
    return tuple(parts)


def _check_box(space: gymnasium.Space[Any], label: str) -> gymnasium.spaces.Box:
    """Return the space; raise a ValueError unless it is a non-empty Box of float32, uint8 or int32."""
    if isinstance(space, gymnasium.spaces.Box) and str(space.dtype) in ELEMENT_TYPES and math.prod(space.shape) > 0:
        return space
    raise ValueError(
        f"{label} is {space}; give a non-empty Box of float32, uint8 or int32, such as "
        "Box(0, 255, (16, 16, 3), numpy.uint8), or a Dict of such Boxes for the whole observation"
    )


def is_staged(parts: tuple[Part, ...]) -> bool:
    """Whether the observation is a short row of floats, which ``staged.cuh`` writes; otherwise ``direct.cuh``."""
    first = parts[0]
    short = len(first.space.shape) == 1 and first.size <= MAX_STAGED
    return not first.key and short and first.space.dtype == np.float32


def observation_type(parts: tuple[Part, ...], *, checked: bool) -> str:
    """Generate ``Observation``, which rules write, and ``ObservationTile``, a tile's staging memory (may be empty)."""
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


def observation_members(parts: tuple[Part, ...]) -> tuple[list[MemberDeclaration], list[MemberDeclaration]]:
    """Return the members of argument structs for observations, and the members for final observations."""
    if is_staged(parts):
        return [("float*", "observations")], [("float*", "final_obs")]
    if not parts[0].key:
        return [("void*", "observations")], [("void*", "final_obs"), ("void*", "internal_final_obs")]
    part = Struct.of("Part", "", ("void*", "observations"), ("void*", "final_obs"), ("void*", "internal_final_obs"))
    return [(part, "part", len(parts))], []


def observation_rows(parts: tuple[Part, ...]) -> str:
    """Generate C++ functions that return replica ``i``'s observation or final one, or zero ``internal_final_obs``."""

    def rows(name: str) -> str:
        places = [f'{{{_row(parts, k, name)}, {p.size}, "{p.key or "the observation"}"}}' for k, p in enumerate(parts)]
        return places[0] if not parts[0].key else f"{{{', '.join(places)}}}"

    final_rows = [(part.size, _row(parts, k, "internal_final_obs")) for k, part in enumerate(parts)]
    lines = [
        "// Rows of replica i, and of its final observation if an episode has ended.",
        "template <class Call> FN Observation observed_rows(const Call& call, Index i) {",
        f"    return {rows('observations')};",
        "}",
        f"FN Observation final_rows(const StepCall& call, Index i) {{ return {rows('final_obs')}; }}",
        "// Zeroes internal_final_obs of replica i.",
        "FN void clear_final_row(const StepCall& call, Index i) {",
        *(f"    for (int j = 0; j < {size}; ++j) ({row})[j] = 0;" for size, row in final_rows),
        "}",
    ]
    return "\n".join(lines)


def _row(parts: tuple[Part, ...], k: int, buffer: str) -> str:
    owner = f"call.part[{k}]" if parts[k].key else "call"
    return f"static_cast<{parts[k].cpp}*>({owner}.{buffer}) + i * {parts[k].size}"
