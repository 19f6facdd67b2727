"""The notebooks of examples/ run from top to bottom and display the expected outputs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import subprocess_env

for _needed in ("torch", "ipykernel", "nbclient"):
    pytest.importorskip(_needed)

EXAMPLES = Path(__file__).parent.parent / "examples"
SHOWN = {
    "first_steps": ["player", "curves", "table", "player"],
    "own_environment": ["curves", "table", "player", "player"],
    "planning": ["player", "player"],
}
"""Kinds of rich outputs of each notebook's cells, in order."""


def cells(name: str) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    return cells


def test_all_notebooks_are_run() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.ipynb")) == sorted(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_notebooks_are_committed_without_outputs(name: str) -> None:
    """Their first cell shows how to install the package."""
    code = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert code[0]["source"][0].startswith("# %pip install 'gpu_envs[train]'")


def kind_of(text: str) -> str:
    return "player" if "<iframe" in text else "curves" if "<svg" in text else "table" if "<table" in text else "?"


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_notebooks_run(name: str, tmp_path: Path) -> None:
    """Every cell runs without errors or warnings."""
    copy = shutil.copy(EXAMPLES / f"{name}.ipynb", tmp_path)
    command = [sys.executable, "-c", "from nbclient.cli import main; main()", "--inplace", "--timeout=300", str(copy)]
    done = subprocess.run(command, cwd=tmp_path, env=subprocess_env(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    executed = json.loads(Path(copy).read_text())["cells"]
    outputs = [output for cell in executed if cell["cell_type"] == "code" for output in cell["outputs"]]
    stderr = [line for output in outputs if output.get("name") == "stderr" for line in output["text"]]
    assert bool(stderr) == ("curves" in SHOWN[name])
    progress = re.compile(r" (steps|episodes)/s |, engine \w+")  # only training and evaluation write to stderr
    assert all(progress.search(line) for line in stderr if line.strip()), stderr
    data = [output["data"] for output in outputs if output["output_type"] in ("execute_result", "display_data")]
    assert [kind_of("".join(each["text/html"])) for each in data] == SHOWN[name]
    assert max(len("".join(each["text/plain"])) for each in data) < 1000
