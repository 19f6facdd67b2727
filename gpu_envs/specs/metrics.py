"""Metrics of episodes, in addition to return and length."""

import dataclasses
from collections.abc import Iterable
from typing import final

from gpu_envs.documented import documented
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.names import check_name

REDUCTIONS = ("last", "mean", "sum", "max")

_STATISTICS = ("r", "l", "t")
"""Other keys of ``infos["episode"]``: return, length and time."""


@final
@documented
@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a replica's episode, which ``measure`` of the rules writes in each step."""

    description: str = ""
    """Meaning of the metric, with its unit."""
    reduce: str = "last"
    """Value reported for an episode: that of the ``last`` step, or the ``mean``, ``sum`` or ``max`` over all steps."""

    def __post_init__(self) -> None:
        """Validates the reduction."""
        if self.reduce not in REDUCTIONS:
            hint = did_you_mean(str(self.reduce), REDUCTIONS)
            raise ValueError(f"a metric's reduce is {self.reduce!r}{hint} Allowed: {', '.join(REDUCTIONS)}")


def check_metrics(names: Iterable[str], what: str) -> None:
    """Raises a ValueError if a metric's name is invalid or reserved; messages start with ``what``, the spec."""
    for name in names:
        check_name(name, f"{what}: the metric")
        if name in _STATISTICS:
            raise ValueError(
                f'{what}: the metric {name!r} has the name of another entry of infos["episode"]; rename it'
            )
