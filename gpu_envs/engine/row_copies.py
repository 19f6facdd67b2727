"""Rows of many arrays copied on the device, all arrays in one launch."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

from gpu_envs.backend.arrays import Array, library_of
from gpu_envs.backend.base import Launch
from gpu_envs.backend.program import KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.engine.simulation import Simulation

_STEP = 8
"""Programs are compiled for multiples of this many arrays, so that environments share a few of them."""


_WARP, _WIDE = 32, 256
"""Threads of a GPU that copy a row together, where rows have that many bytes: neighbours touch neighbouring words."""


@functools.cache
def program(arrays: int, threads: int = 1) -> Program:
    """The source, for up to so many arrays, and rows that so many threads share."""
    rows = Struct.of(
        "Rows",
        "float",
        ("const u8*", "source"),
        ("u8*", "target"),
        ("Index", "source_stride"),
        ("Index", "target_stride"),
        ("Index", "source_step"),
        ("Index", "target_step"),
        ("int", "items"),
        ("int", "bytes"),
    )
    call = Struct.of(
        "CopyCall",
        "float",
        ("Index", "count"),
        ("Index", "each"),
        ("Index", "limit"),
        ("const Index*", "sources"),
        ("const Index*", "targets"),
        ("u64*", "wrong"),
        ("u64*", "seeds"),
        ("u64", "first_seed"),
        ("const int*", "offset"),
        ("u32*", "staggered"),
        ("int*", "counted"),
        ("int", "counts_up"),
        ("int", "arrays"),
        (rows, "rows", arrays),
    )
    prologue = f"constexpr int THREADS_OF_A_ROW = {threads};"
    settings = KernelSettings(prologue=prologue, structs=(rows,), weight=max(1, arrays // 4))
    return program_of(("drivers/copy_replicas.cuh",), {"copy": call}, settings)


class Rows(NamedTuple):
    """Where an array's rows lie, one for each replica."""

    at: int
    stride: int
    """Bytes from one row to the next."""
    step: int
    """Bytes from an element of a row to the next."""
    items: int
    """Elements of a row."""
    bytes: int
    """Of an element."""


def rows_of_array(address: int, array: Array) -> Rows:
    """Of an array at an address, replicas first; a simulation's state has them inmost in memory."""
    is_torch = library_of(array) == "torch"
    size = int(array.element_size() if is_torch else array.itemsize)
    strides = [size * each for each in array.stride()] if is_torch else list(array.strides)
    inner = [(n, each) for n, each in zip(array.shape[1:], strides[1:], strict=True) if n > 1]
    for (_, outer), (n, each) in itertools.pairwise(inner):
        assert outer == n * each, "elements of a replica lie evenly"
    return Rows(address, strides[0], inner[-1][1] if inner else size, math.prod(array.shape[1:]), size)


def threads_of_a_row(sim: Simulation, targets: Sequence[Rows]) -> int:
    """How many threads share a row: one on a CPU, and on a GPU where all rows are short."""
    wide = any(rows.items * rows.bytes >= _WIDE for rows in targets)
    return _WARP if wide and sim.backend.device != "cpu" else 1


@final
class RowCopies:
    """Copies rows of some arrays to rows of others."""

    def __init__(self, sim: Simulation, sources: Sequence[Rows], targets: Sequence[Rows], **constants: Any) -> None:
        """Compiles; ``constants`` are values of the kernel's struct that hold for each run."""
        arrays = -(-len(targets) // _STEP) * _STEP
        self._threads = threads_of_a_row(sim, targets)
        made = program(arrays, self._threads)
        if (arrays, self._threads) not in sim.copying:
            sim.copying[arrays, self._threads] = sim.backend.load(made)
        # the simulation keeps these, so that they must not keep it: its memory would wait for the garbage collector
        self._arrays, self._kernels, self._call = sim.arrays, sim.copying[arrays, self._threads], made.calls["copy"]()
        self._bound: tuple[int, Launch | None] = (0, None)
        self._set(each=1, limit=sim.config.num_envs, arrays=len(targets), **constants)
        for place, source, target in zip(self._call.rows, sources, targets, strict=False):
            place.source, place.source_stride, place.source_step = source[:3]
            place.target, place.target_stride, place.target_step, items, size = target
            if source.step == target.step == size:  # in the largest words that lie evenly everywhere
                places = (source.at, target.at, source.stride, target.stride, items * size)
                word = next(n for n in (8, 4, 1) if not any(at % n for at in places))
                items, size = items * size // word, word
                place.source_step = place.target_step = word
            place.items, place.bytes = items, size

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self._call, name, value)

    def place(self, side: str, block: int, begins: Sequence[int]) -> None:
        """Moves the arrays that are the ``source`` or the ``target`` into the block at an address."""
        for rows, begin in zip(self._call.rows, begins, strict=False):
            setattr(rows, side, block + begin)

    def run(self, count: int, **values: Any) -> None:
        """Copies ``count`` rows; ``values`` of the kernel's struct stay until other ones are given."""
        self._set(count=count, **values)
        bound, launch = self._bound
        if launch is None or bound != count:
            launch = self._kernels.bind("copy", self._call, count * self._threads)
            self._bound = count, launch
        launch(self._arrays.stream())
