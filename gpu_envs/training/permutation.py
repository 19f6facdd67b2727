"""Random orders of samples, made where they are used."""

from typing import Final, final

import torch

from gpu_envs.codegen.structs import Struct
from gpu_envs.torch_kernels import Compiler, Shape, address

PERMUTATION_CALL = Struct.of(
    "PermutationCall",
    "float",
    ("Index", "count"),
    ("const u64*", "stream"),
    ("u64", "turn"),
    ("int*", "indices"),
    ("int", "half_bits"),
)

CALLS = {"permute": PERMUTATION_CALL}

SHAPE = Shape("", weight=4)

MOST = 2**31
"""Indices are 32-bit integers."""


@final
class Permutation:
    """Random orders of 0 to count-1: a function of a key and a turn, one thread an element."""

    def __init__(self, count: int, device: str, threads: int | None = None) -> None:
        """Compiles the kernel.

        Args:
            count: How many elements.
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
            threads: For the CPU: the most threads to use; None: one for each core.
        """
        if not 1 <= count <= MOST:
            raise ValueError(f"count is {count}; give 1 to {MOST}: indices are 32-bit integers")
        self.count: Final = count
        self._half_bits: Final = max(1, ((count - 1).bit_length() + 1) // 2)
        self._compiler: Final = Compiler(device, threads)
        (self._permute,) = self._compiler.compile(("permutation.cuh",), CALLS, SHAPE)

    def write(self, indices: torch.Tensor, stream: torch.Tensor, turn: int) -> None:
        """Writes an order.

        Args:
            indices: int32 [count], written: each of 0 to count-1 once.
            stream: int64 [2] on the device: the key, and a counter that ``turn`` is added to.
            turn: Which of the orders since the counter changed.
        """
        if not 0 <= turn < 2**63:
            raise ValueError(f"turn is {turn}; give 0 or more")
        device = self._compiler.device
        self._permute(
            self.count,
            {
                "count": self.count,
                "stream": address("stream", stream, (2,), torch.int64, device),
                "turn": turn,
                "indices": address("indices", indices, (self.count,), torch.int32, device),
                "half_bits": self._half_bits,
            },
        )
