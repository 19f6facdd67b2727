"""Kernels of the wrappers: each block of threads has some rows."""

from collections.abc import Mapping, Sequence

from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen.layout import mode_enum

TEAM = 256
"""Threads of a block."""

MOST_BLOCKS = 1024
"""That share the rows. Each leaves something for the others to read, so there are not too many."""

SHARED_BYTES = 6 * 1024
"""What a block has to add up in; the headers assert that it is enough."""

ELEMENTS_PER_STEP = 8
"""So many elements cost what a step of a small environment does, roughly: the measure of a CPU thread's work."""

ROWS = (("Index", "rows"), ("Index", "rows_of_block"))
"""What every kernel is told first."""


def rows_of_block(rows: int) -> int:
    """How many rows a block has: as many as its team, until there would be too many blocks."""
    return TEAM * max(1, -(-rows // (TEAM * MOST_BLOCKS)))


def blocks_of(rows: int, each: int) -> int:
    """How many blocks there are."""
    return -(-rows // each)


def groups_of(features: int) -> int:
    """How many blocks share a row: ``GROUPS`` in ``blocks.cuh``."""
    return -(-features // min(features, TEAM))


def program(
    headers: Sequence[str],
    calls: Mapping[str, Struct],
    mode: str,
    features: int,
    elements: int,
    prologue: str = "",
    types: Mapping[str, str] | None = None,
) -> Program:
    """The source of kernels over blocks of roughly so many elements, in rows of so many features.

    The headers follow ``blocks.cuh``; the prologue is C++ before them all.
    """
    constants = [
        mode_enum(mode),
        f"constexpr int TEAM = {TEAM}, FEATURES = {features};",
        f"constexpr u64 SHARED_BYTES = {SHARED_BYTES};",
        prologue,
    ]
    settings = KernelSettings(
        prologue="\n".join(filter(None, constants)),
        types=types or {},
        sizes={"features": features},
        weight=max(1, elements // ELEMENTS_PER_STEP),
        grid=Grid(threads=TEAM, replicas=1, shared_bytes=SHARED_BYTES),
    )
    return program_of(("wrappers/blocks.cuh", *headers), calls, settings)
