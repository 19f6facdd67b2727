"""The log of a run, TensorBoard events, and the progress bar."""

import csv
import io
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainers import GRID, small_run

torch = pytest.importorskip("torch")

from gpu_envs.progress import Progress, amount, duration  # noqa: E402
from gpu_envs.training import train  # noqa: E402 - they import torch
from gpu_envs.training.record.log import EventFile, RunLog  # noqa: E402
from gpu_envs.training.record.summary import read_log  # noqa: E402


def write(log: RunLog, iterations: range) -> None:
    """Write the rows of these iterations."""
    for iteration in iterations:
        record = {"return": iteration / 3, "loss, a": -1e-9 * iteration, "count": iteration}
        log.write(iteration, 100 * iteration, record, seconds=iteration / 2)


def shown(folder: Path) -> dict[tuple[int, str], float]:
    """Return what TensorBoard shows; it skips records with wrong checksums."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = accumulators.EventAccumulator(str(folder))
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {(event.step, tag): event.value for tag in tags for event in accumulator.Scalars(tag)}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_numbers_in_the_log_read_back_exactly(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.csv")
    log.write(1, 100, {"return": 1 / 3, "loss, a": float(np.float32(0.1)), "nan": math.nan, "whole": 7}, 0.5)
    log.write(2, 200, {"return": 1e300}, 0.75)
    first, second = rows(log.path)
    assert list(first) == ["iteration", "steps", "seconds", "return", "loss, a", "nan", "whole"]
    assert (float(first["return"]), float(first["loss, a"])) == (1 / 3, float(np.float32(0.1)))
    assert (first["nan"], first["whole"]) == ("nan", "7")
    assert (second["return"], second["loss, a"], second["whole"]) == ("1e+300", "", "")
    assert (first["seconds"], second["seconds"]) == ("0.500", "0.750")
    log.write(3, 300, {"return": 2.0, "later": 1.5}, 1.0)
    first, second, third = rows(log.path)
    assert (first["later"], second["later"], third["later"]) == ("", "", "1.5")
    assert (float(first["return"]), second["return"], third["loss, a"]) == (1 / 3, "1e+300", "")
    with pytest.raises(ValueError, match="already has a column 'steps'"):
        RunLog(tmp_path / "other.csv").write(1, 1, {"steps": 1.0}, 1.0)


@pytest.mark.parametrize("cut", ["", "9,900,4.5,3.0", '9,900,4.5,3.0,"-1e'])
def test_a_resumed_log_equals_an_uninterrupted_one(tmp_path: Path, cut: str) -> None:
    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    whole, parts = (RunLog(tmp_path / folder / "log.csv") for folder in ("whole", "parts"))
    write(whole, range(1, 13))
    write(parts, range(1, 9))
    with parts.path.open("a") as file:
        file.write(cut)  # a process killed while it wrote this row
    write(RunLog(parts.path, 5), range(6, 13))
    assert parts.path.read_bytes() == whole.path.read_bytes()
    assert len(list(parts.path.parent.glob("events*"))) == 2
    assert shown(parts.path.parent) == shown(whole.path.parent)
    assert len(shown(whole.path.parent)) == 12 * 3


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: b"\xff\xfe" + text, "line 1 .*utf-8"),
        (lambda text: text.replace(b"iteration", b"iterativn"), "line 1 .*does not start with iteration,steps"),
        (lambda text: text.replace(b"\n3,", b"\nx,"), "line 4 .*'x'"),
        (lambda text: text.replace(b"\n3,", b",3,"), "line 3 .*cells for"),
        (lambda text: text.replace(b"\n3,", b"\n\n3,"), "line 4 .*0 cells for"),
        (lambda text: text.replace(b"\n3,", b'\n"3,'), "line 4 .*unexpected end"),
    ],
)
def test_damaged_logs_are_refused(tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    log = RunLog(tmp_path / "log.csv")
    write(log, range(1, 6))
    log.path.write_bytes(text := damage(log.path.read_bytes()))
    with pytest.raises(ValueError, match=f"log.csv is damaged or not a log of a run, at {message}"):
        RunLog(log.path, 4)
    assert log.path.read_bytes() == text


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """Reading from it would block."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes have names here")
    os.mkfifo(tmp_path / "log.csv")
    with pytest.raises(ValueError, match=r"log.csv is not a regular file: move it away"):
        RunLog(tmp_path / "log.csv")
    with pytest.raises(FileNotFoundError, match=r"the log .*log.csv does not exist"):
        read_log(tmp_path / "log.csv")


def test_a_log_resumed_before_its_first_row_is_empty(tmp_path: Path) -> None:
    for column in ("a", "b"):
        log = RunLog(tmp_path / "log.csv")
        assert rows(log.path) == []
        log.write(1, 10, {column: 1.0}, 1.0)
    assert list(rows(log.path)[0])[3:] == ["b"]
    assert shown(tmp_path) == {(10, "b"): 1.0}


def test_tensorboard_reads_events(tmp_path: Path) -> None:
    values = {"return/läufer": 1.5, "nan": math.nan, "huge": 1e300, "low": -1e300, "zero": 0.0}
    many = {f"tag {number}": float(number) for number in range(300)}
    writer = EventFile(tmp_path, 0)
    writer.scalars(0, values)
    writer.scalars(2**40, many)
    found = shown(tmp_path)
    assert math.isnan(found.pop((0, "nan")))
    expected = {(0, "return/läufer"): 1.5, (0, "huge"): math.inf, (0, "low"): -math.inf, (0, "zero"): 0.0}
    assert found == expected | {(2**40, tag): value for tag, value in many.items()}
    second_file = EventFile(tmp_path, 0)
    with pytest.raises(ValueError, match=r"step is .*; give 0 or more"):
        second_file.scalars(-1, {})
    assert len(sorted(tmp_path.iterdir())) == 2


class Terminal(io.StringIO):
    """A terminal of 80 columns, or of the width in the environment."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return the lines on the screen; a carriage return overwrites a line."""
        shown = []
        for line in self.getvalue().split("\n"):
            cells: list[str] = []
            for part in line.split("\r"):
                cells[: len(part)] = part
            shown.append("".join(cells).rstrip())
        return shown


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_the_bar_shows_progress(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    bar = Progress(1_000_000, stream=terminal)
    bar.update(250_000, 1.2e4, {"agent": 123.456})
    (line,) = terminal.lines()
    assert all(part in line for part in (" 25%", "12.0 k steps/s", "return 123.5", "1:03 left"))
    assert len(line) < 100
    clock[0] += 1
    bar.update(1_000_000, 1.2e6, {"tagger": 1.0, "runner": -2.0})
    (line,) = terminal.lines()  # the rest of the longer line is overwritten
    assert all(part in line for part in ("100%", "1.2 M steps/s", "tagger 1", "runner -2", "0s left"))
    bar.close()
    assert terminal.lines() == [line, ""]
    bar.close()
    bar.update(1_000_000, 1.0, {})
    assert terminal.lines() == [line, ""]


def test_the_bar_shows_the_target_and_missing_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for given, target, said in (
        ({"agent": 123.456}, {"agent": 475.0}, "return 123.5 of 475"),
        ({"agent": math.nan}, {"agent": 475.0}, "no episode has ended yet, for 475"),
        ({"agent": math.nan}, {}, "no episode has ended yet"),
        ({"tagger": 85.25, "runner": -2.0}, {"runner": 1.0}, "tagger 85.25  runner -2 of 1"),
        ({"tagger": math.nan, "runner": -2.0}, {}, "steps/s  runner -2"),
    ):
        terminal = Terminal()
        Progress(100, stream=terminal, target=target).update(50, 1e3, given)
        (line,) = terminal.lines()
        assert said in line
        assert "nan" not in line


def test_metrics_come_last_in_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time left: in narrow terminals they are omitted first."""
    for columns, said in ((200, "return 2  1:00:00 left  tags 3.5"), (48, "return 2  1:00:00 left"), (200, "left")):
        monkeypatch.setenv("COLUMNS", str(columns))
        terminal, metrics = Terminal(), {"tags": 3.5 if "tags" in said or columns == 48 else math.nan, "far": math.nan}
        Progress(3_601_000, stream=terminal).update(1_000, 1e3, {"agent": 2.0}, metrics)
        assert terminal.lines()[0].rstrip().endswith(said)


def test_metrics_are_logged(device: str, tmp_path: Path) -> None:
    """In TagGridWorld a runner's length is the number of steps that it survives, plus the step of the tag."""
    params = {"grid_length": 3, "max_episode_steps": 11}
    settings: dict[str, Any] = {"num_envs": 32, "horizon": 32, "total_steps": 32 * 32 * 4, "log_interval": 1}
    result = train(small_run(device, GRID, params=params, run_dir=str(tmp_path / "run"), **settings), progress=False)
    assert result.metrics.keys() == {"tags", "survival"}
    logged = rows(tmp_path / "run" / "log.csv")
    assert len(logged) == 4
    for row in logged:
        tags, survival = float(row["metrics/tags"]), float(row["metrics/survival"])
        assert 0 < tags < 1
        assert survival + tags == pytest.approx(float(row["runner/length"]), rel=1e-5)
    assert result.metrics == {name: float(logged[-1][f"metrics/{name}"]) for name in result.metrics}
    (events,) = (tmp_path / "run").glob("events.*")
    assert b"metrics/survival" in events.read_bytes()


def test_the_bar_is_drawn_ten_times_a_second(clock: list[float]) -> None:
    terminal = Terminal()
    bar = Progress(1000, stream=terminal)
    for step in range(1000):
        clock[0] = step / 1000
        bar.update(step, 1.0, {})
    assert 9 <= terminal.getvalue().count("\r") <= 10
    bar.update(1000, 1.0, {})
    assert "100%" in terminal.lines()[0]  # the last update is always drawn


@pytest.mark.parametrize("columns", [1, 5, 20, 40, 60, 80, 200])
def test_the_bar_fits(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    bar = Progress(10**9, stream=terminal)
    bar.update(123_456_789, 98_765_432.1, {f"role {number}": 1000.123 * number for number in range(5)})
    assert len(terminal.lines()[0]) <= max(1, columns - 1)
    bar.update(10**9, 0.0, {"agent": math.nan})
    bar.close()


def test_a_file_gets_lines(clock: list[float]) -> None:
    file = io.StringIO()
    progress = Progress(1000, stream=file, target={"agent": 9.0}, header=["agent: ppo", "more"])
    for second in range(101):
        clock[0] = float(second)
        progress.update(second * 10, 10.0, {"agent": second / 10}, {"far": 0.5})
    progress.close()
    assert file.getvalue().splitlines() == ["agent: ppo", "more"] + [
        f"{second}%  10 steps/s  return {second // 10} of 9  {progress_left}  far 0.5"
        for second, progress_left in ((30, "1:10 left"), (60, "40s left"), (90, "10s left"))
    ]


def test_a_run_first_reports_the_engines_of_its_policies(capsys: pytest.CaptureFixture[str]) -> None:
    for fused, engine in ((None, "CPU actor-critic"), (False, "torch (fused is False)")):
        train(small_run("cpu", fused=fused), progress=True)
        assert capsys.readouterr().err.startswith(f"agent: ppo on cpu, engine {engine}\n\r")


def test_nothing_is_drawn_into_a_pipe() -> None:
    for quiet, drawn in ((None, False), (True, False), (False, True)):
        pipe = io.StringIO()
        bar = Progress(10, quiet, pipe)
        bar.update(5, 1.0, {"agent": 1.0})
        assert ("50%" in pipe.getvalue()) == drawn
        bar.close()
    quiet_terminal = Terminal()
    Progress(10, True, quiet_terminal).update(10, 1.0, {})
    assert quiet_terminal.getvalue() == ""


@pytest.mark.parametrize("progress", [None, True])
def test_a_run_needs_no_standard_error(progress: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stderr", stream)
        assert train(small_run("cpu", total_steps=128), progress=progress).reason == "total_steps"


def test_a_closed_stream_ends_the_output() -> None:
    stream = io.StringIO()
    bar = Progress(10, False, stream)
    bar.update(5, 1.0, {})
    stream.close()
    bar.update(10, 1.0, {})
    bar.close()


def test_the_bar_in_an_ascii_terminal() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    bar = Progress(10, False, stream)
    bar.update(5, 1.0, {})
    bar.close()
    assert b"##" in raw.getvalue()


def test_amounts_and_durations() -> None:
    amounts = {0: "0", 999: "999", 999.6: "1.0 k", 1234: "1.2 k", 123_456: "123 k", 999_950: "1.0 M", 2.5e9: "2.5 G"}
    assert {value: amount(value) for value in amounts} == amounts
    durations = {0: "0s", 59: "59s", 59.5: "1:00", 3599: "59:59", 3723: "1:02:03", math.inf: "?"}
    assert {seconds: duration(seconds) for seconds in durations} == durations
