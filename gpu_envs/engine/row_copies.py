"""Copies of rows of many arrays on the device, in one launch."""

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

_ARRAYS_STEP = 8
"""Programs are compiled for multiples of this number of arrays, so that environments share compiled programs."""


_WARP, _WIDE_ROW = 32, 256
"""On a GPU a warp copies each row if rows have at least 256 bytes: memory accesses of neighbouring threads coalesce."""


@functools.cache
def copy_program(arrays: int, threads: int = 1) -> Program:
    """The program that copies rows of up to ``arrays`` arrays to other arrays, with ``threads`` threads per row."""
    rows = Struct.of(
        "Rows",
        "float",
        ("const u8*", "source"),
        ("u8*", "target"),
        ("Index", "source_stride, target_stride, source_step, target_step"),
        ("int", "items, bytes"),
    )
    call = Struct.of(
        "CopyCall",
        "float",
        ("Index", "count, each, limit"),
        ("const Index*", "sources, targets"),
        ("u64*", "wrong, seeds"),
        ("u64", "first_seed"),
        ("const int*", "offset"),
        ("u32*", "staggered"),
        ("int*", "counted"),
        ("int", "counts_up, arrays"),
        (rows, "rows", arrays),
    )
    prologue = f"constexpr int THREADS_OF_A_ROW = {threads};"
    settings = KernelSettings(prologue=prologue, structs=(rows,), weight=max(1, arrays // 4))
    return program_of(("drivers/copy_replicas.cuh",), {"copy": call}, settings)


class Rows(NamedTuple):
    """The memory of an array with one row for each replica."""

    address: int
    stride: int
    """Bytes from one row to the next."""
    element_stride: int
    """Bytes from one element of a row to the next."""
    elements: int
    """Number of elements of a row."""
    element_bytes: int


def array_rows(address: int, array: Array) -> Rows:
    """The rows at ``address`` of an array ``[replicas, ...]``, maybe a transposed view: states have replicas last."""
    size = int(array.itemsize)
    strides = [size * stride for stride in array.stride()] if library_of(array) == "torch" else list(array.strides)
    inner = [(n, stride) for n, stride in zip(array.shape[1:], strides[1:], strict=True) if n > 1]
    for (_, outer_stride), (n, stride) in itertools.pairwise(inner):
        assert outer_stride == n * stride, "the elements of a row are evenly spaced"
    return Rows(address, strides[0], inner[-1][1] if inner else size, math.prod(array.shape[1:]), size)


def threads_per_row(sim: Simulation, targets: Sequence[Rows]) -> int:
    """The number of threads that copy a row: one on a CPU, or if all rows are short, otherwise a warp."""
    wide = any(rows.elements * rows.element_bytes >= _WIDE_ROW for rows in targets)
    return _WARP if wide and sim.backend.device != "cpu" else 1


@final
class RowCopies:
    """A prepared launch that copies rows of source arrays to rows of target arrays."""

    def __init__(self, sim: Simulation, sources: Sequence[Rows], targets: Sequence[Rows], **constants: Any) -> None:
        """Compile the kernel without a launch; ``constants`` are kernel arguments that stay the same in all runs."""
        arrays = -(-len(targets) // _ARRAYS_STEP) * _ARRAYS_STEP
        self._threads = threads_per_row(sim, targets)
        program = copy_program(arrays, self._threads)
        if (arrays, self._threads) not in sim.copy_cache:
            sim.copy_cache[arrays, self._threads] = sim.backend.load(program)
        # The simulation refers to this object, so a reference back would form a cycle: the simulation's memory would
        # only be freed by the garbage collector.
        self._arrays, self._kernels = sim.arrays, sim.copy_cache[arrays, self._threads]
        self._args = program.calls["copy"]()
        self._bound: tuple[int, Launch | None] = (0, None)
        self._set(each=1, limit=sim.config.num_envs, arrays=len(targets), **constants)
        for rows, source, target in zip(self._args.rows, sources, targets, strict=False):
            rows.source, rows.source_stride, rows.source_step = source[:3]
            rows.target, rows.target_stride, rows.target_step, items, size = target
            if source.element_stride == target.element_stride == size:  # contiguous: copy the largest aligned words
                multiples = (source.address, target.address, source.stride, target.stride, items * size)
                word = next(n for n in (8, 4, 1) if not any(value % n for value in multiples))
                items, size = items * size // word, word
                rows.source_step = rows.target_step = word
            rows.items, rows.bytes = items, size

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self._args, name, value)

    def set_block(self, side: str, address: int, offsets: Sequence[int]) -> None:
        """Set the addresses of all ``source`` or ``target`` arrays (``side``) to ``address`` plus their offsets."""
        for rows, offset in zip(self._args.rows, offsets, strict=False):
            setattr(rows, side, address + offset)

    def run(self, count: int, **values: Any) -> None:
        """Copy ``count`` rows of each array; ``values`` are kernel arguments, which keep their values in later runs."""
        self._set(count=count, **values)
        bound, launch = self._bound
        if launch is None or bound != count:
            launch = self._kernels.bind("copy", self._args, count * self._threads)
            self._bound = count, launch
        launch(self._arrays.stream())
