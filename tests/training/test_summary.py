"""Results in a shell and in a notebook: tables, and plots of logs."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from trainers import GRID, small_run

from gpu_envs.evaluating import evaluation_rows
from gpu_envs.tables import html_table
from gpu_envs.training import Result, evaluate, train
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.record.summary import curves, plot, read_log, result_rows


def curve(title: str, steps: Sequence[float], values: Sequence[float], colour: str) -> str:
    return plot(title, {title: (steps, values)}, colours=[colour])


def points(picture: str) -> np.ndarray:
    """Return the steps and values of a plotted curve, converted by its axes."""
    svg = ElementTree.fromstring(picture)
    (line,) = svg.findall("polyline")
    places = np.array([pair.split(",") for pair in (line.get("points") or "").split()], float).reshape(-1, 2)
    texts = [(it.text or "", float(it.get("x") or 0), float(it.get("y") or 0)) for it in svg.findall("text")]
    ticks = [(y - 4, float(text)) for text, x, y in texts if x < 40]
    (y0, low), (y1, high) = ticks[0], ticks[-1]
    end, right = next((text, x) for text, x, _ in texts if text.endswith(" steps"))
    left = next(x for text, x, y in texts if text == "0" and y > 170)
    last = float(end.removesuffix(" steps").replace(",", ""))
    steps = (places[:, 0] - left) / (right - left) * last
    values = low + (places[:, 1] - y0) / (y1 - y0) * (high - low)
    return np.stack([steps, values], -1)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 3e5])
@pytest.mark.parametrize("shift", [0.0, -2.0, 40.0])
def test_a_curve_shows_its_values(scale: float, shift: float) -> None:
    steps = [100.0, 250.0, 700.0, 1000.0]
    values = [scale * (value + shift) for value in (0.3, -1.2, 2.7, 1.1)]
    found = points(curve("a", steps, values, "#123456"))
    assert found[:, 0] == pytest.approx(steps, abs=1)
    assert found[:, 1] == pytest.approx(values, abs=0.02 * scale * 4)


def test_missing_values_are_not_drawn() -> None:
    """Also curves with one value or none."""
    steps = [1.0, 2.0, 3.0, 4.0]
    assert points(curve("a", steps, [math.nan, 5, math.inf, 7], "red"))[:, 0] == pytest.approx([2, 4], abs=0.05)
    assert points(curve("a", [8], [5], "red")) == pytest.approx(np.array([[8, 5]]), abs=0.1)
    assert points(curve("a", [8, 9], [0, 0], "red"))[:, 1] == pytest.approx([0, 0], abs=0.1)
    assert "no episode ended" in curve("a", steps, [math.nan] * 4, "red")
    assert "no episode ended" in curve("a", [], [], "red")


def test_a_long_log_is_thinned() -> None:
    steps = list(range(1, 100_001))
    found = points(curve("a", steps, [math.sin(step / 1e4) for step in steps], "red"))
    assert 200 <= len(found) <= 401
    assert found[-1] == pytest.approx([1e5, math.sin(10)], rel=0.01)
    assert found[:, 1] == pytest.approx(np.sin(found[:, 0] / 1e4), abs=0.03)


def test_text_is_escaped() -> None:
    row = "<tr><th>&lt;b&gt;</th><td>a &amp; &quot;b&quot;</td></tr>"
    assert html_table([("<b>", 'a & "b"')]) == f"<table>\n{row}\n</table>"
    assert html_table([("a", "b"), ("c", "d")], heading=True).count("<th>") == 3
    assert ElementTree.fromstring(curve("<b> & c", [1], [1], "red")).findall("text")[0].text == "<b> & c"


def test_a_result_in_a_notebook(device: str, tmp_path: Path) -> None:
    """The same rows as in a shell, and a curve for every return and metric in the log."""
    kept: dict[str, Any] = {"run_dir": str(tmp_path / "run"), "log_interval": 1}
    config = small_run(device, GRID, total_steps=8 * 16 * 6, params={"max_episode_steps": 20}, **kept)
    result = train(config, progress=False)
    log = RunDirectory.open(tmp_path / "run").log()
    assert log["steps"] == [8 * 16 * (i + 1) for i in range(6)] == read_log(tmp_path / "run" / "log.csv")["steps"]
    kinds = ("return", "length", "entropy", "kl")
    assert {f"{role}/{kind}" for role in ("tagger", "runner") for kind in kinds} <= set(log)
    shown = result._repr_html_()
    assert shown.startswith(html_table(result_rows(result)))
    pictures = re.findall(r"<svg.*?</svg>", shown, re.DOTALL)
    assert pictures == curves(log)
    titles = [ElementTree.fromstring(picture).findall("text")[0].text for picture in pictures]
    assert titles == [f"return of {role}" for role in result.returns] + list(result.metrics)
    assert points(pictures[0])[-1] == pytest.approx([768, result.returns["tagger"]], abs=0.2)
    with (tmp_path / "run" / "log.csv").open("a") as file:
        file.write("7,89")  # an incomplete row
    np.testing.assert_equal(RunDirectory.open(tmp_path / "run").log(), log)

    found = evaluate(tmp_path / "run", episodes=8, device=device)
    assert found._repr_html_() == html_table(evaluation_rows(found), heading=True)
    assert [row[0] for row in evaluation_rows(found)[1:]] == [*found, *found["tagger"].metrics]


def test_a_result_without_a_folder_is_a_table() -> None:
    for gone in (None, "no/such/run"):
        result = Result(gone, "total_steps", 2, 64, 0.5, {"agent": math.nan})
        assert result._repr_html_() == html_table(result_rows(result))
        assert ("return", "no episode ended") in result_rows(result)
    result = Result(None, "total_steps", 2, 64, 0.5, {"agent": 1.0}, fallback_reasons={"agent": "it has six layers"})
    assert result_rows(result)[-1] == ("torch ran agent", "it has six layers")
