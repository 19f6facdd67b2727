"""Populations: many runs that train at once, each with the same results as alone."""

import bisect
import collections
import csv
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from gpu_envs.documented import documented
from gpu_envs.progress import Progress
from gpu_envs.tables import Row, html_table, text_table
from gpu_envs.training.comparison import interval, iqm
from gpu_envs.training.joint_iterations import JointIterations, Outcome
from gpu_envs.training.population_page import population_page
from gpu_envs.training.process.signals import interruption
from gpu_envs.training.record.checkpoint import load, save
from gpu_envs.training.record.run_directory import RunDirectory, new_folder
from gpu_envs.training.run import AUTO, Run, upgraded
from gpu_envs.training.trainer import Trainer
from gpu_envs.training.variants import groups_of, parameters_that_differ, values_of, variants, varied_names

_STATES, _BEST = "population.pt", "best"


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
        values = ", ".join(f"{n} {v}" for n, v in zip(names, values_of(self.runs[best], names), strict=True))
        return [*rows, ("best", f"run {best}, {self.outcomes[best].returns:.1f}: {values}")]


@final
class Population:
    """Runs that train at once on one device, each with the same results as alone.

    Runs differ in their seeds, in schedules and numbers of their algorithm, and in numbers of the environment. Runs
    that differ in anything else, such as the network, train one group after the other.

    Attributes:
        runs: The runs.

    Example:
        >>> from gpu_envs.training import Population, Run
        >>> run = Run(env="CartPole-v1", num_envs=16, total_steps=8192)
        >>> population = Population(run, seeds=2, vary={"learning_rate": "log:1e-4:1e-2"}, runs=4)
        >>> len(population.train(progress=False).outcomes)
        8
    """

    def __init__(
        self,
        run: Run,
        *,
        seeds: int | Sequence[int] = 1,
        vary: Mapping[str, Any] | None = None,
        runs: int | None = None,
        search: str = "random",
    ) -> None:
        """Choose the runs.

        Args:
            run: Their common settings.
            seeds: Seeds of each combination of values, or their number, from the run's seed on.
            vary: By name, a list of values or a range, such as ``uniform:0.9:1`` or ``log:1e-4:1e-2``. A name is a
                setting, such as ``learning_rate``, or ``env.`` and a parameter of the environment.
            runs: Number of combinations of values; None: with ``grid`` all combinations of lists, otherwise 16.
            search: ``random``, ``sobol`` (evenly spread) or ``grid`` (all combinations, with equal steps in ranges).
        """
        self.runs = variants(run, seeds=seeds, vary=vary, count=runs, search=search)
        for each in self.runs:
            if each.num_envs == AUTO:
                raise ValueError(f"num_envs is {AUTO!r}; a population needs a number of replicas")
            if each.callbacks:
                raise ValueError(f"the runs of a population have no callbacks; leave out {', '.join(each.callbacks)}")
            if each.gpus > 1:
                raise ValueError(f"gpus is {each.gpus}; a population trains on one GPU")
        self._numbers = groups_of(self.runs)
        self._groups: dict[int, JointIterations] = {}
        self._states: dict[int, dict[str, Any]] = {}

    def train(self, progress: bool | None = None) -> PopulationResult:
        """Train all runs until their steps are done, their target return is reached, or a signal arrives.

        Args:
            progress: As in ``train``.
        """
        outcomes: list[Any] = [None] * len(self.runs)
        points: list[tuple[int, int, float]] = []
        seconds = 0.0
        self._groups, self._states = {}, {}
        with interruption() as interrupted:
            for numbers in self._numbers:
                runs = [self.runs[number] for number in numbers]
                group = JointIterations.of(runs, parameters_that_differ(runs))
                total = runs[0].steps_at(runs[0].iterations) * len(runs)
                header = [f"{len(runs):,} runs at once on {group.device}, where {group.copies.fitting:,} would fit"]
                bar = Progress(total, None if progress is None else not progress, header=header)
                try:
                    group.train(bar, interrupted)
                finally:
                    bar.close()
                seconds += group.seconds
                for place, number in enumerate(numbers):
                    outcomes[number] = group.outcomes[place]
                    points += [(number, steps, means[place]) for steps, means in group.points]
                    if len(self._numbers) > 1:  # the next group needs the memory
                        self._states[number] = group.state_of(place)
                self._groups = {} if len(self._numbers) > 1 else dict.fromkeys(numbers, group)
        steps = sorted({at for _, at, _ in points})
        curves = np.full((len(self.runs), len(steps)), np.nan)
        for number, at, mean in points:
            curves[number, bisect.bisect_left(steps, at)] = mean
        return PopulationResult(self.runs, outcomes, np.array(steps), curves, seconds)

    def trainer(self, number: int) -> Trainer:
        """Return the trainer of a run after ``train``, as if it had trained alone."""
        return _trainer(self.runs[number], self._state_of(number))

    def _state_of(self, number: int) -> dict[str, Any]:
        if number in self._groups:
            return self._groups[number].state_of(self._numbers[0].index(number))
        if number not in self._states:
            raise ValueError(f"there is no trained run {number}; call train, and give 0 to {len(self.runs) - 1}")
        return self._states[number]

    def save(self, result: PopulationResult, folder: str | Path | None = None) -> Path:
        """Write tables of the results, the states of all runs, and the best run as a run directory, ``best``.

        Args:
            result: The result of ``train``.
            folder: A new or empty folder; None: a new one in ``runs``.

        Returns:
            The folder. ``extract`` makes a run directory of any run in it.
        """
        path = new_folder(f"{self.runs[0].env}-population") if folder is None else Path(folder)
        check_empty(path)
        path.mkdir(parents=True, exist_ok=True)
        result.write(path)
        runs = {str(number): run.flat() for number, run in enumerate(self.runs)}
        save(path / _STATES, {"runs": runs, "states": {number: self._state_of(int(number)) for number in runs}})
        if result.best is not None:
            extract(path, result.best, path / _BEST)
        return path


def check_empty(folder: str | Path) -> None:
    """Raise a FileExistsError if a folder has content."""
    path = Path(folder)
    if path.exists() and any(path.iterdir()):
        raise FileExistsError(f"the folder {path} is not empty: name another, as run_dir or --run-dir")


def _trainer(run: Run, state: Mapping[str, Any]) -> Trainer:
    trainer = Trainer(run)
    trainer.load({**state, "describes": trainer.describe()})
    return trainer


def extract(folder: str | Path, number: int, run_dir: str | Path | None = None) -> RunDirectory:
    """Make a run directory of a run of a population, which ``resume``, ``evaluate`` and other functions take.

    Args:
        folder: The folder of the population, a result of ``Population.save``.
        number: The number of the run, as in ``runs.csv``.
        run_dir: The new folder; None: one in ``runs``.
    """
    path = Path(folder, _STATES)
    if not path.is_file():
        raise FileNotFoundError(f"{Path(folder)} has no {_STATES}: give the folder of a population")
    saved = load(path)
    if str(number) not in saved["runs"]:
        raise ValueError(f"there is no run {number}; {path.parent} has the runs 0 to {len(saved['runs']) - 1}")
    run = Run.from_flat({**upgraded(saved["runs"][str(number)]), "run_dir": run_dir})
    trainer = _trainer(run, saved["states"][str(number)])
    directory = RunDirectory.create(run_dir, run)
    trainer.save_to(directory)
    trainer.save()
    return directory
