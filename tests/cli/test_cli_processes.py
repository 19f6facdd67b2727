"""Processes of the command line: closed outputs, a training on the CPU, and a machine without torch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_tools import code_without, run_process
from harness import subprocess_env

import gpu_envs
from gpu_envs.cli import MISTAKE, OK

CLOSED_PIPE = """
import os, sys
from gpu_envs.cli import main
class Trainer:
    def evaluate(self, run, **options):
        return {}
    def train(self, config, **options):
        print("a note", file=sys.stderr, flush=True)
read, write = os.pipe()
os.close(read)
stream = int(sys.argv.pop(1))
os.dup2(write, stream)
if stream == 2:  # buffered until the process ends, where Python's exit code would be 120
    sys.stderr.buffer.write(b"half a line")
sys.exit(main(trainer=Trainer()))
"""


@pytest.mark.parametrize(
    ("words", "stream", "code", "unbuffered"),
    [
        (["eval", "x"], 1, OK, ""),
        (["eval", "x"], 1, OK, "1"),
        (["train", "--help"], 1, OK, ""),
        (["--version"], 1, OK, ""),
        (["--version"], 2, OK, ""),
        (["trian"], 2, MISTAKE, ""),
        (["train", "CartPole-v1"], 2, 141, ""),  # an error in the middle of a run
    ],
    ids=lambda value: value[0] if isinstance(value, list) else str(value),
)
def test_closed_outputs(words: list[str], stream: int, code: int, unbuffered: str) -> None:
    """As with ``| true``: a closed output does not change the exit code."""
    done = run_process(str(stream), *words, code=CLOSED_PIPE, PYTHONUNBUFFERED=unbuffered)
    expected = f"gpu_envs {gpu_envs.__version__}\n" if stream == 2 and code == OK else ""
    assert (done.returncode, done.stdout, done.stderr) == (code, expected, "")


CLOSED_STDERR = """
import os, sys
from gpu_envs.cli import main
class Trainer:
    def evaluate(self, run, **options):
        with open(run, "w"):
            os.write(2, b"written by a library")
        print("a note", file=sys.stderr)
        return {}
sys.exit(main(trainer=Trainer()))
"""


def test_messages_to_a_closed_standard_error_reach_no_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    words = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", CLOSED_STDERR, "eval", str(file)]
    done = subprocess.run(words, env=subprocess_env(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (OK, "")
    assert "most likely" in done.stdout
    assert file.read_text() == ""


@pytest.mark.end_to_end
def test_cartpole_is_solved_on_the_cpu(tmp_path: Path) -> None:
    """The mean return of the last 100 episodes reaches the threshold within the preset's steps."""
    pytest.importorskip("torch")
    words = ("--device", "cpu", "--threads", "1", "--no-progress", "--run-dir", str(tmp_path / "run"))
    done = run_process("train", "CartPole-v1", *words)
    assert (done.returncode, done.stderr) == (OK, "")
    assert "the target return is reached" in done.stdout
    threshold = gpu_envs.spec("CartPole-v1").reward_threshold
    assert threshold is not None
    match = re.search(r"^return +([\d.]+)$", done.stdout, re.MULTILINE)
    assert match is not None
    assert float(match[1]) >= threshold


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train", "CartPole-v1", "--help"], OK, "settings of the run"),
        (["train", "CartPol"], MISTAKE, "Did you mean"),
        (["train", "CartPole-v1"], MISTAKE, "pip install 'gpu_envs[train]'"),
        (["eval", "x"], MISTAKE, "pip install 'gpu_envs[train]'"),
        (["demo", "--no-open"], MISTAKE, "error: 'torch' is not installed: pip install 'gpu_envs[train]'\n"),
        (["info"], OK, "not installed"),
    ],
)
def test_without_torch(words: list[str], code: int, message: str) -> None:
    done = run_process(*words, code=code_without("torch", "cupy"))
    assert done.returncode == code, done.stderr
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
