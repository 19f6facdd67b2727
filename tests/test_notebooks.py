"""Each notebook of examples/ runs from top to bottom, and contains the outputs of such a run."""

import base64
import copy
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

for _needed in ("torch", "ipykernel", "nbclient"):
    pytest.importorskip(_needed)

from benchmarks.notebooks import EXAMPLES, run, sources_of, stored  # noqa: E402

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
RUN_AGAIN = "run make notebooks"


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def texts(notebook: Any) -> list[str]:
    """Returns the text of all outputs but pictures."""
    outputs = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    data = [text for output in outputs for kind, text in output.get("data", {}).items() if kind.startswith("text/")]
    return ["".join(text) for text in [*data, *(output["text"] for output in outputs if "text" in output)]]


def kinds(cell: Any) -> list[str]:
    """Returns the kinds of a cell's outputs; a picture replaces a player, and an image a curve."""
    found = []
    for output in cell["outputs"]:
        data = output.get("data", {})
        html = "".join(data.get("text/html", ""))
        replay = "image/png" in data or "<iframe" in html
        curves = len(re.findall("<svg |<img ", html))
        found.append(output.get("name") or ("replay" if replay else f"table and {curves} curves" if html else "text"))
    return found


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 3


@each_notebook
def test_outputs_are_stored(path: Path) -> None:
    """They are of the current cells, in order, without errors and without traces of the machine."""
    notebook = json.loads(path.read_text())
    code = code_cells(notebook)
    assert notebook["metadata"]["gpu_envs"]["sources"] == sources_of(notebook), RUN_AGAIN
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), RUN_AGAIN
    assert "error" not in {output["output_type"] for cell in code for output in cell["outputs"]}
    shown = [kind for cell in code for kind in kinds(cell)]
    assert shown.count("replay") == 2
    assert "stdout" in shown
    assert not [text for text in texts(notebook) if re.search(r"(^|[\s'\"])/\w+/|<iframe|<svg |\d{8}-\d{6}|\r", text)]
    assert path.stat().st_size < 400_000
    assert "%pip install 'gpu_envs[train]'" in "".join(code[0]["source"])


@each_notebook
def test_replays_are_moving_pictures(path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    outputs = (output for cell in code_cells(json.loads(path.read_text())) for output in cell["outputs"])
    for picture in (output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})):
        opened = image.open(io.BytesIO(base64.b64decode("".join(picture))))
        assert (opened.format, opened.width) == ("PNG", pytest.approx(480, abs=8))
        assert 20 < opened.n_frames <= 61


def test_a_changed_cell_is_noticed() -> None:
    notebook = json.loads(NOTEBOOKS[0].read_text())
    changed, rerun = copy.deepcopy(notebook), copy.deepcopy(notebook)
    code_cells(changed)[1]["source"].append("\n")
    code_cells(rerun)[1]["outputs"] = []
    rerun["cells"][0]["source"] = "another text"
    assert sources_of(changed) != sources_of(notebook) == sources_of(rerun)


def test_curves_become_images() -> None:
    """They keep their names, and a run's start time is left out."""
    html = '<table></table>\n<svg width="9" aria-label="return against steps">\n<path/></svg>'
    output = {"output_type": "execute_result", "data": {"text/html": html, "text/plain": "runs/A-20261129-130637"}}
    cells = [{"cell_type": "code", "source": "", "outputs": [output]}]
    data = stored({"cells": cells})["cells"][0]["outputs"][0]["data"]
    content = re.search(r'^<table></table>\n<img alt="return against steps" src="data:(.*),(.*)">$', data["text/html"])
    assert content is not None
    assert content[1] == "image/svg+xml;base64"
    assert b"<path/></svg>" in base64.b64decode(content[2])
    assert data["text/plain"] == "runs/A"


@pytest.mark.slow
@each_notebook
def test_notebooks_run(path: Path) -> None:
    """A run has the kinds of outputs that are stored, with players; only training and evaluation write to stderr."""
    notebook = run(path)
    assert [kinds(cell) for cell in code_cells(notebook)] == [
        kinds(cell) for cell in code_cells(json.loads(path.read_text()))
    ]
    assert sum("<iframe" in text for text in texts(notebook)) == 2
    outputs = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    stderr = [line for output in outputs if output.get("name") == "stderr" for line in output["text"].splitlines()]
    progress = re.compile(r" (steps|episodes)/s |, engine \w+")
    assert all(progress.search(line) for line in stderr if line.strip()), stderr
