"""The source of what follows the blocks of a fused update: their sum, and a step along it."""

import dataclasses
import functools
from collections.abc import Mapping

from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.operations.fused_programs import kernels_of_blocks
from gpu_envs.training.operations.ops import SUMS
from gpu_envs.training.operations.optimiser import STEP_MEMBERS, SUM_NUMBERS
from gpu_envs.training.operations.sizes import sizes_of
from gpu_envs.training.process.group import BLOCK, constants

_STEP_THREADS = 512
"""Of a block that adds up what they found."""
STEP_BLOCKS = 2
"""How many of these a multiprocessor has room for: no more are launched."""
_PARTIALS = (
    ("int", "actors"),
    ("int", "critics"),
    ("int", "critic"),
    ("int", "critic_end"),
    ("int", "value_loss"),
    ("int", "log_std"),
    ("int", "log_stds"),
    ("float", "low"),
    ("float", "high"),
    ("int", "parameters"),
    ("const float*", "flat", ("parameters",)),
    ("const float*", "partials", ("workers", "columns")),
)
"""What the blocks of an update leave, and what is in its columns."""

REDUCE_CALL = Struct.of(
    "ReduceCall",
    "float",
    *_PARTIALS,
    ("float*", "gradient", ("parameters",)),
    ("float*", "totals", (len(SUMS),)),
)

STRIPS_OF_BLOCK = BLOCK // 32
"""Columns go by 32 where a step is taken along their sums."""

STEP_CALL = Struct.of(
    "StepCall",
    "float",
    *_PARTIALS,
    *STEP_MEMBERS,
    ("float*", "strip_squares", ("blocks", STRIPS_OF_BLOCK)),
)


def reduce_program(processes: int = 1) -> Program:
    """The sum over blocks: alone, or with a step along it that so many processes take together."""
    calls = {"reduce": REDUCE_CALL, "step": STEP_CALL}
    grid = Grid(threads=_STEP_THREADS, replicas=1, shared_bytes=_sizes()["bytes"], together=True)
    kernels = kernels_of_blocks(calls, f"STEP_THREADS, {STEP_BLOCKS}")
    settings = dataclasses.replace(_settings(processes), grid=grid)
    return program_of([*_PARTS, kernels], calls, settings)


def columns_at_a_time() -> int:
    """Columns that such a block sums at a time."""
    return _sizes()["columns"]


_PARTS = [f"training/{part}.cuh" for part in ("common/peers", "common/adam", "small/step")]


def _settings(processes: int) -> KernelSettings:
    prologue = f"{SUM_NUMBERS}\n{constants(processes)}\nconstexpr int STEP_THREADS = {_STEP_THREADS};"
    return KernelSettings(prologue=prologue, sizes={"processes": processes})


@functools.cache
def _sizes() -> Mapping[str, int]:
    sizes = {"bytes": "sizeof(StepMemory)", "columns": "StepMemory::TEAMS * WARP"}
    return sizes_of(_PARTS, _settings(1), sizes)
