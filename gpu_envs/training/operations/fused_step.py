"""The source of what follows the blocks of a fused update: their sum, and a step along it."""

from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.operations.ops import SUMS
from gpu_envs.training.operations.optimiser import STEP_MEMBERS, SUM_NUMBERS
from gpu_envs.training.process.peers import BLOCK, constants

_STEP_THREADS = 512
"""Of a block that adds up what they found: two strips of columns at a time."""
STEP_BLOCKS = 2
"""How many of these a multiprocessor has room for: no more are launched."""
_STRIP = 32
"""Columns."""
_SLICES = 8
"""Sums that a column's rows go to."""

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
    "ReduceCall", "float", *_PARTIALS, ("float*", "gradient", ("parameters",)), ("float*", "totals", (len(SUMS),)),
)  # fmt: skip

STRIPS_OF_BLOCK = BLOCK // 32
"""Columns go by 32 where a step is taken along their sums."""

STEP_CALL = Struct.of(
    "StepCall", "float", *_PARTIALS, *STEP_MEMBERS, ("float*", "strip_squares", ("blocks", STRIPS_OF_BLOCK)),
)  # fmt: skip


def reduce_program(processes: int = 1) -> Program:
    """The sum over blocks: alone, or with a step along it that so many processes take together."""
    settings = KernelSettings(
        prologue=f"{SUM_NUMBERS}\n{constants(processes)}\n"
        f"constexpr int STEP_THREADS = {_STEP_THREADS}, STEP_BLOCKS = {STEP_BLOCKS};",
        sizes={"processes": processes},
        grid=Grid(threads=_STEP_THREADS, replicas=1, shared_bytes=_step_bytes(_STEP_THREADS), together=True),
    )
    parts = [f"training/{part}.cuh" for part in ("common/peers", "common/adam", "small/step", "small/reduce")]
    return program_of(parts, {"reduce": REDUCE_CALL, "step": STEP_CALL}, settings)


def _step_bytes(threads: int) -> int:
    """Shared memory of a block that takes a step: ``StepMemory`` in ``small/step.cuh``."""
    return 4 * (strips_at_a_time(threads) * _SLICES * _STRIP + 2)


def strips_at_a_time(threads: int = _STEP_THREADS) -> int:
    """Strips of columns that such a block sums at a time."""
    warps = threads // 32
    return warps // (_SLICES if warps % _SLICES == 0 else _SLICES // 2)


def strips(columns: int) -> int:
    """Into how many so many columns go."""
    return -(-columns // _STRIP)
