"""Rows of observations: normalisation by running statistics, and split storage for features that agents share."""

import dataclasses
from collections.abc import Iterable
from typing import ClassVar, Final, NamedTuple, TypeAlias, final

import torch

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import KernelSettings, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.specs.spaces import RoleObservation
from gpu_envs.training.process.group import Group

MAX_SMALL_FEATURES = 64
"""Number of features; up to here observations are stored as full rows, since kernels exist for these networks."""

OBSERVATION_LIMIT = 10.0
"""Absolute value at which normalised observations are clipped."""

_MAX_SUM_THREADS = {True: 2**17, False: 2**12}
"""Maximum threads that sum columns, by whether the device is a GPU."""

_ROWS_PER_THREAD = 16
"""Minimum rows of a thread that sums columns."""

_COLUMNS_CALL = Struct.of(
    "ColumnsCall",
    "float",
    *(("Index", name) for name in ("rows", "columns", "parts")),
    ("int", "group_size"),
    ("const float*", "values", ("rows", "columns")),
    ("const u8*?", "alive", ("agents",)),
    ("double*", "sums", (3, "columns", "parts")),
)


@final
class Split(NamedTuple):
    """Division of an observation into an agent's individual features and features shared by a replica's agents."""

    individual: int
    """Number of individual features."""
    shared: int
    """Number of features that all agents of a role in a replica share."""
    offset: int
    """Index of the first shared feature in a full row."""


def splits_of(observations: Iterable[RoleObservation | None]) -> list[Split | None]:
    """Return the split of each role's rows, None without shared features; None for all if the rows of one are small."""
    splits = [
        Split(int(role.individual.shape[0]), role.shared_size, role.shared_at) if role and role.shared_size else None
        for role in observations
    ]
    small = any(split is not None and split.individual + split.shared <= MAX_SMALL_FEATURES for split in splits)
    return [None if small else split for split in splits]


@final
@dataclasses.dataclass(frozen=True)
class SplitRows:
    """Rows of observations ``[..., rows, features]``, whose shared features are stored once per group of rows."""

    individual: torch.Tensor
    """``[..., rows, split.individual]``."""
    shared: torch.Tensor
    """``[..., rows / group_size, split.shared]``."""
    group_size: int
    """Number of consecutive rows that share a row of ``shared``."""
    split: Split

    @classmethod
    def of(cls, rows: torch.Tensor, split: Split) -> "SplitRows":
        """Return full rows as split rows with one row per group."""
        end = split.offset + split.shared
        individual = torch.cat([rows[..., : split.offset], rows[..., end:]], -1)
        return cls(individual, rows[..., split.offset : end], 1, split)

    @property
    def joined(self) -> torch.Tensor:
        """The full rows, ``[..., rows, features]``."""
        individual = self.individual.reshape(*self.shared.shape[:-1], self.group_size, self.split.individual)
        shared = self.shared.unsqueeze(-2).expand(*individual.shape[:-1], -1)
        before, after = individual[..., : self.split.offset], individual[..., self.split.offset :]
        return torch.cat([before, shared, after], -1).flatten(-3, -2)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the full rows."""
        return *self.individual.shape[:-1], self.split.individual + self.split.shared

    def with_data(self, individual: torch.Tensor, shared: torch.Tensor) -> "SplitRows":
        """Return rows of other data with the same split and group size."""
        return dataclasses.replace(self, individual=individual, shared=shared)

    def __getitem__(self, index: slice) -> "SplitRows":
        """Slice the first dimension; a slice of rows must consist of full groups."""
        if self.individual.dim() > 2:
            return self.with_data(self.individual[index], self.shared[index])
        low, high, _ = index.indices(self.individual.shape[0])
        return self.with_data(self.individual[low:high], self.shared[low // self.group_size : high // self.group_size])

    def flatten(self, first: int, last: int) -> "SplitRows":
        """Flatten dimensions ``first`` to ``last``, such as steps and rows."""
        return self.with_data(self.individual.flatten(first, last), self.shared.flatten(first, last))


def stack_frames(
    rows: torch.Tensor, before: torch.Tensor | None, restarted: torch.Tensor | None, frames: int
) -> torch.Tensor:
    """Return stacks of ``frames`` rows, the oldest first: ``before`` without its oldest, and these rows.

    ``restarted`` broadcasts to the rows: where a new episode has started, all frames are its first. None: nowhere;
    ``before`` None: everywhere.
    """
    if before is None:
        return rows.repeat(*[1] * (rows.dim() - 1), frames)
    stacks = torch.cat([before[..., rows.shape[-1] :], rows], -1)
    return stacks if restarted is None else torch.where(restarted, stack_frames(rows, None, None, frames), stacks)


Rows: TypeAlias = torch.Tensor | SplitRows
"""Rows of observations, ``[rows, features]``."""


def join_rows(rows: Rows) -> torch.Tensor:
    """Return full rows, ``[..., rows, features]``."""
    return rows.joined if isinstance(rows, SplitRows) else rows


def select_rows(rows: Rows, indices: torch.Tensor) -> Rows:
    """Select rows by index; for split rows the indices must consist of full groups, each in order."""
    if not isinstance(rows, SplitRows):
        return rows.index_select(0, indices)
    groups = indices[:: rows.group_size] // rows.group_size
    return rows.with_data(rows.individual.index_select(0, indices), rows.shared.index_select(0, groups))


def max_magnitude(rows: Rows) -> torch.Tensor:
    """Return the largest absolute value of each row, ``[..., rows]``."""
    if not isinstance(rows, SplitRows):
        low, high = torch.aminmax(rows, dim=-1)  # on a CPU ten times as fast as an infinity norm
        return torch.maximum(-low, high)
    shared = max_magnitude(rows.shared).repeat_interleave(rows.group_size, -1)
    return torch.maximum(max_magnitude(rows.individual), shared) if rows.individual.shape[-1] else shared


def update_max_magnitude(largest: torch.Tensor, rows: Rows, alive: torch.Tensor | None) -> None:
    """Raise ``largest`` ``[1]`` to the largest absolute value in rows of active agents; NaN counts as the largest."""
    if alive is None and not isinstance(rows, SplitRows):
        rows = rows.reshape(1, -1)
    by_row = max_magnitude(rows)
    torch.maximum(largest, (by_row if alive is None else torch.where(alive, by_row, 0.0)).amax(), out=largest)


def zero_inactive(rows: Rows, alive: torch.Tensor) -> Rows:
    """Return the rows with zeros for inactive agents: these rows may hold NaN, and NaN times a weight of 0 is NaN."""
    alive = alive.unsqueeze(1) != 0
    if not isinstance(rows, SplitRows):
        return torch.where(alive, rows, 0.0)
    groups = alive.view(-1, rows.group_size).any(1, keepdim=True)
    return rows.with_data(torch.where(alive, rows.individual, 0.0), torch.where(groups, rows.shared, 0.0))


class RunningMoments:
    """Running mean and variance of each column, over the samples of all processes; on the device, in float64."""

    saved: ClassVar[tuple[str, ...]] = ("mean", "variance", "count")
    """Names of the tensors that make up the state."""
    min_variance: ClassVar[float] = 1e-8
    """Lower limit of the variance when numbers are scaled."""

    def __init__(self, columns: int, device: str, group: Group | None = None) -> None:
        """Allocate statistics of mean 0 and standard deviation 1, which the first samples replace."""
        self._group = group or Group()
        self.mean = torch.zeros(columns, dtype=torch.float64, device=device)
        self.variance = torch.ones(columns, dtype=torch.float64, device=device)
        self.count = torch.zeros(1, dtype=torch.float64, device=device)
        self.inverse = torch.ones(columns, device=device)

    def add(self, total: torch.Tensor, squares: torch.Tensor, count: torch.Tensor) -> None:
        """Add samples of all processes, given this one's sums, sums of squares and number (Chan et al. 1979)."""
        if self._group.size > 1:
            sums = torch.cat([total, squares, count])
            self._group.sum(sums)
            total, squares, count = sums[: len(total)], sums[len(total) : -1], sums[-1:]
        divisor = count.clamp(min=1.0)
        mean = total / divisor
        variance = (squares / divisor - mean * mean).clamp(min=0.0)
        new_count = self.count + count
        weight = torch.where(new_count > 0, count / new_count.clamp(min=1.0), 0.0)
        shift = mean - self.mean
        merged = self.variance * (1 - weight) + variance * weight + shift * shift * weight * (1 - weight)
        self.variance.copy_(torch.where(new_count > 0, merged, self.variance))
        self.mean.add_(shift * weight)
        self.count.copy_(new_count)
        self.refresh()

    def refresh(self) -> None:
        """Recompute the inverse standard deviation from the statistics."""
        self.inverse.copy_(self.variance.clamp(min=self.min_variance).rsqrt())

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of the statistics."""
        return {name: getattr(self, name).clone() for name in self.saved}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Copy a result of ``state`` into the statistics."""
        for name in self.saved:
            getattr(self, name).copy_(state[name])
        self.refresh()


@final
class ColumnSums:
    """The kernel that sums columns of observations over rows of active agents."""

    def __init__(self, device: str) -> None:
        program = program_of(
            ["training/common/columns.cuh"], {"columns": _COLUMNS_CALL}, KernelSettings(weight=_ROWS_PER_THREAD)
        )
        (self._kernel,) = load_kernels(open_backend(resolve_device(device)), program)
        self._max_threads: Final = _MAX_SUM_THREADS[resolve_device(device) != "cpu"]

    def of(self, values: torch.Tensor, alive: torch.Tensor | None, group_size: int = 1) -> torch.Tensor:
        """Return the sums of columns, the sums of their squares, and the number of agents, float64 ``[3, columns]``.

        Args:
            values: ``[rows, columns]``.
            alive: ``[rows * group_size]``: whether the agents that share a row are active. None: all are.
            group_size: Number of agents that share a row, which counts for each of them.
        """
        rows, columns = values.shape
        parts = max(1, min(self._max_threads // columns, rows // _ROWS_PER_THREAD))
        parts = 1 << parts.bit_length() - 1
        sums = values.new_empty(3, columns, parts, dtype=torch.float64)
        sizes = {"rows": rows, "columns": columns, "parts": parts, "group_size": group_size}
        agents = rows * group_size
        self._kernel.launch(columns * parts, values=values, alive=alive, sums=sums, agents=agents, **sizes)
        return _sum_by_halves(sums)


def _sum_by_halves(numbers: torch.Tensor) -> torch.Tensor:
    """Sum over the last dimension, in an order that depends only on its length: several runs are summed at once."""
    length = numbers.shape[-1]
    numbers = torch.nn.functional.pad(numbers, (0, (1 << (length - 1).bit_length()) - length))
    while (length := numbers.shape[-1]) > 1:
        numbers = numbers[..., : length // 2] + numbers[..., length // 2 :]
    return numbers[..., 0]


@final
class ObservationScale(RunningMoments):
    """Normalises observations to mean 0 and standard deviation 1; the statistics change only between horizons."""

    def __init__(self, features: int, device: str, group: Group | None = None, *, learns: bool = True) -> None:
        """Allocate statistics of mean 0 and standard deviation 1; ``learns``: whether ``learn`` will be called."""
        super().__init__(features, device, group)
        self._sums = ColumnSums(device) if learns else None
        self.offset = torch.zeros(features, device=device)

    def __call__(self, observations: Rows) -> Rows:
        """Return normalised observations."""
        if not isinstance(observations, SplitRows):
            return _normalised(observations, self.offset, self.inverse)
        split = observations.split
        offset, inverse = (SplitRows.of(row.unsqueeze(0), split) for row in (self.offset, self.inverse))
        return observations.with_data(
            _normalised(observations.individual, offset.individual, inverse.individual),
            _normalised(observations.shared, offset.shared, inverse.shared),
        )

    def learn(self, observations: Rows, alive: torch.Tensor | None) -> None:
        """Update the statistics by observations ``[samples, features]``; rows of inactive agents are ignored."""
        assert self._sums is not None
        if isinstance(observations, SplitRows):
            individual = self._sums.of(observations.individual, alive)
            shared = self._sums.of(observations.shared, alive, observations.group_size)
            sums = SplitRows(individual, shared, 1, observations.split).joined
        else:
            sums = self._sums.of(observations, alive)
        total, squares, counts = sums
        self.add(total, squares, counts[:1])

    def refresh(self) -> None:
        super().refresh()
        self.offset.copy_(self.mean)


@final
class ValueScale(RunningMoments):
    """Normalises returns for a critic, by the mean and the standard deviation of the returns of all updates so far."""

    min_variance = 1e-2

    def __init__(self, device: str, group: Group | None = None) -> None:
        super().__init__(1, device, group)
        self._sums = ColumnSums(device)

    def values(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return values from a critic's outputs."""
        return torch.addcdiv(self.mean.float(), outputs, self.inverse)

    def learn(self, returns: torch.Tensor, alive: torch.Tensor | None) -> None:
        """Update the statistics by returns, and normalise these in place; ``alive`` is of the same shape, or None."""
        total, squares, count = self._sums.of(returns.view(-1, 1), None if alive is None else alive.reshape(-1))
        self.add(total, squares, count)
        returns.sub_(self.mean.float()).mul_(self.inverse)


Scale: TypeAlias = ObservationScale | None
"""Normalisation of a policy's observations; None: no normalisation."""


def _normalised(numbers: torch.Tensor, offset: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    return ((numbers - offset) * inverse).clamp(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)


@final
class RewardScale(RunningMoments):
    """Scales rewards by the inverse standard deviation of the discounted return; ``running`` is the return per row."""

    saved = (*RunningMoments.saved, "running")

    def __init__(self, rows: int, device: str, group: Group | None = None) -> None:
        super().__init__(1, device, group)
        self.running = torch.zeros(rows, device=device)

    def learn(self, total: torch.Tensor, squares: torch.Tensor, count: torch.Tensor) -> None:
        """Update the statistics by each row's sum, sum of squares and number of discounted returns, ``[rows]``."""
        self.add(*_sum_by_halves(torch.stack([total, squares, count]).double()).chunk(3))
