"""``gpu-envs train`` solves what its preset is for."""

import re
from pathlib import Path

import pytest
from cli_tools import run

import gpu_envs
from gpu_envs.cli import OK

pytest.importorskip("torch")


@pytest.mark.end_to_end
def test_cartpole_is_solved_on_the_cpu(tmp_path: Path) -> None:
    """The mean return of the last 100 episodes reaches the threshold, before the preset's steps are used up."""
    words = ("--device", "cpu", "--threads", "1", "--no-progress", "--run-dir", str(tmp_path / "run"))
    done = run("train", "CartPole-v1", *words)
    assert (done.returncode, done.stderr) == (OK, "")
    assert "the return that was aimed at is reached" in done.stdout
    threshold = gpu_envs.spec("CartPole-v1").reward_threshold
    assert threshold is not None
    found = re.search(r"^return +([\d.]+)$", done.stdout, re.MULTILINE)
    assert found is not None
    assert float(found[1]) >= threshold
