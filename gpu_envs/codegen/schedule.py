"""Schedule of a team: threads and blocks for its agents, and the layout of a block's memory."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, final

import gymnasium
import numpy as np

from gpu_envs.backend.program import Device
from gpu_envs.codegen.world import WorldField
from gpu_envs.specs.spaces import RoleObservation, mask_entries

NARROW_ROW = 32
"""Maximum floats of a row of observations that one thread writes; wider ones are written by several lanes."""

WIDE_ROW = 128
"""Floats above which all threads of a warp write a row together."""

BATCH_FLOATS = 1088
"""Approximate floats of rows that a warp stages before it copies them to global memory."""

SMALL_TEAM = 64
"""Maximum agents of a small team: several replicas share a block, or a few warps have one if rows are wide."""

BLOCK_THREADS = 256
"""Default maximum of threads in a block."""

NARROW_THREADS = 384
"""``BLOCK_THREADS`` for narrow rows of observations, as their phases are short."""

MANY_FLOATS = 6000
"""Minimum floats in all rows of a small team for four warps per block instead of three."""

LIGHT_ROWS = 128
"""Maximum average floats of a row that only few threads write together, as it takes little time."""

SEVERAL_BYTES = 40 * 1024
"""Maximum shared memory of several replicas in one block: more would leave too few blocks per multiprocessor."""

LARGE_TEAM = 2048
"""Agents above which a team is spread over the whole GPU, if there are fewer replicas than multiprocessors."""

RESERVED_BYTES = 1024 + 128
"""Shared memory of a block that the system and the dialect use."""

MAX_PROCESSOR_THREADS = {"BY_BLOCK": 1280, "BY_WARP": 896, "DIRECTLY": 1024}
"""Target of resident threads per multiprocessor, by ``writing``: the fastest on an H200; more leave fewer registers."""


class RoleRows(NamedTuple):
    """The agents of one role, and their rows of observations."""

    name: str
    first: int
    size: int
    observation_parts: RoleObservation
    action: gymnasium.Space[Any]
    separate_shared: bool
    """Whether shared elements of observations are written once per replica, and not into rows."""

    @property
    def observation(self) -> gymnasium.spaces.Box:
        """Space of a row of observations."""
        return self.observation_parts.individual if self.separate_shared else self.observation_parts.full

    @property
    def features(self) -> int:
        """Floats in one row of observations."""
        parts = self.observation_parts
        return int(parts.individual.shape[0]) + (0 if self.separate_shared else parts.shared_size)

    @property
    def choices(self) -> int:
        """Entries in one action mask."""
        return mask_entries(self.action)


class TeamSchedule(NamedTuple):
    """Launch configuration of a team, and memory of a block."""

    kind: str
    """``HOST``, ``BLOCK`` or ``SPREAD``."""
    replicas: int
    """Replicas per block."""
    threads: int
    """Threads per block."""
    writing: str
    """How rows of observations are staged: ``DIRECTLY`` (not at all), ``BY_BLOCK`` or ``BY_WARP``."""
    lanes: int
    """Threads that write a row together."""
    rows_per_warp: tuple[int, ...]
    """Rows that a warp stages and copies together, by role."""
    chunk: int
    """Agents whose rows a block stages and copies together."""
    offsets: Mapping[str, int]
    """Offset of each field of ``World`` in a block's memory, in bytes."""
    rows_at: int
    """Offset of the staged rows in a block's memory, in bytes."""
    warp_floats: int
    """Floats of staging memory per warp."""
    shared_bytes: int
    """Size of a block's memory."""

    def blocks(self, device: Device, *, double: bool) -> int:
        """Return the minimum of resident blocks per multiprocessor, which limits the registers per thread."""
        blocks_by_memory = device.shared_bytes // (self.shared_bytes + RESERVED_BYTES) if device.on_gpu else 1
        max_threads = MAX_PROCESSOR_THREADS[self.writing] // (2 if double else 1)
        return max(1, min(blocks_by_memory, max_threads // self.threads))


@final
@dataclasses.dataclass(frozen=True)
class TeamSize:
    """Properties of a team that determine its schedule."""

    roles: tuple[RoleRows, ...]
    world: Iterable[WorldField]
    """Every field of ``World``."""
    columns: Callable[[], int] | None
    """Returns the columns of a row that ``FOR_EACH_COLUMN`` loops over; None: all columns."""

    @property
    def agents(self) -> int:
        """Agents per replica."""
        return self.roles[-1].first + self.roles[-1].size

    @property
    def floats(self) -> int:
        """Floats in all rows of observations."""
        return sum(role.size * role.features for role in self.roles)

    @property
    def widest(self) -> int:
        """Floats in the widest row of observations."""
        return max(role.features for role in self.roles)

    @property
    def widest_with_shared(self) -> int:
        """Floats in the widest row of observations or of shared elements."""
        return max(self.widest, *(role.observation_parts.shared_size for role in self.roles))

    def row_lanes(self, kind: str) -> int:
        """Return the number of threads that write a row of observations."""
        if kind == "HOST" or self.widest_with_shared <= NARROW_ROW:
            return 1
        narrow = self.floats <= LIGHT_ROWS * self.agents
        columns = self.columns() if self.columns is not None else min(self.widest_with_shared, 8 if narrow else 32)
        return max(1, min(32, columns)) if kind == "BLOCK" else 32 if self.widest_with_shared > WIDE_ROW else 1


def schedule_of(team: TeamSize, num_envs: int, device: Device) -> TeamSchedule:
    """Choose how the agents of a team are assigned to threads and blocks of a device."""
    if not device.on_gpu:
        return _schedule(team, "HOST", 1, 1)
    block_size, agents, widest = device.block_size, team.agents, team.widest_with_shared
    replicas = 1
    if agents <= SMALL_TEAM and widest <= WIDE_ROW:
        replicas = 1 << max(0, ((block_size or BLOCK_THREADS) // agents).bit_length() - 1)
        while replicas > 1 and _schedule(team, "BLOCK", replicas, 32).shared_bytes > SEVERAL_BYTES:
            replicas //= 2
        threads = -(-replicas * agents // 32) * 32
    elif agents <= SMALL_TEAM:
        threads = block_size or (128 if team.floats >= MANY_FLOATS else 96)
    elif widest > WIDE_ROW:
        threads = block_size or BLOCK_THREADS
    else:
        threads = block_size or min(NARROW_THREADS if widest <= NARROW_ROW else BLOCK_THREADS, -(-agents // 32) * 32)
    block = _schedule(team, "BLOCK", replicas, threads)
    if block.shared_bytes > device.shared_bytes:
        block = _schedule(team, "BLOCK", replicas, threads, arrays_in_place=True)
    is_spread = agents > LARGE_TEAM and num_envs < device.processors
    if is_spread or block.shared_bytes > device.shared_bytes:
        return _schedule(team, "SPREAD", 1, block_size or 128)
    return block


def _schedule(team: TeamSize, kind: str, replicas: int, threads: int, *, arrays_in_place: bool = False) -> TeamSchedule:
    """Return a schedule with the layout of a block's memory: its Worlds, then staged rows of observations.

    Args:
        team: The team.
        kind: ``HOST``, ``BLOCK`` or ``SPREAD``.
        replicas: Replicas per block.
        threads: Threads per block.
        arrays_in_place: Whether arrays that persist between steps stay in global memory.
    """
    offsets, at = {}, 0
    for field in team.world:
        in_place = kind == "SPREAD" or (field.persistent and (kind == "HOST" or (field.is_array and arrays_in_place)))
        if not in_place:
            offsets[field.name] = at
            size = field.elements(team.agents) * replicas * np.dtype(field.dtype).itemsize
            at += -(-size // 64) * 64  # each starts a cache line on a CPU
    widest, rows_at, agents = team.widest, at, 1
    warps = -(-threads // 32)
    lanes = team.row_lanes(kind)
    warp_rows = tuple(_warp_rows(role.features, -(-team.agents // warps), 32 // lanes) for role in team.roles)
    warp_floats = max(batch_floats(rows, role.features) for rows, role in zip(warp_rows, team.roles, strict=True))
    by_warp = 4 * warp_floats * warps
    if kind != "BLOCK" or (replicas == 1 and lanes > 1 and by_warp > SEVERAL_BYTES):
        writing = "DIRECTLY"
    elif replicas == 1 and lanes > 1:
        writing, at = "BY_WARP", at + by_warp
    else:
        writing, lanes = "BY_BLOCK", 1
        chunk = max(threads, SEVERAL_BYTES // (4 * widest) // threads * threads)
        agents = min(chunk, team.agents) if replicas == 1 else team.agents
        at += 4 * sum(staged_floats(role, agents, replicas) for role in team.roles)
    return TeamSchedule(kind, replicas, threads, writing, lanes, warp_rows, agents, offsets, rows_at, warp_floats, at)


def _warp_rows(features: int, share: int, concurrent_rows: int) -> int:
    """Return the rows that a warp stages together: at most its share, a multiple of those it writes at once."""
    rows = max(1, min(BATCH_FLOATS // max(1, features), share))
    return min(32, rows // concurrent_rows * concurrent_rows or rows)


def staged_floats(role: RoleRows, agents: int, replicas: int) -> int:
    """Return the floats that stage a role's rows of a chunk of ``agents`` in ``replicas``, with room to align them."""
    return batch_floats(min(role.size, agents) * replicas, role.features)


def batch_floats(rows: int, features: int) -> int:
    """Return the floats that stage some rows: full vectors of 16 bytes, and one more to align them."""
    return -(-rows * features // 4) * 4 + 4
