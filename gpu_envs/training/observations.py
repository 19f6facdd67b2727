"""Rows of observations: kept in two parts where agents share numbers, and normalised by running statistics."""

import dataclasses
from collections.abc import Iterable
from typing import ClassVar, NamedTuple, TypeAlias, final

import torch

from gpu_envs.specs.spaces import RoleObservation
from gpu_envs.training.process.group import Group

FEW_FEATURES = 64
"""Networks of up to so many features are small in any case, and may be run by kernels of our own."""

OBSERVATION_LIMIT = 10.0
"""Normalised observations are cut at this."""

_LEAST_VARIANCE = 1e-8


@final
class Split(NamedTuple):
    """How a row is made of numbers of an agent's own, and of those that all of a replica's agents of a role see."""

    own: int
    """How many numbers are an agent's own."""
    shared: int
    """How many it shares."""
    at: int
    """How many of its own stand before those."""


def splits_of(seen: Iterable[RoleObservation | None]) -> list[Split | None]:
    """How the rows of each role are learnt from: in parts where that pays, which are all roles that share or none."""
    found = [
        Split(int(of.individual.shape[0]), of.shared_size, of.shared_at) if of and of.shared_size else None
        for of in seen
    ]
    few = any(split is not None and split.own + split.shared <= FEW_FEATURES for split in found)
    return [None if few else split for split in found]


@final
@dataclasses.dataclass(frozen=True)
class Parts:
    """Rows of observations ``[..., rows, features]``, which are kept in parts."""

    own: torch.Tensor
    """``[..., rows, numbers]``."""
    shared: torch.Tensor
    """``[..., rows / each, numbers]``."""
    each: int
    """How many rows, one after another, have a row of ``shared``."""
    split: Split

    @classmethod
    def of(cls, rows: torch.Tensor, split: Split) -> "Parts":
        """Whole rows in parts."""
        end = split.at + split.shared
        own = torch.cat([rows[..., : split.at], rows[..., end:]], -1)
        return cls(own, rows[..., split.at : end], 1, split)

    @property
    def whole(self) -> torch.Tensor:
        """The rows."""
        own = self.own.reshape(*self.shared.shape[:-1], self.each, self.split.own)
        shared = self.shared.unsqueeze(-2).expand(*own.shape[:-1], -1)
        return torch.cat([own[..., : self.split.at], shared, own[..., self.split.at :]], -1).flatten(-3, -2)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of whole rows."""
        return *self.own.shape[:-1], self.split.own + self.split.shared

    def made_of(self, own: torch.Tensor, shared: torch.Tensor) -> "Parts":
        """Other numbers in their places."""
        return dataclasses.replace(self, own=own, shared=shared)

    def __getitem__(self, some: slice) -> "Parts":
        """Some of the first dimension; of rows whole groups."""
        if self.own.dim() > 2:
            return self.made_of(self.own[some], self.shared[some])
        low, high, _ = some.indices(self.own.shape[0])
        return self.made_of(self.own[low:high], self.shared[low // self.each : high // self.each])

    def flatten(self, first: int, last: int) -> "Parts":
        """Rows of several steps, one after another."""
        return self.made_of(self.own.flatten(first, last), self.shared.flatten(first, last))


Rows: TypeAlias = torch.Tensor | Parts
"""Rows of observations, ``[rows, features]``."""


def whole(rows: Rows) -> torch.Tensor:
    """The rows themselves."""
    return rows.whole if isinstance(rows, Parts) else rows


def chosen_rows(rows: Rows, chosen: torch.Tensor) -> Rows:
    """The rows of these numbers; of those in parts, whole groups in order."""
    if not isinstance(rows, Parts):
        return rows.index_select(0, chosen)
    groups = chosen[:: rows.each] // rows.each
    return rows.made_of(rows.own.index_select(0, chosen), rows.shared.index_select(0, groups))


def largest_of(rows: Rows) -> torch.Tensor:
    """The largest number of each row, by magnitude."""
    if not isinstance(rows, Parts):
        largest: torch.Tensor = torch.linalg.vector_norm(rows, float("inf"), dim=-1)
        return largest
    return torch.maximum(largest_of(rows.own), largest_of(rows.shared).repeat_interleave(rows.each, -1))


def raise_to_largest(largest: torch.Tensor, rows: Rows, alive: torch.Tensor | None) -> None:
    """Raises a tensor of one element to the largest number of the living's rows, by magnitude; NaN is above all."""
    found = largest_of(rows)
    found = (found if alive is None else torch.where(alive, found, 0.0)).amax()
    torch.maximum(largest, found, out=largest)


def of_living(rows: Rows, alive: torch.Tensor) -> Rows:
    """The rows, of which those of the dead are zero: they may hold NaN, which times zero stays NaN."""
    alive = alive.unsqueeze(1) != 0
    if not isinstance(rows, Parts):
        return torch.where(alive, rows, 0.0)
    groups = alive.view(-1, rows.each).any(1, keepdim=True)
    return rows.made_of(torch.where(alive, rows.own, 0.0), torch.where(groups, rows.shared, 0.0))


class RunningMoments:
    """Mean and variance of all samples so far, column by column; on the device, in float64."""

    saved: ClassVar[tuple[str, ...]] = ("mean", "variance", "count")
    """Tensors of the state."""

    def __init__(self, columns: int, device: str, group: Group | None = None) -> None:
        """Begins with mean 0 and deviation 1, which the first samples replace; those of the whole group count."""
        self._group = group or Group()
        self.mean = torch.zeros(columns, dtype=torch.float64, device=device)
        self.variance = torch.ones(columns, dtype=torch.float64, device=device)
        self.count = torch.zeros(1, dtype=torch.float64, device=device)
        self.inverse = torch.ones(columns, device=device)

    def add(self, total: torch.Tensor, squares: torch.Tensor, count: torch.Tensor) -> None:
        """Takes in samples by their sum, the sum of their squares, and their number (Chan et al. 1979)."""
        if self._group.size > 1:
            sums = torch.cat([total, squares, count])
            self._group.sum(sums)
            total, squares, count = sums[: len(total)], sums[len(total) : -1], sums[-1:]
        some = count.clamp(min=1.0)
        mean = total / some
        variance = (squares / some - mean * mean).clamp(min=0.0)
        both = self.count + count
        share = torch.where(both > 0, count / both.clamp(min=1.0), 0.0)
        shift = mean - self.mean
        merged = self.variance * (1 - share) + variance * share + shift * shift * share * (1 - share)
        self.variance.copy_(torch.where(both > 0, merged, self.variance))
        self.mean.add_(shift * share)
        self.count.copy_(both)
        self.refresh()

    def refresh(self) -> None:
        """Derives the inverse standard deviation from the statistics."""
        self.inverse.copy_(self.variance.clamp(min=_LEAST_VARIANCE).rsqrt())

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of all there is."""
        return {name: getattr(self, name).clone() for name in self.saved}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Takes over what ``state`` gave."""
        for name in self.saved:
            getattr(self, name).copy_(state[name])
        self.refresh()


@final
class ObservationScale(RunningMoments):
    """Brings observations to mean 0 and deviation 1, by statistics that stay the same within a horizon."""

    def __init__(self, features: int, device: str, group: Group | None = None) -> None:
        super().__init__(features, device, group)
        self.offset = torch.zeros(features, device=device)

    def __call__(self, observations: Rows) -> Rows:
        """The observations, normalised."""
        if not isinstance(observations, Parts):
            return _normalised(observations, self.offset, self.inverse)
        offset, inverse = (Parts.of(of.unsqueeze(0), observations.split) for of in (self.offset, self.inverse))
        return observations.made_of(
            _normalised(observations.own, offset.own, inverse.own),
            _normalised(observations.shared, offset.shared, inverse.shared),
        )

    def learn(self, observations: Rows, alive: torch.Tensor | None) -> None:
        """Takes in the observations of agents in the game, ``[samples, features]``; those of others may be anything."""
        count = self.count.new_full((1,), observations.shape[0])
        if alive is not None:
            observations, count = of_living(observations, alive), alive.sum(dtype=torch.float64).reshape(1)
        if not isinstance(observations, Parts):
            samples = observations.double()
            self.add(samples.sum(0), samples.square().sum(0), count)
            return
        own, shared, each = observations.own.double(), observations.shared.double(), observations.each
        seen_by = float(each) if alive is None else (alive != 0).view(-1, each).sum(1, keepdim=True).double()
        total, squares = (
            Parts(ours.sum(0, keepdim=True), (alike * seen_by).sum(0, keepdim=True), 1, observations.split).whole[0]
            for ours, alike in ((own, shared), (own.square(), shared.square()))
        )
        self.add(total, squares, count)

    def refresh(self) -> None:
        super().refresh()
        self.offset.copy_(self.mean)


Scale: TypeAlias = ObservationScale | None
"""How a policy's observations are normalised; None: they are taken as they are."""


def _normalised(numbers: torch.Tensor, offset: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    return ((numbers - offset) * inverse).clamp(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)


@final
class RewardScale(RunningMoments):
    """Divides rewards by the deviation of the discounted return, row by row of agents."""

    saved = (*RunningMoments.saved, "running")

    def __init__(self, rows: int, device: str, group: Group | None = None) -> None:
        super().__init__(1, device, group)
        self.running = torch.zeros(rows, device=device)

    def learn(self, total: torch.Tensor, squares: torch.Tensor, count: torch.Tensor) -> None:
        """Takes in each row's sum of discounted returns, of their squares, and their number."""
        self.add(*(part.sum(dtype=torch.float64).reshape(1) for part in (total, squares, count)))
