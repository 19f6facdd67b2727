"""Populations: many runs that train at once, each with the same results as alone."""

import collections
import csv
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch

from gpu_envs.backend import resolve_device
from gpu_envs.backend.several import PerRun
from gpu_envs.documented import documented
from gpu_envs.progress import Progress
from gpu_envs.tables import Row, html_table, text_table
from gpu_envs.training.comparison import interval, iqm
from gpu_envs.training.iterations import Iterations
from gpu_envs.training.process.copies import RunCopies
from gpu_envs.training.process.device import capture_graphs
from gpu_envs.training.process.signals import interruption
from gpu_envs.training.record.reports import REQUESTS, WINDOW, History
from gpu_envs.training.run import AUTO, Run
from gpu_envs.training.trainer import Trainer
from gpu_envs.training.variants import (
    groups_of,
    numbers_that_differ,
    parameters_that_differ,
    values_of,
    variants,
    varied_names,
)

ENGINES = ("small", "CPU actor-critic", "CPU Q network")
"""Engines whose networks a population can train."""


class Outcome(NamedTuple):
    """How a run of a population ended."""

    reason: str
    """As in ``Result``, or ``diverged``: a loss, a weight or an observation became NaN or infinite."""
    iterations: int
    """Number of updates."""
    returns: float
    """Mean return of the last 100 episodes, of the role that ``target_return`` refers to."""


@final
class _Together(Iterations):
    """Runs of equal shape: the iterations of the first one, which work on the memory of all.

    Attributes:
        copies: The memory of all runs.
        outcomes: How each run ended, by its number.
    """

    copies: RunCopies | None = None

    @classmethod
    def of(cls, runs: Sequence[Run], params: Collection[str]) -> "_Together":
        """Make runs that differ in their seeds and in numbers; ``params``: the environment's parameters that differ."""

        def make() -> "_Together":
            return cls(_with_all_numbers(runs), per_replica=params)

        copies = RunCopies(len(runs), resolve_device(runs[0].device), make)
        first: _Together = copies.make(make)
        for number in reversed(range(len(runs))):
            first.restart(runs[number], params)
            copies.memory[number].copy_(copies.memory[0])
        first._join(copies, runs)
        return first

    def _join(self, copies: RunCopies, runs: Sequence[Run]) -> None:
        for name, learner in self.learners.items():
            if learner.engine not in ENGINES:
                reason = f": {learner.fallback_reason}" if learner.fallback_reason else ""
                raise ValueError(
                    f"a population trains networks of the engines {', '.join(ENGINES)}, and the policy {name!r} would "
                    f"use {learner.engine}{reason}; gpu-envs train --help lists the settings of networks"
                )
        self.copies, self._runs = copies, runs
        self._reports = self._reports.of_runs(len(runs))
        self.outcomes: list[Outcome | None] = [None] * len(runs)
        self._recent: collections.deque[np.ndarray] = collections.deque()
        self._ended: dict[int, list[np.ndarray]] = {}
        self._memories: dict[int, torch.Tensor] = {}
        self._roles = [role.name for role in self.horizon_env.roles]
        self.points: list[tuple[int, np.ndarray]] = []

    def roll_out(self) -> None:
        if self.copies is None:
            super().roll_out()
            return
        with self.copies.of_all_runs():
            super().roll_out()

    def learn(self) -> None:
        if self.copies is None:
            super().learn()
            return
        with self.copies.of_all_runs():
            super().learn()

    def prepare(self) -> None:
        if self.phases:
            return
        assert self.copies is not None
        phases: list[Callable[[], None]] = [self.roll_out, self.learn]
        if not self.no_graphs_reason:
            start = self.copies.memory.clone()
            with self._settings():
                phases, self.no_graphs_reason = capture_graphs(phases, self.device, required=bool(self.config.graphs))
                self.copies.memory.copy_(start)
            if self.no_graphs_reason:
                warnings.warn(f"training without CUDA graphs: {self.no_graphs_reason}", stacklevel=2)
        self.phases = phases

    def _sent_metrics(self) -> torch.Tensor:
        assert self.copies is not None
        return self.copies.stacked(self._metrics)

    def train(self, bar: Progress) -> None:
        """Train until every run has done its steps, reached its target return, diverged, or a signal arrives."""
        assert self.copies is not None
        config, started = self.config, time.perf_counter()
        self.prepare()
        active = self.copies.runs.active
        with self._settings(), interruption() as interrupted:
            while active.any() and self.iteration < config.iterations and not interrupted.is_set():
                self._run_iteration()
                last = self.iteration >= config.iterations
                due = config.checkpoint_interval > 0 and self.iteration % config.checkpoint_interval == 0
                self._receive(wait_for_all=last or due)
                self.seconds = time.perf_counter() - started
                steps = self.steps * len(active)
                bar.update(steps, steps / self.seconds, {"best": self._best()})
            self._receive(wait_for_all=True)
            reason = "interrupted" if self.iteration < config.iterations else "total_steps"
            for number, memory in self._memories.items():
                self.copies.memory[number].copy_(memory)
            for number in map(int, np.flatnonzero(active)):
                self._end(number, reason)
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)
        self.seconds = time.perf_counter() - started

    def _receive(self, *, wait_for_all: bool) -> None:
        """Receive metrics; end the runs that have diverged or reached their targets."""
        assert self.copies is not None
        active, config = self.copies.runs.active, self.config
        for iteration, values, *_ in self._reports.receive_values(wait_for_all=wait_for_all):
            self._recent.append(values)
            self._drop_old()
            for number in np.flatnonzero(active & ~np.isfinite(values[:, self._checked()]).all(1)):
                self._end(int(number), "diverged")
            logs = iteration % config.log_interval == 0 or iteration == config.iterations
            if config.target_return is None and not logs:
                continue
            means = self._means()
            if logs:
                self.points.append((config.steps_at(iteration), means))
            if config.target_return is not None:
                for number in np.flatnonzero(active & (means >= config.target_return * (1 - 1e-9) - 1e-9)):
                    history = self.history_of(int(number))
                    if history.target_reached:
                        self._end(int(number), "target_return")

    def _checked(self) -> np.ndarray:
        """Return the indices of metrics that must be finite."""
        names = [name for learner in self.learners.values() for name in learner.metric_names]
        end = self._reports.size - REQUESTS
        checked = [k for k, name in enumerate(names, end - len(names)) if name not in (None, "explained_variance")]
        return np.array(checked)

    def _episodes(self, values: np.ndarray) -> np.ndarray:
        """Return ``[runs, 3, horizon]`` of metrics: episodes that ended, their returns and lengths, of the target."""
        role = self._roles.index(self.history._target_role)
        horizon = self.config.horizon
        return values[:, 3 * role * horizon : 3 * (role + 1) * horizon].reshape(len(values), 3, horizon)

    def _drop_old(self) -> None:
        """Forget iterations that no run's mean return depends on."""
        assert self.copies is not None
        counts = np.stack([self._episodes(values)[:, 0].sum(1) for values in self._recent])[:, self.copies.runs.active]
        later = counts.sum(0) - counts.cumsum(0)
        for _ in range(int((later >= WINDOW).all(1).sum()) if counts.size else 0):
            self._recent.popleft()

    def _means(self) -> np.ndarray:
        """Return the mean return of each run's last 100 episodes, as ``EpisodeWindow``; NaN without episodes."""
        episodes = np.concatenate([self._episodes(values) for values in self._recent], 2).astype(np.float64)
        later = episodes[:, 0].sum(1, keepdims=True) - episodes[:, 0].cumsum(1)
        counts, returns = ((episodes[:, row] * (later < WINDOW)).sum(1) for row in range(2))
        with np.errstate(invalid="ignore"):
            means: np.ndarray = returns / np.where(counts > 0, counts, np.nan)
        for number in self._ended:
            outcome = self.outcomes[number]
            means[number] = outcome.returns if outcome is not None else np.nan
        return means

    def _best(self) -> float:
        means = self.points[-1][1] if self.points else np.array([])
        return float(np.nanmax(means)) if np.isfinite(means).any() else math.nan

    def _end(self, number: int, reason: str) -> None:
        """End a run: later launches leave it out, and its memory is kept as it is now."""
        assert self.copies is not None
        self.copies.exclude(number)
        self.outcomes[number] = Outcome(reason, self.iteration, float(self._means()[number]))
        self._ended[number] = [values[number] for values in self._recent]
        if any(self.copies.runs.active):  # iterations of the others change its memory, where torch computes
            self._memories[number] = self.copies.memory[number].clone()

    def history_of(self, number: int) -> History:
        """Return the episode statistics of a run, as of now or of its end."""
        run, metrics = self._runs[number], self.horizon_env.metrics
        recent = self._ended.get(number) or [values[number] for values in self._recent]
        history = History(run, self._roles, self.history._target_role, metrics)
        for values in recent:
            history.add(self._reports.to_report(0, values, 0.0, 0.0))
        return history

    def state_of(self, number: int) -> dict[str, Any]:
        """Return the state of a run, as ``Trainer.state``."""
        assert self.copies is not None
        memory, outcome = self.copies.memory, self.outcomes[number]
        first = memory[0].clone()
        memory[0].copy_(memory[number])
        state = self.state()
        memory[0].copy_(first)
        iteration = self.iteration if outcome is None else outcome.iterations
        own = {"iteration": iteration, "steps": self.config.steps_at(iteration)}
        return state | self.history_of(number).state() | own


def _with_all_numbers(runs: Sequence[Run]) -> Run:
    """Return the first run, whose numbers have the values of all runs."""
    return Run.from_flat(runs[0].flat() | {name: PerRun(values) for name, values in numbers_that_differ(runs).items()})


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
    def best(self) -> int:
        """Number of the run with the highest return."""
        returns = np.array([outcome.returns for outcome in self.outcomes])
        return int(np.nanargmax(returns)) if np.isfinite(returns).any() else 0

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
        if run.num_envs == AUTO:
            raise ValueError(f"num_envs is {AUTO!r}; a population needs a number of replicas")
        if run.callbacks:
            raise ValueError(f"the runs of a population have no callbacks; leave out {', '.join(run.callbacks)}")
        if run.gpus > 1:
            raise ValueError(f"gpus is {run.gpus}; a population trains on one GPU")
        self.runs = variants(run, seeds=seeds, vary=vary, count=runs, search=search)
        self._numbers = groups_of(self.runs)
        self._groups: list[_Together] = []

    def train(self, progress: bool | None = None) -> PopulationResult:
        """Train all runs until their steps are done, their target return is reached, or a signal arrives.

        Args:
            progress: As in ``train``.
        """
        outcomes: list[Any] = [None] * len(self.runs)
        curves: dict[int, np.ndarray] = {}
        steps: np.ndarray = np.zeros(0)
        self._groups = []
        for numbers in self._numbers:
            runs = [self.runs[number] for number in numbers]
            group = _Together.of(runs, parameters_that_differ(runs))
            self._groups.append(group)
            total = runs[0].steps_at(runs[0].iterations) * len(runs)
            header = [f"{len(runs):,} runs at once, on {group.device}"]
            bar = Progress(total, None if progress is None else not progress, header=header)
            try:
                group.train(bar)
            finally:
                bar.close()
            points = np.array([at for at, _ in group.points])
            steps = points if len(points) > len(steps) else steps
            for place, number in enumerate(numbers):
                outcomes[number] = group.outcomes[place]
                curves[number] = np.array([means[place] for _, means in group.points])
        table = np.full((len(self.runs), len(steps)), np.nan)
        for number, curve in curves.items():
            table[number, : len(curve)] = curve
        return PopulationResult(self.runs, outcomes, steps, table, sum(group.seconds for group in self._groups))

    def trainer(self, number: int) -> Trainer:
        """Return the trainer of a run after ``train``, as if it had trained alone."""
        place = next(k for k, numbers in enumerate(self._numbers) if number in numbers)
        trainer = Trainer(self.runs[number])
        state = self._groups[place].state_of(self._numbers[place].index(number))
        trainer.load(state | {"describes": trainer.describe()})
        return trainer
