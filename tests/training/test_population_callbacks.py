"""Callbacks of populations."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from populations import Interruption, Record, assert_as_alone
from trainers import FIELD, FIELD_PARAMS, GRID, small_run

from gpu_envs.training import Population, Run, train
from gpu_envs.training.callbacks import EarlyStopping, Halving, Tracker
from gpu_envs.training.record import reports


def test_a_report_has_the_figures_of_each_run_alone(device: str) -> None:
    """The figures are those of the log."""
    # a GPU's kernels have no action masks, and torch rounds the products of several runs otherwise than alone
    env, params = (FIELD, FIELD_PARAMS) if device == "cpu" else (GRID, {})
    run = small_run(device, env, horizon=32, total_steps=8 * 32 * 6, params=params, hidden=(32, 32), log_interval=2)
    record = Record()
    result = Population(run, seeds=3).train(progress=False, callbacks=[record])
    assert [report.iteration for report in record.reports] == [1, 2, 3, 4, 5, 6]
    assert record.reports[0].steps == 256
    for number in range(3):
        alone = Record()
        train(dataclasses.replace(run, seed=run.seed + number), progress=False, callbacks=[alone])
        for ours, theirs in zip(record.reports, alone.reports, strict=True):
            assert {*ours} == {*theirs} - {"rollout_seconds", "update_seconds"}
            for name in ours:
                np.testing.assert_allclose(ours[name][number], theirs[name], rtol=1e-6, equal_nan=True)
    assert record.calls == ["start 3", "end 3", "exit NoneType"]
    assert [row["steps"] for row in record.rows] == [512, 1024, 1536]
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
    with pytest.raises(TypeError, match="the callback Halving compares runs: give it to Population"):
        train(run, callbacks=[Halving(3)])
    with pytest.raises(ValueError, match="factor is 1; give 2 or more"):
        Halving(1)


def test_halving_with_few_iterations() -> None:
    """Rounds before the first iteration are made up for by the next."""
    run = small_run("cpu", total_steps=8 * 16 * 5)
    result = Population(run, seeds=9).train(progress=False, callbacks=[Halving(3)])
    assert sorted(outcome.iterations for outcome in result.outcomes) == [1] * 8 + [5]
    run = small_run("cpu", total_steps=8 * 16 * 2)
    with pytest.raises(ValueError, match="runs of 2 iterations cannot be halved by 3: give more total_steps"):
        Population(run, seeds=9).train(progress=False, callbacks=[Halving(3)])


def test_halving_after_an_interruption(tmp_path: Path) -> None:
    """As many runs continue as without the interruption, and as without runs that ended otherwise."""

    class EndsTwenty:
        def on_iteration(self, trainer: Any, report: Any) -> Any:
            del trainer
            return dict.fromkeys(range(20), "enough") if report.iteration == 1 else None

    counts = []
    for folder, others in (("", []), (str(tmp_path / "all"), [Interruption(2)])):
        run = small_run("cpu", total_steps=8 * 16 * 81, epochs=1, run_dir=folder)
        result = Population(run, seeds=27).train(progress=False, callbacks=[EndsTwenty(), *others, Halving(3)])
        if folder:
            result = Population.open(folder).train(progress=False, callbacks=[Halving(3)])
        counts.append(sorted(outcome.iterations for outcome in result.outcomes))
    assert counts[0] == counts[1] == [1] * 20 + [9] * 4 + [27] * 2 + [81]


def test_halving_of_teams() -> None:
    """Runs are compared by the return of the role of the target return."""
    record, run = Record(), small_run("cpu", FIELD, params=FIELD_PARAMS, total_steps=8 * 16 * 9, target_role="runner")
    result = Population(run, seeds=3).train(progress=False, callbacks=[record, Halving(3)])
    kept = [number for number, outcome in enumerate(result.outcomes) if outcome.iterations == 9]
    assert kept == [int(np.argmax(record.reports[2]["runner/return"]))]


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


def test_figures_of_runs_that_have_ended() -> None:
    class EndsOne:
        def on_iteration(self, trainer: Any, report: Any) -> Any:
            del trainer
            return {1: "enough"} if report.iteration == 2 else None

    record = Record()
    run = small_run("cpu", total_steps=8 * 16 * 5, log_interval=1)
    result = Population(run, seeds=3).train(progress=False, callbacks=[EndsOne(), record])
    last = record.reports[-1]
    assert last.active.tolist() == [True, False, True]
    for name, values in last.items():
        assert np.isfinite(values[[0, 2]]).all(), name
        assert np.isnan(values[1]) == (name != "return"), name
    assert last["return"][1] == last.returns[1] == result.outcomes[1].returns
    assert record.rows[-1]["learning_rate"] == last["learning_rate"][0]
    assert record.rows[-1]["runs"] == 2
    seconds = [row["seconds"] for row in record.rows]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= result.seconds


def test_reports_that_arrive_late_belong_to_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, an iteration has been queued when a callback ends runs: they end after it, with its episodes."""
    init = reports.ReportQueue.__init__

    def with_two(self: Any, roles: Any, names: Any, horizon: int, device: str, _: int, *rest: Any, **more: Any) -> None:
        init(self, roles, names, horizon, device, 2, *rest, **more)

    monkeypatch.setattr(reports.ReportQueue, "__init__", with_two)

    class Ends:
        def on_iteration(self, trainer: Any, report: Any) -> Any:
            del trainer
            if report.iteration == 6:
                raise OSError("late")
            return {0: "enough"} if report.iteration == 3 else None

    run = small_run("cpu", total_steps=8 * 16 * 9)
    joint = Population(run, seeds=2)
    with pytest.raises(OSError, match="late"):
        joint.train(progress=False, callbacks=[Ends()])
    outcome = joint._result().outcomes[0]  # noqa: SLF001
    assert (outcome.reason, outcome.iterations) == ("enough", 4)
    alone = train(dataclasses.replace(joint.runs[0], total_steps=8 * 16 * 4), progress=False)
    assert outcome.returns == alone.returns["agent"]


def test_callbacks_that_a_population_cannot_have() -> None:
    class Changes:
        parameters = ("gravity",)

        def on_start(self, trainer: Any) -> None:
            pass

    with pytest.raises(
        ValueError, match="the callback Changes changes gravity, which callbacks of a population cannot: use vary"
    ):
        Population(small_run("cpu")).train(callbacks=[Changes()])
    with pytest.raises(ValueError, match="watch the runs of one GPU, and gpus is 2: leave out gpus, or the callbacks"):
        Population(dataclasses.replace(small_run("cpu"), gpus=2)).train(callbacks=[Halving(3)])


def test_callbacks_of_the_settings(tmp_path: Path) -> None:
    """They are the population's, and its runs have none."""
    file = tmp_path / "mine.py"
    file.write_text("class Stop:\n    def on_iteration(self, trainer, report):\n        return 'stop'\n")
    run = Run.from_flat(small_run("cpu").flat() | {"callbacks": [f"{file}:Stop"]})
    joint = Population(run, seeds=2)
    assert [outcome.reason for outcome in joint.train(progress=False).outcomes] == ["stop"] * 2
    assert [each.callbacks for each in joint.runs] == [()] * 2
