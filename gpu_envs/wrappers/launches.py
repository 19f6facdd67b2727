"""Launches of the wrappers' kernels: blocks of rows, with everything filled in that stays the same."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, final

import torch

from gpu_envs.arrays import TorchArrays
from gpu_envs.backend import Backend
from gpu_envs.backend.base import Kernels
from gpu_envs.codegen import Grid, Program
from gpu_envs.codegen.layout import mode_enum
from gpu_envs.codegen.structs import Struct
from gpu_envs.torch_kernels import Shape, program_of

Member: TypeAlias = torch.Tensor | int | float | None
"""What is given for a member of a kernel's struct: of a tensor its address."""

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
    """How many blocks share a row: ``GROUPS`` in ``wrappers.cuh``."""
    return -(-features // min(features, TEAM))


def program(
    headers: Sequence[str], calls: Mapping[str, Struct], mode: str, features: int, elements: int, prologue: str = ""
) -> Program:
    """The source of kernels over blocks.

    Args:
        headers: Of ``gpu_envs/kernels``, after ``wrappers.cuh``.
        calls: The struct of each kernel.
        mode: The auto-reset mode.
        features: Columns of a row.
        elements: Of a block, roughly.
        prologue: C++ that stands before the headers.
    """
    constants = [
        mode_enum(mode),
        f"constexpr int TEAM = {TEAM}, FEATURES = {features};",
        f"constexpr u64 SHARED_BYTES = {SHARED_BYTES};",
        prologue,
    ]
    shape = Shape("\n".join(constants), weight=max(1, elements // ELEMENTS_PER_STEP))
    made = program_of(("wrappers.cuh", *headers), calls, shape)
    return dataclasses.replace(made, grid=Grid(threads=TEAM, replicas=1, shared_bytes=SHARED_BYTES))


@final
class Launch:
    """A kernel, its struct, and the number of its blocks."""

    def __init__(
        self, kernels: Kernels, name: str, call: Any, stream: TorchArrays, blocks: int, members: Mapping[str, Member]
    ) -> None:
        """Fills in what stays the same.

        Args:
            kernels: Of the program.
            name: The kernel's.
            call: Its struct.
            stream: Says where to launch.
            blocks: How many.
            members: Of the struct. The others are given in each call, in the order in which the struct has them.
        """
        names = [member for member, _ in call._fields_]
        if not set(members) <= set(names):
            raise ValueError(f"kernel {name} takes {', '.join(names)}; given {', '.join(members)}")
        self._call = call
        self._changing: Final = [member for member in names if member not in members]
        self._stream = stream
        self._kept = dict(members)
        self.set(**members)
        self._launch = kernels.bind(name, call, blocks)

    def set(self, /, **members: Member) -> None:
        """Fills in other values of what stays the same. A graph that was captured before keeps the old ones."""
        self._kept |= members  # the tensors must not be freed
        for name, value in members.items():
            setattr(self._call, name, value.data_ptr() if isinstance(value, torch.Tensor) else value)

    def __call__(self, *values: int | None) -> None:
        """Launches on torch's current stream, with these values (of tensors: their addresses) for what changes."""
        for name, value in zip(self._changing, values, strict=True):
            setattr(self._call, name, value)
        self._launch(self._stream.stream())


@final
class Launches:
    """A program that is loaded."""

    def __init__(self, backend: Backend, made: Program) -> None:
        """Compiles it."""
        self._program = made
        self._kernels = backend.load(made)
        self._stream = TorchArrays(backend.device)

    def of(self, name: str, count: int, /, **members: Member) -> Launch:
        """A launch of one kernel over so many blocks, with these members filled in."""
        return Launch(self._kernels, name, self._program.calls[name](), self._stream, count, members)
