"""Values that change as training goes on: straight lines between points."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, final

from gpu_envs.documented import documented


@final
@documented
@dataclasses.dataclass(frozen=True)
class Schedule:
    """A value for each fraction of the training that is done, by straight lines between points."""

    points: tuple[tuple[float, float], ...]
    """Pairs of fraction and value, by rising fraction. Before the first and after the last the value stays."""

    def __post_init__(self) -> None:
        """Refuses points that do not make a schedule."""
        fractions = [at for at, _ in self.points]
        if not self.points or fractions != sorted(set(fractions)) or min(fractions) < 0 or max(fractions) > 1:
            raise ValueError(f"a schedule's fractions must rise within 0 to 1; got {fractions}")
        if not all(math.isfinite(value) for _, value in self.points):
            raise ValueError(f"a schedule's values must be finite; got {[value for _, value in self.points]}")

    @classmethod
    def of(cls, source: Any) -> "Schedule":
        """Reads a number, pairs of fraction and value, or text: ``0.001``, or ``0:0.001,0.5:0.001,1:0``."""
        if isinstance(source, Schedule):
            return source
        if isinstance(source, int | float) and not isinstance(source, bool):
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
                f"{source!r} is not a schedule ({error}); give a number, or fractions and values such as 0:0.001,1:0"
            ) from None

    def at(self, fraction: float) -> float:
        """The value when so much of the training is done."""
        points = self.points
        if fraction <= points[0][0]:
            return points[0][1]
        for (left, low), (right, high) in itertools.pairwise(points):
            if fraction <= right:
                return low + (high - low) * (fraction - left) / (right - left)
        return points[-1][1]

    def __str__(self) -> str:
        """The text that ``of`` reads."""
        if len(self.points) == 1:
            return _digits(self.points[0][1])
        return ",".join(f"{_digits(at)}:{_digits(value)}" for at, value in self.points)


def _digits(value: float) -> str:
    """As few digits as read back as the same number, so that a run that is resumed goes on with the same one."""
    return repr(value).removesuffix(".0")
