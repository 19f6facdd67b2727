"""What the host knows of a run: figures of every iteration, read without waiting for them; recent returns; the log."""

import collections
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from gpu_envs.documented import documented
from gpu_envs.engine.roles import SINGLE_ROLE
from gpu_envs.errors import did_you_mean
from gpu_envs.training.record.log import RunLog
from gpu_envs.training.record.summary import curves, read_log, result_rows, table
from gpu_envs.training.run import Run

WINDOW = 100
"""Mean returns are of the most recent whole steps in which at least so many episodes ended."""


@final
@dataclasses.dataclass(frozen=True)
class IterationReport:
    """The figures of one iteration."""

    iteration: int
    episodes: dict[str, np.ndarray]
    """By role ``[3, horizon]``: how many episodes ended in each step, the sums of their returns and lengths."""
    figures: dict[str, dict[str, float]]
    """By policy that learns."""
    rollout_seconds: float
    update_seconds: float
    stop: bool = False
    """Whether a process of several was asked to stop, before this iteration ended."""
    metrics: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """By name ``[2, horizon]``: how many episodes ended in each step, and the sum of their metrics."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Result:
    """How a run ended."""

    run_dir: str | None
    """Its folder, if it has one."""
    reason: str
    """``total_steps``, ``target_return`` or ``interrupted``."""
    iterations: int
    """Updates, those of earlier parts of a resumed run among them."""
    steps: int
    """Steps of the environment, all replicas together."""
    seconds: float
    """Of training, without the time to get ready."""
    returns: Mapping[str, float]
    """The mean return of each role's last 100 episodes."""
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The mean of each metric over the last 100 episodes."""
    fallback_reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Policies that torch ran on a GPU, and why no kernels of our own did."""

    def _repr_html_(self) -> str:
        """In a notebook: a table, and the curves that its folder holds."""
        log = Path(self.run_dir or "", "log.csv")
        drawn = curves(read_log(log)) if self.run_dir and log.is_file() else []
        return "\n".join([table(result_rows(self)), *drawn])


@final
class HostEvent:
    """A moment of the host's work, as ``torch.cuda.Event`` is one of a GPU's."""

    def record(self) -> None:
        """This moment is reached."""
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        """Does nothing: the host has done its work."""

    def elapsed_time(self, later: "HostEvent") -> float:
        """Returns the milliseconds up to a later one."""
        return 1e3 * (later._time - self._time)


@final
class ReportQueue:
    """Carries the figures of iterations to the host, a few behind the device."""

    def __init__(
        self,
        roles: Sequence[str],
        learners: Mapping[str, Sequence[str | None]],
        horizon: int,
        device: str,
        depth: int,
        metrics: Sequence[str] = (),
    ) -> None:
        """Allocates for iterations of a horizon, of which ``depth`` may be under way before one is waited for.

        Episodes are counted of ``roles`` and ``metrics``; of ``learners`` come the figures that have a name.
        """
        self._roles, self._learners, self._metrics = tuple(roles), learners, tuple(metrics)
        self._horizon, self._depth = horizon, depth
        self._rows = 3 * len(roles) + (len(metrics) + 1 if metrics else 0)
        self.size = self._rows * horizon + sum(map(len, learners.values())) + 1
        on_gpu = device != "cpu"
        event: Any = functools.partial(torch.cuda.Event, enable_timing=True) if on_gpu else HostEvent
        slots = [torch.empty(self.size, pin_memory=on_gpu) for _ in range(depth + 1)]
        self._free = [(slot, [event() for _ in range(3)]) for slot in slots]
        self._queue: collections.deque[tuple[int, torch.Tensor, list[Any]]] = collections.deque()

    def begin(self) -> list[Any]:
        """The events of the iteration that begins: it starts, has rolled out, and ends, which ``send`` records."""
        return self._free[-1][1]

    def send(self, iteration: int, figures: torch.Tensor) -> None:
        """Queues the figures of the iteration begun last, and records its end."""
        slot, events = self._free.pop()
        slot.copy_(figures, non_blocking=True)
        events[2].record()
        self._queue.append((iteration, slot, events))

    def receive(self, *, all_of_them: bool = False) -> list[IterationReport]:
        """The reports of iterations ``depth`` or more behind, for which it waits, whatever the clock; or all."""
        reports = []
        while self._queue and (all_of_them or len(self._queue) >= self._depth):
            iteration, slot, events = self._queue.popleft()
            events[2].synchronize()
            seconds = [float(first.elapsed_time(then)) / 1e3 for first, then in itertools.pairwise(events)]
            reports.append(self._read(iteration, slot.numpy().copy(), *seconds))
            self._free.append((slot, events))
        return reports

    def _read(self, iteration: int, values: np.ndarray, rollout: float, update: float) -> IterationReport:
        end = self._rows * self._horizon
        steps, values = values[:end].reshape(-1, self._horizon).astype(np.float64), values[end:]
        of_roles, measured = np.split(steps, [3 * len(self._roles)])
        figures = iter(values[:-1].tolist())
        return IterationReport(
            iteration,
            dict(zip(self._roles, of_roles.reshape(-1, 3, self._horizon), strict=True)),
            {
                learner: {name: figure for name, figure in zip(names, figures, strict=False) if name is not None}
                for learner, names in self._learners.items()
            },
            rollout,
            update,
            bool(values[-1]),
            {name: np.stack([measured[0], row]) for name, row in zip(self._metrics, measured[1:], strict=True)},
        )


@final
class EpisodeWindow:
    """The most recent whole steps in which at least 100 episodes of a role ended, and sums of what they were like."""

    def __init__(self, sums: int = 2, state: Sequence[Sequence[float]] = ()) -> None:
        """Holds so many sums, of a role's episodes two: of their returns and of their lengths."""
        self._steps = np.array(state, np.float64).reshape(-1, 1 + sums)

    def add(self, episodes: np.ndarray) -> None:
        """Takes in the steps of an iteration, ``[3, horizon]``, and lets go of those that are no longer needed."""
        steps = np.concatenate([self._steps, episodes.T[episodes[0] > 0]])
        later = steps[:, 0].sum() - steps[:, 0].cumsum()  # episodes after each step
        self._steps = steps[later < WINDOW]

    @property
    def full(self) -> bool:
        """Whether it has as many episodes as it should."""
        return bool(self._steps[:, 0].sum() >= WINDOW)

    def means(self) -> list[float]:
        """The mean of each sum, such as a role's mean return and length; NaN without episodes."""
        count, *sums = self._steps.sum(0).tolist()
        return [value / count if count else math.nan for value in sums]

    def state(self) -> list[list[float]]:
        """The steps."""
        return self._steps.tolist()


_SUMS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")
"""Figures that are sums over samples, where a learner counts those."""

_COUNTS = ("samples", "transitions")
"""How many samples the updates of an iteration learnt from, as learners on-policy and off-policy name it."""


def mean_metrics(figures: Mapping[str, float]) -> dict[str, float]:
    """Returns a learner's figures under a log's names; NaN, for missing, where an iteration learnt from no sample."""
    count = figures.get("samples", 1.0) or math.nan
    learnt = all(figures.get(name, 1.0) for name in _COUNTS)
    means = {name: value / count if name in _SUMS else value for name, value in figures.items() if name not in _COUNTS}
    return means if learnt else means | {name: math.nan for name in (*_SUMS, "gradient_norm") if name in means}


def log_entry(reports: Sequence[IterationReport], windows: Mapping[str, EpisodeWindow]) -> dict[str, float]:
    """Returns a log's entry: returns and lengths, and means of figures over those iterations where they are known."""
    entry: dict[str, float] = {}
    for role, window in windows.items():
        prefix = "" if windows.keys() == {SINGLE_ROLE} else f"{role}/"
        entry |= {f"{prefix}{name}": mean for name, mean in zip(("return", "length"), window.means(), strict=True)}
    learners = reports[0].learner_metrics
    for name in learners:
        prefix = "" if len(learners) == 1 else f"{name}/"
        rows = [mean_metrics(report.learner_metrics[name]) for report in reports]
        values_of = {key: [row[key] for row in rows if not math.isnan(row[key])] for key in rows[0]}
        entry |= {
            f"{prefix}{key}": sum(values) / len(values) if values else math.nan for key, values in values_of.items()
        }
    for key in ("rollout_seconds", "update_seconds"):
        entry[key] = sum(getattr(report, key) for report in reports) / len(reports)
    return entry


@final
class History:
    """The reports of a run, taken in one after the other; of ``unlogged`` ones the log has no row yet."""

    def __init__(self, config: Run, roles: Sequence[str], first_learning: str, metrics: Sequence[str] = ()) -> None:
        """Begins without a report; the return of ``first_learning`` counts, where the configuration names no role."""
        role = first_learning if config.target_role is None else config.target_role
        if role not in roles:
            raise ValueError(f"target_role is {role!r}{did_you_mean(role, roles)} The roles are: {', '.join(roles)}")
        self._config, self._target_role = config, role
        self.target = {} if config.target_return is None else {role: config.target_return}
        self._windows = {name: EpisodeWindow() for name in roles}
        self._measured = {name: EpisodeWindow(1) for name in metrics}
        self.unlogged: list[IterationReport] = []
        self.log: RunLog | None = None

    def add(self, report: IterationReport) -> None:
        """Takes in the episodes of an iteration."""
        for role, episodes in report.episodes.items():
            self._windows[role].add(episodes)
        for name, episodes in report.metrics.items():
            self._measured[name].add(episodes)

    @property
    def returns(self) -> dict[str, float]:
        """The mean return of each role's last 100 episodes."""
        return {name: window.means()[0] for name, window in self._windows.items()}

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of each metric over the last 100 episodes."""
        return {name: window.means()[0] for name, window in self._measured.items()}

    @property
    def target_reached(self) -> bool:
        """Whether the run may stop before all steps are done."""
        target, window = self._config.target_return, self._windows[self._target_role]
        return target is not None and window.full and window.means()[0] >= target

    def open_log(self, path: Path, iteration: int) -> None:
        """From now on rows go to that log, which drops those of a part that was lost after this iteration."""
        self.log = RunLog(path, iteration)

    def write(self, iteration: int, seconds: float, speed: float) -> None:
        """Writes a row of the log, about the reports up to ``iteration`` that it has none of."""
        if self.log is not None:
            entry = log_entry(self.unlogged, self._windows) | {"steps_per_second": speed}
            entry |= {f"metrics/{name}": value for name, value in self.metrics.items()}
            self.log.write(iteration, self._config.steps_at(iteration), entry, seconds)
        self.unlogged.clear()

    def state(self) -> dict[str, Any]:
        """What the rows to come depend on."""
        return {
            "windows": {name: window.state() for name, window in self._windows.items()},
            "metrics": {name: window.state() for name, window in self._measured.items()},
            "recent": [[r.iteration, r.learner_metrics, r.rollout_seconds, r.update_seconds] for r in self.unlogged],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave."""
        for windows, sums, states in ((self._windows, 2, state["windows"]), (self._measured, 1, state["metrics"])):
            windows |= {name: EpisodeWindow(sums, states[name]) for name in windows}
        self.unlogged[:] = [IterationReport(number, {}, *others) for number, *others in state["recent"]]
