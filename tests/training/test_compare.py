"""Comparison of runs: statistics against SciPy, groups, curves up to the last common step, notes and errors."""

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("torch")

from trainers import GRID, run_of, small_run

from gpu_envs.training import RunDirectory, compare, train
from gpu_envs.training.comparison import interval, iqm, share_above
from gpu_envs.training.record.log import RunLog

CARTPOLE = "CartPole-v1, return"
random = np.random.default_rng(1)


def logged(folder: Path, values: Sequence[float], *, gap: int = 100, column: str = "return", **settings: Any) -> Path:
    """Write a run directory whose log has the values at the steps ``gap``, ``2 * gap`` and so on; return its path."""
    run = RunDirectory.create(folder, run_of(**{"env": "CartPole-v1", "run_dir": str(folder)} | settings))
    log = RunLog(run.log_path)
    for i, value in enumerate(values, 1):
        log.write(i, i * gap, {column: value}, i / 2)
    return folder


def seeds(folder: Path, lasts: Sequence[float], **settings: Any) -> list[Path]:
    """Write a run for each last value, with seeds from 0 on."""
    return [logged(folder / str(k), [0.0, last], seed=k, **settings) for k, last in enumerate(lasts)]


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 5, 7, 8, 50])
def test_the_interquartile_mean_is_scipys_trimmed_mean(runs: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    values = random.normal(size=(runs, 6))
    assert iqm(values) == pytest.approx(stats.trim_mean(values, 0.25, axis=0))


def test_the_interquartile_mean_by_hand() -> None:
    assert iqm(np.array([3.0, -1000.0, 5.0, 1e6])) == 4.0
    assert iqm(np.array([1.0, 2.0, 6.0])) == 3.0


@pytest.mark.parametrize("runs", [5, 12])
def test_the_interval_is_scipys_percentile_bootstrap(runs: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    values = random.exponential(size=(runs, 1))
    low, high = interval(iqm, values)[:, 0]

    def statistic(sample: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(stats.trim_mean(sample, 0.25, axis=axis))

    expected = stats.bootstrap((values[:, 0],), statistic, n_resamples=20_000, method="percentile", rng=0)
    # the standard error of a 2.5 % quantile of 2,000 draws is about 3 % of the interval's width
    tolerance = 0.12 * (high - low)
    assert (low, high) == pytest.approx(tuple(expected.confidence_interval), abs=tolerance)


def test_intervals_of_many_runs_cover_the_true_value() -> None:
    """Of 30 normal runs; percentile intervals are slightly too narrow, and those of few runs much."""
    trials = 500

    def coverage(runs: int) -> float:
        low, high = interval(iqm, random.normal(2.0, 3.0, size=(runs, trials)))
        return float(((low <= 2.0) & (high >= 2.0)).mean())

    assert 0.90 <= coverage(30) <= 0.975
    assert coverage(3) < 0.85


def test_the_share_of_pairs_is_mann_whitneys_statistic() -> None:
    stats = pytest.importorskip("scipy.stats")
    values, first = random.integers(0, 6, size=(9, 1)), random.integers(1, 7, size=(5, 1))
    expected = stats.mannwhitneyu(values[:, 0], first[:, 0]).statistic / (9 * 5)
    assert share_above(values, first) == pytest.approx(expected)
    assert share_above(np.array([[1.0], [3.0]]), np.array([[2.0], [3.0]])) == (0 + 0 + 1 + 0.5) / 4
    assert share_above(first, values) == pytest.approx(1 - expected)


def test_statistics_do_not_depend_on_the_order_of_runs() -> None:
    values, first = random.normal(size=(6, 4)), random.normal(size=(5, 4))
    order = random.permutation(6)
    assert interval(iqm, values).tolist() == interval(iqm, values[order]).tolist()
    assert interval(share_above, values, first).tolist() == interval(share_above, values[order], first[::-1]).tolist()


def test_points_are_independent_of_one_another() -> None:
    """An interval depends only on its own column of values, and on the draws of runs."""
    values = np.sort(random.normal(size=(6, 3)), axis=0)
    assert interval(iqm, values)[:, :1].tolist() == interval(iqm, values[:, :1]).tolist()


def test_one_run_has_no_interval(tmp_path: Path) -> None:
    assert np.isnan(interval(iqm, np.ones((1, 3)))).all()
    assert np.isnan(interval(share_above, np.ones((4, 1)), np.ones((1, 1)))).all()
    found = compare([logged(tmp_path / "a", [1.0, 2.0])])
    assert list(found[CARTPOLE]) == ["CartPole-v1 ppo"]
    assert repr(found).splitlines()[0].split() == "CartPole-v1, return runs steps iqm median mean min max".split()
    assert found[CARTPOLE]["CartPole-v1 ppo"]["iqm"] == 2.0
    assert "<polyline" in found._repr_html_()
    assert "<polygon" not in found._repr_html_()


def test_scores_by_hand(tmp_path: Path) -> None:
    found = compare([*seeds(tmp_path / "a", [1, 5, 100, 3]), *seeds(tmp_path / "b", [4, 6], learning_rate=0.5)])
    slow, fast = found[CARTPOLE].values()
    assert list(found[CARTPOLE]) == ["learning_rate=0.001", "learning_rate=0.5"]
    names = ("runs", "steps", "iqm", "median", "mean", "min", "max")
    assert [slow[name] for name in names] == [4, 200, 4, 4, 27.25, 1, 100]
    assert list(slow["values"].values()) == [1, 5, 100, 3]
    assert "above_first" not in slow
    assert fast["above_first"] == (2 + 3) / 8
    low, high = fast["its_interval"]
    assert low <= fast["above_first"] <= high
    low, high = slow["interval"]
    assert 1 <= low <= slow["iqm"] <= high <= 100


def test_curves_are_interpolated(tmp_path: Path) -> None:
    """Of runs with rows at other steps, between the first steps and the last steps that all have reached."""
    first = logged(tmp_path / "a", [math.nan, 0.0, 4.0, 8.0], gap=100, seed=0)
    second = logged(tmp_path / "b", [1.0, 1.0], gap=190, seed=1)
    (scores,) = compare([first, second])[CARTPOLE].values()
    steps, middle, low, high = scores["curve"].values()
    assert (steps[0], steps[-1]) == (200, 380)
    assert middle == pytest.approx(((steps - 200) / 25 + 1) / 2)
    assert (low <= middle).all()
    assert (high >= middle).all()
    assert scores["note"] == f"up to the end of {second}"
    assert scores["values"] == pytest.approx({str(first): 7.2, str(second): 1.0})


def test_names_have_the_settings_that_differ(tmp_path: Path) -> None:
    """Those of the same algorithm; parameters and policies count; device, logging and saving do not."""
    runs = [
        logged(tmp_path / "a", [1.0], params={"pole_mass": 0.2}, threads=2, log_interval=3),
        logged(tmp_path / "b", [1.0], params={"pole_mass": 0.2}, device="cpu", keep_checkpoints=1, seed=4),
        logged(tmp_path / "c", [1.0], epochs=9),
        logged(tmp_path / "d", [1.0], algorithm="a2c"),
        logged(tmp_path / "e", [1.0], algorithm="a2c", target_return=30.0),
        logged(tmp_path / "f", [1.0], env="Acrobot-v1", algorithm="pqn"),
    ]
    found = compare(runs)
    assert list(found) == [CARTPOLE, "Acrobot-v1, return"]
    assert [scores["runs"] for scores in found[CARTPOLE].values()] == [2, 1, 1, 1]
    first, second, *others = found[CARTPOLE]
    assert first == "ppo epochs=4 params.pole_mass=0.2"
    assert second == "ppo epochs=9"
    assert others == ["a2c target_return=None", "a2c target_return=30.0"]
    assert list(found["Acrobot-v1, return"]) == ["Acrobot-v1 pqn"]


def test_runs_in_folders_count_once(tmp_path: Path) -> None:
    runs = seeds(tmp_path, [1, 2, 3])
    assert repr(compare([tmp_path])) == repr(compare(runs)) == repr(compare([*map(RunDirectory, runs), tmp_path]))


def test_the_order_of_runs_does_not_matter(tmp_path: Path) -> None:
    runs = seeds(tmp_path, random.normal(size=5).tolist())
    texts = {repr(compare(order)) for order in itertools.islice(itertools.permutations(runs), 0, None, 29)}
    assert len(texts) == 1


def test_equal_seeds_are_noted(tmp_path: Path) -> None:
    runs = [logged(tmp_path / name, [1.0, 2.0], seed=3) for name in "ab"]
    (scores,) = compare(runs)[CARTPOLE].values()
    assert scores["note"] == "some seeds are equal"


def test_targets(tmp_path: Path) -> None:
    """A run that has not reached the target takes longer than all others."""
    runs = [
        logged(tmp_path / str(k), [2.0] * (3 + k) + [last], target_return=10.0, seed=k)
        for k, last in enumerate((10, 9, 11))
    ]
    (scores,) = compare(runs)[CARTPOLE].values()
    assert scores["reached_target"] == pytest.approx(2 / 3)
    assert (scores["after_steps"], scores["after_seconds"]) == (600, 3.0)
    (scores,) = compare(runs[:2])[CARTPOLE].values()
    assert (scores["reached_target"], scores["after_steps"]) == (0.5, math.inf)


@pytest.mark.parametrize("policies", [{"tagger": "random"}, {}])
def test_a_teams_return_is_that_of_its_target_role(tmp_path: Path, policies: dict[str, str]) -> None:
    log = RunLog(RunDirectory.create(tmp_path / "a", run_of(env=GRID, policies=policies)).log_path)
    log.write(1, 64, {"tagger/return": 3.0, "runner/return": 5.0, "kl": 0.1}, 1.0)
    role = "runner" if policies else "tagger"
    assert list(compare([tmp_path / "a"])) == [f"{GRID}, {role}/return"]
    assert list(compare([tmp_path / "a"], "kl")) == [f"{GRID}, kl"]
    run = RunDirectory.open(tmp_path / "a")
    run.amend(dataclasses.replace(run.config(), target_role="runner"), 1)
    assert list(compare([tmp_path / "a"])) == [f"{GRID}, runner/return"]


def test_errors_name_the_run(tmp_path: Path) -> None:
    run = logged(tmp_path / "a", [math.nan, 1.0])
    with pytest.raises(
        ValueError, match=re.escape(f"{run}/log.csv has no value of 'retrun'") + ".*Did you mean 'return'"
    ):
        compare([run], "retrun")
    for values in ([], [math.nan]):
        with pytest.raises(ValueError, match=r"b\d/log.csv has no value of 'return' \(train the run for longer"):
            compare([run, logged(tmp_path / f"b{len(values)}", values)])
    with pytest.raises(ValueError, match="c ends before another run"):
        compare([run, logged(tmp_path / "c", [1.0], seed=1)])
    with pytest.raises(ValueError, match="no runs to compare"):
        compare([])
    with pytest.raises(FileNotFoundError, match="nothing does not exist"):
        compare([run, tmp_path / "nothing"])


def test_plots_show_every_group(tmp_path: Path) -> None:
    runs = [*seeds(tmp_path / "a", [1, 5, 100, 3]), *seeds(tmp_path / "b", [4, 6], learning_rate=0.5)]
    page = compare(runs)._repr_html_()
    table, svg = (ElementTree.fromstring(part) for part in re.findall(r"<(?:svg|table).*?</(?:svg|table)>", page, re.S))
    assert len(svg.findall("polyline")) == len(svg.findall("polygon")) == 2
    texts = [element.text for element in svg.findall("text")]
    assert texts[:4] == ["learning_rate=0.001", "latest 4", "learning_rate=0.5", "latest 5"]
    lines = [line.get("points", "").split() for line in svg.findall("polyline")]
    bands = [band.get("points", "").split() for band in svg.findall("polygon")]
    ys = [float(point.split(",")[1]) for line in lines for point in line]
    assert 28 < min(ys) < max(ys) < float(svg.get("viewBox", "").split()[3]) - 20
    for line, band in zip(lines, bands, strict=True):
        assert len(band) == 2 * len(line)
        upper, lower = (float(point.split(",")[1]) for point in (band[len(line)], band[len(line) - 1]))
        assert upper <= float(line[-1].split(",")[1]) <= lower
    assert len(table.findall("tr")) == 3


def test_trained_runs(device: str, tmp_path: Path) -> None:
    """Groups, last values and steps are those of the logs."""
    folders = []
    for rate, seed in itertools.product((0.001, 0.01), (0, 1)):
        folders.append(tmp_path / f"{rate}-{seed}")
        settings: dict[str, Any] = {"learning_rate": rate, "seed": seed, "run_dir": str(folders[-1]), "log_interval": 1}
        train(small_run(device, total_steps=8 * 16 * 8, **settings), progress=False)
    found = compare(folders)[CARTPOLE]
    assert list(found) == ["learning_rate=0.001", "learning_rate=0.01"]
    lasts = {str(folder): RunDirectory.open(folder).log()["return"][-1] for folder in folders}
    assert {path: value for scores in found.values() for path, value in scores["values"].items()} == lasts
    assert {scores["steps"] for scores in found.values()} == {8 * 16 * 8}


def test_the_figure_has_the_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = compare([*seeds(tmp_path / "a", [1, 5]), *seeds(tmp_path / "b", [4, 6], env="Acrobot-v1")])
    axes = found.figure().axes
    assert [each.get_title() for each in axes] == list(found)
    for each, groups in zip(axes, found.values(), strict=True):
        for line, (name, scores) in zip(each.lines, groups.items(), strict=True):
            assert line.get_label() == name
            assert line.get_xydata() == pytest.approx(np.stack([scores["curve"]["steps"], scores["curve"]["iqm"]], -1))
