"""Metrics of a run on the host: asynchronous reports of iterations, mean returns of recent episodes, and the log."""

import collections
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
import torch

from gpu_envs.documented import documented
from gpu_envs.engine.roles import SINGLE_ROLE
from gpu_envs.errors import did_you_mean
from gpu_envs.tables import html_table
from gpu_envs.training.record.log import LEADING_COLUMNS, RunLog
from gpu_envs.training.record.summary import curves, read_log, result_rows
from gpu_envs.training.run import Run

REQUESTS = 2
"""Numbers at the end of an iteration's metrics: whether a process asks to stop, and for a checkpoint."""

WINDOW = 100
"""Minimum number of episodes in a mean return, if that many have ended; full steps are counted."""


@final
@dataclasses.dataclass(frozen=True)
class IterationReport:
    """The metrics of one iteration."""

    iteration: int
    episodes: dict[str, np.ndarray]
    """By role ``[3, horizon]``: number of episodes that ended in each step, and sums of their returns and lengths."""
    learner_metrics: dict[str, dict[str, float]]
    """Metrics of each learning policy by name."""
    rollout_seconds: float
    update_seconds: float
    stop: bool = False
    """Whether a process of the group asked to stop before this iteration."""
    save: bool = False
    """Whether a process of the group asked for a checkpoint before this iteration."""
    episode_metrics: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """By metric ``[2, horizon]``: number of episodes that ended in each step, and the sum of their metrics."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a training run."""

    run_dir: str | None
    """Run directory; None: the run has none."""
    reason: str
    """Reason why the run stopped: ``total_steps``, ``target_return``, ``interrupted``, or the reason of a callback."""
    iterations: int
    """Number of updates, including those before a run was resumed."""
    steps: int
    """Environment steps, summed over all replicas, including those before a run was resumed."""
    seconds: float
    """Training time in seconds, without preparation, including the time before a run was resumed."""
    returns: Mapping[str, float]
    """Mean return of each role's last 100 episodes."""
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Mean of each environment metric over the last 100 episodes."""
    fallback_reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """For each policy whose networks torch computed on a GPU, the reason why fused kernels could not."""

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: a table, and the learning curves of the run directory."""
        log = Path(self.run_dir or "", "log.csv")
        plots = curves(read_log(log)) if self.run_dir and log.is_file() else []
        return "\n".join([html_table(result_rows(self)), *plots])


@final
class HostEvent:
    """A replacement for ``torch.cuda.Event`` on the CPU."""

    def record(self) -> None:
        """Record the current time."""
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        """Do nothing: work on the host is synchronous."""

    def elapsed_time(self, later: "HostEvent") -> float:
        """Return the milliseconds until a later event."""
        return 1e3 * (later._time - self._time)


@final
class ReportQueue:
    """Copies the metrics of iterations to the host asynchronously."""

    def __init__(
        self,
        roles: Sequence[str],
        metric_names: Mapping[str, Sequence[str | None]],
        horizon: int,
        device: str,
        depth: int,
        episode_metrics: Sequence[str] = (),
        runs: int | None = None,
    ) -> None:
        """Allocate host memory (pinned on a GPU) for metrics of ``depth`` pending iterations and the current one.

        Args:
            roles: Roles whose episodes are counted.
            metric_names: Names of each learner's metrics; metrics named None are dropped.
            horizon: Steps of an iteration.
            device: ``cpu`` or ``cuda:N``.
            depth: Number of iterations that may be pending before the host waits for the first.
            episode_metrics: Names of the environment's metrics.
            runs: Number of runs whose metrics are sent together; None: one.
        """
        self._arguments = roles, metric_names, horizon, device, depth, episode_metrics
        self._roles, self._metric_names, self._episode_metrics = tuple(roles), metric_names, tuple(episode_metrics)
        self._horizon, self._depth = horizon, depth
        self._rows = 3 * len(roles) + (len(episode_metrics) + 1 if episode_metrics else 0)
        self.size = self._rows * horizon + sum(map(len, metric_names.values())) + REQUESTS
        on_gpu = device != "cpu"
        event: Any = functools.partial(torch.cuda.Event, enable_timing=True) if on_gpu else HostEvent
        shape = (self.size,) if runs is None else (runs, self.size)
        slots = [torch.empty(shape, pin_memory=on_gpu) for _ in range(depth + 1)]
        self._free = [(slot, [event() for _ in range(3)]) for slot in slots]
        self._queue: collections.deque[tuple[int, torch.Tensor, list[Any]]] = collections.deque()

    def of_runs(self, count: int) -> "ReportQueue":
        """Return a queue for the metrics of several runs, ``[runs, size]``."""
        return ReportQueue(*self._arguments, runs=count)

    def next_events(self) -> list[Any]:
        """Return the events of the next iteration: start, end of rollout, and end, which ``send`` records."""
        return self._free[-1][1]

    def send(self, iteration: int, metrics: torch.Tensor) -> None:
        """Queue an iteration's metrics, start to copy them to the host, and record the iteration's end."""
        slot, events = self._free.pop()
        slot.copy_(metrics, non_blocking=True)
        events[2].record()
        self._queue.append((iteration, slot, events))

    def receive(self, *, wait_for_all: bool = False) -> list[IterationReport]:
        """Return reports until fewer than ``depth`` iterations are pending, with ``wait_for_all`` none.

        The host waits for these iterations, so that their number does not depend on timing.
        """
        return [self.to_report(*received) for received in self.receive_values(wait_for_all=wait_for_all)]

    def receive_values(self, *, wait_for_all: bool = False) -> list[tuple[int, np.ndarray, float, float]]:
        """Return, instead of reports, the arguments of ``to_report``; of several runs the values of all."""
        received = []
        while self._queue and (wait_for_all or len(self._queue) >= self._depth):
            iteration, slot, events = self._queue.popleft()
            events[2].synchronize()
            rollout, update = (float(start.elapsed_time(end)) / 1e3 for start, end in itertools.pairwise(events))
            received.append((iteration, slot.numpy().copy(), rollout, update))
            self._free.append((slot, events))
        return received

    def to_report(self, iteration: int, values: np.ndarray, rollout: float, update: float) -> IterationReport:
        """Split an iteration's flat metrics by role, learner and name; ``rollout`` and ``update`` are seconds."""
        end = self._rows * self._horizon
        steps, values = values[:end].reshape(-1, self._horizon).astype(np.float64), values[end:]
        by_role, by_metric = np.split(steps, [3 * len(self._roles)])
        metrics = iter(values[:-REQUESTS].tolist())
        stop, save = map(bool, values[-REQUESTS:])
        episodes = dict(zip(self._roles, by_role.reshape(-1, 3, self._horizon), strict=True))
        learner_metrics = {
            learner: {name: metric for name, metric in zip(names, metrics, strict=False) if name is not None}
            for learner, names in self._metric_names.items()
        }
        sums = zip(self._episode_metrics, by_metric[1:], strict=True)
        by_name = {name: np.stack([by_metric[0], row]) for name, row in sums}
        return IterationReport(iteration, episodes, learner_metrics, rollout, update, stop, save, by_name)


@final
class EpisodeWindow:
    """Sums, such as of returns and lengths, over the most recent steps with at least ``WINDOW`` ended episodes."""

    def __init__(self, sums: int = 2, state: Sequence[Sequence[float]] = ()) -> None:
        """Start empty, or from a result of ``state``; ``sums`` is 2 for returns and lengths."""
        self._steps = np.array(state, np.float64).reshape(-1, 1 + sums)

    def add(self, episodes: np.ndarray) -> None:
        """Add an iteration's steps ``[1 + sums, horizon]``, and drop the oldest steps beyond ``WINDOW`` episodes."""
        steps = np.concatenate([self._steps, episodes.T[episodes[0] > 0]])
        later = steps[:, 0].sum() - steps[:, 0].cumsum()  # episodes after each step
        self._steps = steps[later < WINDOW]

    @property
    def full(self) -> bool:
        """Whether the window has at least ``WINDOW`` episodes."""
        return bool(self._steps[:, 0].sum() >= WINDOW)

    def means(self) -> list[float]:
        """Return the mean of each sum per episode, such as mean return and length; NaN without episodes."""
        count, *sums = self._steps.sum(0).tolist()
        return [value / count if count else math.nan for value in sums]

    def state(self) -> list[list[float]]:
        """Return the number of episodes and the sums of each step."""
        return self._steps.tolist()


SUMMED = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")
"""Metrics that on-policy learners report as sums over samples."""

_COUNTS = ("samples", "transitions")
"""Metrics with the number of samples of an iteration's updates, for on-policy and off-policy learners."""


def mean_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Convert a learner's metrics to means for the log; NaN if an iteration had no samples."""
    count = metrics.get("samples", 1.0) or math.nan
    learnt = all(metrics.get(name, 1.0) for name in _COUNTS)
    means = {name: value / count if name in SUMMED else value for name, value in metrics.items() if name not in _COUNTS}
    return means if learnt else means | {name: math.nan for name in (*SUMMED, "gradient_norm") if name in means}


@dataclasses.dataclass(frozen=True)
class EpisodeMeans:
    """Means over the last 100 episodes."""

    roles: Mapping[str, Sequence[float]]
    """Mean return and length by role."""
    metrics: Mapping[str, float]
    """Mean of each environment metric."""


def log_entry(reports: Sequence[IterationReport], episodes: EpisodeMeans) -> dict[str, float]:
    """Return a log entry: the means of episodes, and the means over iterations of learners' metrics, without NaN."""
    entry: dict[str, float] = {}
    for role, means in episodes.roles.items():
        prefix = "" if episodes.roles.keys() == {SINGLE_ROLE} else f"{role}/"
        entry |= {f"{prefix}{name}": mean for name, mean in zip(("return", "length"), means, strict=True)}
    learners = reports[0].learner_metrics
    for name in learners:
        prefix = "" if len(learners) == 1 else f"{name}/"
        rows = [mean_metrics(report.learner_metrics[name]) for report in reports]
        columns = {key: [row[key] for row in rows if not math.isnan(row[key])] for key in rows[0]}
        learnt = {key: sum(values) / len(values) if values else math.nan for key, values in columns.items()}
        entry |= {f"{prefix}{key}": mean for key, mean in learnt.items()}
    for key in ("rollout_seconds", "update_seconds"):
        entry[key] = sum(getattr(report, key) for report in reports) / len(reports)
    return entry | {f"metrics/{name}": mean for name, mean in episodes.metrics.items()}


_Value = TypeVar("_Value")


class Figures(Mapping[str, _Value]):
    """Figures by name; the error of an unknown name suggests a similar one."""

    def __init__(self, compute: Callable[[], Mapping[str, _Value]]) -> None:
        """``compute`` returns the figures, at their first use."""
        self._compute = compute

    @functools.cached_property
    def _figures(self) -> Mapping[str, _Value]:
        return self._compute()

    def __getitem__(self, name: str) -> _Value:
        if name not in self._figures:
            raise KeyError(f"there is no {name!r}{did_you_mean(name, self)} There are: {', '.join(self)}")
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)


@final
class Report(Figures[float]):
    """The figures of an iteration by name, as in ``log.csv``, such as ``report["return"]``.

    They are computed at the first use.

    Attributes:
        iteration: Number of the iteration, from 1.
        steps: Environment steps so far, summed over all replicas.
        source: The metrics of the iteration.
        episodes: Means over the last 100 episodes, as of the iteration.
        ended: Number of episodes that ended in the iteration, of the role with the most.
    """

    def __init__(
        self, source: IterationReport, episodes: EpisodeMeans, ended: int, steps: int, newest: Callable[[], "Report"]
    ) -> None:
        """Make the report of ``source``; ``newest`` returns the report of the newest iteration."""
        self.ended = ended
        self.iteration, self.steps = source.iteration, steps
        self.source, self.episodes, self._newest = source, episodes, newest
        super().__init__(lambda: log_entry([source], episodes))

    @property
    def current(self) -> "Report":
        """The report of the newest iteration: waits until the device has finished it.

        The log has the waiting time as ``callback_wait_seconds``.
        """
        return self._newest()

    def __repr__(self) -> str:
        return f"Report({self.iteration}, {dict(self)})"


@final
class History:
    """Episode statistics and log of a run.

    Attributes:
        target_role: The role that ``target_return`` refers to.
        episodes: Means over the last 100 episodes.
        held: The reports that callbacks have not received; the log does not have them, either.
        newest: The newest report.
        wait: Waits for the report of the newest iteration, and returns it; set by the trainer.
        unlogged: The reports since the last row of the log.
        extra: Values of the next row that ``Trainer.log`` has added.
    """

    def __init__(self, config: Run, roles: Sequence[str], default_role: str, metrics: Sequence[str] = ()) -> None:
        """Start without reports; ``target_return`` refers to ``default_role`` unless ``target_role`` is set."""
        role = default_role if config.target_role is None else config.target_role
        if role not in roles:
            raise ValueError(f"target_role is {role!r}{did_you_mean(role, roles)} The roles are: {', '.join(roles)}")
        self._config, self.target_role = config, role
        self.target = {} if config.target_return is None else {role: config.target_return}
        self._windows = {name: EpisodeWindow() for name in roles}
        self._metric_names, self._metric_window = tuple(metrics), EpisodeWindow(len(metrics))
        self.episodes = self._logged = self._means()
        self.held: collections.deque[Report] = collections.deque()
        self.newest: Report | None = None
        self.wait: Callable[[], Report]
        self.unlogged: list[IterationReport] = []
        self.extra: dict[str, float] = {}
        self.log: RunLog | None = None

    def add(self, report: IterationReport) -> None:
        """Add an iteration's episodes to the windows of recent episodes."""
        for role, episodes in report.episodes.items():
            self._windows[role].add(episodes)
        if self._metric_names:  # all have the same episodes
            metrics = list(report.episode_metrics.values())
            self._metric_window.add(np.stack([metrics[0][0], *(sums for _, sums in metrics)]))
        self.episodes = self._means()

    def _means(self) -> EpisodeMeans:
        roles = {name: window.means() for name, window in self._windows.items()}
        return EpisodeMeans(roles, dict(zip(self._metric_names, self._metric_window.means(), strict=True)))

    @property
    def returns(self) -> dict[str, float]:
        """Mean return of each role's last 100 episodes."""
        return {name: means[0] for name, means in self.episodes.roles.items()}

    @property
    def metrics(self) -> dict[str, float]:
        """Mean of each environment metric over the last 100 episodes."""
        return dict(self.episodes.metrics)

    @property
    def target_reached(self) -> bool:
        """Whether the mean return of 100 episodes has reached ``target_return``."""
        return self._config.target_return is not None and self.target_mean >= self._config.target_return

    @property
    def target_mean(self) -> float:
        """Mean return that ``target_return`` refers to; NaN until 100 episodes have ended."""
        return self.episodes.roles[self.target_role][0] if self._windows[self.target_role].full else math.nan

    def open_log(self, path: Path, iteration: int) -> None:
        """Start or resume a log; rows after ``iteration``, and of reports that are still held, are dropped."""
        self.log = RunLog(path, self.held[0].iteration - 1 if self.held else iteration)

    def hold(self, report: IterationReport) -> None:
        """Keep a report, with the present means of episodes, until it is delivered and logged."""
        self._hold(report, self.episodes, int(max(steps[0].sum() for steps in report.episodes.values())))

    def _hold(self, report: IterationReport, episodes: EpisodeMeans, ended: int) -> None:
        self.newest = Report(report, episodes, ended, self._config.steps_at(report.iteration), self.wait)
        self.held.append(self.newest)

    def add_to_row(self, report: Report) -> None:
        """Add a report to the next row of the log."""
        self.unlogged.append(report.source)
        self._logged = report.episodes

    def write(self, iteration: int, seconds: float, speed: float, *, always: bool) -> dict[str, float]:
        """Write a row of the log, if one is open, of ``unlogged`` and ``extra``, and clear them.

        Returns:
            The row; empty if no log is open and not ``always``.
        """
        row: dict[str, float] = {}
        if self.log is not None or always:
            entry = log_entry(self.unlogged, self._logged) | {"steps_per_second": speed} | self.extra
            steps = self._config.steps_at(iteration)
            row = {**dict(zip(LEADING_COLUMNS, (iteration, steps, seconds), strict=True)), **entry}
            if self.log is not None:
                self.log.write(iteration, steps, entry, seconds)
        self.unlogged.clear()
        self.extra.clear()
        return row

    def state(self) -> dict[str, Any]:
        """Return everything that later rows depend on."""
        return {
            "windows": {name: window.state() for name, window in self._windows.items()},
            "metrics": {
                name: [[row[0], row[k]] for row in self._metric_window.state()]
                for k, name in enumerate(self._metric_names, 1)
            },
            "recent": list(map(_state_of_report, self.unlogged)),
            "held": [
                [*_state_of_report(held.source), dict(held.episodes.roles), dict(held.episodes.metrics), held.ended]
                for held in self.held
            ],
            "extra": dict(self.extra),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a result of ``state``."""
        self._windows = {name: EpisodeWindow(2, state["windows"][name]) for name in self._windows}
        columns = [state["metrics"][name] for name in self._metric_names]
        rows = [[steps[0][0], *(value for _, value in steps)] for steps in zip(*columns, strict=True)]
        self._metric_window = EpisodeWindow(len(columns), rows)
        self.episodes = self._logged = self._means()
        self.unlogged[:] = [IterationReport(number, {}, *rest) for number, *rest in state["recent"]]
        self.extra = dict(state.get("extra") or {})
        self.held.clear()
        for number, learners, rollout, update, roles, metrics, ended in state.get("held") or ():
            self._hold(IterationReport(number, {}, learners, rollout, update), EpisodeMeans(roles, metrics), ended)


def _state_of_report(report: IterationReport) -> list[Any]:
    return [report.iteration, report.learner_metrics, report.rollout_seconds, report.update_seconds]
