"""The pages ``docs/your-own-environment.md``, ``rules-in-cpp.md`` and ``cookbook.md`` run, and print what they show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import restored_registry, subprocess_env
from outputs import same_output

import gpu_envs
from benchmarks.custom import tutorial
from benchmarks.custom.tutorial import COOKBOOK, CPP, DOCS, LANDER, CodeBlock
from gpu_envs.testing import check_environment

LANDER_BLOCKS = [*tutorial.blocks(LANDER), *tutorial.blocks(CPP)]
RECIPES = [block for block in tutorial.blocks(COOKBOOK) if block.kind == "python"]
SPECS = [block for block in RECIPES if f"{Path(block.file).stem.upper()} = " in block.text]
PROGRAMS = [*RECIPES, *(block for block in LANDER_BLOCKS if block.kind == "python" and block.output)]
MOST_LINES = 100
"""Maximum number of lines from nothing to a trained agent."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pages' files, and with the command ``gpu-envs``."""
    folder = tmp_path_factory.mktemp("own")
    tutorial.write(folder, [*LANDER_BLOCKS, *tutorial.blocks(COOKBOOK)])
    command = folder / "bin" / "gpu-envs"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpu_envs "$@"\n')
    command.chmod(0o755)
    return folder


def check_block(folder: Path, block: CodeBlock, *words: str) -> None:
    """Runs a block's program or command, which must succeed and print what the page shows."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=subprocess_env(OMP_NUM_THREADS="1", PATH=f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not block.output or same_output(block.output, done.stdout, approximate=block.approximate), done.stdout


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.file)
def test_program_runs(folder: Path, block: CodeBlock) -> None:
    if "stable_baselines3" in block.text:
        pytest.importorskip("stable_baselines3")
    check_block(folder, block, sys.executable, block.file)


@pytest.mark.slow
def test_commands_run(folder: Path) -> None:
    """In order, as some use the runs of earlier ones."""
    pytest.importorskip("torch")
    for block in (*LANDER_BLOCKS, *tutorial.blocks(COOKBOOK)):
        if block.kind == "sh":
            check_block(folder, block, "sh", "-e", "-c", block.text)
        for page in re.findall(r"--html (\S+)", block.text):
            assert (folder / page).stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("block", SPECS, ids=lambda block: block.file)
def test_recipe_passes_the_check(folder: Path, block: CodeBlock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with restored_registry():
        spec = gpu_envs.spec(f"{block.file}:{Path(block.file).stem.upper()}")
        report = check_environment(spec, devices=["cpu"], num_envs=4, steps=30, sanitize=False, report=lambda _: None)
    assert not report.failures


def test_every_recipe_shows_its_output() -> None:
    assert len(SPECS) >= 12
    assert all(block.output for block in RECIPES)
    assert {Path(block.file).suffix for block in tutorial.blocks(COOKBOOK)} == {".py", ".csv", ""}


def test_the_tutorial_is_short() -> None:
    """Without blank lines, up to the first training."""
    blocks = [block for block in LANDER_BLOCKS if block.file in ("lander.py", "") and "check" not in block.text]
    lines = [line for block in blocks[:4] for line in block.text.splitlines() if line.strip()]
    assert "gpu-envs train" in "\n".join(lines)
    assert len(lines) < MOST_LINES


def test_the_page_states_the_length_of_the_port() -> None:
    """Counts lines of code, without blank lines, comments and docstrings."""
    source = Path(__file__).parent / "environments" / "custom_envs" / "warp_drive_tag.py"
    ours, theirs = map(
        int,
        re.findall(r"It has (\d+) lines.*?have\s+(\d+)", (DOCS / "from-warpdrive.md").read_text(), re.DOTALL)[0],
    )
    assert code_lines(source.read_text()) == ours
    assert ours < theirs / 4


def code_lines(text: str) -> int:
    without = re.sub(r'"""(?:.|\n)*?"""', "", text)
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in without.splitlines())
