"""What a spec names of an episode besides its return and its length."""

import dataclasses
from collections.abc import Iterable
from typing import final

from gpu_envs.documented import documented
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.names import check_name

REDUCTIONS = ("last", "mean", "sum", "max")

_STATISTICS = ("r", "l", "t")
"""What stands beside metrics in ``infos["episode"]``: return, length and time."""


@final
@documented
@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """A number of a replica's episode, which the rules write in ``measure``."""

    description: str = ""
    """What it is, and its unit."""
    reduce: str = "last"
    """What an episode has of it: its value at the ``last`` step, or the ``mean``, ``sum`` or ``max`` over all steps."""

    def __post_init__(self) -> None:
        """Refuses an unknown reduction."""
        if self.reduce not in REDUCTIONS:
            hint = did_you_mean(str(self.reduce), REDUCTIONS)
            raise ValueError(f"a metric's reduce is {self.reduce!r}{hint} Allowed: {', '.join(REDUCTIONS)}")


def check_metrics(names: Iterable[str], what: str) -> None:
    """Refuses names that metrics cannot have.

    Args:
        names: Of the metrics.
        what: The spec.
    """
    for name in names:
        check_name(name, f"{what}: the metric")
        if name in _STATISTICS:
            raise ValueError(
                f'{what}: the metric {name!r} has a name that means something in infos["episode"]; give another'
            )
