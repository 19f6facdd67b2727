"""``gpu-envs sweep`` and ``extract``."""

import csv
from pathlib import Path

import pytest
from cli_tools import error_of, output_of

from gpu_envs.cli import main
from gpu_envs.cli.parser import INTERRUPTED

pytest.importorskip("torch")


SMALL = "--device cpu --num-envs 8 --horizon 16 --epochs 1 --minibatches 2 --hidden 32,32 --total-steps 512".split()


def test_a_sweep_of_memories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their texts have colons, as ranges."""
    vary = ["--vary", "memory=gru:4,lstm:3,none"]
    output_of(capsys, "sweep", "CartPole-v1", "--preset", "none", *SMALL, *vary, "--run-dir", str(tmp_path / "all"))
    rows = list(csv.DictReader((tmp_path / "all" / "runs.csv").read_text().splitlines()))
    assert sorted(row["memory"] for row in rows) == ["", "gru:4", "lstm:3"]


def test_a_sweep_writes_its_runs_and_extract_makes_a_run_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, other = tmp_path / "all", tmp_path / "other"
    vary = ["--vary", "learning_rate=0.001,0.01", "--vary", "normalise_rewards=on,off", "--search", "grid"]
    vary += ["--vary", "env.pole_mass=0.1,0.2"]
    printed = output_of(capsys, "sweep", "CartPole-v1", "--preset", "none", *SMALL, *vary, "--run-dir", str(folder))
    assert "total_steps: 8" in printed
    rows = list(csv.DictReader((folder / "runs.csv").read_text().splitlines()))
    assert {(row["learning_rate"], row["normalise_rewards"], row["env.pole_mass"]) for row in rows} == {
        (rate, on, mass) for rate in ("0.001", "0.01") for on in ("True", "False") for mass in ("0.1", "0.2")
    }
    assert output_of(capsys, "extract", str(folder), "--run", "3", "--run-dir", str(other)).strip() == str(other)
    for run in (folder / "best", other):
        assert "agent" in output_of(capsys, "eval", str(run), "--episodes", "4", "--device", "cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--runs", "3"), "--runs is the number of combinations of --vary"),
        (("--vary", "gamma"), "give NAME=RANGE or NAME=VALUE,VALUE"),
        (("--vary", "learning_rate=0:0.1,1:0"), "lists of schedules are for Python"),
        (("--vary", "normalise_rewards=yes,no"), "--vary is 'normalise_rewards=yes,no': 'yes' is neither on nor off"),
        (("--vary", "gama=0.9"), "Did you mean 'gamma'?"),
        (("--run-dir", "."), "is not empty"),
    ],
)
def test_mistakes_end_before_the_training(
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert message in error_of(capsys, "sweep", "CartPole-v1", "--preset", "none", *SMALL, *options)


def test_an_interrupted_sweep_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "mine.py", tmp_path / "all"
    file.write_text(
        "import signal\n\nclass Interrupt:\n    def on_iteration(self, population, report):\n"
        "        if report.iteration == 2:\n            signal.raise_signal(signal.SIGINT)\n"
    )
    options = [*SMALL, "--halving", "2", "--seeds", "4", "--run-dir", str(folder), "--callback", f"{file}:Interrupt"]
    assert main(["sweep", "CartPole-v1", "--preset", "none", *options]) == INTERRUPTED
    assert f"interrupted; to continue: gpu-envs sweep --resume {folder}" in capsys.readouterr().out
    printed = output_of(capsys, "sweep", "--resume", str(folder), "--halving", "2")
    assert "halving: 3, total_steps: 1" in printed
    assert "to continue" not in printed
    rows = list(csv.DictReader((folder / "runs.csv").read_text().splitlines()))
    assert sorted(row["iterations"] for row in rows) == ["1", "1", "2", "4"]
