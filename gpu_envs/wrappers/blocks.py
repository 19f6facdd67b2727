"""Source and launch sizes of the wrappers' kernels. A row is one replica's observation, action or reward."""

from collections.abc import Mapping, Sequence

from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen.layout import mode_enum

THREADS = 256
"""Threads per block."""

MAX_BLOCKS = 1024
"""Maximum number of blocks that split the rows. A last kernel reads the partial results of all blocks."""

SHARED_BYTES = 6 * 1024
"""Shared memory of a block for reductions; the headers assert that it is enough."""

ELEMENTS_PER_STEP = 8
"""Number of elements that take a CPU thread about as long as a step of a small environment."""

ROWS = (("Index", "rows"), ("Index", "rows_of_block"))
"""First members of every kernel's arguments."""


def rows_per_block(rows: int) -> int:
    """Return the rows per block: a multiple of the number of threads that needs at most ``MAX_BLOCKS`` blocks."""
    return THREADS * max(1, -(-rows // (THREADS * MAX_BLOCKS)))


def num_blocks(rows: int, per_block: int) -> int:
    """Return the number of blocks that split the rows."""
    return -(-rows // per_block)


def num_groups(features: int) -> int:
    """Return the number of blocks that split the features of a row: ``GROUPS`` in ``blocks.cuh``."""
    return -(-features // min(features, THREADS))


def program(
    headers: Sequence[str],
    calls: Mapping[str, Struct],
    mode: str,
    features: int,
    elements: int,
    prologue: str = "",
    types: Mapping[str, str] | None = None,
) -> Program:
    """Return the program of a wrapper's kernels, not compiled; a block processes about ``elements`` elements.

    The headers follow ``blocks.cuh``; the prologue is C++ code before all headers.
    """
    constants = [
        mode_enum(mode),
        f"constexpr int TEAM = {THREADS}, FEATURES = {features};",
        f"constexpr u64 SHARED_BYTES = {SHARED_BYTES};",
        prologue,
    ]
    settings = KernelSettings(
        prologue="\n".join(filter(None, constants)),
        types=types or {},
        sizes={"features": features},
        weight=max(1, elements // ELEMENTS_PER_STEP),
        grid=Grid(threads=THREADS, replicas=1, shared_bytes=SHARED_BYTES),
    )
    return program_of(("wrappers/blocks.cuh", *headers), calls, settings)
