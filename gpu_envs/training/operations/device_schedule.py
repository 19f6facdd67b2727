"""Schedules that a device follows by itself."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, final

import torch

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.run import Run
from gpu_envs.training.schedule import Schedule

Target: TypeAlias = tuple[Schedule | str | float, torch.Tensor]

_THREADS = 32

SCHEDULE_CALL = Struct.of(
    "ScheduleCall",
    "float",
    ("Index", "schedules"),
    ("Index", "points_each"),
    ("const double*", "points", ("schedules", "points_each", 2)),
    ("const u64*", "targets", ("schedules",)),
    ("Index*", "clock", (1,)),
    ("Index", "begun"),
    ("Index", "steps"),
    ("Index", "last"),
)


def program() -> Program:
    """The source."""
    settings = KernelSettings(prologue=f"constexpr int THREADS = {_THREADS};", grid=Grid(threads=_THREADS, replicas=1))
    return program_of(("training/common/schedule.cuh",), {"schedule": SCHEDULE_CALL}, settings)


@final
class DeviceSchedules:
    """Writes what schedules say to where it is read, for one update of a run after the other.

    Attributes:
        clock: int64 ``[1]``: the updates so far.
    """

    def __init__(self, targets: Sequence[Target], config: Run, device: str) -> None:
        """Takes each schedule with where its values go, a float32 ``[1]`` on the device."""
        points = [Schedule.of(schedule).points for schedule, _ in targets]
        most = 1 + max(map(len, points))
        padded = [[*some, *[(math.inf, some[-1][1])] * (most - len(some))] for some in points]
        self._targets: Final = [target for _, target in targets]  # whose addresses the kernel has
        self.clock: Final = torch.zeros(1, dtype=torch.int64, device=device)
        (kernel,) = load_kernels(open_backend(resolve_device(device)), program())
        kernel.fill(
            schedules=len(points),
            points_each=most,
            clock=self.clock,
            begun=config.steps_at(0),
            steps=config.steps_of_update,
            last=config.iterations - 1,
        )
        kernel.fill(
            points=torch.tensor(padded, dtype=torch.float64, device=device),
            targets=torch.tensor([target.data_ptr() for target in self._targets], device=device),
        )
        self._kernel: Final = kernel

    @functools.cached_property
    def _write(self) -> Callable[..., None]:
        return self._kernel.bind(1)

    def write(self) -> None:
        """Writes the values for the update that ``clock`` counts up to, and counts it."""
        self._write()
