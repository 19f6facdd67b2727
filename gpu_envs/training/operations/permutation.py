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
    ("const u64*", "stream", (2,)),
    ("u64", "turn"),
    ("int*", "indices", ("count",)),
    ("int", "half_bits"),
)

MOST = 2**31
"""Indices are 32-bit integers."""


def program() -> Program:
    """The source."""
    return program_of(("training/permutation.cuh",), {"permute": PERMUTATION_CALL}, KernelSettings(weight=4))


@final
class Permutation:
    """Random orders of 0 to count-1: a function of a key and a turn, one thread an element."""

    def __init__(self, count: int, device: str, threads: int | None = None) -> None:
        if not 1 <= count <= MOST:
            raise ValueError(f"count is {count}; give 1 to {MOST}: indices are 32-bit integers")
        self.count: Final = count
        (self._permute,) = load_kernels(open_backend(resolve_device(device), threads), program())
        self._permute.fill(count=count, half_bits=max(1, ((count - 1).bit_length() + 1) // 2))

    def write(self, indices: torch.Tensor, stream: torch.Tensor, turn: int) -> None:
        """Writes an order.

        Args:
            indices: int32 [count], written: each of 0 to count-1 once.
            stream: int64 [2] on the device: the key, and a counter that ``turn`` is added to.
            turn: Which of the orders since the counter changed.
        """
        if not 0 <= turn < 2**63:
            raise ValueError(f"turn is {turn}; give 0 or more")
        self._permute.launch(self.count, stream=stream, turn=turn, indices=indices)
