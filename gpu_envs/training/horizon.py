"""Kernels that process a full horizon: advantages and their statistics, episode sums, permutations, schedules."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, final

import torch
from torch import Tensor

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import CachedLaunch, Kernel, load_kernels
from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.engines.ops import SUMS
from gpu_envs.training.process.group import Group
from gpu_envs.training.run import Run
from gpu_envs.training.schedule import Schedule

MOMENTS = 7
"""Number of moments of each row's advantages and returns; the first is the number of samples."""

METRICS = (
    *("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "samples"),
    *("explained_variance", "gradient_norm", "learning_rate", "largest_observation"),
)
"""Metrics of an on-policy learner in each iteration; the first six are sums over its minibatches."""

POLICY_METRICS = ("policy_loss", "entropy", "kl", "clip_fraction")
"""Metrics that exist only for algorithms with an action distribution, not for Q networks."""

MAX_SAMPLES = 2**31
"""Limit of samples per horizon: indices are 32-bit integers."""

Target: TypeAlias = tuple[Schedule | str | float, Tensor]
"""A schedule, and the float32 ``[1]`` on the device that receives its values."""

_STATS_BLOCK, _MAX_STATS_BLOCKS = 256, 128
_EPISODES_BLOCK = 512
_SCHEDULE_THREADS = 32

_ELEMENTS_PER_THREAD = 8
"""Elements per thread of a large permutation."""

_MAX_ELEMENT_THREADS = 2**16
"""Maximum size of a permutation with a thread per element."""

_MIN_BITS = 3
"""Minimum bits of either half of a Feistel index: with fewer, small permutations are not uniformly distributed."""

_BY_STEP = ("steps", "rows")
_SIZES = (("Index", "rows"), ("Index", "steps"))
_ENDS = (("const u8*", "terminations", _BY_STEP), ("const u8*", "truncations", _BY_STEP))
_ALIVE = ("const u8*?", "alive", _BY_STEP)
_OPTIONAL: dict[str, Tensor | None] = {"alive": None, "reward_scale": None, "moments": None}

_MOMENTS_IN_CPP = f"constexpr int MOMENTS = {MOMENTS};"

_PROGRAMS = {
    "advantage": (
        {
            "advantages": Struct.of(
                "AdvantageCall",
                "float",
                *_SIZES,
                ("Index", "bootstrap_stride"),
                ("const float*", "rewards", _BY_STEP),
                ("const float*", "values", ("states", "rows")),
                *_ENDS,
                _ALIVE,
                ("const float*", "bootstrap", ("bootstrap_steps", "rows")),
                ("const float*?", "reward_scale", (1,)),
                *(("float*", name, _BY_STEP) for name in ("advantages", "returns")),
                ("float*?", "moments", (MOMENTS, "rows")),
                *(("float", name) for name in ("gamma", "gamma_lambda")),
            ),
            "places": Struct.of(
                "PlacesCall", "float", *_SIZES, ("int", "each"), *_ENDS, ("Index*", "places", ("rows",))
            ),
            "discounted": Struct.of(
                "DiscountedCall",
                "float",
                *_SIZES,
                ("const float*", "rewards", _BY_STEP),
                *_ENDS,
                _ALIVE,
                *(("float*", name, ("rows",)) for name in ("running", "total", "squares", "count")),
                ("float", "gamma"),
            ),
        },
        # the work per row grows with the horizon; this weight is for a horizon of usual length
        KernelSettings(prologue=_MOMENTS_IN_CPP, weight=32),
    ),
    "measure": (
        {
            "measure": Struct.of(
                "MeasureCall",
                "float",
                *(("Index", name) for name in ("rows", "row_stride", "moment_stride")),
                ("int", "blocks"),
                ("const float*", "moments"),
                ("double*", "sums", (_MAX_STATS_BLOCKS, MOMENTS)),
                ("int*", "arrived", (1,)),
                ("float*?", "pooled", (MOMENTS,)),
                ("float*", "largest", (1,)),
                ("float*?", "normaliser", (2,)),
                ("float*", "metrics", (len(METRICS),)),
            ),
        },
        KernelSettings(
            prologue=f"{_MOMENTS_IN_CPP}\nenum Metric : int {{ {', '.join(METRICS).upper()} }};\n"
            f"constexpr int BLOCK = {_STATS_BLOCK}, SUMS = {len(SUMS)};",
            grid=Grid(threads=_STATS_BLOCK, replicas=1),
        ),
    ),
    "permutation": (
        {
            "permute": Struct.of(
                "PermutationCall",
                "float",
                *(("Index", name) for name in ("count", "threads")),
                *(("int", name) for name in ("each", "bits", "size")),
                ("const u64*", "stream", (2,)),
                ("u64", "turn"),
                ("int*", "indices", ("numbers",)),
            ),
        },
        KernelSettings(weight=4),
    ),
    "episodes": (
        {
            "episodes": Struct.of(
                "EpisodesCall",
                "float",
                *(("Index", name) for name in ("steps", "rows", "each", "width")),
                ("const int*", "lengths", ("steps", "rows", "each")),
                ("const float*", "values", ("steps", "rows", "width")),
                ("float*", "sums", ("numbers", "steps")),
            ),
        },
        KernelSettings(
            prologue=f"constexpr int BLOCK = {_EPISODES_BLOCK};",
            grid=Grid(threads=_EPISODES_BLOCK, replicas=1),
            weight=64,
        ),
    ),
    "schedule": (
        {
            "schedule": Struct.of(
                "ScheduleCall",
                "float",
                *(("Index", name) for name in ("schedules", "points_each")),
                ("const double*", "points", ("schedules", "points_each", 2)),
                ("const i64*", "distances", ("schedules",)),
                ("Index*", "clock", (1,)),
                *(("Index", name) for name in ("begun", "steps", "last")),
            ),
        },
        KernelSettings(
            prologue=f"constexpr int THREADS = {_SCHEDULE_THREADS};", grid=Grid(threads=_SCHEDULE_THREADS, replicas=1)
        ),
    ),
}
"""For each header in ``kernels/training/common``: the arguments of its kernels, and how they are compiled."""


def program(header: str, block: int = 0) -> Program:
    """Return the program with a header's kernels; ``block``: threads of a block of ``episodes``, if not the usual."""
    calls, settings = _PROGRAMS[header]
    if block:
        assert header == "episodes"
        assert settings.grid is not None
        grid = dataclasses.replace(settings.grid, threads=block)
        settings = dataclasses.replace(settings, prologue=f"constexpr int BLOCK = {block};", grid=grid)
    parts = ["moments", header] if _MOMENTS_IN_CPP in settings.prologue else [header]
    return program_of([f"training/common/{part}.cuh" for part in parts], calls, settings)


def _kernels(header: str, device: str, threads: int | None = None, block: int = 0) -> list[Kernel]:
    return load_kernels(open_backend(resolve_device(device), threads), program(header, block))


@final
class Advantages:
    """Kernels that loop over the steps of a horizon, one thread per row; arrays are [T steps, R rows]."""

    def __init__(self, device: str, threads: int | None = None) -> None:
        self._advantages, self._places, self._discounted = _kernels("advantage", device, threads)

    def compute(self, rewards: Tensor, bootstrap: Tensor, gamma: float, lam: float, **arrays: Tensor | None) -> None:
        """Write GAE advantages and returns, backward over the steps, to the output arrays given by keyword.

        Args:
            rewards: [T, R].
            bootstrap: [R] or [T, R]: values of final observations, read where an episode was truncated, not terminated.
            gamma: Discount factor.
            lam: Lambda of GAE.
            **arrays: Inputs: ``values`` [T + 1, R] of the observations before each step and after the last;
                ``terminations``; ``truncations``. Outputs: ``advantages``; ``returns``, advantages + values.
                Optional inputs: ``alive``, whether the agent was active (otherwise the advantage is zero, and the
                return is the value); ``reward_scale`` [1], a factor of the rewards. Optional output: ``moments``
                [7, R], the input of ``AdvantageStats``.
        """
        steps, rows = _steps_and_rows(rewards)
        by_step = bootstrap.ndim == 2
        sizes = {"bootstrap_steps": steps if by_step else None, "bootstrap_stride": rows if by_step else 0}
        arrays = _OPTIONAL | arrays | {"rewards": rewards, "bootstrap": bootstrap}
        factors = {"gamma": gamma, "gamma_lambda": gamma * lam}
        self._advantages.launch(rows, rows=rows, steps=steps, states=steps + 1, **sizes, **factors, **arrays)

    def find_final(self, terminations: Tensor, truncations: Tensor, indices: Tensor, *, group_size: int = 1) -> None:
        """Write for each row the index step * R + row of its last step truncated and not terminated; negative: none.

        Args:
            terminations: [T, R].
            truncations: [T, R].
            indices: int64 [R], output.
            group_size: Number of consecutive rows whose episodes are truncated together.
        """
        steps, rows = _steps_and_rows(truncations)
        ends = {"terminations": terminations, "truncations": truncations}
        self._places.launch(rows // group_size, rows=rows, steps=steps, each=group_size, places=indices, **ends)

    def discounted(self, rewards: Tensor, gamma: float, **arrays: Tensor | None) -> None:
        """Update each row's discounted return ``running``, which restarts at 0 after an episode, and write its sums.

        Args:
            rewards: [T, R].
            gamma: Discount factor.
            **arrays: ``terminations``, ``truncations`` and ``alive`` as in ``compute``; ``running`` [R], the discounted
                return, updated in place. Outputs for each row: ``count``, the number of steps with an active agent;
                ``total`` and ``squares``, the sums of the discounted return and of its square over these steps.
        """
        steps, rows = _steps_and_rows(rewards)
        self._discounted.launch(rows, rows=rows, steps=steps, rewards=rewards, gamma=gamma, **arrays)


def _steps_and_rows(array: Tensor) -> tuple[int, int]:
    if array.ndim != 2:
        raise ValueError(f"an array of a horizon has shape {list(array.shape)}; give [steps, rows]")
    return array.shape[0], array.shape[1]


@final
class AdvantageStats:
    """Reduces each row's moments to the mean and standard deviation of the advantages of all rows and processes.

    Attributes:
        moments: [7, R]: the moments of each row, written by ``Advantages``.
        largest: [1]: largest absolute observation, raised by ``Networks``; ``write`` resets it to 0.
    """

    def __init__(self, moments: Tensor, device: str, threads: int | None, group: Group) -> None:
        (self._kernel,) = _kernels("measure", device, threads)
        self._group: Final = group
        self.moments: Final = moments
        self.largest: Final = torch.zeros(1, device=device)
        self._pooled: Final = torch.zeros(MOMENTS, device=device) if group.size > 1 else None
        sums = torch.zeros(_MAX_STATS_BLOCKS, MOMENTS, dtype=torch.float64, device=device)
        arrived = torch.zeros(1, dtype=torch.int32, device=device)
        self._kernel.fill(sums=sums, arrived=arrived, largest=self.largest)

    def write(self, metrics: Tensor, normaliser: Tensor | None) -> None:
        """Write an iteration's first metrics (zero sums, explained variance, largest observation) and the normaliser.

        Args:
            metrics: [10], output: ``METRICS``.
            normaliser: [2], output: mean and inverse standard deviation of the advantages; None: not computed.
        """
        moments = self.moments
        if self._pooled is not None:
            self._launch_measure(moments, pooled=self._pooled, metrics=metrics, normaliser=None)
            moments = self._group.all_gather(self._pooled).T
        self._launch_measure(moments, pooled=None, metrics=metrics, normaliser=normaliser)

    def _launch_measure(self, moments: Tensor, **outputs: Tensor | None) -> None:
        """Reduce moments ``[7, rows]`` to the outputs that are not None: pooled, metrics, normaliser."""
        rows, (moment_stride, row_stride) = moments.shape[1], moments.stride()
        blocks = min(_MAX_STATS_BLOCKS, -(-rows // _STATS_BLOCK))
        sizes = {"rows": rows, "row_stride": row_stride, "moment_stride": moment_stride, "blocks": blocks}
        self._kernel.launch(blocks, moments=moments.data_ptr(), **sizes, **outputs)


@final
class Permutation:
    """Random permutations of ``count`` groups of ``group_size`` consecutive indices, from a counter-based generator."""

    def __init__(self, count: int, device: str, threads: int | None = None, *, group_size: int = 1) -> None:
        numbers = count * group_size
        if not 1 <= numbers <= MAX_SAMPLES:
            raise ValueError(f"a horizon has {numbers} samples; give 1 to {MAX_SAMPLES}: change num_envs or horizon")
        (self._permute,) = _kernels("permutation", device, threads)
        self._threads: Final = max(min(count, _MAX_ELEMENT_THREADS), -(-count // _ELEMENTS_PER_THREAD))
        bits = max(_MIN_BITS, (count - 1).bit_length() // 2)
        size = max(2**_MIN_BITS, -(-count // 2**bits))
        self._permute.fill(count=count, threads=self._threads, each=group_size, bits=bits, size=size, numbers=numbers)

    def write(self, indices: Tensor, stream: Tensor, turn: int) -> None:
        """Write every index once, in a random order of groups; the indices of a group stay in order.

        Args:
            indices: int32 [count * group_size], output.
            stream: int64 [2] on the device: the key and the counter of the random numbers.
            turn: Added to the counter; use a different one for each permutation until the counter changes.
        """
        if not 0 <= turn < 2**63:
            raise ValueError(f"turn, the offset of the random counter, is {turn}; give 0 to below 2^63")
        self._permute.launch(self._threads, stream=stream, turn=turn, indices=indices)


@final
class EpisodeSums:
    """The kernel that sums returns, lengths or metrics over the episodes that ended in each step."""

    def __init__(self, device: str, rows: int = 2**31) -> None:
        """Load the kernel, tuned for ``rows`` rows: a block has no more threads than there are."""
        on_gpu = resolve_device(device) != "cpu"
        block = min(_EPISODES_BLOCK, max(32, 1 << (rows - 1).bit_length())) if on_gpu else 0
        (self._kernel,) = _kernels("episodes", device, block=block)

    def of(self, lengths: Tensor, values: Tensor, *, add_lengths: bool) -> Tensor:
        """Return for each step the number of ended episodes, the sums of ``values``, and optionally of lengths.

        The result is ``[1 + width (+ 1), T]``.

        Args:
            lengths: int32 ``[T, R, agents]``: length of an episode that ended in the step, otherwise 0; the episodes of
                a row's agents end together.
            values: ``[T, R, width]``; ignored where no episode ended.
            add_lengths: Whether the result includes the sums of lengths.
        """
        (steps, rows, width), agents = values.shape, lengths.shape[2]
        sums = values.new_empty(1 + width + int(add_lengths), steps)
        sizes = {"steps": steps, "rows": rows, "each": agents, "width": width, "numbers": len(sums)}
        self._kernel.launch(sums.numel(), lengths=lengths, values=values, sums=sums, **sizes)
        return sums


MAX_POINTS = 15
"""Number of points that a schedule may have if it is set during training; more if a schedule of the run has more."""


def _padded(points: Sequence[tuple[float, float]], length: int) -> list[tuple[float, float]]:
    """Return points of a schedule, extended by its last value to ``length``."""
    return [*points, *[(math.inf, points[-1][1])] * (length - len(points))]


@final
class DeviceSchedules:
    """A kernel that writes the values of schedules for the current update.

    Attributes:
        clock: int64 ``[1]``: number of updates so far.
    """

    def __init__(self, targets: Sequence[Target], config: Run, device: str) -> None:
        points = [Schedule.of(schedule).points for schedule, _ in targets]
        length = 1 + max(MAX_POINTS, *map(len, points))
        self._targets: Final = [target for _, target in targets]  # keeps the memory at the kernel's addresses alive
        self.clock: Final = torch.zeros(1, dtype=torch.int64, device=device)
        (kernel,) = _kernels("schedule", device)
        kernel.fill(begun=config.steps_at(0), steps=config.steps_per_update, last=config.iterations - 1)
        self._table: Final = torch.zeros(len(points), length, 2, dtype=torch.float64, device=device)
        self.restart(schedule for schedule, _ in targets)
        distances = torch.tensor([target.data_ptr() - self.clock.data_ptr() for target in self._targets], device=device)
        kernel.fill(
            schedules=len(points), points_each=length, points=self._table, clock=self.clock, distances=distances
        )
        self._write: Final = CachedLaunch(kernel)

    def restart(self, schedules: Iterable[Schedule | str | float]) -> None:
        """Give all targets other schedules, of at most as many points as the longest that was given before."""
        points = [_padded(Schedule.of(schedule).points, self._table.shape[1]) for schedule in schedules]
        self._table.copy_(torch.tensor(points, dtype=torch.float64))

    def change(self, target: Tensor, schedule: Schedule) -> None:
        """Give a target another schedule, in stream order; ValueError if it has too many points."""
        length = self._table.shape[1]
        if len(schedule.points) >= length:
            raise ValueError(
                f"the schedule has {len(schedule.points)} points; during training, give at most {length - 1}"
            )
        row = next(k for k, other in enumerate(self._targets) if other.data_ptr() == target.data_ptr())
        points = torch.tensor(_padded(schedule.points, length), dtype=torch.float64)
        self._table[row].copy_(points.pin_memory() if self._table.is_cuda else points, non_blocking=True)

    def write(self) -> None:
        """Write the values for update number ``clock``, and increment ``clock``."""
        self._write.bound((), 1, dict)()
