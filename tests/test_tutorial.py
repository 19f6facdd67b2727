"""The tutorial in ``docs/your-own-environment.md`` runs unchanged and is short."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_all_same, assert_same_bits, subprocess_env

import gpu_envs
from benchmarks.custom import tutorial
from benchmarks.custom.tutorial import DOCS, CodeBlock

BLOCKS = tutorial.blocks()
MOST_LINES = 100
"""Maximum number of lines from nothing to a trained agent."""

NEEDED = {"train": "torch", "stable_baselines3": "stable_baselines3"}
"""Library that a block needs, by a word in the block."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the tutorial's files, and with the command ``gpu-envs``."""
    tutorial.write(tmp_path)
    command = tmp_path / "bin" / "gpu-envs"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpu_envs "$@"\n')
    command.chmod(0o755)
    return tmp_path


def run(folder: Path, *words: str) -> str:
    """Runs a command that must succeed; returns its output."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=subprocess_env(OMP_NUM_THREADS="1", PATH=f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind != "cpp"], ids=lambda b: b.file or b.text.split()[1])
def test_block_runs(folder: Path, block: CodeBlock) -> None:
    for word, library in NEEDED.items():
        if word in block.text:
            pytest.importorskip(library)
    if block.kind == "python":
        run(folder, sys.executable, block.file)
        return
    printed = run(folder, "sh", "-e", "-c", block.text)
    if "train" in block.text:
        assert "reached" in printed, printed
    for page in re.findall(r"--html (\S+)", block.text):
        assert (folder / page).stat().st_size > 1000


def test_the_tutorial_is_short() -> None:
    """In C++ and in Python, without blank lines."""
    files = {block.file: sum(bool(line.strip()) for line in block.text.splitlines()) for block in BLOCKS if block.file}
    commands = [block.text for block in BLOCKS if block.kind == "sh"]
    in_cpp = files["lander.cuh"] + files["lander.py"] + len(commands[0].splitlines())
    in_python = files["lander_in_python.py"] + files["lander.py"] + len(commands[1].splitlines())
    assert max(in_cpp, in_python) < MOST_LINES
    assert sum(files.values()) + sum(len(text.splitlines()) for text in commands) < 1.5 * MOST_LINES


@pytest.mark.usefixtures("builtin_registry")  # its id is another file's in other tests
def test_both_languages_give_the_same_bits(folder: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.chdir(folder)
    envs: list[Any] = [
        gpu_envs.make(place, 100, device=device, autoreset_mode="SameStep")
        for place in ("lander.py:LANDER", "lander_in_python.py:LANDER_IN_PYTHON")
    ]
    assert_all_same(env.reset(seed=0)[0] for env in envs)
    rng = np.random.default_rng(0)
    for _ in range(100):
        actions = rng.integers(0, 2, 100)
        steps = [env.step(actions) for env in envs]
        assert_same_bits(steps[0][:4], steps[1][:4])
        assert_all_same(dict(env.state) for env in envs)
    for env in envs:
        env.close()


def test_the_page_states_the_length_of_the_port() -> None:
    """Counts lines of code, without blank lines, comments and docstrings."""
    source = Path(__file__).parent / "environments" / "custom_envs" / "warp_drive_tag.py"
    ours, theirs = map(
        int,
        re.findall(r"Numba:\s+(\d+)\s+lines.*?have\s+(\d+)", (DOCS / "from-warpdrive.md").read_text(), re.DOTALL)[0],
    )
    assert code_lines(source.read_text()) == ours
    assert ours < theirs / 4


def code_lines(text: str) -> int:
    without = re.sub(r'"""(?:.|\n)*?"""', "", text)
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in without.splitlines())
