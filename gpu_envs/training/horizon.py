"""Kernels for a horizon as a whole: advantages, what they are like, ends of episodes, orders of samples, schedules."""

import math
from collections.abc import Sequence
from typing import Final, TypeAlias, final

import torch
from torch import Tensor

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import Kernel, CachedLaunch, load_kernels
from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.engines.ops import SUMS
from gpu_envs.training.process.group import Group
from gpu_envs.training.run import Run
from gpu_envs.training.schedule import Schedule

MOMENTS = 7
"""Numbers that are kept of each row's advantages and returns; the first is how many there were."""

FIGURES = (
    *("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "samples"),
    *("explained_variance", "gradient_norm", "learning_rate", "largest_observation"),
)
"""What a learner reports of each iteration; the first six are sums over its minibatches."""

OF_DISTRIBUTIONS = ("policy_loss", "entropy", "kl", "clip_fraction")
"""Those of policies that say how likely each action is."""

MOST_SAMPLES = 2**31
"""Indices are 32-bit integers."""

Target: TypeAlias = tuple[Schedule | str | float, Tensor]
"""A schedule, and the float32 ``[1]`` on the device that receives its values."""

_MEASURE_BLOCK, _MOST_MEASURE_BLOCKS = 256, 128
_EPISODES_BLOCK = 512
_SCHEDULE_THREADS = 32

_ELEMENTS = 8
"""Of an order, for a thread where there are many."""

_FEW = 2**16
"""Elements up to which each has a thread of its own."""

_LEAST_BITS = 3
"""Of either half of an element: with fewer some orders of a few elements are likelier than others."""

_EACH = ("steps", "rows")
_SIZES = (("Index", "rows"), ("Index", "steps"))
_ENDS = (("const u8*", "terminations", _EACH), ("const u8*", "truncations", _EACH))
_ALIVE = ("const u8*?", "alive", _EACH)
_NOT_WANTED: dict[str, Tensor | None] = {"alive": None, "reward_scale": None, "moments": None}

_MOMENTS_IN_CPP = f"constexpr int MOMENTS = {MOMENTS};"

_PROGRAMS = {
    "advantage": (
        {
            "advantages": Struct.of(
                "AdvantageCall",
                "float",
                *_SIZES,
                ("Index", "bootstrap_stride"),
                ("const float*", "rewards", _EACH),
                ("const float*", "values", ("states", "rows")),
                *_ENDS,
                _ALIVE,
                ("const float*", "bootstrap", ("bootstrap_steps", "rows")),
                ("const float*?", "reward_scale", (1,)),
                ("float*", "advantages", _EACH),
                ("float*", "returns", _EACH),
                ("float*?", "moments", (MOMENTS, "rows")),
                ("float", "gamma"),
                ("float", "gamma_lambda"),
            ),
            "places": Struct.of(
                "PlacesCall", "float", *_SIZES, ("int", "each"), *_ENDS, ("Index*", "places", ("rows",))
            ),
            "discounted": Struct.of(
                "DiscountedCall",
                "float",
                *_SIZES,
                ("const float*", "rewards", _EACH),
                *_ENDS,
                _ALIVE,
                *(("float*", name, ("rows",)) for name in ("running", "total", "squares", "count")),
                ("float", "gamma"),
            ),
        },
        # a row's work is worth more the longer the horizon; the weight is that of a usual one
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
                ("double*", "sums", (_MOST_MEASURE_BLOCKS, MOMENTS)),
                ("int*", "arrived", (1,)),
                ("float*?", "pooled", (MOMENTS,)),
                ("float*", "largest", (1,)),
                ("float*?", "normaliser", (2,)),
                ("float*", "figures", (len(FIGURES),)),
            ),
        },
        KernelSettings(
            prologue=f"{_MOMENTS_IN_CPP}\nenum Figure : int {{ {', '.join(FIGURES).upper()} }};\n"
            f"constexpr int BLOCK = {_MEASURE_BLOCK}, SUMS = {len(SUMS)};",
            grid=Grid(threads=_MEASURE_BLOCK, replicas=1),
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
                ("Index", "schedules"),
                ("Index", "points_each"),
                ("const double*", "points", ("schedules", "points_each", 2)),
                ("const u64*", "targets", ("schedules",)),
                ("Index*", "clock", (1,)),
                *(("Index", name) for name in ("begun", "steps", "last")),
            ),
        },
        KernelSettings(
            prologue=f"constexpr int THREADS = {_SCHEDULE_THREADS};", grid=Grid(threads=_SCHEDULE_THREADS, replicas=1)
        ),
    ),
}
"""The kernels of headers in ``kernels/training/common``, what each takes, and how they are compiled."""


def program(header: str) -> Program:
    """The source of a header's kernels."""
    calls, settings = _PROGRAMS[header]
    parts = ["moments", header] if _MOMENTS_IN_CPP in settings.prologue else [header]
    return program_of([f"training/common/{part}.cuh" for part in parts], calls, settings)


def _kernels(header: str, device: str, threads: int | None = None) -> list[Kernel]:
    return load_kernels(open_backend(resolve_device(device), threads), program(header))


@final
class Advantages:
    """Kernels that go through a horizon, a thread for each row; arrays are [T, R]."""

    def __init__(self, device: str, threads: int | None = None) -> None:
        self._advantages, self._places, self._discounted = _kernels("advantage", device, threads)

    def compute(self, rewards: Tensor, bootstrap: Tensor, gamma: float, lam: float, **arrays: Tensor | None) -> None:
        """Estimates advantages backward over the steps (GAE).

        Args:
            rewards: [T, R].
            bootstrap: [R] or [T, R]: values of the final observations, read where truncated and not terminated.
            gamma: The discount factor.
            lam: The mixture of long and short estimates.
            **arrays: ``values`` [T + 1, R], of the observations that were acted on, and of the one after the last
                step; ``terminations``: nothing follows; ``truncations``: what would have followed is worth
                ``bootstrap``; ``advantages`` and ``returns``, their sum with the values, are written. None or left
                out: ``alive``, whether the agent took part (where not, the advantage is zero, and the return the
                value); ``reward_scale`` [1], which rewards are multiplied by; ``moments`` [7, R], written for
                ``Measure``.
        """
        steps, rows = _steps_and_rows(rewards)
        each_step = bootstrap.ndim == 2
        self._advantages.launch(
            rows,
            rows=rows,
            steps=steps,
            states=steps + 1,
            rewards=rewards,
            bootstrap=bootstrap,
            bootstrap_steps=steps if each_step else None,
            bootstrap_stride=rows if each_step else 0,
            gamma=gamma,
            gamma_lambda=gamma * lam,
            **(_NOT_WANTED | arrays),
        )

    def places(self, terminations: Tensor, truncations: Tensor, places: Tensor, *, each: int = 1) -> None:
        """Finds where the final observations are of episodes that are truncated, one at most of each row.

        Args:
            terminations: [T, R]: nothing follows.
            truncations: [T, R].
            places: int64 [R], written: step * R + row, where the row's episode is truncated and not terminated; below
                zero where it is not.
            each: So many rows, one after another, are those of a group, which is truncated together.
        """
        steps, rows = _steps_and_rows(truncations)
        ends = {"terminations": terminations, "truncations": truncations}
        self._places.launch(rows // each, rows=rows, steps=steps, each=each, places=places, **ends)

    def discounted(self, rewards: Tensor, gamma: float, **arrays: Tensor | None) -> None:
        """Follows each row's discounted return forward over the steps; it starts again after an end.

        Args:
            rewards: [T, R].
            gamma: The discount factor.
            **arrays: ``terminations``, ``truncations`` and ``alive`` as of ``compute``; ``running`` [R], the discounted
                return, which is followed. Written for each row: ``total``, the sum over the steps of what it was,
                ``squares``, the sum of its squares, and ``count``, of how many steps those are sums: without those in
                which the agent did not take part.
        """
        steps, rows = _steps_and_rows(rewards)
        self._discounted.launch(rows, rows=rows, steps=steps, rewards=rewards, gamma=gamma, **arrays)


def _steps_and_rows(rewards: Tensor) -> tuple[int, int]:
    if rewards.ndim != 2:
        raise ValueError(f"rewards have shape {list(rewards.shape)}; give [steps, rows]")
    return rewards.shape[0], rewards.shape[1]


@final
class Measure:
    """Takes from each row's moments what loss and figures want of all rows, those of all processes together.

    Attributes:
        moments: [7, R]: of each row, by ``Advantages``.
        largest: [1]: the largest observation, for ``Networks`` to raise; it begins again at 0 with each measurement.
    """

    def __init__(self, moments: Tensor, device: str, threads: int | None, group: Group) -> None:
        """Takes the moments, which are yet to be written."""
        (self._kernel,) = _kernels("measure", device, threads)
        self._group: Final = group
        self.moments: Final = moments
        self.largest: Final = torch.zeros(1, device=device)
        self._pooled: Final = torch.zeros(MOMENTS, device=device) if group.size > 1 else None
        sums = torch.zeros(_MOST_MEASURE_BLOCKS, MOMENTS, dtype=torch.float64, device=device)
        arrived = torch.zeros(1, dtype=torch.int32, device=device)
        self._kernel.fill(sums=sums, arrived=arrived, largest=self.largest)

    def write(self, figures: Tensor, normaliser: Tensor | None) -> None:
        """Starts an iteration's figures: sums at zero, what the values explain, and the largest observation.

        Args:
            figures: [10]: ``FIGURES``.
            normaliser: [2], written: the mean of the advantages, and one over their standard deviation; None: not
                wanted.
        """
        moments = self.moments
        if self._pooled is not None:
            self._launch(moments, pooled=self._pooled, figures=figures, normaliser=None)
            moments = self._group.gathered(self._pooled).T
        self._launch(moments, pooled=None, figures=figures, normaliser=normaliser)

    def _launch(self, moments: Tensor, **others: Tensor | None) -> None:
        rows, (moment_stride, row_stride) = moments.shape[1], moments.stride()
        blocks = min(_MOST_MEASURE_BLOCKS, -(-rows // _MEASURE_BLOCK))
        sizes = {"rows": rows, "row_stride": row_stride, "moment_stride": moment_stride, "blocks": blocks}
        self._kernel.launch(blocks, moments=moments.data_ptr(), **sizes, **others)


@final
class Permutation:
    """Random orders of groups of so many numbers ``each``, 0 to count-1 times that: a function of a key and a turn."""

    def __init__(self, count: int, device: str, threads: int | None = None, *, each: int = 1) -> None:
        if not 1 <= count * each <= MOST_SAMPLES:
            raise ValueError(f"count is {count * each}; give 1 to {MOST_SAMPLES}: indices are 32-bit integers")
        (self._permute,) = _kernels("permutation", device, threads)
        self._threads: Final = max(min(count, _FEW), -(-count // _ELEMENTS))
        bits = max(_LEAST_BITS, (count - 1).bit_length() // 2)
        size = max(2**_LEAST_BITS, -(-count // 2**bits))
        self._permute.fill(count=count, threads=self._threads, each=each, bits=bits, size=size, numbers=count * each)

    def write(self, indices: Tensor, stream: Tensor, turn: int) -> None:
        """Writes an order.

        Args:
            indices: int32 [count * each], written: each of 0 to count * each - 1 once, those of a group in order.
            stream: int64 [2] on the device: the key, and a counter that ``turn`` is added to.
            turn: Which of the orders since the counter changed.
        """
        if not 0 <= turn < 2**63:
            raise ValueError(f"turn is {turn}; give 0 or more")
        self._permute.launch(self._threads, stream=stream, turn=turn, indices=indices)


@final
class EpisodeSums:
    """The kernel that adds up what is known of episodes at their ends."""

    def __init__(self, device: str) -> None:
        (self._kernel,) = _kernels("episodes", device)

    def of(self, lengths: Tensor, values: Tensor, *, add_lengths: bool) -> Tensor:
        """How many ended in each step, the sums of their values, and where asked that of their lengths, ``[..., T]``.

        Args:
            lengths: int32 ``[T, R, each]``: of the episodes that ended there, else 0; those of each row end together.
            values: ``[T, R, width]``, of the rows; where none ended there may be anything.
            add_lengths: Whether the lengths are added up.
        """
        (steps, rows, width), each = values.shape, lengths.shape[2]
        sums = values.new_empty(1 + width + int(add_lengths), steps)
        sizes = {"steps": steps, "rows": rows, "each": each, "width": width, "numbers": len(sums)}
        self._kernel.launch(sums.numel(), lengths=lengths, values=values, sums=sums, **sizes)
        return sums


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
        (kernel,) = _kernels("schedule", device)
        kernel.fill(begun=config.steps_at(0), steps=config.steps_per_update, last=config.iterations - 1)
        kernel.fill(
            schedules=len(points),
            points_each=most,
            clock=self.clock,
            points=torch.tensor(padded, dtype=torch.float64, device=device),
            targets=torch.tensor([target.data_ptr() for target in self._targets], device=device),
        )
        self._write: Final = CachedLaunch(kernel)

    def write(self) -> None:
        """Writes the values for the update that ``clock`` counts up to, and counts it."""
        self._write.bound((), 1, dict)()
