"""The example with many callbacks: it runs for one agent and for teams, and continues bit for bit after kill -9."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from harness import assert_same_bits
from trainers import last_checkpoint, rows_of

ROOT = Path(__file__).parents[1]

pytest.importorskip("torch")
pytest.importorskip("wandb")
pytest.importorskip("imageio_ffmpeg")


def start(folder: Path, env: str) -> "subprocess.Popen[bytes]":
    """Start the example, shortened: 24 iterations of 16 replicas, a checkpoint in every third."""
    text = (ROOT / "examples" / "callbacks.py").read_text()
    text = re.sub(
        r"num_envs=64, total_steps=[\d_]+", "num_envs=16, total_steps=24 * 16 * 32, checkpoint_interval=3", text
    )
    text = text.replace("every=50", "every=8").replace("steps=100", "steps=10")
    (folder.parent / "callbacks.py").write_text(text)
    words = [sys.executable, str(folder.parent / "callbacks.py"), env, str(folder)]
    variables = {**os.environ, "WANDB_SILENT": "true", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, cwd=folder.parent, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "TagContinuous-v0"])
def test_it_resumes_after_a_kill(env: str, tmp_path: Path) -> None:
    assert b"after 24 iterations" in start(tmp_path / "full", env).communicate()[0]
    process, checkpoint = start(tmp_path / "killed", env), tmp_path / "killed" / "checkpoints" / "iteration-00000009.pt"
    for _ in range(6000):
        if checkpoint.exists() or process.poll() is not None:
            break
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert checkpoint.exists()
    assert last_checkpoint(tmp_path / "killed")["iteration"] < 24
    assert b"after 24 iterations" in start(tmp_path / "killed", env).communicate()[0]
    states: list[Any] = [last_checkpoint(tmp_path / name) for name in ("full", "killed")]
    for part in ("learners", "environment", "callbacks", "windows"):
        full, killed = [{k: v for k, v in state[part].items() if k != "WandbTracker"} for state in states]
        assert_same_bits(full, killed, part)
    assert rows_of(tmp_path / "full" / "log.csv") == rows_of(tmp_path / "killed" / "log.csv")
    assert len(list((tmp_path / "killed" / "replays").glob("*.mp4"))) == 3
    assert list((tmp_path / "killed" / "wandb").glob("offline-*/*.wandb"))
