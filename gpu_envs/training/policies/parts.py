"""Observations in two parts: numbers of each agent's own, and those that all of a replica's agents of a role see."""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias, final

import torch

from gpu_envs.specs.spaces import Seen

FEW_FEATURES = 64
"""Networks of up to so many features are small in any case, and may be run by kernels of our own."""


@final
class Split(NamedTuple):
    """How a row is made of both parts."""

    own: int
    """How many numbers are an agent's own."""
    shared: int
    """How many it shares."""
    at: int
    """How many of its own stand before those."""

    @classmethod
    def of(cls, seen: Seen | None) -> "Split | None":
        """Of what agents see; None: they share nothing."""
        return cls(int(seen.own.shape[0]), seen.shared_size, seen.at) if seen is not None and seen.shared_size else None


def splits_of(seen: Iterable[Seen | None]) -> list[Split | None]:
    """How the rows of each role are learnt from: in parts where that pays, which are all roles that share or none."""
    found = [Split.of(one) for one in seen]
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
    if not isinstance(rows, Parts):
        return torch.where(alive.unsqueeze(1) != 0, rows, 0.0)
    groups = (alive != 0).view(-1, rows.each).any(1)
    own = torch.where(alive.unsqueeze(1) != 0, rows.own, 0.0)
    return rows.made_of(own, torch.where(groups.unsqueeze(1), rows.shared, 0.0))
