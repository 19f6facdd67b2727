"""``gpu-envs tune``, and ``--num-envs auto``: what is measured is printed, what is taken is said and kept."""

import json
import re
from pathlib import Path

import pytest
from cli_tools import refused, said

pytest.importorskip("torch")

from gpu_envs.training import tuning

FEW = ("CartPole-v1", "--preset", "none", "--device", "cpu", "--horizon", "8", "--hidden", "8", "--epochs", "1")


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_LIMIT", 0.5)
    header, *rows, until, knee, fits, auto = said(capsys, "tune", *FEW, "--total-steps", "25600").splitlines()
    assert header.split() == ["replicas", "memory", "rollout", "steps/s", "training", "steps/s"]
    assert rows
    assert {len(row) for row in rows} == {len(header)}
    for number, row in enumerate(rows):
        assert re.fullmatch(rf" +{16 * 2**number:,} +[\d,.]+ MiB +[\d,]+ +[\d,]+", row)
    assert re.fullmatch(r"measured until +(the time was over|training became no faster)", until)
    assert re.fullmatch(r"knee +[\d,]+ replicas, the fewest within 5 % of the fastest training", knee)
    assert re.fullmatch(r"largest that fits +[\d,]+ replicas", fits)
    assert auto == (
        "--num-envs auto    16 replicas, the largest power of two with which total_steps are 200 updates or more"
    )


@pytest.mark.slow
def test_training_says_what_it_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    words = ("train", *FEW, "--num-envs", "auto", "--no-progress", "--run-dir", str(run), "--total-steps")
    first, *_ = said(capsys, *words, "25600").splitlines()
    assert first == (
        "num_envs is 16: the largest power of two with which total_steps are 200 updates or more "
        "(16 to 16 were tried, until total_steps would be too few updates)"
    )
    assert json.loads((run / "config.json").read_text())["config"]["num_envs"] == 16
    assert "51,200 in 400 updates" in said(capsys, "train", "--resume", str(run), "--total-steps", "51200")
    message = refused(capsys, "train", "--resume", str(run), "--num-envs", "auto")
    assert "--resume takes environment and settings from the run" in message
    assert "leave out --num-envs" in message


def test_what_cannot_fit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "train", *FEW, "--num-envs", "1e9", "--run-dir", "")
    assert re.search(r"1,000,000,000 replicas for a horizon of 8 need [\d,.]+ GiB on cpu, of which", message)
    assert re.search(r"lower num_envs to [\d,]+, which fits, or the horizon$", message.strip())


def test_a_word_that_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--num-envs: 'many' is not a whole number, nor auto" in refused(capsys, "train", *FEW, "--num-envs", "many")
