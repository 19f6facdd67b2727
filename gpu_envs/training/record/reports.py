"""What comes back to the host: the figures of every iteration, read when they are there, without waiting for them."""

import collections
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from gpu_envs.documented import documented
from gpu_envs.engine.by_role import ALONE
from gpu_envs.training.record.summary import curves, read_log, result_rows, table

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
    torch_because: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Policies that torch ran on a GPU, and why no kernels of our own did."""

    def _repr_html_(self) -> str:
        """In a notebook: a table, and the curves that its folder holds."""
        log = Path(self.run_dir or "", "log.csv")
        drawn = curves(read_log(log)) if self.run_dir and log.is_file() else []
        return "\n".join([table(result_rows(self)), *drawn])


@final
class Marks:
    """Three moments of an iteration: begun, rolled out, updated."""

    def __init__(self, on_gpu: bool) -> None:
        event: Any = torch.cuda.Event  # untyped in some versions
        self._events = [event(enable_timing=True) for _ in range(3)] if on_gpu else []
        self._times = [0.0] * 3

    def set(self, which: int) -> None:
        """This moment is reached, on a GPU by the work queued so far."""
        if self._events:
            self._events[which].record()
        else:
            self._times[which] = time.perf_counter()

    def wait(self) -> None:
        """Waits for the last one."""
        if self._events:
            self._events[2].synchronize()

    def between(self, first: int) -> float:
        """The seconds from one to the next."""
        if self._events:
            return float(self._events[first].elapsed_time(self._events[first + 1])) / 1e3
        return self._times[first + 1] - self._times[first]


@final
class Mailbox:
    """Carries the figures of iterations to the host, a few behind the device."""

    def __init__(
        self, roles: Sequence[str], learners: Mapping[str, Sequence[str | None]],
        horizon: int, device: str, depth: int, metrics: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Allocates.

        Args:
            roles: Whose episodes are told of.
            learners: By name, what each one's figures are called; None: those are not told.
            horizon: Steps of an iteration.
            device: Where they come from.
            depth: So many iterations may be under way before the first is waited for.
            metrics: Of episodes.
        """
        self._roles, self._learners, self._horizon = tuple(roles), dict(learners), horizon
        self._metrics = tuple(metrics)
        self._measured = (len(metrics) + 1) * horizon if metrics else 0
        self.size = 3 * horizon * len(roles) + self._measured + sum(map(len, learners.values())) + 1
        on_gpu = device != "cpu"
        self._free = [(torch.empty(self.size, pin_memory=on_gpu), Marks(on_gpu)) for _ in range(depth + 1)]
        self._queue: collections.deque[tuple[int, torch.Tensor, Marks]] = collections.deque()
        self._depth = depth

    def begin(self) -> Marks:
        """The marks of the iteration that begins."""
        return self._free[-1][1]

    def send(self, iteration: int, figures: torch.Tensor) -> None:
        """Queues the figures of the iteration begun last, and marks its end."""
        slot, marks = self._free.pop()
        slot.copy_(figures, non_blocking=True)
        marks.set(2)
        self._queue.append((iteration, slot, marks))

    def receive(self, *, all_of_them: bool = False) -> list[IterationReport]:
        """The reports of iterations that are ``depth`` or more behind, for which it waits; or all.

        When a report is seen depends on no clock, so that what follows from it is the same every time.
        """
        found = []
        while self._queue:
            if not all_of_them and len(self._queue) < self._depth:
                break
            iteration, slot, marks = self._queue.popleft()
            marks.wait()
            found.append(self._read(iteration, slot.numpy().copy(), marks))
            self._free.append((slot, marks))
        return found

    def _read(self, iteration: int, values: np.ndarray, marks: Marks) -> IterationReport:
        split = 3 * self._horizon * len(self._roles)
        episodes = values[:split].reshape(len(self._roles), 3, self._horizon).astype(np.float64)
        measured = values[split : split + self._measured].reshape(-1, self._horizon).astype(np.float64)
        figures = iter(values[split + self._measured : -1].tolist())
        return IterationReport(
            iteration,
            dict(zip(self._roles, episodes, strict=True)),
            {
                learner: {name: value for name, value in [(name, next(figures)) for name in names] if name is not None}
                for learner, names in self._learners.items()
            },
            marks.between(0),
            marks.between(1),
            bool(values[-1]),
            {name: np.stack([measured[0], row]) for name, row in zip(self._metrics, measured[1:], strict=True)},
        )


@final
class EpisodeWindow:
    """The most recent whole steps in which at least 100 episodes of a role ended, and sums of what they were like."""

    def __init__(self, sums: int = 2) -> None:
        """Holds so many sums: of a role's episodes two, of their returns and of their lengths."""
        self._steps: collections.deque[tuple[float, ...]] = collections.deque()
        self._rows = 1 + sums
        self._sums = np.zeros(self._rows)

    def add(self, episodes: np.ndarray) -> None:
        """Takes in the steps of an iteration, ``[3, horizon]``, and lets go of those that are no longer needed."""
        for step in episodes.T[episodes[0] > 0]:
            self._steps.append(tuple(map(float, step)))
        count, keep = 0.0, 0
        for step in reversed(self._steps):
            if count >= WINDOW:
                break
            count += step[0]
            keep += 1
        while len(self._steps) > keep:
            self._steps.popleft()
        self._sums = np.array(self._steps, np.float64).reshape(-1, self._rows).sum(0)

    @property
    def full(self) -> bool:
        """Whether it has as many episodes as it should."""
        return bool(self._sums[0] >= WINDOW)

    def mean(self, which: int = 0) -> float:
        """The mean of what there is a sum of; NaN without episodes."""
        return float(self._sums[1 + which] / self._sums[0]) if self._sums[0] else math.nan

    @property
    def mean_return(self) -> float:
        """The mean return."""
        return self.mean(0)

    @property
    def mean_length(self) -> float:
        """The mean length."""
        return self.mean(1)

    def state(self) -> list[list[float]]:
        """The steps."""
        return [list(step) for step in self._steps]

    def load(self, state: Sequence[Sequence[float]]) -> None:
        """Takes over what ``state`` gave."""
        self._steps.clear()
        self._sums = np.zeros(self._rows)
        if state:
            self.add(np.array(state, np.float64).T)


_SUMS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")
"""Figures that are sums over samples, where a learner counts those."""

_COUNTS = ("samples", "transitions")
"""How many samples the updates of an iteration learnt from, as learners on-policy and off-policy name it."""


def mean_figures(figures: Mapping[str, float]) -> dict[str, float]:
    """Returns a learner's figures under a log's names; NaN, for missing, where an iteration learnt from no sample."""
    count = figures.get("samples", 1.0)
    learnt = all(figures.get(name, 1.0) for name in _COUNTS)
    found = {}
    for name, value in figures.items():
        if name in (*_SUMS, "gradient_norm") and not learnt:
            found[name] = math.nan
        elif name not in _COUNTS:
            found[name] = value / count if name in _SUMS else value
    return found


def entry_of(reports: Sequence[IterationReport], windows: Mapping[str, EpisodeWindow]) -> dict[str, float]:
    """Returns a log's entry: returns and lengths, and means of figures over those iterations where they are known."""
    entry: dict[str, float] = {}
    for role, window in windows.items():
        prefix = "" if windows.keys() == {ALONE} else f"{role}/"
        entry |= {f"{prefix}return": window.mean_return, f"{prefix}length": window.mean_length}
    learners = reports[0].figures
    for name in learners:
        prefix = "" if len(learners) == 1 else f"{name}/"
        rows = [mean_figures(report.figures[name]) for report in reports]
        known = {key: [row[key] for row in rows if not math.isnan(row[key])] for key in rows[0]}
        entry |= {f"{prefix}{key}": sum(some) / len(some) if some else math.nan for key, some in known.items()}
    for key in ("rollout_seconds", "update_seconds"):
        entry[key] = sum(getattr(report, key) for report in reports) / len(reports)
    return entry
