"""Random orders of samples, made where they are used."""

from typing import Final, final

import torch

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct

PERMUTATION_CALL = Struct.of(
    "PermutationCall",
    "float",
    ("Index", "count"),
    ("Index", "threads"),
    ("int", "each"),
    ("int", "bits"),
    ("int", "size"),
    ("const u64*", "stream", (2,)),
    ("u64", "turn"),
    ("int*", "indices", ("numbers",)),
)

MOST = 2**31
"""Indices are 32-bit integers."""


def program() -> Program:
    """The source."""
    return program_of(("training/common/permutation.cuh",), {"permute": PERMUTATION_CALL}, KernelSettings(weight=4))


_ELEMENTS = 8
"""Of a thread, where there are many."""

_FEW = 2**16
"""Elements up to which each has a thread of its own."""

_LEAST_BITS = 3
"""Of either half of an element: with fewer some orders of a few elements are likelier than others."""


@final
class Permutation:
    """Random orders of groups of so many numbers ``each``, 0 to count-1 times that: a function of a key and a turn."""

    def __init__(self, count: int, device: str, threads: int | None = None, *, each: int = 1) -> None:
        if not 1 <= count * each <= MOST:
            raise ValueError(f"count is {count * each}; give 1 to {MOST}: indices are 32-bit integers")
        self.count: Final = count
        (self._permute,) = load_kernels(open_backend(resolve_device(device), threads), program())
        self._threads: Final = max(min(count, _FEW), -(-count // _ELEMENTS))
        bits = max(_LEAST_BITS, (count - 1).bit_length() // 2)
        size = max(2**_LEAST_BITS, -(-count // 2**bits))
        self._permute.fill(count=count, threads=self._threads, each=each, bits=bits, size=size, numbers=count * each)

    def write(self, indices: torch.Tensor, stream: torch.Tensor, turn: int) -> None:
        """Writes an order.

        Args:
            indices: int32 [count * each], written: each of 0 to count * each - 1 once, those of a group in order.
            stream: int64 [2] on the device: the key, and a counter that ``turn`` is added to.
            turn: Which of the orders since the counter changed.
        """
        if not 0 <= turn < 2**63:
            raise ValueError(f"turn is {turn}; give 0 or more")
        self._permute.launch(self._threads, stream=stream, turn=turn, indices=indices)
