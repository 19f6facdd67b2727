"""Runs whose files are damaged, or whose process is killed: what reads them works, or ends with one clear error.

DAMAGES and KILLS in the environment say how many cases there are.
"""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import with_package

pytest.importorskip("torch")

from gpu_envs.cli import MISTAKE, OK, main
from gpu_envs.training import Config, train

pytestmark = pytest.mark.usefixtures("one_thread")

DAMAGES = int(os.environ.get("DAMAGES", "200"))
KILLS = int(os.environ.get("KILLS", "5"))
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
    config = Config(
        env="CartPole-v1", num_envs=2, horizon=8, hidden=(4,), threads=1, epochs=1, minibatches=1, device="cpu",
        total_steps=32, log_interval=1, checkpoint_interval=1, run_dir=str(path),
    )  # fmt: skip
    train(config, progress=False)
    return path


def damaged(data: bytes, numbers: random.Random) -> tuple[bytes, str]:
    """A bit flipped, cut short, or a piece overwritten."""
    kind, place = numbers.choice(("flip", "flip", "flip", "cut", "zeros", "noise")), numbers.randrange(len(data))
    if kind == "cut":
        return data[:place], f"cut at {place}"
    changed = bytearray(data)
    if kind == "flip":
        bit = numbers.randrange(8)
        changed[place] ^= 1 << bit
        return bytes(changed), f"bit {bit} of byte {place} flipped"
    size = min(numbers.choice((1, 8, 200)), len(data) - place)
    changed[place : place + size] = bytes(size) if kind == "zeros" else numbers.randbytes(size)
    return bytes(changed), f"{size} bytes of {kind} at {place}"


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
        data, what = damaged((run / file).read_bytes(), numbers)
        (run / file).write_bytes(data)
        case = f"case {number}: {name} of {file}, {what}"
        try:
            code, out, error = outcome(name, run, capsys)
        except BaseException as raised:
            raise AssertionError(case) from raised
        if code == OK:
            assert error == "", case
            assert name != "eval" or file.suffix == ".json" or out == right[1], case
        else:
            assert (code, out, error.count("gpu-envs: error: ")) == (MISTAKE, "", 1), f"{case}: {out}{error}"


KILLED = """
import os, random, signal, sys, time, traceback
from pathlib import Path
import torch
from gpu_envs.training import Config, RunDirectory, resume, train
from gpu_envs.training.record.checkpoint import load_run

torch.set_num_threads(1)
few = dict(num_envs=4, horizon=4, hidden=(256, 256), epochs=1, minibatches=1, threads=1, device="cpu", log_interval=1)

def begun(run):
    train(Config(env="CartPole-v1", total_steps=10**9, checkpoint_interval=1, run_dir=str(run), **few), progress=False)

def checked(run):
    latest = RunDirectory.open(run).checkpoints.latest()
    done = load_run(latest)["iteration"] if latest else 0
    assert resume(run, total_steps=(done + 2) * 16, progress=False).iterations == done + 2
    lines = (run / "log.csv").read_text().splitlines()[1:]
    assert [int(line.partition(",")[0]) for line in lines] == list(range(1, done + 3)), lines
    assert not list(run.rglob("checkpoints/*.partial"))

def child(work, run):
    pid = os.fork()
    if pid == 0:
        try:
            work(run)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid

caught = 0
for number in range(int(sys.argv[2])):
    run = Path(sys.argv[1]) / str(number)
    pid = child(begun, run)
    while not (run / "log.csv").exists():
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.3))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    caught += bool(list(run.rglob("*.partial")))
    assert os.waitpid(child(checked, run), 0)[1] == 0, run
print(caught)
"""


@pytest.mark.slow
def test_killed_runs_go_on(tmp_path: Path) -> None:
    """Killed at any moment: the last checkpoint is whole, and the run goes on from there, its log without a gap."""
    code = [sys.executable, "-c", KILLED, str(tmp_path), str(KILLS)]
    done = subprocess.run(code, capture_output=True, text=True, check=False, env=with_package(OMP_NUM_THREADS="1"))
    assert done.returncode == 0, done.stderr
    print(f"{KILLS} killed, {done.stdout.strip()} of them while they wrote")
