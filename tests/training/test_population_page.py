"""The page of a population, ``runs.html``."""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, Tab, text_of

pytest.importorskip("torch")

from trainers import small_run

from gpu_envs.training import Outcome, Run
from gpu_envs.training.population_result import PopulationResult

HOSTILE = "</script><script>document.title = 'broken'</script><!--"


def result_of(settings: Sequence[Mapping[str, Any]], returns: Sequence[float], reason: str = "total_steps") -> Any:
    """Returns results of runs with these settings, whose curves rise to these returns; NaN is of a diverged run."""
    runs = [Run.from_flat(small_run("cpu").flat() | dict(each)) for each in settings]
    outcomes = [Outcome("diverged" if math.isnan(each) else reason, 3, each) for each in returns]
    steps = np.array([100, 200, 300])
    return PopulationResult(runs, outcomes, steps, np.array(returns)[:, None] * steps / 300, 1.0)


def data_of(result: PopulationResult, folder: Path) -> dict[str, Any]:
    """Returns the data in the page of these results."""
    result.write(folder)
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', (folder / "runs.html").read_text())
    data: dict[str, Any] = json.loads(found[0])
    return data


def axis_of(data: Mapping[str, Any], name: str) -> tuple[dict[float, str], list[float]]:
    """Returns the ticks of an axis by their places, and the places of all runs."""
    number = [axis["name"] for axis in data["axes"]].index(name)
    return dict(data["axes"][number]["ticks"]), [places[number] for places in data["places"]]


def test_the_page_has_the_values_of_all_runs(tmp_path: Path) -> None:
    rates = [1e-4, 1e-3, 1e-2]
    settings = [{"learning_rate": rate, "gamma": gamma} for rate in rates for gamma in (0.9, 0.95)]
    data = data_of(result_of(settings, [10.0, 20.0, 60.0, 40.0, 30.0, 50.0]), tmp_path)
    assert data["columns"] == ["run", "learning_rate", "gamma", "return", "iterations", "reason"]
    assert data["runs"][3] == ["3", "0.001", "0.95", "40", "3", "total_steps"]
    assert data["order"] == [2, 5, 3, 4, 1, 0]
    ticks, places = axis_of(data, "learning_rate")  # logarithmic
    assert places == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert {0.0: "0.0001", 0.5: "0.001", 1.0: "0.01"}.items() <= ticks.items()
    ticks, places = axis_of(data, "gamma")
    assert places == [0.0, 1.0] * 3
    assert {0.0: "0.9", 1.0: "0.95"}.items() <= ticks.items()
    assert axis_of(data, "return")[1] == [0.0, 0.2, 1.0, 0.6, 0.4, 0.8]
    # the curves of returns 10 and 35, the mean of 20, 30, 40 and 50, on an axis from 10 / 3 to 60
    low, extent = 10 / 3, 60 - 10 / 3
    assert data["curves"][0] == pytest.approx([0, (20 / 3 - low) / extent, (10 - low) / extent], abs=1e-4)
    assert data["curves"][6][2] == pytest.approx((35 - low) / extent, abs=1e-4)


def test_missing_values_are_below_the_axes(tmp_path: Path) -> None:
    settings = [{"max_grad_norm": norm} for norm in (None, 0.5, 1.0)]
    data = data_of(result_of(settings, [4.0, math.nan, 2.0]), tmp_path)
    assert axis_of(data, "max_grad_norm")[1] == [-0.1, 0.0, 1.0]
    assert axis_of(data, "max_grad_norm")[0][-0.1] == "None"
    assert axis_of(data, "return")[1] == [1.0, -0.1, 0.0]
    assert axis_of(data, "return")[0][-0.1] == "nan"
    assert data["order"] == [0, 2, 1]
    assert data["runs"][1][-3:] == ["nan", "3", "diverged"]
    assert data["curves"][1] == [-0.1] * 3


def test_other_settings_are_words_at_equal_distances(tmp_path: Path) -> None:
    sizes = [[64, 64], [128, 128], [32, 32], [64, 64]]
    settings = [{"hidden": size, "normalise_rewards": size[0] > 32} for size in sizes]
    data = data_of(result_of(settings, [1.0, 2.0, 3.0, 4.0]), tmp_path)
    assert axis_of(data, "hidden") == ({0.0: "[32, 32]", 0.5: "[64, 64]", 1.0: "[128, 128]"}, [0.5, 1.0, 0.0, 0.5])
    assert axis_of(data, "normalise_rewards")[0] == {0.0: "True", 1.0: "False"}


@pytest.mark.parametrize("returned", [7.0, math.nan])
def test_one_run(returned: float, tmp_path: Path) -> None:
    data = data_of(result_of([{}], [returned]), tmp_path)
    ticks, places = axis_of(data, "return")
    assert (ticks, places) == (({-0.1: "nan"}, [-0.1]) if math.isnan(returned) else ({0.5: "7"}, [0.5]))
    assert data["columns"] == ["run", "return", "iterations", "reason"]


def test_a_population_that_was_interrupted_at_once(tmp_path: Path) -> None:
    result = result_of([{"seed": 0}, {"seed": 1}], [math.nan] * 2)
    empty = PopulationResult(result.runs, result.outcomes, np.zeros(0), np.zeros((2, 0)), 1.0)
    assert data_of(empty, tmp_path)["curves"] == [[]] * 3


def test_runs_with_other_steps_have_a_common_mean(tmp_path: Path) -> None:
    """A run's value between two of its points is on the line between them, and after its last point is the last."""
    result = result_of([{"seed": 0}, {"seed": 1}], [3.0, 9.0])
    curves = np.array([[1.0, math.nan, 3.0], [math.nan, 6.0, math.nan]])
    data = data_of(PopulationResult(result.runs, result.outcomes, result.steps, curves, 1.0), tmp_path)
    means = [1 + place * 5 for place in data["curves"][2]]  # the axis is from 1 to 6
    assert means == pytest.approx([1, 4, 4.5], abs=1e-3)


def test_no_text_can_end_the_script(tmp_path: Path) -> None:
    result = result_of([{"run_dir": "a"}, {"run_dir": HOSTILE}], [1.0, 2.0])
    result.write(tmp_path)
    assert HOSTILE[:16] not in (tmp_path / "runs.html").read_text()
    assert data_of(result, tmp_path)["runs"][1][1] == HOSTILE


def drag(tab: Tab, x: float, start: float, end: float) -> None:
    """Presses the mouse at a point, moves it vertically, and releases it."""
    moves = [("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)]
    for kind, y in moves:
        tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)


@pytest.mark.parametrize("width", [1280, 700])
def test_brushes_select_runs(width: int, browser: Browser, tmp_path: Path) -> None:
    rates, gammas = (1e-4, 1e-3, 1e-2), (0.9, 0.95, 0.99)
    pairs = itertools.product(rates, gammas)
    settings = [{"learning_rate": rate, "gamma": gamma, "run_dir": HOSTILE * (rate > 1e-3)} for rate, gamma in pairs]
    result_of(settings, [*range(8), math.nan]).write(tmp_path)
    page, tab = tmp_path / "runs.html", Tab(browser)
    tab.open(page, width=width, ready="document.querySelector('td') !== null")

    def rows() -> list[str]:
        """Returns the numbers of the runs in the table."""
        return list(tab.run("[...document.querySelectorAll('td:first-child')].map((it) => it.textContent)"))

    def at(axis: int, place: float) -> tuple[float, float]:
        """Returns window coordinates of a place on an axis."""
        left, top = tab.run("[settings.canvas.getBoundingClientRect()].flatMap(({ x, y }) => [x, y])")
        x, y = tab.run(f"[settings.x(at[{axis}]), settings.y({place})]")
        return left + x, top + y

    assert rows() == ["7", "6", "5", "4", "3", "2", "1", "0", "8"]
    (x, low), (_, high) = at(0, 0.4), at(0, 0.6)
    before = tab.canvas("#learning")
    drag(tab, x, low, high)
    assert rows() == ["5", "4", "3"]
    assert text_of(tab, "#told") == "3 of 9 selected"
    assert (tab.canvas("#learning") != before).any()  # the others fade in both pictures
    (x, low), (_, high) = at(1, 0.9), at(1, 1)
    drag(tab, x, high, low)
    assert rows() == ["5"]
    drag(tab, *(at(0, 0.5) + at(0, 0.5)[1:]))  # a click
    assert rows() == ["5", "2", "8"]
    x, y = at(0, 0.5)
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + 2, y=y)
    assert re.fullmatch(
        "run 5, .*learning_rate 0.001, .*return 5, iterations 3, reason total_steps", text_of(tab, "#told")
    )
    assert tab.problems() == []
    assert tab.requests() == [page.as_uri()]
    tab.close()
