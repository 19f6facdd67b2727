"""What a horizon was like: moments of advantages and returns, for the loss and for the figures of an iteration."""

from typing import Final, final

import torch

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.operations.advantage import MOMENTS, MOMENTS_IN_CPP
from gpu_envs.training.operations.ops import SUMS
from gpu_envs.training.process.group import Group

FIGURES = (
    *("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "samples"),
    *("explained_variance", "gradient_norm", "learning_rate", "largest_observation"),
)
"""What a learner reports of each iteration; the first six are sums over its minibatches."""

OF_DISTRIBUTIONS = ("policy_loss", "entropy", "kl", "clip_fraction")
"""Those of policies that say how likely each action is."""

_BLOCK = 256
_MOST_BLOCKS = 128

MEASURE_CALL = Struct.of(
    "MeasureCall",
    "float",
    ("Index", "rows"),
    ("Index", "row_stride"),
    ("Index", "moment_stride"),
    ("int", "blocks"),
    ("const float*", "moments"),
    ("double*", "sums", (_MOST_BLOCKS, MOMENTS)),
    ("int*", "arrived", (1,)),
    ("float*?", "pooled", (MOMENTS,)),
    ("float*", "largest", (1,)),
    ("float*?", "normaliser", (2,)),
    ("float*", "figures", (len(FIGURES),)),
)


def program() -> Program:
    """The source."""
    lines = [
        MOMENTS_IN_CPP,
        f"enum Figure : int {{ {', '.join(FIGURES).upper()} }};",
        f"constexpr int BLOCK = {_BLOCK}, SUMS = {len(SUMS)};",
    ]
    settings = KernelSettings(prologue="\n".join(lines), grid=Grid(threads=_BLOCK, replicas=1))
    return program_of(
        ("training/common/moments.cuh", "training/common/measure.cuh"), {"measure": MEASURE_CALL}, settings
    )


@final
class Measure:
    """Takes from each row's moments what loss and figures want of all rows, those of all processes together.

    Attributes:
        moments: [7, R]: of each row, by ``Advantages``.
        largest: [1]: the largest observation, for ``Networks`` to raise; it begins again at 0 with each measurement.
    """

    def __init__(self, moments: torch.Tensor, device: str, threads: int | None, group: Group) -> None:
        """Takes the moments, which are yet to be written."""
        (self._kernel,) = load_kernels(open_backend(resolve_device(device), threads), program())
        self._group: Final = group
        self.moments: Final = moments
        self.largest: Final = torch.zeros(1, device=device)
        self._pooled: Final = torch.zeros(MOMENTS, device=device) if group.size > 1 else None
        sums = torch.zeros(_MOST_BLOCKS, MOMENTS, dtype=torch.float64, device=device)
        arrived = torch.zeros(1, dtype=torch.int32, device=device)
        self._kernel.fill(sums=sums, arrived=arrived, largest=self.largest)

    def write(self, figures: torch.Tensor, normaliser: torch.Tensor | None) -> None:
        """Begins an iteration's figures: sums at zero, what the values explain, and the largest observation.

        Args:
            figures: [10]: ``FIGURES``.
            normaliser: [2], written: the mean of the advantages, and one over their deviation; None: not wanted.
        """
        moments = self.moments
        if self._pooled is not None:
            self._launch(moments, self._pooled, figures, None)
            moments = self._group.gathered(self._pooled).T
        self._launch(moments, None, figures, normaliser)

    def _launch(
        self, moments: torch.Tensor, pooled: torch.Tensor | None, figures: torch.Tensor, normaliser: torch.Tensor | None
    ) -> None:
        rows = moments.shape[1]
        blocks = min(_MOST_BLOCKS, -(-rows // _BLOCK))
        self._kernel.launch(
            blocks,
            rows=rows,
            row_stride=moments.stride(1),
            moment_stride=moments.stride(0),
            blocks=blocks,
            moments=moments.data_ptr(),
            pooled=pooled,
            normaliser=normaliser,
            figures=figures,
        )
