"""Schedules: values that change in the course of training, by linear interpolation between points."""

import dataclasses
import itertools
import math
import numbers
from collections.abc import Sequence
from typing import Any, final

from gpu_envs.documented import documented


@final
@documented
@dataclasses.dataclass(frozen=True)
class Schedule:
    """A value as a function of training progress (0 to 1), interpolated linearly between points."""

    points: tuple[tuple[float, float], ...]
    """Pairs of progress and value, by increasing progress; constant before the first and after the last point."""

    def __post_init__(self) -> None:
        """Convert to floats; check that progress increases within 0 to 1, and that values are finite."""
        object.__setattr__(self, "points", tuple((float(at), float(value)) for at, value in self.points))
        progress = [at for at, _ in self.points]
        if not self.points or progress != sorted(set(progress)) or min(progress) < 0 or max(progress) > 1:
            raise ValueError(f"the progress of a schedule is {progress}; give increasing numbers from 0 to 1")
        if not all(math.isfinite(value) for _, value in self.points):
            raise ValueError(f"the values of a schedule are {[value for _, value in self.points]}; give finite numbers")

    @classmethod
    def of(cls, source: Any) -> "Schedule":
        """Convert a number, pairs of progress and value, or text such as ``0.001`` or ``0:0.001,0.5:0.001,1:0``."""
        if isinstance(source, Schedule):
            return source
        if isinstance(source, numbers.Real) and not isinstance(source, bool):
            return cls(((0.0, float(source)),))
        try:
            if isinstance(source, str) and "," not in source and ":" not in source:
                return cls(((0.0, float(source)),))
            pairs = [part.split(":") for part in source.split(",")] if isinstance(source, str) else source
            if not isinstance(pairs, Sequence):
                raise TypeError(f"it is a {type(source).__name__}")
            return cls(tuple((float(at), float(value)) for at, value in pairs))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{source!r} is not a schedule ({error}); give a number, or progress:value points such as 0:0.001,1:0"
            ) from None

    def at(self, progress: float) -> float:
        """Return the value at a training progress from 0 to 1."""
        points = self.points
        if progress <= points[0][0]:
            return points[0][1]
        for (left, low), (right, high) in itertools.pairwise(points):
            if progress <= right:
                return low + (high - low) * (progress - left) / (right - left)
        return points[-1][1]

    def __str__(self) -> str:
        """Return the text that ``of`` accepts."""
        if len(self.points) == 1:
            return _digits(self.points[0][1])
        return ",".join(f"{_digits(at)}:{_digits(value)}" for at, value in self.points)


def _digits(value: float) -> str:
    """Format with the fewest digits that read back as the same float: a resumed run must use the same value."""
    return repr(value).removesuffix(".0")
