"""What the host knows of a run: the returns of late, whether they are high enough, and the log."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from gpu_envs.errors import did_you_mean
from gpu_envs.training.record.log import RunLog
from gpu_envs.training.record.reports import EpisodeWindow, IterationReport, entry_of
from gpu_envs.training.run import Run


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

    def keep_in(self, path: Path, iteration: int) -> None:
        """From now on rows go to that log, which drops those of a part that was lost after this iteration."""
        self.log = RunLog(path)
        self.log.resume(iteration)

    def close(self) -> None:
        """Lets go of the log."""
        if self.log is not None:
            self.log.close()

    def write(self, iteration: int, seconds: float, speed: float) -> None:
        """Writes a row of the log, about the reports up to ``iteration`` that it has none of."""
        if self.log is not None:
            entry = entry_of(self.unlogged, self._windows) | {"steps_per_second": speed}
            entry |= {f"metrics/{name}": value for name, value in self.metrics.items()}
            self.log.write(iteration, self._config.steps_at(iteration), entry, seconds)
        self.unlogged.clear()

    def state(self) -> dict[str, Any]:
        """What the rows to come depend on."""
        return {
            "windows": {name: window.state() for name, window in self._windows.items()},
            "metrics": {name: window.state() for name, window in self._measured.items()},
            "recent": [[r.iteration, r.figures, r.rollout_seconds, r.update_seconds] for r in self.unlogged],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave."""
        for windows, states in ((self._windows, state["windows"]), (self._measured, state["metrics"])):
            for name, window in windows.items():
                window.load(states[name])
        self.unlogged[:] = [IterationReport(number, {}, *others) for number, *others in state["recent"]]
