"""Sums over the episodes that end in a horizon, step by step."""

from typing import final

import torch

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct

_BLOCK = 512

EPISODES_CALL = Struct.of(
    "EpisodesCall",
    "float",
    ("Index", "steps"),
    ("Index", "rows"),
    ("Index", "each"),
    ("Index", "width"),
    ("const int*", "lengths", ("steps", "rows", "each")),
    ("const float*", "values", ("steps", "rows", "width")),
    ("float*", "sums", ("numbers", "steps")),
)


def program() -> Program:
    """The source."""
    settings = KernelSettings(
        prologue=f"constexpr int BLOCK = {_BLOCK};", grid=Grid(threads=_BLOCK, replicas=1), weight=64
    )
    return program_of(("training/common/episodes.cuh",), {"episodes": EPISODES_CALL}, settings)


@final
class EpisodeSums:
    """The kernel that adds up what is known of episodes at their ends."""

    def __init__(self, device: str) -> None:
        (self._kernel,) = load_kernels(open_backend(resolve_device(device)), program())

    def of(self, lengths: torch.Tensor, values: torch.Tensor, *, add_lengths: bool) -> torch.Tensor:
        """How many ended in each step, the sums of their values, and where asked that of their lengths, ``[..., T]``.

        Args:
            lengths: int32 ``[T, R, each]``: of the episodes that ended there, else 0; those of each row end together.
            values: ``[T, R, width]``, of the rows; where none ended there may be anything.
            add_lengths: Whether the lengths are added up.
        """
        (steps, rows, width), each = values.shape, lengths.shape[2]
        sums = values.new_empty(1 + width + int(add_lengths), steps)
        self._kernel.launch(
            sums.numel(),
            steps=steps,
            rows=rows,
            each=each,
            width=width,
            lengths=lengths,
            values=values,
            numbers=len(sums),
            sums=sums,
        )
        return sums
