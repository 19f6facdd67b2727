"""Populations: many runs that train at once, each with the same results as alone."""

import collections
import csv
import dataclasses
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn

from gpu_envs.documented import documented
from gpu_envs.progress import Progress
from gpu_envs.registry.catalog import check_trusted, spec_of_run
from gpu_envs.tables import Row, html_table, text_table
from gpu_envs.training.callbacks.base import Callbacks
from gpu_envs.training.comparison import interval, iqm
from gpu_envs.training.joint_iterations import INTERRUPTED, JointIterations, Modules, Outcome, PopulationReport
from gpu_envs.training.process.copies import mapped
from gpu_envs.training.process.signals import interruption
from gpu_envs.training.record.checkpoint import load, save
from gpu_envs.training.record.run_directory import RunDirectory, new_folder
from gpu_envs.training.run import AUTO, Run, upgraded
from gpu_envs.training.trainer import Trainer
from gpu_envs.training.variants import groups_of, parameters_that_differ, values_of, variants, varied_names

MIN_SECONDS = 10.0
"""Minimum time between two writings of the states of all runs during the training."""

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
        """Write ``runs.csv``, a row for each run, and ``curves.csv``, a column for each run, to a folder."""
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
        runs: The runs, combination by combination, each with all seeds.
        config: Their common settings.
        run_dir: The folder; None: there is none yet.
        steps: Environment steps of each run that trains, as of the last report.
        seconds: Training time so far.
        is_main: True: this process writes the folder.

    Example:
        >>> from gpu_envs.training import Population, Run
        >>> run = Run(env="CartPole-v1", num_envs=16, total_steps=8192, run_dir="")
        >>> population = Population(run, seeds=2, vary={"learning_rate": "log:1e-4:1e-2"}, runs=4)
        >>> len(population.train(progress=False).outcomes)
        8
    """

    is_main: Final = True

    def __init__(
        self,
        run: Run,
        *,
        seeds: int | Sequence[int] = 1,
        vary: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        runs: int | None = None,
        search: str = "random",
        modules: Modules | None = None,
    ) -> None:
        """Choose the runs.

        Args:
            run: Their common settings. Its callbacks, and its ``run_dir``, are the population's.
            seeds: Seeds of each combination of values, or their number, from the run's seed on.
            vary: By name, a list of values or a range, such as ``uniform:0.9:1`` or ``log:1e-4:1e-2``. A name is a
                setting, such as ``learning_rate``, or ``env.`` and a parameter of the environment. Or a list of
                combinations, such as ``[{"gamma": 0.9, "clip": 0.1}, {"gamma": 0.99, "clip": 0.2}]``.
            runs: Number of combinations of values; None: with ``grid`` all combinations of lists, otherwise 16.
            search: ``random``, ``sobol`` (evenly spread) or ``grid`` (all combinations, with equal steps in ranges).
            modules: Makes your torch modules of a run, by policy name, with their initial weights.
        """
        if run.gpus > 1:
            raise ValueError(f"gpus is {run.gpus}; a population trains on one GPU")
        self.config, self._modules = run, modules
        own = dataclasses.replace(run, run_dir="", callbacks=())
        self._take(variants(own, seeds=seeds, vary=vary, count=runs, search=search))

    @classmethod
    def open(cls, folder: str | Path, *, modules: Modules | None = None, trust: bool = False) -> "Population":
        """Return the population of a folder: ``train`` continues runs that were interrupted, bit for bit.

        Args:
            folder: The ``run_dir`` of ``train``.
            modules: As for the constructor.
            trust: Whether to import files of the environment and of callbacks that were not used on this machine.
        """
        path = Path(folder, _STATES)
        if not path.is_file():
            raise FileNotFoundError(f"{Path(folder)} has no {_STATES}: give the folder of a population")
        saved, source = load(path), f"the population {folder}"
        config = upgraded(saved["config"])
        spec_of_run(config["env"], source, trust=trust)
        for place in config["callbacks"]:
            check_trusted(place, source, trust=trust)
        population = cls(Run.from_flat({**config, "run_dir": str(folder)}), modules=modules)
        population._take([Run.from_flat(upgraded(flat)) for flat in saved["runs"]])
        population.run_dir, population._of_callbacks = Path(folder), saved["callbacks"]
        population._ended = {int(number): Outcome(*outcome) for number, outcome in saved["outcomes"].items()}
        population._curves = {int(number): dict(points) for number, points in saved["curves"].items()}
        population.seconds = saved["seconds"]
        for numbers, states in saved["states"]:
            population._states |= {number: _part(states, place) for place, number in enumerate(numbers)}
        return population

    def _take(self, runs: Sequence[Run]) -> None:
        """Begin with runs that have not trained."""
        for each in runs:
            if each.num_envs == AUTO:
                raise ValueError(f"num_envs is {AUTO!r}; a population needs a number of replicas")
        self.runs, self._groups = runs, groups_of(runs)
        self.run_dir: Path | None = None
        self.steps, self.seconds = 0, 0.0
        self._group: JointIterations | None = None
        self._states: dict[int, Mapping[str, Any]] = {}
        self._ended: dict[int, Outcome] = {}
        self._curves: dict[int, dict[int, float]] = {number: {} for number in range(len(runs))}
        self._of_callbacks: dict[str, Any] = {}

    def train(self, progress: bool | None = None, *, callbacks: Iterable[Any] = ()) -> PopulationResult:
        """Train all runs until their steps are done, their target return is reached, or a signal arrives.

        The folder ``run_dir`` (None: a new one in ``runs``; empty: none) receives tables of the results, the states of
        all runs, every ``checkpoint_interval`` iterations and at the end, and ``best``, the run directory of the best
        run.

        Args:
            progress: As in ``train``.
            callbacks: As in ``train``. They receive the population instead of a trainer, and a ``PopulationReport``,
                whose figures have a value for each run. ``on_iteration`` returns a reason to end all runs, or reasons
                by their numbers.
        """
        self._callbacks = Callbacks([*self.config.callbacks, *callbacks])
        if self._callbacks.parameters:
            names = ", ".join(self._callbacks.parameters)
            raise ValueError(
                f"a callback changes {names}; callbacks of a population cannot change parameters: use vary"
            )
        self._callbacks.load(self._of_callbacks)
        if self.run_dir is None and self.config.run_dir != "":
            self.run_dir = Path(self.config.run_dir or new_folder(f"{self.config.env}-population"))
            check_empty(self.run_dir)
            self.run_dir.mkdir(parents=True, exist_ok=True)
        self._failure: Exception | None = None
        try:
            with interruption() as interrupted:
                self._callbacks.call("on_start", self)
                for numbers in self._groups:
                    outcomes = self._outcomes()
                    left = any(outcomes[number].reason == INTERRUPTED for number in numbers)
                    if left and not interrupted.is_set() and self._failure is None:
                        self._train_group(numbers, progress, interrupted)
            result = self._result()
            self._save(result)
            if self._failure is not None:
                raise self._failure
            self._callbacks.call("on_end", self, result)
        except BaseException as error:
            self._callbacks.call("on_exit", self, error)
            raise
        self._callbacks.call("on_exit", self, None)
        return result

    def _train_group(self, numbers: Sequence[int], progress: bool | None, interrupted: threading.Event) -> None:
        runs = {number: self.runs[number] for number in numbers}
        self._store()
        states = {number: self._states[number] for number in numbers if number in self._states}
        outcomes = self._outcomes()
        ended = {number: outcomes[number] for number in numbers if outcomes[number].reason != INTERRUPTED}
        parameters = parameters_that_differ([*runs.values()])
        self._group = group = JointIterations.of(runs, parameters, self._modules or _no_modules, states, ended)
        seconds, self._saved = self.seconds, time.perf_counter()
        total = group.config.steps_at(group.config.iterations) * len(runs)
        header = [f"{len(runs):,} runs at once on {group.device}, where {group.copies.fitting:,} would fit"]
        bar = Progress(total, None if progress is None else not progress, header=header)

        def save_now_and_then() -> None:
            self.seconds = seconds + group.seconds
            if time.perf_counter() - self._saved > MIN_SECONDS:
                self._save()
                self._saved = time.perf_counter()

        watched = self._callbacks.hooks & {"on_iteration", "on_log"}
        try:
            group.train(bar, interrupted, self._watch if watched else None, save_now_and_then)
        finally:
            bar.close()
        self.seconds = seconds + group.seconds

    def _watch(self, report: PopulationReport, logged: bool) -> dict[int, str]:
        """Give a report to callbacks; return reasons to end runs, by their numbers."""
        self.steps, reasons = report.steps, dict[int, str]()
        try:
            for wish in self._callbacks.call("on_iteration", self, report):
                wishes = wish if isinstance(wish, Mapping) else dict.fromkeys(report.numbers.tolist(), wish)
                for number, reason in wishes.items():
                    if number not in report.numbers or not (reason is None or (isinstance(reason, str) and reason)):
                        raise TypeError(
                            f"on_iteration of a callback returned {reason!r} for run {number!r}; return None, a text, "
                            "the reason to end all runs, or texts by the numbers of runs"
                        )
                    reasons |= {} if reason is None else {number: reason}
            if logged:
                self._callbacks.call("on_log", self, self._row(report))
        except Exception as error:  # noqa: BLE001 - train raises it again after it has saved the runs
            self._failure = error
            return dict.fromkeys(report.numbers.tolist(), INTERRUPTED)
        return reasons

    def _row(self, report: PopulationReport) -> dict[str, float]:
        """Return figures of all runs for trackers: means over the runs that train, and the spread of their returns."""
        group = self._group
        assert group is not None
        row = {"iteration": report.iteration, "steps": report.steps, "seconds": self.seconds + group.seconds}
        for name, values in report.items():
            finite = values[np.isfinite(values)]
            if len(finite):
                row[name] = float(finite.mean())
                if name.rpartition("/")[2] == "return":
                    low, middle, high = np.quantile(finite, (0.25, 0.5, 0.75)).tolist()
                    row |= {f"{name}/quartile_1": low, f"{name}/median": middle, f"{name}/quartile_3": high}
                    row |= {f"{name}/best": float(finite.max())}
        return row | {"runs": float(report.active.sum())}

    def _outcomes(self) -> list[Outcome]:
        """Return how the runs have ended; of a run that has not, the outcome if it was interrupted now."""
        if self._group is not None:
            self._ended |= dict(zip(self._group.numbers, self._group.present_outcomes(), strict=True))
        return [self._ended.get(number, Outcome(INTERRUPTED, 0, math.nan)) for number in range(len(self.runs))]

    def _result(self) -> PopulationResult:
        self._store_curves()
        outcomes = self._outcomes()
        steps = sorted(set().union(*self._curves.values()))
        curves = [[self._curves[number].get(at, math.nan) for at in steps] for number in range(len(self.runs))]
        array = np.array(curves).reshape(len(self.runs), len(steps))
        return PopulationResult(self.runs, outcomes, np.array(steps), array, self.seconds, self.run_dir)

    def _store_curves(self) -> None:
        if self._group is not None:
            for steps, means in self._group.points:
                for number, mean in zip(self._group.numbers, means.tolist(), strict=True):
                    self._curves[number][steps] = mean

    def _store(self) -> None:
        """Keep the results of the group that has trained on the host, as the next one needs the device's memory."""
        if self._group is not None:
            self._store_curves()
            self._outcomes()
            for place, number in enumerate(self._group.numbers):
                self._states[number] = mapped(Tensor.cpu, self._group.state_of(place))
            self._group = None

    def trainer(self, number: int) -> Trainer:
        """Return the trainer of a run after ``train``, as if it had trained alone."""
        if number not in range(len(self.runs)):
            raise ValueError(f"there is no run {number}; the population has the runs 0 to {len(self.runs) - 1}")
        run, group = self.runs[number], self._group
        if group is not None and number in group.numbers:
            state: Mapping[str, Any] = group.state_of(group.numbers.index(number))
        elif number in self._states:
            state = self._states[number]
        else:
            raise ValueError(f"run {number} has not trained: call train")
        trainer = Trainer(run, modules=None if self._modules is None else self._modules(run))
        trainer.load({**state, "describes": trainer.describe()})
        return trainer

    def _save(self, result: PopulationResult | None = None) -> None:
        """Write the states of all runs to the folder, and after the training the results."""
        if self.run_dir is None:
            return
        self._store_curves()
        states: list[tuple[list[int], Any]] = []
        for group in self._groups:
            if self._group is not None and self._group.numbers == group:
                states.append((group, _together([self._group.state_of(place) for place in range(len(group))])))
            elif group[0] in self._states:
                states.append((group, _together([self._states[number] for number in group])))
        content: dict[str, Any] = {"config": self.config.flat(), "runs": [run.flat() for run in self.runs]}
        outcomes = {str(number): dataclasses.astuple(outcome) for number, outcome in enumerate(self._outcomes())}
        curves = {str(number): [*points.items()] for number, points in self._curves.items()}
        content |= {"states": states, "outcomes": outcomes, "curves": curves, "seconds": self.seconds}
        save(self.run_dir / _STATES, content | {"callbacks": self._callbacks.state()})
        if result is not None:
            result.write(self.run_dir)
            complete = all(outcome.reason != INTERRUPTED for outcome in result.outcomes)
            if complete and result.best is not None and not (self.run_dir / _BEST).exists():
                self._extract(result.best, self.run_dir / _BEST)

    def _extract(self, number: int, run_dir: str | Path | None) -> RunDirectory:
        trainer = self.trainer(number)
        directory = RunDirectory.create(run_dir, trainer.config)
        trainer.save_to(directory)
        trainer.save()
        return directory


def _no_modules(run: Run) -> dict[str, nn.Module]:
    del run
    return {}


def _together(states: Sequence[Any]) -> Any:
    """Return states of one structure as one, which has stacks of their tensors and lists of everything else."""
    first = states[0]
    if isinstance(first, Mapping) and all(state.keys() == first.keys() for state in states):
        return {name: _together([state[name] for state in states]) for name in first}
    if isinstance(first, Tensor) and all(state.shape == first.shape for state in states):
        return torch.stack(list(states))
    return [*states]


def _part(states: Any, place: int) -> Any:
    """Return one of the states that ``_together`` got."""
    if isinstance(states, Mapping):
        return {name: _part(state, place) for name, state in states.items()}
    # a generator of random numbers cannot read its state from a part of a tensor
    return states[place].clone() if isinstance(states, Tensor) else states[place]


def check_empty(folder: str | Path) -> None:
    """Raise a FileExistsError if a folder has content."""
    path = Path(folder)
    if path.exists() and any(path.iterdir()):
        raise FileExistsError(f"the folder {path} is not empty: name another, as run_dir or --run-dir")


def extract(
    folder: str | Path,
    number: int,
    run_dir: str | Path | None = None,
    *,
    modules: Modules | None = None,
    trust: bool = False,
) -> RunDirectory:
    """Make a run directory of a run of a population, which ``resume``, ``evaluate`` and other functions take.

    Args:
        folder: The folder of the population.
        number: The number of the run, as in ``runs.csv``.
        run_dir: The new folder; None: one in ``runs``.
        modules: As for ``Population``.
        trust: As for ``Population.open``.
    """
    return Population.open(folder, modules=modules, trust=trust)._extract(number, run_dir)
