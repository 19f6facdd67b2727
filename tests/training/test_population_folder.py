"""Populations that are saved, interrupted and resumed, and their callbacks."""

import dataclasses
import math
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from populations import assert_as_alone
from trainers import FIELD, FIELD_PARAMS, GRID, small_run

from gpu_envs.training import Population, Run, population, train
from gpu_envs.training.callbacks import EarlyStopping, Halving, Tracker


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


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ended runs": (
        "CartPole-v1",
        {"num_envs": 32, "total_steps": 32 * 16 * 30, "target_return": 30.0, "hidden": [32, 32], "max_grad_norm": None},
        {"learning_rate": [0.0, 3e-3, 1e-2, 1e30]},
    ),
    "team with metrics": (FIELD, {"params": FIELD_PARAMS, "total_steps": 8 * 16 * 18}, {"gamma": [0.9, 0.99]}),
    "statistics": (
        GRID,
        {"normalise_observations": True, "total_steps": 8 * 16 * 18},
        {"env.wall_hit_penalty": [0.0, 0.5]},
    ),
    "groups": ("CartPole-v1", {"total_steps": 8 * 16 * 30}, {"horizon": [16, 32]}),
}


@pytest.mark.parametrize("case", CASES)
def test_resumed_runs_have_the_results_of_runs_alone(case: str, device: str, tmp_path: Path) -> None:
    env, settings, vary = CASES[case]
    run = small_run(device, env, **settings | {"run_dir": str(tmp_path / "all")})
    first = Population(run, vary=vary, search="grid")
    result = first.train(progress=False, callbacks=[Interruption(12)])
    reasons = [outcome.reason for outcome in result.outcomes]
    assert "interrupted" in reasons
    assert not (tmp_path / "all" / "best").exists()
    for again in (Population.open(tmp_path / "all"), first):
        resumed = again.train(progress=False)
        assert "interrupted" not in [outcome.reason for outcome in resumed.outcomes]
        for number, outcome in enumerate(resumed.outcomes):
            if outcome.reason != "diverged":
                assert_as_alone(again, resumed, number)
        whole = Population(dataclasses.replace(run, run_dir=""), vary=vary, search="grid").train(progress=False)
        assert [*map(str, resumed.outcomes)] == [*map(str, whole.outcomes)]
        np.testing.assert_array_equal(resumed.curves, whole.curves)
        first.run_dir = tmp_path / "all again"
        first.run_dir.mkdir(exist_ok=True)
    assert (tmp_path / "all" / "best").is_dir()
    assert Population.open(tmp_path / "all").train(progress=False).outcomes == resumed.outcomes or case == "ended runs"


def test_checkpoints_during_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A population that is killed continues from the last one."""
    monkeypatch.setattr(population, "MIN_SECONDS", 0.0)

    class Kill:
        def on_iteration(self, trainer: Any, report: Any) -> None:
            del trainer
            if report.iteration == 25:
                raise KeyboardInterrupt

    run = small_run("cpu", total_steps=8 * 16 * 30, checkpoint_interval=10, run_dir=str(tmp_path / "all"))
    with pytest.raises(KeyboardInterrupt):
        Population(run, seeds=3).train(progress=False, callbacks=[Kill()])
    resumed = Population.open(tmp_path / "all")
    record = Record()
    result = resumed.train(progress=False, callbacks=[record])
    assert [report.iteration for report in record.reports] == [*range(21, 31)]
    for number in range(3):
        assert_as_alone(resumed, result, number)


def test_a_report_has_the_figures_of_each_run_alone(device: str) -> None:
    """The figures are those of the log."""
    run = small_run(device, FIELD, total_steps=8 * 16 * 6, params=FIELD_PARAMS, log_interval=2)
    record = Record()
    result = Population(run, seeds=3).train(progress=False, callbacks=[record])
    assert [report.iteration for report in record.reports] == [1, 2, 3, 4, 5, 6]
    assert record.reports[0].steps == 128
    for number in range(3):
        alone = Record()
        train(dataclasses.replace(run, seed=run.seed + number), progress=False, callbacks=[alone])
        for ours, theirs in zip(record.reports, alone.reports, strict=True):
            assert {*ours} == {*theirs} - {"rollout_seconds", "update_seconds"}
            for name in ours:
                np.testing.assert_allclose(ours[name][number], theirs[name], rtol=1e-6, equal_nan=True)
    assert record.calls == ["start 3", "end 3", "exit NoneType"]
    assert [row["steps"] for row in record.rows] == [256, 512, 768]
    returns = record.reports[-1]["tagger/return"]
    assert record.rows[-1]["tagger/return"] == pytest.approx(returns.mean())
    assert record.rows[-1]["tagger/return/best"] == returns.max()
    assert result.outcomes[2].returns == returns[2]
    with pytest.raises(KeyError, match=r"there is no 'tagger/retur'\. Did you mean 'tagger/return'"):
        record.reports[0]["tagger/retur"]


def test_callbacks_end_runs() -> None:
    class Ends:
        def on_iteration(self, trainer: Any, report: Any) -> Any:
            del trainer
            return {1: "enough"} if report.iteration == 3 else "all" if report.iteration == 5 else None

    run = small_run("cpu", total_steps=8 * 16 * 9)
    whole = Population(run, seeds=3)
    result = whole.train(progress=False, callbacks=[Ends()])
    ended = [(outcome.reason, outcome.iterations) for outcome in result.outcomes]
    assert ended == [("all", 5), ("enough", 3), ("all", 5)]
    alone = train(dataclasses.replace(whole.runs[1], total_steps=8 * 16 * 3), progress=False)
    assert alone.returns["agent"] == result.outcomes[1].returns


def test_a_callback_that_fails_loses_nothing(tmp_path: Path) -> None:
    class Fails:
        def on_iteration(self, trainer: Any, report: Any) -> Any:
            del trainer
            return {7: "why"} if report.iteration == 3 else None

    record = Record()
    run = small_run("cpu", total_steps=8 * 16 * 5, run_dir=str(tmp_path / "all"))
    with pytest.raises(TypeError, match="returned 'why' for run 7; return None, a text, the reason to end all runs"):
        Population(run, seeds=2).train(progress=False, callbacks=[Fails(), record])
    assert record.calls == ["start 2", "exit TypeError"]
    resumed = Population.open(tmp_path / "all")
    assert_as_alone(resumed, resumed.train(progress=False), 1)


def test_halving_keeps_the_best() -> None:
    record, run = Record(), small_run("cpu", total_steps=8 * 16 * 27)
    result = Population(run, seeds=10).train(progress=False, callbacks=[record, Halving(3)])
    ended = sorted(outcome.iterations for outcome in result.outcomes)
    assert ended == [3] * 6 + [9] * 2 + [27] * 2
    returns = record.reports[2]["return"]
    kept = [number for number, outcome in enumerate(result.outcomes) if outcome.iterations > 3]
    assert returns[kept].min() >= np.delete(returns, kept).max()
    with pytest.raises(TypeError, match="Halving compares the runs of a population"):
        train(run, callbacks=[Halving(3)])
    with pytest.raises(ValueError, match="factor is 1; give 2 or more"):
        Halving(1)


def test_halving_with_fewer_iterations_than_rounds() -> None:
    run = small_run("cpu", total_steps=8 * 16 * 2)
    result = Population(run, seeds=9).train(progress=False, callbacks=[Halving(3)])
    assert sorted(outcome.iterations for outcome in result.outcomes) == [2] * 9


def test_early_stopping_ends_each_run_for_itself() -> None:
    run = small_run("cpu", total_steps=8 * 16 * 60, learning_rate=0.0)
    stopping = EarlyStopping(patience=5)
    joint = Population(run, seeds=3)
    result = joint.train(progress=False, callbacks=[stopping])
    for each, outcome in zip(joint.runs, result.outcomes, strict=True):
        alone = train(each, progress=False, callbacks=[EarlyStopping(patience=5)])
        assert outcome.reason == alone.reason
    assert len({outcome.iterations for outcome in result.outcomes}) > 1


def test_a_tracker_gets_a_population_as_one_run(tmp_path: Path) -> None:
    sent: list[Any] = []

    class Sends(Tracker):
        def open(self, id: str, name: str, folder: Path | None, settings: Mapping[str, Any]) -> None:
            del id, folder
            sent.append((name, settings["env"]))

        def send(self, rows: Any) -> None:
            sent.extend(rows)

        def send_file(self, path: Path, kind: str, steps: int) -> None:
            sent.append((path.name, kind, steps))

        def close(self, *, complete: bool) -> None:
            sent.append(complete)

    folder = tmp_path / "all"
    run = small_run("cpu", total_steps=8 * 16 * 4, log_interval=2, run_dir=str(folder))
    Population(run, seeds=2).train(progress=False, callbacks=[Sends()])
    assert sent[0] == ("all", "CartPole-v1")
    assert [steps for steps, _ in sent[1:3]] == [256, 512]
    assert all(math.isfinite(value) for _, row in sent[1:3] for value in row.values())
    assert sent[-2:] == [("runs.csv", "table", 512), True]


def test_callbacks_that_a_population_cannot_have() -> None:
    class Changes:
        parameters = ("gravity",)

        def on_start(self, trainer: Any) -> None:
            pass

    with pytest.raises(ValueError, match="a callback changes gravity; callbacks of a population cannot change"):
        Population(small_run("cpu")).train(callbacks=[Changes()])


def test_callbacks_of_the_settings(tmp_path: Path) -> None:
    """They are the population's, and its runs have none."""
    file = tmp_path / "mine.py"
    file.write_text("class Stop:\n    def on_iteration(self, trainer, report):\n        return 'stop'\n")
    run = Run.from_flat(small_run("cpu").flat() | {"callbacks": [f"{file}:Stop"]})
    joint = Population(run, seeds=2)
    assert [outcome.reason for outcome in joint.train(progress=False).outcomes] == ["stop"] * 2
    assert [each.callbacks for each in joint.runs] == [()] * 2


@pytest.mark.slow
def test_runs_are_divided_among_gpus(tmp_path: Path) -> None:
    """Each process takes some; on a machine without a GPU, they share the CPU."""
    run = small_run("cpu", total_steps=8 * 16 * 12, target_return=25.0, run_dir=str(tmp_path / "all"), log_interval=2)
    several = Population(dataclasses.replace(run, gpus=2), seeds=3)
    result = several.train(progress=False)
    one = Population(dataclasses.replace(run, run_dir=""), seeds=3).train(progress=False)
    assert result.outcomes == one.outcomes
    np.testing.assert_array_equal(result.curves, one.curves)
    for number in range(3):
        assert_as_alone(several, result, number)
    assert Population.open(tmp_path / "all").train(progress=False).outcomes == result.outcomes
    with pytest.raises(ValueError, match="callbacks watch the runs of one GPU, and gpus is 2: leave one of them out"):
        Population(dataclasses.replace(run, gpus=2)).train(callbacks=[Halving(3)])
