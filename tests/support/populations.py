"""Comparisons of the runs of populations with the runs alone, and callbacks."""

import signal
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gpu_envs.training import Population, Trainer
from gpu_envs.training.population_result import PopulationResult


def assert_as_alone(population: Population, result: PopulationResult, number: int, more: int = 0) -> None:
    """Compares a run, and ``more`` iterations of it after the population, with the run alone."""
    alone, run = Trainer(population.runs[number]), population.trainer(number)
    expected = alone.run(progress=False)
    outcome = result.outcomes[number]
    assert (outcome.reason, outcome.iterations) == (expected.reason, expected.iterations)
    if more:
        alone.iterate(more)
        run.iterate(more)
    ours, theirs = run.state(), alone.state()
    for name in COMPARED:
        assert_same(ours[name], theirs[name], name)


def assert_same(one: Any, other: Any, name: str) -> None:
    if isinstance(one, Mapping):
        assert one.keys() == other.keys(), name
        for key in one:
            assert_same(one[key], other[key], f"{name}.{key}")
    elif isinstance(one, torch.Tensor | np.ndarray):
        single = name.startswith("environment.params")  # of a double with a value, or of a float in each replica
        ours, theirs = (np.asarray(torch.as_tensor(x).cpu(), np.float32 if single else None) for x in (one, other))
        np.testing.assert_array_equal(ours, theirs, name)
    else:
        assert one == other, name


COMPARED = (
    *("iteration", "steps", "clock", "windows", "metrics", "learners", "players", "random", "environment"),
    *("observations", "alive", "action_masks", "begun_midway"),
)
"""Parts of a run's state."""


class Interruption:
    """Interrupts the training after an iteration."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_iteration(self, trainer: Any, report: Any) -> None:
        del trainer
        if report.iteration == self.iteration:
            signal.raise_signal(signal.SIGINT)


class Record:
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.rows: list[Mapping[str, float]] = []
        self.calls: list[str] = []

    def on_start(self, trainer: Any) -> None:
        self.calls.append(f"start {len(getattr(trainer, 'runs', [None]))}")

    def on_iteration(self, trainer: Any, report: Any) -> None:
        del trainer
        self.reports.append(report)

    def on_log(self, trainer: Any, row: Mapping[str, float]) -> None:
        del trainer
        self.rows.append(row)

    def on_end(self, trainer: Any, result: Any) -> None:
        del trainer
        self.calls.append(f"end {len(getattr(result, 'outcomes', [None]))}")

    def on_exit(self, trainer: Any, error: BaseException | None) -> None:
        del trainer
        self.calls.append(f"exit {type(error).__name__}")
