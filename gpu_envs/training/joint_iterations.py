"""Iterations of several runs of equal shape at once."""

import collections
import contextlib
import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import nn

from gpu_envs.backend import resolve_device
from gpu_envs.backend.several import PerRun
from gpu_envs.documented import documented
from gpu_envs.engine.roles import SINGLE_ROLE
from gpu_envs.progress import Progress
from gpu_envs.training.algorithms import OnPolicy
from gpu_envs.training.iterations import Iterations
from gpu_envs.training.process.copies import RunCopies
from gpu_envs.training.process.device import RandomState, is_out_of_memory
from gpu_envs.training.record.reports import REQUESTS, SUMMED, WINDOW, Figures, History
from gpu_envs.training.run import Run
from gpu_envs.training.variants import numbers_that_differ

INTERRUPTED = "interrupted"
"""The reason of runs that a later training continues."""

Modules: TypeAlias = Callable[[Run], Mapping[str, nn.Module]]
"""Makes the user's modules of a run, by policy name, with their initial weights.

The modules of two runs may differ in parameters and buffers only.
"""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run of a population ended."""

    reason: str
    """As in ``Result``, or ``diverged``: a loss, a weight or an observation became NaN or infinite."""
    iterations: int
    """Number of updates."""
    returns: float
    """Mean return of the last 100 episodes, of the role that ``target_return`` refers to."""


@final
class PopulationReport(Figures[np.ndarray]):
    """The figures of an iteration by name, as in ``log.csv``: ``report["return"]`` has the value of each run.

    Values of runs that have ended are NaN, except of their returns.

    Attributes:
        iteration: Number of the iteration, from 1.
        iterations: Number of iterations of the runs.
        steps: Environment steps of each run so far, summed over its replicas.
        numbers: Numbers of the runs in the population, in the order of the values.
        active: For each run, whether it trains.
        total: Number of runs of this shape, including runs that ended before the training was interrupted.
        returns: For each run the mean return of its last 100 episodes, of the role of the target return.
    """

    def __init__(self, of: "JointIterations", iteration: int, values: np.ndarray) -> None:
        """Make the report of an iteration with the metrics ``values``, ``[runs, size]``."""
        self.iteration, self.iterations = iteration, of.config.iterations
        self.steps, self.total = of.config.steps_at(iteration), of.total
        self.numbers, self.active = np.array(of.numbers), of.copies.runs.active.copy()
        figures = of.figures(values)  # now, as they depend on the iterations before
        super().__init__(lambda: figures)
        self.returns = figures[of.name_of("return", of.history.target_role)]


Watch: TypeAlias = Callable[[PopulationReport], Mapping[int, str]]
"""A function that returns reasons to end runs, by their numbers."""


@final
class JointIterations(Iterations):
    """Iterations of the first of several runs of equal shape, each of whose operations works on the memory of all runs.

    A *place* is a run's position among these runs, and a *number* its number in the population.

    Attributes:
        numbers: Numbers of the runs, by place.
        total: Number of runs of this shape, including runs that have ended before.
        copies: The memory of all runs.
        outcomes: How each run ended, by place.
        points: Every ``log_interval`` iterations, environment steps and the mean return of each run's last episodes.
    """

    copies: RunCopies
    total: int
    _has_modules: bool

    @classmethod
    def of(
        cls,
        runs: Mapping[int, Run],
        total: int,
        params: Collection[str],
        modules: Modules | None,
        states: Mapping[int, Mapping[str, Any]],
    ) -> "JointIterations":
        """Make runs that differ in their seeds and in numbers.

        Args:
            runs: The runs, by their numbers in the population.
            total: Number of runs of this shape, including runs that have ended before.
            params: Names of the environment's parameters that differ.
            modules: Makes the user's modules of a run.
            states: Results of ``state_of`` after the same iteration, with which the runs continue; empty: they are new.
        """
        numbers, all_runs = [*runs], [*runs.values()]

        def make() -> "JointIterations":
            return cls(_with_all_numbers(all_runs), modules and modules(all_runs[0]), per_replica=params)

        copies = RunCopies(len(runs), resolve_device(all_runs[0].device), make)
        first: JointIterations = copies.make(make)
        for name, learner in first.learners.items():
            if not isinstance(learner.algorithm, OnPolicy):
                raise ValueError(
                    f"the policy {name!r} learns by {learner.algorithm.name}; a population learns by ppo, a2c or pqn"
                )
        hosts = []
        for place in reversed(range(len(runs))):
            first.restart(all_runs[place], params, modules(all_runs[place]) if modules else {})
            if states:
                first._restore(states[numbers[place]])
            copies.memory[place].copy_(copies.memory[0])
            hosts.append(first._host_state())
        first._join(copies, numbers, all_runs, hosts[::-1])
        first.total, first._has_modules = total, modules is not None
        if states:
            first._remember_episodes([states[number] for number in numbers])
        return first

    def _host_state(self) -> dict[str, Any]:
        """Return what the environment's simulation has on the host and differs between runs."""
        sim = vars(self.horizon_env.env.simulation)
        return {name: dict(sim[name]) for name in ("drawn", "known_params", "randomness")}

    def _join(
        self, copies: RunCopies, numbers: Sequence[int], runs: Sequence[Run], hosts: Sequence[dict[str, Any]]
    ) -> None:
        self.copies, self.numbers, self._runs, self._hosts = copies, numbers, runs, hosts
        self._reports = self._reports.of_runs(len(runs))
        self.outcomes: list[Outcome | None] = [None] * len(runs)
        self._recent: collections.deque[np.ndarray] = collections.deque()
        self._counts: collections.deque[np.ndarray] = collections.deque()
        self._total: Any = 0
        self._ended: dict[int, list[np.ndarray]] = {}
        self._memories: dict[int, torch.Tensor] = {}
        self._buffers = self._all_buffers()
        self._roles = [role.name for role in self.horizon_env.roles]
        self.points: list[tuple[int, np.ndarray]] = []

    def _remember_episodes(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore the metrics of recent episodes from saved states."""
        first_of_metrics, horizon = 3 * len(self._roles), self.config.horizon
        rows: list[list[tuple[int, np.ndarray]]] = []
        for state in states:
            windows = [np.array(state["windows"][role], np.float64).reshape(-1, 3).T for role in self._roles]
            columns = [np.array(state["metrics"][name]).reshape(-1, 2).T for name in self.horizon_env.metrics]
            metrics = [np.stack([columns[0][0], *(sums for _, sums in columns)])] if columns else []
            rows.append([*zip(range(0, first_of_metrics + 1, 3), [*windows, *metrics], strict=False)])
        count = -(-max(window.shape[1] for of_run in rows for _, window in of_run) // horizon)
        if count == 0:
            return
        recent = np.zeros((count, len(states), self._reports.size), np.float32)
        for place, of_run in enumerate(rows):
            for first, window in of_run:
                steps = np.zeros((len(window), count * horizon), np.float32)
                steps[:, : window.shape[1]] = window
                by_iteration = steps.reshape(len(window), count, horizon).swapaxes(0, 1).reshape(count, -1)
                recent[:, place, first * horizon : (first + len(window)) * horizon] = by_iteration
        for values in recent:
            self._remember(values)

    def roll_out(self) -> None:
        with self._of_all_runs():
            super().roll_out()

    def learn(self) -> None:
        with self._of_all_runs():
            super().learn()

    @contextlib.contextmanager
    def _of_all_runs(self) -> Iterator[None]:
        """Work on all runs; explain errors of users' modules."""
        try:
            with self.copies.of_all_runs():
                yield
        except RuntimeError as error:
            of_torch = type(error) in (RuntimeError, NotImplementedError) and not is_out_of_memory(error)
            if self._has_modules and of_torch:
                raise RuntimeError(
                    f"a module failed in a population, which runs modules as under torch.vmap: {error}; the page on "
                    "populations lists what modules may not do, and train() trains them without a population"
                ) from error
            raise

    def _remembered(self) -> Callable[[], None]:
        memory, random = self.copies.memory.clone(), self._random.state()

        def restore() -> None:
            self.copies.memory.copy_(memory)
            self._random.load(random)

        return restore

    def _sent_metrics(self) -> torch.Tensor:
        return self.copies.stacked(self._metrics)

    def train(
        self,
        bar: Progress,
        interrupted: threading.Event,
        watch: Watch | None,
        log: Watch | None,
        end_iteration: Callable[[bool], None],
    ) -> None:
        """Train until every run has done its steps, reached its target return, diverged, or is ended otherwise.

        Args:
            bar: Progress output.
            interrupted: Ends all runs.
            watch: Receives the report of each iteration.
            log: Receives the reports of every ``log_interval`` iterations.
            end_iteration: Called after each iteration, with True after every ``checkpoint_interval``.
        """
        self.prepare()
        self._watch, self._log = watch, log
        config, started = self.config, time.perf_counter() - self.seconds
        seconds_before, steps_before = self.seconds, self.steps
        active = self.copies.runs.active
        with self._settings():
            while active.any() and self.iteration < config.iterations and not interrupted.is_set():
                self._run_iteration()
                last = self.iteration >= config.iterations
                due = config.checkpoint_interval > 0 and self.iteration % config.checkpoint_interval == 0
                self._receive(wait_for_all=last or due)
                self.seconds = time.perf_counter() - started
                speed = (self.steps - steps_before) * len(active) / (self.seconds - seconds_before)
                bar.update(self.steps * len(active), speed, {"best": self._best()})
                end_iteration(due and not last)
            self._receive(wait_for_all=True)
            reason = INTERRUPTED if self.iteration < config.iterations else "total_steps"
            for place, memory in self._memories.items():
                self.copies.memory[place].copy_(memory)
            self._end(np.flatnonzero(active), reason)
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)
        self.seconds = time.perf_counter() - started

    def _receive(self, *, wait_for_all: bool) -> None:
        """Receive metrics; end the runs that have diverged or reached their targets."""
        active, config = self.copies.runs.active, self.config
        for iteration, values, *_ in self._reports.receive_values(wait_for_all=wait_for_all):
            self._add_to_ended(iteration, values)
            values[~active] = 0
            self._remember(values)
            self._end(np.flatnonzero(active & ~np.isfinite(values[:, self._checked]).all(1)), "diverged")
            logs = iteration % config.log_interval == 0 or iteration == config.iterations
            calls = [call for call in (self._watch, self._log if logs else None) if call is not None]
            if not (calls or logs) and config.target_return is None:
                continue
            report = PopulationReport(self, iteration, values) if calls else None
            returns = self._returns() if report is None else report.returns
            for reasons in [] if report is None else [call(report) for call in calls]:
                for place, number in enumerate(self.numbers):
                    if number in reasons and active[place]:
                        self._end(np.array([place]), reasons[number])
            if logs:
                self.points.append((config.steps_at(iteration), returns))
            if config.target_return is not None:
                # sums are added here in another order than in History, which decides where this could matter
                margin = 1e-6 * max(1.0, abs(config.target_return))
                full = self._total[:, self._roles.index(self.history.target_role)] >= WINDOW
                near = np.flatnonzero(active & full & (returns >= config.target_return - margin))
                unclear = returns < config.target_return + margin
                reached = [k for k in map(int, near) if not unclear[k] or self.history_of(k).target_reached]
                self._end(np.array(reached, int), "target_return")

    def _add_to_ended(self, iteration: int, values: np.ndarray) -> None:
        """Add the metrics of an iteration that had been queued when runs were ended."""
        for place in self._ended:
            outcome = self.outcomes[place]
            assert outcome is not None
            if iteration <= outcome.iterations and outcome.reason not in ("target_return", "diverged"):
                self._ended[place].append(values[place].copy())
                returns = self.history_of(place).returns[self.history.target_role]
                self.outcomes[place] = dataclasses.replace(outcome, returns=returns)

    @functools.cached_property
    def _checked(self) -> np.ndarray:
        """The indices of metrics that must be finite."""
        names = [name for learner in self.learners.values() for name in learner.metric_names]
        end = self._reports.size - REQUESTS
        checked = [k for k, name in enumerate(names, end - len(names)) if name not in (None, "explained_variance")]
        return np.array(checked)

    def _episode_means(self, first: int, sums: int) -> np.ndarray:
        """Return means of each run's last 100 episodes, as ``EpisodeWindow``, ``[sums, runs]``; NaN without episodes.

        Args:
            first: Row of the metrics that counts episodes in each step.
            sums: Number of rows after it, with sums over these episodes.
        """
        runs, horizon = len(self._runs), self.config.horizon
        if not self._recent:
            return np.full((sums, runs), np.nan)
        part = slice(first * horizon, (first + 1 + sums) * horizon)
        steps = np.concatenate([v[:, part].reshape(runs, 1 + sums, horizon) for v in self._recent], 2).astype(
            np.float64
        )
        later = steps[:, 0].sum(1, keepdims=True) - steps[:, 0].cumsum(1)
        totals = (steps * (later < WINDOW)[:, None]).sum(2).T
        with np.errstate(invalid="ignore"):
            means: np.ndarray = totals[1:] / np.where(totals[0] > 0, totals[0], np.nan)
        means[:, [*self._ended]] = np.nan
        return means

    def name_of(self, figure: str, role: str) -> str:
        """Return the name of a role's figure in a report."""
        return figure if self._roles == [SINGLE_ROLE] else f"{role}/{figure}"

    def figures(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Return the figures of ``PopulationReport`` from an iteration's metrics, ``[runs, size]``."""
        figures: dict[str, np.ndarray] = {}
        for role in self._roles:
            means = self._episode_means(3 * self._roles.index(role), 2)
            if role == self.history.target_role:
                means[0] = self._with_ended(means[0])
            figures |= {self.name_of(name, role): mean for name, mean in zip(("return", "length"), means, strict=True)}
        end = values.shape[1] - REQUESTS - sum(len(learner.metric_names) for learner in self.learners.values())
        for name, learner in self.learners.items():
            prefix = "" if len(self.learners) == 1 else f"{name}/"
            names, first, end = learner.metric_names, end, end + len(learner.metric_names)
            active = np.where(self.copies.runs.active, 1.0, np.nan)
            metrics = {n: v * active for n, v in zip(names, values[:, first:end].T, strict=True) if n}
            counts = metrics.pop("samples")
            counts[counts == 0] = np.nan
            metrics["gradient_norm"][np.isnan(counts)] = np.nan
            figures |= {f"{prefix}{n}": v / (counts if n in SUMMED else 1.0) for n, v in metrics.items()}
        if metrics_of_env := self.horizon_env.metrics:
            means = self._episode_means(3 * len(self._roles), len(metrics_of_env))
            figures |= {f"metrics/{name}": mean for name, mean in zip(metrics_of_env, means, strict=True)}
        return figures

    def _remember(self, values: np.ndarray) -> None:
        """Keep the metrics of an iteration, and forget iterations that no mean of a run depends on."""
        rows, horizon = 3 * len(self._roles) + bool(self.horizon_env.metrics), self.config.horizon
        counted = values[:, : rows * horizon].reshape(len(values), rows, horizon)[:, ::3].sum(2)
        self._recent.append(values)
        self._counts.append(counted)
        self._total = self._total + counted
        while len(self._recent) > 1:
            later = (self._total - self._counts[0])[self.copies.runs.active]
            if (later < WINDOW).any():
                return
            self._total = self._total - self._counts.popleft()
            self._recent.popleft()

    def _returns(self) -> np.ndarray:
        """Return the mean return of each run's last 100 episodes, of the role of the target return."""
        return self._with_ended(self._episode_means(3 * self._roles.index(self.history.target_role), 1)[0])

    def _with_ended(self, returns: np.ndarray) -> np.ndarray:
        """Set the returns of runs that have ended."""
        for place in self._ended:
            outcome = self.outcomes[place]
            returns[place] = np.nan if outcome is None else outcome.returns
        return returns

    def _best(self) -> float:
        means = self.points[-1][1] if self.points else np.array([])
        return float(np.nanmax(means)) if np.isfinite(means).any() else math.nan

    def _end(self, places: np.ndarray, reason: str) -> None:
        """End runs: later launches leave them out, and their memory is kept as it is now."""
        means = self._returns() if len(places) else np.zeros(0)
        for place in map(int, places):
            self.copies.exclude(place)
            self.outcomes[place] = Outcome(reason, self.iteration, float(means[place]))
            self._ended[place] = [values[place].copy() for values in self._recent]
        if any(self.copies.runs.active):  # iterations of the others change their memory, where torch computes
            self._memories |= {place: self.copies.memory[place].clone() for place in map(int, places)}

    def history_of(self, place: int) -> History:
        """Return the episode statistics of a run, as of now or of its end."""
        run, metrics = self._runs[place], self.horizon_env.metrics
        recent = self._ended.get(place) or [values[place] for values in self._recent]
        history = History(run, self._roles, self.history.target_role, metrics)
        for values in recent:
            history.add(self._reports.to_report(0, values, 0.0, 0.0))
        return history

    def present_outcomes(self) -> list[Outcome]:
        """Return how each run has ended, or would end if it was interrupted now."""
        means = self._returns().tolist()
        return [out or Outcome(INTERRUPTED, self.iteration, m) for out, m in zip(self.outcomes, means, strict=True)]

    def state_of(self, place: int) -> dict[str, Any]:
        """Return the state of a run, as ``Trainer.state``."""
        memory, outcome, run = self.copies.memory, self.outcomes[place], self._runs[place]
        first, host = memory[0].clone(), self._host_state()
        memory[0].copy_(self._memories.get(place, memory[place]))
        vars(self.horizon_env.env.simulation).update(self._hosts[place])
        try:
            state = self.state()
        finally:
            memory[0].copy_(first)
            vars(self.horizon_env.env.simulation).update(host)
        iteration = self.iteration if outcome is None else outcome.iterations
        own: dict[str, Any] = {"iteration": iteration, "steps": self.config.steps_at(iteration)}
        if all(learner.engine != "torch" for learner in self.learners.values()):  # torch has drawn no numbers
            own["random"] = RandomState(run.seed, self.device, self.group.rank).state()
        return state | self.history_of(place).state() | own


def _with_all_numbers(runs: Sequence[Run]) -> Run:
    """Return the first run, whose numbers have the values of all runs."""
    return Run.from_flat(runs[0].flat() | {name: PerRun(values) for name, values in numbers_that_differ(runs).items()})
