"""The results of the runs of a population."""

import collections
import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np

from gpu_envs.documented import documented
from gpu_envs.tables import Row, html_table, text_table
from gpu_envs.training.comparison import interval, iqm
from gpu_envs.training.joint_iterations import Outcome
from gpu_envs.training.population_page import population_page, short_text
from gpu_envs.training.run import Run
from gpu_envs.training.variants import values_of, varied_names


@final
@documented
@dataclasses.dataclass(frozen=True)
class PopulationResult:
    """The results of the runs of a population."""

    runs: Sequence[Run]
    """The runs."""
    outcomes: Sequence[Outcome]
    """How each run ended."""
    steps: np.ndarray
    """Environment steps of a run at each point of the curves."""
    curves: np.ndarray
    """``[runs, points]``: mean return of the last 100 episodes."""
    seconds: float
    """Training time of all runs in seconds, without preparation."""
    run_dir: Path | None = None
    """The folder of the population; None: it has none."""

    @property
    def best(self) -> int | None:
        """Number of the run with the highest return, of all that have not diverged; None: none has ended an episode."""
        returns = np.array([np.nan if each.reason == "diverged" else each.returns for each in self.outcomes])
        return int(np.nanargmax(returns)) if np.isfinite(returns).any() else None

    def rows(self) -> list[Row]:
        """Return a row of names, and a row for each run: its number, what differs between runs, and how it ended."""
        names = varied_names(self.runs)
        rows = [
            (number, *values_of(run, names), outcome.returns, outcome.iterations, outcome.reason)
            for number, (run, outcome) in enumerate(zip(self.runs, self.outcomes, strict=True))
        ]
        return [("run", *names, "return", "iterations", "reason"), *rows]

    def write(self, folder: str | Path) -> None:
        """Write ``runs.csv``, a row for each run, ``curves.csv``, a column for each run, and a page, ``runs.html``.

        Args:
            folder: The folder, which need not exist.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        tables = {
            "runs": self.rows(),
            "curves": [
                ("steps", *range(len(self.runs))),
                *zip(self.steps.tolist(), *self.curves.tolist(), strict=True),
            ],
        }
        for name, rows in tables.items():
            with (path / f"{name}.csv").open("w", newline="") as file:
                csv.writer(file).writerows(rows)
        title = f"{self.runs[0].env}: population"
        page = population_page(title, self._summary()[:3], tables["runs"], self.steps, self.curves)
        (path / "runs.html").write_text(page, encoding="utf-8")

    def __repr__(self) -> str:
        return text_table(self._summary())

    def _repr_html_(self) -> str:
        return html_table(self._summary(), heading=True)

    def _summary(self) -> list[Row]:
        returns = np.array([[outcome.returns] for outcome in self.outcomes])
        finite = returns[np.isfinite(returns[:, 0])]
        reasons = collections.Counter(outcome.reason for outcome in self.outcomes)
        rows: list[Row] = [("runs", f"{len(self.runs):,} in {self.seconds:.2f} s")]
        rows += [("ended", ", ".join(f"{reason}: {count:,}" for reason, count in reasons.most_common()))]
        if len(finite):
            low, high = interval(iqm, finite)[:, 0]
            rows += [("return", f"{iqm(finite)[0]:.1f} (interquartile mean, 95 % interval {low:.1f} to {high:.1f})")]
        names, best = varied_names(self.runs), self.best
        if best is None:
            return rows
        values = ", ".join(
            f"{n} {short_text(v)}" for n, v in zip(names, values_of(self.runs[best], names), strict=True)
        )
        return [*rows, ("best", f"run {best}, {self.outcomes[best].returns:.1f}{': ' if values else ''}{values}")]
