"""Populations: many runs that train at once, each with the same results as alone."""

import contextlib
import dataclasses
import math
import multiprocessing
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from torch import Tensor

from gpu_envs.backend import resolve_device
from gpu_envs.backend.driver import device_count
from gpu_envs.progress import Progress
from gpu_envs.registry.catalog import check_trusted, portable_name, remember_trusted, spec_of_run
from gpu_envs.training.callbacks.base import Callbacks
from gpu_envs.training.joint_iterations import INTERRUPTED, JointIterations, Modules, Outcome, PopulationReport
from gpu_envs.training.population_result import PopulationResult
from gpu_envs.training.process.copies import mapped
from gpu_envs.training.process.signals import interruption
from gpu_envs.training.record.checkpoint import load, save
from gpu_envs.training.record.run_directory import RunDirectory, new_folder
from gpu_envs.training.record.stacked_states import stacked, unstacked
from gpu_envs.training.run import AUTO, Run, upgraded
from gpu_envs.training.trainer import Trainer
from gpu_envs.training.variants import groups_of, parameters_that_differ, variants

MIN_SECONDS = 10.0
"""Minimum time between two writings of the states of all runs during the training."""

_STATES, _BEST = "population.pt", "best"

_NOT_BEGUN = Outcome(INTERRUPTED, 0, math.nan)


@dataclasses.dataclass
class _Record:
    """The outcome, state and curve of a run."""

    outcome: Outcome = _NOT_BEGUN
    state: Mapping[str, Any] | None = None
    """As ``Trainer.state``; None: it has not trained, or trains."""
    curve: dict[int, float] = dataclasses.field(default_factory=dict)
    """Mean returns by environment steps."""


@final
class Population:
    """Runs that train at once on one device, each with the same results as alone.

    Runs differ in their seeds, in schedules and numbers of their algorithm, and in numbers of the environment. Runs
    that differ in anything else, such as the network, train one group after the other.

    Attributes:
        runs: The runs, combination by combination, each with all seeds.
        config: Their common settings.
        run_dir: The folder; None before ``train``, and if there is none.
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
            runs: Number of combinations of values; None: all, if there are only lists of values, otherwise 16.
            search: ``random``, ``sobol`` (evenly spread) or ``grid`` (all combinations, with equal steps in ranges).
            modules: Makes your torch modules of a run, by policy name, with their initial weights. The modules of two
                runs may differ in parameters and buffers only.
        """
        own = dataclasses.replace(run, run_dir="", callbacks=(), gpus=1)
        self._begin(run, variants(own, seeds=seeds, vary=vary, count=runs, search=search), modules)

    def _begin(self, config: Run, runs: Sequence[Run], modules: Modules | None) -> None:
        for each in runs:
            if each.num_envs == AUTO:
                raise ValueError(f"num_envs is {AUTO!r}; a population needs a number of replicas")
        self.config, self.runs, self._modules = config, runs, modules
        self.run_dir: Path | None = None
        self.seconds = 0.0
        self._groups = groups_of(runs)
        self._records = [_Record() for _ in runs]
        self._group: JointIterations | None = None
        self._callbacks = Callbacks()
        self._callback_states: dict[str, Any] = {}

    @classmethod
    def open(cls, folder: str | Path, *, modules: Modules | None = None, trust: bool = False) -> "Population":
        """Return the population of a folder: ``train`` continues runs that were interrupted, bit for bit.

        Args:
            folder: The ``run_dir`` of ``train``.
            modules: As for the constructor.
            trust: Whether to import files of the environment and of callbacks that were not used on this machine.
        """
        path = Path(folder)
        if not (path / _STATES).is_file():
            raise FileNotFoundError(f"{path} has no {_STATES}: give the folder of a population")
        saved, source = load(path / _STATES), f"the population {path}"
        config = upgraded(saved["config"])
        spec_of_run(config["env"], source, trust=trust)
        for place in config["callbacks"]:
            check_trusted(place, source, trust=trust)
        population = cls.__new__(cls)
        runs = [Run.from_flat(upgraded(flat)) for flat in saved["runs"]]
        population._begin(Run.from_flat({**config, "run_dir": str(path)}), runs, modules)
        population.run_dir, population.seconds = path, saved["seconds"]
        population._callback_states = saved["callbacks"]
        for record, outcome in zip(population._records, saved["outcomes"], strict=True):
            record.outcome = Outcome(*outcome)
        for numbers, steps, means in saved["curves"]:
            for number, row in zip(numbers, np.asarray(means).tolist(), strict=True):
                population._records[number].curve = dict(zip(np.asarray(steps).tolist(), row, strict=True))
        for numbers, states in saved["states"]:
            for place, number in enumerate(numbers):
                population._records[number].state = unstacked(states, place)
        if population.config.gpus > 1:
            population._take_shares(path, trust=trust)  # if all processes were killed
        return population

    def train(self, progress: bool | None = None, *, callbacks: Iterable[Any] = ()) -> PopulationResult:
        """Train all runs until their steps are done, their target return is reached, or a signal arrives.

        The folder ``run_dir`` (None: a new one in ``runs``; empty: none) receives tables of the results, the states of
        all runs, every ``checkpoint_interval`` iterations and at the end, and ``best``, the run directory of the best
        run. Another call continues runs that were interrupted.

        Args:
            progress: As in ``train``.
            callbacks: As in ``train``. They receive the population instead of a trainer, and a ``PopulationReport``,
                whose figures have a value for each run. ``on_iteration`` returns a reason to end all runs, or reasons
                by their numbers.
        """
        self._callbacks = Callbacks([*self.config.callbacks, *callbacks], of_population=True)
        if self.config.gpus > 1 and self._callbacks.hooks:
            raise ValueError(
                f"callbacks, which --halving and --track add, watch the runs of one GPU, and gpus is "
                f"{self.config.gpus}: leave out gpus, or the callbacks"
            )
        if self.config.gpus > 1 and not self._on_cpu and self.config.gpus > device_count():
            raise ValueError(
                f"gpus is {self.config.gpus}, but this machine has {device_count() or 'no'} GPUs: give fewer, or "
                "device='cpu'"
            )
        self._callbacks.load(self._callback_states)
        self._choose_folder()
        self._failure: Exception | None = None
        try:
            with interruption() as interrupted:
                self._callbacks.call("on_start", self)
                if self.config.gpus > 1:
                    self._train_on_gpus(progress, interrupted)
                else:
                    self._train_here(progress, interrupted)
            result = self._result()
            self._save(result)
            if self._failure is not None:
                raise self._failure
            if self.run_dir is not None:
                self._callbacks.call("on_file", self, self.run_dir / "runs.csv")
            self._callbacks.call("on_end", self, result)
        except BaseException as error:
            if self.config.run_dir is None and self.run_dir is not None and not any(self.run_dir.iterdir()):
                self.run_dir.rmdir()
                self.run_dir = None
            self._callbacks.call("on_exit", self, error)
            raise
        finally:
            self._callback_states = self._callbacks.state()
        self._callbacks.call("on_exit", self, None)
        return result

    def _choose_folder(self) -> None:
        config = self.config
        if self.run_dir is not None or config.run_dir == "":
            return
        if config.run_dir is not None:
            check_empty(config.run_dir)
        self.run_dir = new_folder(f"{config.env}-population") if config.run_dir is None else Path(config.run_dir)
        for place in (portable_name(config.env), *config.callbacks):  # the user has named them
            remember_trusted(place)

    # --- training ---

    def _train_here(self, progress: bool | None, interrupted: threading.Event) -> None:
        self._store()
        for group in self._groups:
            left: dict[int, list[int]] = {}
            for number in group:
                record = self._records[number]
                if record.outcome.reason == INTERRUPTED:
                    left.setdefault(0 if record.state is None else int(record.state["iteration"]), []).append(number)
            for numbers in left.values():
                if not interrupted.is_set() and self._failure is None:
                    self._train_group(numbers, len(group), progress, interrupted)

    def _train_group(
        self, numbers: Sequence[int], size: int, progress: bool | None, interrupted: threading.Event
    ) -> None:
        """Train runs of one shape after the same iteration; ``size``: number of runs of this shape."""
        self._store()
        runs = {number: self.runs[number] for number in numbers}
        states = {number: state for number in numbers if (state := self._records[number].state) is not None}
        before = [(self._records[number], self._records[number].outcome) for number in numbers]
        parameters = parameters_that_differ([*runs.values()])
        self._group = group = JointIterations.of(runs, size, parameters, self._modules, states)
        seconds, saved = self.seconds - group.seconds, time.perf_counter()
        total = group.config.steps_at(group.config.iterations) * len(runs)
        header = [f"{len(runs):,} runs at once on {group.device}, where {group.copies.fitting:,} would fit"]
        bar = Progress(total, None if progress is None else not progress, header=header)

        def end_iteration(due: bool) -> None:
            nonlocal saved
            self.seconds = seconds + group.seconds
            if due and time.perf_counter() - saved > MIN_SECONDS:
                self._save()
                saved = time.perf_counter()

        watch = self._watch if "on_iteration" in self._callbacks.hooks else None
        log = self._log if "on_log" in self._callbacks.hooks else None
        try:
            group.train(bar, interrupted, watch, log, end_iteration)
        except BaseException:  # in the middle of an iteration
            self._group = None
            for record, outcome in before:
                record.outcome = outcome
            raise
        finally:
            bar.close()
        self.seconds = seconds + group.seconds

    def _watch(self, report: PopulationReport) -> dict[int, str]:
        """Give a report to callbacks; return reasons to end runs, by their numbers."""
        reasons: dict[int, str] = {}
        if self._failure is not None:  # at an earlier report
            return reasons
        with self._failure_ends(report, reasons):
            for wish in self._callbacks.call("on_iteration", self, report):
                wishes = wish if isinstance(wish, Mapping) else dict.fromkeys(report.numbers.tolist(), wish)
                for number, reason in wishes.items():
                    if number not in report.numbers or not (reason is None or (isinstance(reason, str) and reason)):
                        raise TypeError(
                            f"on_iteration of a callback returned {reason!r} for run {number!r}; return None, a text, "
                            "the reason to end all runs, or texts by the numbers of runs"
                        )
                    if reason is not None:
                        reasons.setdefault(number, reason)
        return reasons

    def _log(self, report: PopulationReport) -> dict[int, str]:
        """Give the figures of a report to callbacks; return reasons to end runs, if a callback fails."""
        reasons: dict[int, str] = {}
        if self._failure is not None:
            return reasons
        with self._failure_ends(report, reasons):
            self._callbacks.call("on_log", self, self._row(report))
        return reasons

    @contextlib.contextmanager
    def _failure_ends(self, report: PopulationReport, reasons: dict[int, str]) -> Iterator[None]:
        """Let an exception of a callback end all runs; ``train`` raises it again after it has saved them."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self._failure = error
            reasons |= dict.fromkeys(report.numbers.tolist(), INTERRUPTED)

    def _row(self, report: PopulationReport) -> dict[str, float]:
        """Return figures for trackers: means over the runs, and the spread of their returns.

        Runs that have ended count with their last returns only.
        """
        row = {"iteration": report.iteration, "steps": report.steps, "seconds": self.seconds}
        for name, values in report.items():
            finite = values[np.isfinite(values)]
            if len(finite):
                row[name] = float(finite.mean())
                if name.rpartition("/")[2] == "return":
                    low, middle, high = np.quantile(finite, (0.25, 0.5, 0.75)).tolist()
                    row |= {f"{name}/quartile_1": low, f"{name}/median": middle, f"{name}/quartile_3": high}
                    row |= {f"{name}/best": float(finite.max())}
        return row | {"runs": float(report.active.sum())}

    # --- several GPUs ---

    @property
    def _on_cpu(self) -> bool:
        return resolve_device(self.config.device) == "cpu"

    def _shares(self) -> list[tuple[list[int], str]]:
        """Return the numbers of the runs of each GPU, and the name of its folder."""
        count = min(self.config.gpus, len(self.runs))
        return [([*range(gpu, len(self.runs), count)], f"gpu-{gpu}") for gpu in range(count)]

    def _train_on_gpus(self, progress: bool | None, interrupted: threading.Event) -> None:
        """Train in a process for each GPU, which writes its share of the runs to a folder."""
        self._save()
        context, processes = multiprocessing.get_context("spawn"), []
        with tempfile.TemporaryDirectory() as temporary:
            parent = self.run_dir or Path(temporary)
            for gpu, (numbers, name) in enumerate(self._shares()):
                self._give_share(numbers, gpu, parent / name)
                options = parent / name, self._modules, progress if gpu == 0 else False
                processes.append(context.Process(target=_train_share, args=options))
                processes[-1].start()
            try:
                while any(process.is_alive() for process in processes) and not interrupted.is_set():
                    processes[0].join(0.1)
                    for process in processes[1:]:
                        process.join(0.001)
            finally:
                for process in processes:
                    process.terminate()  # which saves its runs
                for process in processes:
                    process.join()
            self._take_shares(parent, trust=True)
            self._save()
            for _, name in self._shares():
                shutil.rmtree(parent / name, ignore_errors=True)
        for gpu, process in enumerate(processes):
            if process.exitcode not in (0, -signal.SIGTERM):
                error = f"the process of GPU {gpu} ended with exit code {process.exitcode}; its error is above"
                self._failure = RuntimeError(error)

    def _give_share(self, numbers: Sequence[int], gpu: int, folder: Path) -> None:
        """Write a population of some of the runs to a folder."""
        device = "cpu" if self._on_cpu else f"cuda:{gpu}"
        share = Population.__new__(Population)
        runs = [dataclasses.replace(self.runs[number], device=device) for number in numbers]
        share._begin(dataclasses.replace(self.config, gpus=1, device=device), runs, self._modules)
        share._records, share.run_dir = [self._records[number] for number in numbers], folder
        share._save()

    def _take_shares(self, parent: Path, *, trust: bool) -> None:
        """Take the results of the GPUs' folders, if there are any."""
        for numbers, name in self._shares():
            if (parent / name / _STATES).is_file():
                share = Population.open(parent / name, modules=self._modules, trust=trust)
                self.seconds = max(self.seconds, share.seconds)
                for number, record in zip(numbers, share._records, strict=True):
                    self._records[number] = record

    # --- results ---

    @property
    def steps(self) -> int:
        """Environment steps of each run that trains; after the training, of the run with the most."""
        if self._group is not None:
            return self._group.steps
        ended = zip(self.runs, self._records, strict=True)
        return max(int(run.steps_at(record.outcome.iterations)) for run, record in ended)

    def _update(self) -> None:
        """Take outcomes and curves of the group that trains."""
        if (group := self._group) is not None:
            for number, outcome in zip(group.numbers, group.present_outcomes(), strict=True):
                self._records[number].outcome = outcome
            for steps, means in group.points:
                for number, mean in zip(group.numbers, means.tolist(), strict=True):
                    if steps <= group.config.steps_at(self._records[number].outcome.iterations):
                        self._records[number].curve[steps] = mean

    def _store(self) -> None:
        """Keep the states of the group that has trained on the host, as the next one needs the device's memory."""
        if (group := self._group) is not None:
            self._update()
            for place, number in enumerate(group.numbers):
                self._records[number].state = mapped(Tensor.cpu, group.state_of(place))
            self._group = None

    def _state(self, number: int) -> Mapping[str, Any] | None:
        group = self._group
        if group is not None and number in group.numbers:
            return group.state_of(group.numbers.index(number))
        return self._records[number].state

    def _result(self) -> PopulationResult:
        self._update()
        steps, curves = self._curves(range(len(self.runs)))
        outcomes = [record.outcome for record in self._records]
        return PopulationResult(self.runs, outcomes, steps, curves, self.seconds, self.run_dir)

    def _curves(self, numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps and the mean returns, ``[runs, points]``, of the curves of runs."""
        curves = [self._records[number].curve for number in numbers]
        steps = sorted(set().union(*curves))
        means = [[curve.get(at, math.nan) for at in steps] for curve in curves]
        return np.array(steps, np.int64), np.array(means).reshape(len(curves), len(steps))

    def trainer(self, number: int) -> Trainer:
        """Return the trainer of a run after ``train``, as if it had trained alone."""
        if number not in range(len(self.runs)):
            raise ValueError(f"there is no run {number}; the population has the runs 0 to {len(self.runs) - 1}")
        state, run = self._state(number), self.runs[number]
        if state is None:
            raise ValueError(f"run {number} has not trained yet")
        trainer = Trainer(run, modules=None if self._modules is None else self._modules(run))
        trainer.load({**state, "describes": trainer.describe()})
        return trainer

    def _save(self, result: PopulationResult | None = None) -> None:
        """Write the states of all runs to the folder, and after the training the results."""
        if self.run_dir is None:
            return
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._update()
        states, curves = [], []
        for group in self._groups:
            curves.append((group, *self._curves(group)))
            found = {number: state for number in group if (state := self._state(number)) is not None}
            if found:
                states.append(([*found], stacked([*found.values()])))
        content = {
            "config": self.config.flat(),
            "runs": [run.flat() for run in self.runs],
            "outcomes": [dataclasses.astuple(record.outcome) for record in self._records],
            "curves": curves,
            "states": states,
            "callbacks": self._callbacks.state(),
            "seconds": self.seconds,
        }
        save(self.run_dir / _STATES, content)
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


def _train_share(folder: Path, modules: Modules | None, progress: bool | None) -> None:
    for of_terminal in (signal.SIGINT, signal.SIGHUP):  # the first process ends this one by SIGTERM
        signal.signal(of_terminal, signal.SIG_IGN)
    Population.open(folder, modules=modules, trust=True).train(progress)


def check_empty(folder: str | Path) -> None:
    """Raise a FileExistsError if a folder has content, or is a file."""
    path = Path(folder)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        what = "is a file" if path.is_file() else "is not empty"
        raise FileExistsError(f"the folder {path} {what}: name another, as run_dir or --run-dir")


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
