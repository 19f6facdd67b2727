"""Helpers for tests of the command line."""

import subprocess
import sys
from pathlib import Path

import pytest
from harness import subprocess_env

from gpu_envs.cli import MISTAKE, OK, main


def output_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Runs a command line that must succeed; returns its output."""
    assert main(list(words)) == OK
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Runs a command line that must be rejected; returns its error message."""
    assert main(list(words)) == MISTAKE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("gpu-envs: error: ")
    return captured.err


def run_process(
    *words: str, code: str = "", module: str = "gpu_envs", cwd: Path | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Runs the program, some code or another module with these arguments in a new process."""
    start = ["-c", code] if code else ["-m", module]
    return subprocess.run(
        [sys.executable, *start, *words],
        env=subprocess_env(**settings),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def start_process(*words: str, cwd: Path | None = None, **settings: str) -> subprocess.Popen[str]:
    """Starts the program in a new process and returns at once."""
    command, pipe = [sys.executable, "-m", "gpu_envs", *words], subprocess.PIPE
    return subprocess.Popen(command, env=subprocess_env(**settings), cwd=cwd, stdout=pipe, stderr=pipe, text=True)


def code_without(*libraries: str) -> str:
    """Returns code that runs the program as if these libraries were not installed."""
    return f"ABSENT = {libraries}\n{_WITHOUT}"


_WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from gpu_envs.cli import main
sys.exit(main(sys.argv[1:]))
"""
