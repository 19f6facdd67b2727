"""Running statistics, by which observations and rewards are brought to deviation 1."""

from typing import TypeAlias, final

import torch

from gpu_envs.training.operations.ops import OBSERVATION_LIMIT
from gpu_envs.training.policies.parts import Parts, Rows, of_living
from gpu_envs.training.process.group import Group

_LEAST_VARIANCE = 1e-8


class RunningMoments:
    """Mean and variance of all samples so far, column by column; on the device, in float64."""

    def __init__(self, columns: int, device: str, group: Group | None = None) -> None:
        """Begins with mean 0 and deviation 1, which the first samples replace; those of the whole group count."""
        self._group = group or Group()
        self.mean = torch.zeros(columns, dtype=torch.float64, device=device)
        self.variance = torch.ones(columns, dtype=torch.float64, device=device)
        self.count = torch.zeros(1, dtype=torch.float64, device=device)

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
        """Derives what is applied from the statistics."""

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of all there is."""
        return {"mean": self.mean.clone(), "variance": self.variance.clone(), "count": self.count.clone()}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Takes over what ``state`` gave."""
        self.mean.copy_(state["mean"])
        self.variance.copy_(state["variance"])
        self.count.copy_(state["count"])
        self.refresh()


@final
class ObservationScale(RunningMoments):
    """Brings observations to mean 0 and deviation 1, by statistics that stay the same within a horizon."""

    def __init__(self, features: int, device: str, group: Group | None = None) -> None:
        super().__init__(features, device, group)
        self.offset = torch.zeros(features, device=device)
        self.inverse = torch.ones(features, device=device)

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
        self.offset.copy_(self.mean)
        self.inverse.copy_(self.variance.clamp(min=_LEAST_VARIANCE).rsqrt())


Scale: TypeAlias = ObservationScale | None
"""How a policy's observations are normalised; None: they are taken as they are."""


def _normalised(numbers: torch.Tensor, offset: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    return ((numbers - offset) * inverse).clamp(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)


@final
class RewardScale(RunningMoments):
    """Divides rewards by the deviation of the discounted return, row by row of agents."""

    def __init__(self, rows: int, device: str, group: Group | None = None) -> None:
        super().__init__(1, device, group)
        self.running = torch.zeros(rows, device=device)
        self.scale = torch.ones(1, device=device)

    def learn(self, total: torch.Tensor, squares: torch.Tensor, count: torch.Tensor) -> None:
        """Takes in each row's sum of discounted returns, of their squares, and their number."""
        sums = (part.sum(dtype=torch.float64).reshape(1) for part in (total, squares, count))
        self.add(*sums)

    def refresh(self) -> None:
        self.scale.copy_(self.variance.clamp(min=_LEAST_VARIANCE).rsqrt())

    def state(self) -> dict[str, torch.Tensor]:
        return super().state() | {"running": self.running.clone()}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        super().load(state)
        self.running.copy_(state["running"])
