"""Populations: many runs that train at once, each with the same results as alone."""

import dataclasses
import math
import multiprocessing
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn

from gpu_envs.progress import Progress
from gpu_envs.registry.catalog import check_trusted, portable_name, remember_trusted, spec_of_run
from gpu_envs.training.callbacks.base import Callbacks
from gpu_envs.training.joint_iterations import INTERRUPTED, JointIterations, Modules, Outcome, PopulationReport
from gpu_envs.training.population_result import PopulationResult
from gpu_envs.training.process.copies import mapped
from gpu_envs.training.process.signals import interruption
from gpu_envs.training.record.checkpoint import load, save
from gpu_envs.training.record.run_directory import RunDirectory, new_folder
from gpu_envs.training.run import AUTO, Run, upgraded
from gpu_envs.training.trainer import Trainer
from gpu_envs.training.variants import groups_of, parameters_that_differ, variants

MIN_SECONDS = 10.0
"""Minimum time between two writings of the states of all runs during the training."""

_STATES, _BEST = "population.pt", "best"

_OF_RUNS = ("_states", "_ended", "_curves")
"""Attributes of a population by the numbers of its runs."""


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
        self.config, self._modules = run, modules
        own = dataclasses.replace(run, run_dir="", callbacks=(), gpus=1)
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
        if self.config.gpus > 1 and self._callbacks.hooks:
            raise ValueError(
                f"callbacks watch the runs of one GPU, and gpus is {self.config.gpus}: leave one of them out"
            )
        self._callbacks.load(self._of_callbacks)
        if self.run_dir is None and self.config.run_dir != "":
            self.run_dir = Path(self.config.run_dir or new_folder(f"{self.config.env}-population"))
            check_empty(self.run_dir)
            self.run_dir.mkdir(parents=True, exist_ok=True)
            for place in (portable_name(self.config.env), *self.config.callbacks):  # the user has named them
                remember_trusted(place)
        self._failure: Exception | None = None
        try:
            with interruption() as interrupted:
                self._callbacks.call("on_start", self)
                if self.config.gpus > 1:
                    self._train_on_gpus(progress, interrupted)
                for numbers in self._left() if self.config.gpus == 1 else ():
                    if not interrupted.is_set() and self._failure is None:
                        self._train_group(numbers, progress, interrupted)
            result = self._result()
            self._save(result)
            if self._failure is not None:
                raise self._failure
            self._callbacks.call("on_end", self, result)
        except BaseException as error:
            self._callbacks.call("on_exit", self, error)
            if self.run_dir is not None and not any(self.run_dir.iterdir()):
                self.run_dir.rmdir()
            raise
        self._callbacks.call("on_exit", self, None)
        return result

    def _left(self) -> list[list[int]]:
        """Return the numbers of the runs that have not ended, in groups that can train together."""
        outcomes, groups = self._outcomes(), list[list[int]]()
        for group in self._groups:
            left: dict[int, list[int]] = {}
            for number in group:
                if outcomes[number].reason == INTERRUPTED:
                    left.setdefault(outcomes[number].iterations, []).append(number)
            groups += left.values()
        return groups

    def _train_group(self, numbers: Sequence[int], progress: bool | None, interrupted: threading.Event) -> None:
        runs = {number: self.runs[number] for number in numbers}
        self._store()
        states = {number: self._states[number] for number in numbers if number in self._states}
        parameters = parameters_that_differ([*runs.values()])
        self._group = group = JointIterations.of(runs, parameters, self._modules or _no_modules, states)
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

    def _train_on_gpus(self, progress: bool | None, interrupted: threading.Event) -> None:
        """Train in a process for each GPU, each of which takes its share of the runs."""
        context, count = multiprocessing.get_context("spawn"), self.config.gpus
        with tempfile.TemporaryDirectory() as folder:
            parts: list[tuple[Population, Any]] = []
            for gpu in range(min(count, len(self.runs))):
                part = self._part([*range(gpu, len(self.runs), count)], gpu, Path(folder, str(gpu)))
                options = part.run_dir, self._modules, progress if gpu == 0 else False
                parts.append((part, context.Process(target=_train_part, args=options)))
            for _, process in parts:
                process.start()
            asked = False
            while any(process.is_alive() for _, process in parts):
                for _, process in parts:
                    process.join(0.05)
                    if interrupted.is_set() and not asked:
                        process.terminate()  # it saves its runs
                asked = asked or interrupted.is_set()
            for gpu, (_, process) in enumerate(parts):
                self._take_part(
                    [*range(gpu, len(self.runs), count)], Population.open(Path(folder, str(gpu)), trust=True)
                )
                if process.exitcode and not interrupted.is_set():
                    self._failure = RuntimeError(f"the process for GPU {gpu} ended with exit code {process.exitcode}")

    def _part(self, numbers: Sequence[int], gpu: int, folder: Path) -> "Population":
        """Return a population of some of the runs, with their states, in a new folder."""
        device = self.config.device if self.config.device == "cpu" else f"cuda:{gpu}"
        part = Population(dataclasses.replace(self.config, gpus=1, device=device), modules=self._modules)
        part._take([dataclasses.replace(self.runs[number], device=device) for number in numbers])
        for place, number in enumerate(numbers):
            for name in _OF_RUNS:
                if number in vars(self)[name]:
                    vars(part)[name][place] = vars(self)[name][number]
        folder.mkdir()
        part.run_dir, part._callbacks = folder, Callbacks()
        part._save()
        return part

    def _take_part(self, numbers: Sequence[int], part: "Population") -> None:
        """Take the results of a part."""
        self.seconds = max(self.seconds, part.seconds)
        for place, number in enumerate(numbers):
            for name in _OF_RUNS:
                if place in vars(part)[name]:
                    vars(self)[name][number] = vars(part)[name][place]

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
        if (group := self._group) is not None:
            ends = [group.config.steps_at(outcome.iterations) for outcome in group.present_outcomes()]
            for steps, means in group.points:
                for number, mean, end in zip(group.numbers, means.tolist(), ends, strict=True):
                    if steps <= end:
                        self._curves[number][steps] = mean

    def _store(self) -> None:
        """Keep the results of the group that has trained on the host, as the next one needs the device's memory."""
        if self._group is not None:
            self._store_curves()
            self._outcomes()
            for place, number in enumerate(self._group.numbers):
                self._states[number] = mapped(Tensor.cpu, self._group.state_of(place))
            self._group = None

    def _state(self, number: int) -> Mapping[str, Any] | None:
        group = self._group
        if group is not None and number in group.numbers:
            return group.state_of(group.numbers.index(number))
        return self._states.get(number)

    def trainer(self, number: int) -> Trainer:
        """Return the trainer of a run after ``train``, as if it had trained alone."""
        if number not in range(len(self.runs)):
            raise ValueError(f"there is no run {number}; the population has the runs 0 to {len(self.runs) - 1}")
        state = self._state(number)
        if state is None:
            raise ValueError(f"run {number} has not trained: call train")
        run = self.runs[number]
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
            found = {number: state for number in group if (state := self._state(number)) is not None}
            if found:
                states.append(([*found], _together([*found.values()])))
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


def _train_part(folder: Path, modules: Modules | None, progress: bool | None) -> None:
    for of_terminal in (signal.SIGINT, signal.SIGHUP):  # the first process passes them on
        signal.signal(of_terminal, signal.SIG_IGN)
    Population.open(folder, modules=modules, trust=True).train(progress)


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
