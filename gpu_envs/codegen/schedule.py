"""How the threads and blocks of a device share a team of agents, and what a block keeps in its memory."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, final

import gymnasium
import numpy as np

from gpu_envs.backend.program import Device
from gpu_envs.codegen.world import WorldField
from gpu_envs.specs.spaces import RoleObservation, mask_entries

NARROW_ROW = 32
"""Floats in a row of observations up to which a thread writes one; a warp writes several wider ones together."""

WIDE_ROW = 128
"""Floats from which all threads of a warp write a row together."""

BATCH_FLOATS = 1088
"""About so many floats of rows a warp keeps before it copies them out."""

SMALL_TEAM = 64
"""Agents up to which several replicas share a block, or where rows are wide a few warps have one."""

BLOCK_THREADS = 256
"""The most threads in a block, where the user says nothing."""

NARROW_THREADS = 384
"""The same for a team with narrow rows of observations, whose phases are short."""

MANY_FLOATS = 6000
"""Floats of rows of a small team from which it has four warps, and three otherwise."""

LIGHT_ROWS = 128
"""Floats in a row, on average, up to which few threads write one together: it is soon done."""

SEVERAL_BYTES = 40 * 1024
"""Shared memory that replicas in one block may have together: more would leave a multiprocessor too few blocks."""

LARGE_TEAM = 2048
"""Agents from which a team is spread over the whole GPU, where there are fewer replicas than multiprocessors."""

RESERVED_BYTES = 1024 + 128
"""Shared memory of a block beside its own: the system's, and the dialect's."""

MOST_THREADS = {"BY_BLOCK": 1280, "BY_WARP": 896, "DIRECTLY": 1024}
"""On a multiprocessor at a time, by how rows are written: what was quickest on an H200; with more, fewer registers."""


class RoleRows(NamedTuple):
    """The agents of one role, and their rows."""

    name: str
    first: int
    size: int
    seen: RoleObservation
    action: gymnasium.Space[Any]
    apart: bool
    """What all of them see alike is not in their rows."""

    @property
    def observation(self) -> gymnasium.spaces.Box:
        """What a row holds."""
        return self.seen.individual if self.apart else self.seen.full

    @property
    def features(self) -> int:
        """Floats in one row of observations."""
        return int(self.seen.individual.shape[0]) + (0 if self.apart else self.seen.shared_size)

    @property
    def choices(self) -> int:
        """Entries in one action mask."""
        return mask_entries(self.action)


class TeamSchedule(NamedTuple):
    """How the phases of a step are run."""

    kind: str
    """``HOST``, ``BLOCK`` or ``SPREAD``."""
    replicas: int
    """In a block."""
    threads: int
    """In a block."""
    writing: str
    """How rows of observations are written: ``DIRECTLY``, ``BY_BLOCK`` or ``BY_WARP``."""
    lanes: int
    """Threads that write a row together."""
    together: tuple[int, ...]
    """Rows of each role that a warp copies out together."""
    chunk: int
    """Agents whose rows a block copies out together."""
    offsets: Mapping[str, int]
    """Where in a block's memory each field of its Worlds begins."""
    rows_at: int
    """Where the rows begin."""
    warp_floats: int
    """The room that a warp has for rows."""
    shared_bytes: int
    """The size of it all."""

    def blocks(self, device: Device, *, double: bool) -> int:
        """How many blocks a multiprocessor should have room for, which limits what registers a thread may have."""
        fitting = device.shared_bytes // (self.shared_bytes + RESERVED_BYTES) if device.on_gpu else 1
        most = MOST_THREADS[self.writing] // (2 if double else 1)
        return max(1, min(fitting, most // self.threads))


@final
@dataclasses.dataclass(frozen=True)
class TeamSize:
    """What the schedule of a team depends on beside the device."""

    roles: tuple[RoleRows, ...]
    world: Iterable[WorldField]
    """Every field of ``World``."""
    columns: Callable[[], int] | None
    """How many columns of a row ``FOR_EACH_COLUMN`` goes through; None: all."""

    @property
    def agents(self) -> int:
        """How many agents a replica has."""
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
    def widest_of_all(self) -> int:
        """The same, or of what all agents of a role see alike."""
        return max(self.widest, *(role.seen.shared_size for role in self.roles))

    def row_lanes(self, kind: str) -> int:
        """How many threads write a row of observations."""
        if kind == "HOST" or self.widest_of_all <= NARROW_ROW:
            return 1
        light = self.floats <= LIGHT_ROWS * self.agents
        columns = self.columns() if self.columns is not None else min(self.widest_of_all, 8 if light else 32)
        return max(1, min(32, columns)) if kind == "BLOCK" else 32 if self.widest_of_all > WIDE_ROW else 1


def schedule_of(team: TeamSize, num_envs: int, device: Device) -> TeamSchedule:
    """How the phases of a step are run on a device."""
    if not device.on_gpu:
        return _laid_out(team, "HOST", 1, 1)
    asked, agents, widest = device.block_size, team.agents, team.widest_of_all
    replicas = 1
    if agents <= SMALL_TEAM and widest <= WIDE_ROW:
        replicas = 1 << max(0, ((asked or BLOCK_THREADS) // agents).bit_length() - 1)
        while replicas > 1 and _laid_out(team, "BLOCK", replicas, 32).shared_bytes > SEVERAL_BYTES:
            replicas //= 2
        threads = -(-replicas * agents // 32) * 32
    elif agents <= SMALL_TEAM:
        threads = asked or (128 if team.floats >= MANY_FLOATS else 96)
    elif widest > WIDE_ROW:
        threads = asked or BLOCK_THREADS
    else:
        threads = asked or min(NARROW_THREADS if widest <= NARROW_ROW else BLOCK_THREADS, -(-agents // 32) * 32)
    block = _laid_out(team, "BLOCK", replicas, threads)
    if block.shared_bytes > device.shared_bytes:
        block = _laid_out(team, "BLOCK", replicas, threads, arrays_in_place=True)
    lonely = agents > LARGE_TEAM and num_envs < device.processors
    if lonely or block.shared_bytes > device.shared_bytes:
        return _laid_out(team, "SPREAD", 1, asked or 128)
    return block


def _laid_out(team: TeamSize, kind: str, replicas: int, threads: int, *, arrays_in_place: bool = False) -> TeamSchedule:
    """Lays a block's memory out: its Worlds, then the rows of observations on their way out.

    Args:
        team: The team.
        kind: ``HOST``, ``BLOCK`` or ``SPREAD``.
        replicas: In a block.
        threads: In a block.
        arrays_in_place: Arrays that last from step to step stay in global memory.
    """
    offsets, at = {}, 0
    for field in team.world:
        in_place = kind == "SPREAD" or (field.kept and (kind == "HOST" or (field.is_array and arrays_in_place)))
        if not in_place:
            offsets[field.name] = at
            size = field.elements(team.agents) * replicas * np.dtype(field.dtype).itemsize
            at += -(-size // 64) * 64  # so that on a CPU each begins a cache line
    widest, rows_at, agents = team.widest, at, 1
    warps = -(-threads // 32)
    lanes = team.row_lanes(kind)
    together = tuple(_warp_rows(role.features, -(-team.agents // warps), 32 // lanes) for role in team.roles)
    warp_floats = max(batch_floats(rows, role.features) for rows, role in zip(together, team.roles, strict=True))
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
    return TeamSchedule(kind, replicas, threads, writing, lanes, together, agents, offsets, rows_at, warp_floats, at)


def _warp_rows(features: int, share: int, at_once: int) -> int:
    """Rows that a warp copies out together: its share of them at most, in turns of those it writes at once."""
    rows = max(1, min(BATCH_FLOATS // max(1, features), share))
    return min(32, rows // at_once * at_once or rows)


def staged_floats(role: RoleRows, together: int, replicas: int) -> int:
    """The room for a role's rows of a chunk of agents, wherever between multiples of 16 bytes they begin."""
    return batch_floats(min(role.size, together) * replicas, role.features)


def batch_floats(rows: int, features: int) -> int:
    """The room for a few rows, wherever between multiples of 16 bytes they begin."""
    return -(-rows * features // 4) * 4 + 4
