"""Iterations of several runs of equal shape at once."""

import collections
import dataclasses
import functools
import math
import threading
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any, final

import numpy as np
import torch

from gpu_envs.backend import resolve_device
from gpu_envs.backend.several import PerRun
from gpu_envs.documented import documented
from gpu_envs.progress import Progress
from gpu_envs.training.iterations import Iterations
from gpu_envs.training.process.copies import RunCopies
from gpu_envs.training.process.device import RandomState, capture_graphs
from gpu_envs.training.record.reports import REQUESTS, WINDOW, History
from gpu_envs.training.run import Run
from gpu_envs.training.variants import numbers_that_differ

ENGINES = ("small", "CPU actor-critic", "CPU Q network")
"""Engines whose networks a population can train."""


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
class JointIterations(Iterations):
    """Iterations of the first of several runs of equal shape, each of whose operations works on the memory of all runs.

    Attributes:
        copies: The memory of all runs.
        outcomes: How each run ended, by its number.
        points: Every ``log_interval`` iterations, environment steps and the mean return of each run's last episodes.
    """

    copies: RunCopies

    @classmethod
    def of(cls, runs: Sequence[Run], params: Collection[str]) -> "JointIterations":
        """Make runs that differ in their seeds and in numbers; ``params``: the environment's parameters that differ."""

        def make() -> "JointIterations":
            return cls(_with_all_numbers(runs), per_replica=params)

        copies = RunCopies(len(runs), resolve_device(runs[0].device), make)
        first: JointIterations = copies.make(make)
        first._check_engines()
        hosts = []
        for number in reversed(range(len(runs))):
            first.restart(runs[number], params)
            copies.memory[number].copy_(copies.memory[0])
            hosts.append(first._host_state())
        first._join(copies, runs, hosts[::-1])
        return first

    def _host_state(self) -> dict[str, Any]:
        """Return what the environment's simulation has on the host and differs between runs."""
        sim = vars(self.horizon_env.env.simulation)
        return {name: dict(sim[name]) for name in ("drawn", "known_params", "randomness")}

    def _check_engines(self) -> None:
        """Raise a ValueError if a policy's engine cannot compute the networks of several runs."""
        for name, learner in self.learners.items():
            if learner.engine not in ENGINES:
                reason = f": {learner.fallback_reason}" if learner.fallback_reason else ""
                raise ValueError(
                    f"a population trains networks of the engines {', '.join(ENGINES)}, and the policy {name!r} would "
                    f"use {learner.engine}{reason}; gpu-envs train --help lists the settings of networks"
                )

    def _join(self, copies: RunCopies, runs: Sequence[Run], hosts: Sequence[dict[str, Any]]) -> None:
        self.copies, self._runs, self._hosts = copies, runs, hosts
        self._reports = self._reports.of_runs(len(runs))
        self.outcomes: list[Outcome | None] = [None] * len(runs)
        self._recent: collections.deque[np.ndarray] = collections.deque()
        self._counts: collections.deque[np.ndarray] = collections.deque()
        self._total: Any = 0
        self._ended: dict[int, list[np.ndarray]] = {}
        self._memories: dict[int, torch.Tensor] = {}
        self._roles = [role.name for role in self.horizon_env.roles]
        self.points: list[tuple[int, np.ndarray]] = []

    def roll_out(self) -> None:
        with self.copies.of_all_runs():
            super().roll_out()

    def learn(self) -> None:
        with self.copies.of_all_runs():
            super().learn()

    def prepare(self) -> None:
        if self.phases:
            return
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
        return self.copies.stacked(self._metrics)

    def train(self, bar: Progress, interrupted: threading.Event) -> None:
        """Train until every run has done its steps, reached its target return, diverged, or is ``interrupted``."""
        self.prepare()
        config, started = self.config, time.perf_counter()
        active = self.copies.runs.active
        with self._settings():
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
            self._end(np.flatnonzero(active), reason)
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)
        self.seconds = time.perf_counter() - started

    def _receive(self, *, wait_for_all: bool) -> None:
        """Receive metrics; end the runs that have diverged or reached their targets."""
        active, config = self.copies.runs.active, self.config
        for iteration, values, *_ in self._reports.receive_values(wait_for_all=wait_for_all):
            values[~active] = 0  # the kernels have not written them
            self._remember(values)
            self._end(np.flatnonzero(active & ~np.isfinite(values[:, self._checked]).all(1)), "diverged")
            logs = iteration % config.log_interval == 0 or iteration == config.iterations
            if config.target_return is None and not logs:
                continue
            means = self._means()
            if logs:
                self.points.append((config.steps_at(iteration), means))
            if config.target_return is not None:
                near = np.flatnonzero(active & (means >= config.target_return - 1e-6 * abs(config.target_return)))
                reached = [number for number in near if self.history_of(int(number)).target_reached]
                self._end(np.array(reached, int), "target_return")

    @functools.cached_property
    def _checked(self) -> np.ndarray:
        """The indices of metrics that must be finite."""
        names = [name for learner in self.learners.values() for name in learner.metric_names]
        end = self._reports.size - REQUESTS
        checked = [k for k, name in enumerate(names, end - len(names)) if name not in (None, "explained_variance")]
        return np.array(checked)

    def _episodes(self, values: np.ndarray) -> np.ndarray:
        """Return ``[runs, 3, horizon]`` of metrics: episodes that ended, their returns and lengths, of the target."""
        role = self._roles.index(self.history.target_role)
        horizon = self.config.horizon
        return values[:, 3 * role * horizon : 3 * (role + 1) * horizon].reshape(len(values), 3, horizon)

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

    def _means(self) -> np.ndarray:
        """Return the mean return of each run's last 100 episodes, as ``EpisodeWindow``; NaN without episodes."""
        if not self._recent:
            return np.full(len(self._runs), np.nan)
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

    def _end(self, numbers: np.ndarray, reason: str) -> None:
        """End runs: later launches leave them out, and their memory is kept as it is now."""
        means = self._means() if len(numbers) else np.zeros(0)
        for number in map(int, numbers):
            self.copies.exclude(number)
            self.outcomes[number] = Outcome(reason, self.iteration, float(means[number]))
            self._ended[number] = [values[number].copy() for values in self._recent]
        if any(self.copies.runs.active):  # iterations of the others change their memory, where torch computes
            self._memories |= {number: self.copies.memory[number].clone() for number in map(int, numbers)}

    def history_of(self, number: int) -> History:
        """Return the episode statistics of a run, as of now or of its end."""
        run, metrics = self._runs[number], self.horizon_env.metrics
        recent = self._ended.get(number) or [values[number] for values in self._recent]
        history = History(run, self._roles, self.history.target_role, metrics)
        for values in recent:
            history.add(self._reports.to_report(0, values, 0.0, 0.0))
        return history

    def state_of(self, number: int) -> dict[str, Any]:
        """Return the state of a run, as ``Trainer.state``."""
        memory, outcome, run = self.copies.memory, self.outcomes[number], self._runs[number]
        first, host = memory[0].clone(), self._host_state()
        memory[0].copy_(memory[number])
        vars(self.horizon_env.env.simulation).update(self._hosts[number])
        try:
            state = self.state()
        finally:
            memory[0].copy_(first)
            vars(self.horizon_env.env.simulation).update(host)
        iteration = self.iteration if outcome is None else outcome.iterations
        own: dict[str, Any] = {"iteration": iteration, "steps": self.config.steps_at(iteration)}
        own["random"] = RandomState(run.seed, self.device, self.group.rank).state()  # torch has drawn no numbers
        return state | self.history_of(number).state() | own


def _with_all_numbers(runs: Sequence[Run]) -> Run:
    """Return the first run, whose numbers have the values of all runs."""
    return Run.from_flat(runs[0].flat() | {name: PerRun(values) for name, values in numbers_that_differ(runs).items()})
