"""Runs whose files are damaged: what reads them works, or ends with one clear error.

DAMAGES in the environment says how many cases there are.
"""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from trainers import small

pytest.importorskip("torch")

from gpu_envs.cli import MISTAKE, OK, main
from gpu_envs.training import train

pytestmark = pytest.mark.usefixtures("one_thread")

DAMAGES = int(os.environ.get("DAMAGES", "200"))
BATCHES = 10

COMMANDS = {
    "eval": ("eval", "RUN", "--episodes=2", "--device=cpu"),
    "play": ("play", "RUN", "--steps=2", "--replicas=1", "--device=cpu", "--html=page.html", "--no-progress"),
    "resume": ("train", "--resume", "RUN", "--total-steps=48", "--no-progress"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two checkpoints, with a log."""
    path = tmp_path_factory.mktemp("whole") / "run"
    few: dict[str, Any] = {
        "num_envs": 2,
        "horizon": 8,
        "hidden": (4,),
        "epochs": 1,
        "minibatches": 1,
        "total_steps": 32,
    }
    config = small("cpu", log_interval=1, checkpoint_interval=1, run_dir=str(path), **few)
    train(config, progress=False)
    return path


def damaged(data: bytes, numbers: random.Random) -> bytes:
    """A bit flipped, cut short, or a piece overwritten."""
    kind, place = numbers.choice(("flip", "flip", "flip", "cut", "zeros", "noise")), numbers.randrange(len(data))
    if kind == "cut":
        return data[:place]
    changed = bytearray(data)
    if kind == "flip":
        changed[place] ^= 1 << numbers.randrange(8)
    else:
        size = min(numbers.choice((1, 8, 200)), len(data) - place)
        changed[place : place + size] = bytes(size) if kind == "zeros" else numbers.randbytes(size)
    return bytes(changed)


def outcome(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """How a command ends."""
    capsys.readouterr()
    code = main([word.replace("RUN", str(run)) for word in COMMANDS[name]])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_damaged_file(
    batch: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and path.stat().st_size)
    assert {file.suffix for file in files} >= {".json", ".csv", ".pt"}
    right = outcome("eval", whole, capsys)
    run = tmp_path / "run"
    for number in range(batch, DAMAGES, BATCHES):
        numbers = random.Random(number)
        file, name = numbers.choice(files), numbers.choice(list(COMMANDS))
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        (run / file).write_bytes(damaged((run / file).read_bytes(), numbers))
        case = f"case {number}: {name} of {file}"
        try:
            code, out, error = outcome(name, run, capsys)
        except BaseException as raised:
            raise AssertionError(case) from raised
        if code == OK:
            assert error == "", case
            assert name != "eval" or file.suffix == ".json" or out == right[1], case
        else:
            assert (code, out, error.count("gpu-envs: error: ")) == (MISTAKE, "", 1), f"{case}: {out}{error}"
