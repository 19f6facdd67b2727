"""The notebooks of examples/ run from top to bottom, as a notebook runs them, and show what they are there to show."""

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
"""By notebook, what its cells show, one after another, beside text."""


def cells(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    return found


def test_all_notebooks_are_run() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.ipynb")) == sorted(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_they_are_kept_without_outputs(name: str) -> None:
    """And begin with what to install, for those who have not."""
    code = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert code[0]["source"][0].startswith("# %pip install 'gpu_envs[train]'")


def kind_of(text: str) -> str:
    return "player" if "<iframe" in text else "curves" if "<svg" in text else "table" if "<table" in text else "?"


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_they_run(name: str, tmp_path: Path) -> None:
    """Every cell, without an error or a warning."""
    copy = shutil.copy(EXAMPLES / f"{name}.ipynb", tmp_path)
    command = [sys.executable, "-c", "from nbclient.cli import main; main()", "--inplace", "--timeout=300", str(copy)]
    done = subprocess.run(command, cwd=tmp_path, env=subprocess_env(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(Path(copy).read_text())["cells"]
    outputs = [output for cell in found if cell["cell_type"] == "code" for output in cell["outputs"]]
    said = [line for output in outputs if output.get("name") == "stderr" for line in output["text"]]
    assert bool(said) == ("curves" in SHOWN[name])
    progress = re.compile(r" (steps|episodes)/s |, engine \w+")  # of training and evaluation, and nothing else
    assert all(progress.search(line) for line in said if line.strip()), said
    data = [output["data"] for output in outputs if output["output_type"] in ("execute_result", "display_data")]
    assert [kind_of("".join(each["text/html"])) for each in data] == SHOWN[name]
    assert max(len("".join(each["text/plain"])) for each in data) < 1000
