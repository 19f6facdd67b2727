"""The plots of the results: committed plots match the committed results."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from PIL import Image

from benchmarks import gallery, record
from benchmarks.plot import peers, style, training
from benchmarks.plot.__main__ import PLOTS, draw_all
from gpu_envs.envs import ALL

DOCUMENTS = {path.stem: json.loads(path.read_text()) for path in record.RESULTS.glob("*.json")}


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), np.int16)


def difference(one: Path, other: Path) -> float:
    """Returns the fraction of squares whose mean brightness differs by more than 20 of 255; infinity if sizes differ.

    Squares of 32 pixels hold a few letters each: the other letters of another version of matplotlib show little.
    """

    def squares(path: Path) -> np.ndarray:
        grey = pixels(path).mean(-1)
        rows, columns = (length // 32 for length in grey.shape)
        means: np.ndarray = grey[: rows * 32, : columns * 32].reshape(rows, 32, columns, 32).mean((1, 3))
        return means

    if pixels(one).shape != pixels(other).shape:
        return math.inf
    return float((abs(squares(one) - squares(other)) > 20).mean())


TOLERANCE = 0.002
"""Tolerance: matplotlib 3.10 and 3.11 differ by up to 0.0008."""


def metadata_of(path: Path, key: str) -> str:
    with Image.open(path) as image:
        return str(image.info[key])


@pytest.fixture(scope="module")
def redrawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    draw_all(record.RESULTS, folder, lambda _: None)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", PLOTS)
def test_committed_plots_match_the_committed_results(name: str, redrawn: Path) -> None:
    """Files are equal with the same library versions; other versions render letters slightly differently."""
    committed, again = record.RESULTS / name, redrawn / name
    assert committed.exists() == again.exists(), "run python -m benchmarks.plot"
    if not again.exists():
        assert any(document not in DOCUMENTS for document in PLOTS[name].needs)
        return
    assert metadata_of(committed, "Comment") == metadata_of(again, "Comment"), "run python -m benchmarks.plot"
    if metadata_of(committed, "Software") == style.software():
        same = committed.read_bytes() == again.read_bytes()  # pytest takes minutes to compare long bytes in an assert
        assert same, "run python -m benchmarks.plot"
    else:
        assert difference(committed, again) < TOLERANCE


def test_every_environment_has_a_moving_picture() -> None:
    recordings = {gallery.FOLDER / f"{gallery.stem(spec.id)}.gif" for spec in ALL}
    assert {*gallery.FOLDER.glob("*.gif")} == recordings, "run python -m benchmarks.gallery"
    assert sum(path.stat().st_size for path in recordings) < 8e6
    for path in recordings:
        with Image.open(path) as image:
            first = np.asarray(image.convert("RGB"))
            image.seek(image.n_frames // 2)  # type: ignore[attr-defined]  # of formats with frames
            assert (np.asarray(image.convert("RGB")) != first).any(), path


def test_no_plot_is_unused() -> None:
    assert {path.name for path in record.RESULTS.glob("*.png")} <= set(PLOTS)
    assert not list(record.RESULTS.glob("*.svg"))


@pytest.mark.slow
def test_plots_fit_a_page_and_have_an_opaque_background(redrawn: Path) -> None:
    """They stay dark on light on a dark page."""
    for path in redrawn.iterdir():
        height, width, _ = pixels(path).shape
        assert width == style.WIDTH * style.DPI
        assert height < 1.3 * width
        assert path.stat().st_size < 400_000
        with Image.open(path) as image:
            assert np.asarray(image.convert("RGBA"))[..., 3].min() == 255
        corners = pixels(path)[[0, 0, -1, -1], [0, -1, 0, -1]]
        assert (corners > 240).all()


def test_missing_results_are_reported_with_their_command(tmp_path: Path) -> None:
    document = copy.deepcopy(DOCUMENTS["training_cuda"])
    del document["sections"]["solve"]
    runners = document["sections"]["tag_learning"]["results"]["TagContinuous-v0"]["runners"]
    runners["runs"]["kernels"][0]["curve"][0][1] += 1
    (tmp_path / "training_cuda.json").write_text(json.dumps(document))
    lines: list[str] = []
    drawn = draw_all(tmp_path, tmp_path, lines.append)
    assert [path.name for path in drawn] == ["tag_training.png"]
    for path in drawn:  # different numbers give a different plot
        assert metadata_of(path, "Comment") != metadata_of(record.RESULTS / path.name, "Comment")
    assert (
        "scaling_cuda.png: skipped, missing: scaling_cuda.json; run python -m benchmarks.throughput --device cuda"
        in lines
    )
    assert (
        "training_cuda.png: skipped, missing: solve of training_cuda.json; run "
        "python -m benchmarks.training --device cuda --only solve throughput" in lines
    )
    assert len(lines) == len(PLOTS)


@pytest.mark.slow
def test_the_users_style_has_no_effect(tmp_path: Path, redrawn: Path) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 10}):
        draw_all(record.RESULTS, tmp_path, lambda _: None)
    for path in redrawn.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


@pytest.mark.parametrize(
    ("value", "words"),
    [(1, "1"), (999.4, "999"), (999.6, "1 k"), (41e9, "41 G"), (1.64848e11, "165 G"), (2e12, "2 T"), (0.05, "0.05")],
)
def test_numbers_are_short(value: float, words: str) -> None:
    assert record.format_short(value) == words


def test_curves_are_thinned_to_means() -> None:
    curve = [[second / 10, second] for second in range(1001)]
    points = training.thin(curve)
    assert len(points) <= training.MAX_POINTS
    assert points[0] == (0.5, 2.5)  # the mean of 0 to 5, at its end
    assert points[-1][0] == 100.0
    assert training.thin(curve[:7]) == [(t, length) for t, length in curve[:7]]


def section(label: str, *rows: dict[str, Any], gpu: str | None = None) -> dict[str, Any]:
    return {"machine": {"gpu": gpu}, "results": {"label": label, "rows": list(rows)}}


def peer_row(rate: float, ours: float | None, **fields: Any) -> dict[str, Any]:
    fixed = {"task": "CartPole-v1", "way": "host", "device": "cpu", "cores": "one", "variant": None, "num_envs": 1}
    return fixed | {"env_steps_per_s": rate, "ours_env_steps_per_s": ours} | fields


def test_bars_show_the_best_row_of_each_peer_and_ours_for_the_same_workload() -> None:
    sections = {
        "ours": section("gpu_envs", peer_row(50.0, None), peer_row(400.0, None), peer_row(9.0, None, cores="all")),
        "other": section(
            "Other",
            peer_row(1.0, 50.0, variant="A"),
            peer_row(10.0, 400.0, variant="A"),
            peer_row(5.0, 9.0, variant="B", cores="all"),
            {**peer_row(0, 0), "failed": "no memory"},
        ),
    }
    bars = peers.bars_of(sections, peers.GROUPS[0])
    assert [tuple(bar) for bar in bars] == [
        ("Other, B, all cores", 5.0, 1.8),
        ("gpu_envs, all cores", 9.0, None),
        ("Other, A, one core", 10.0, 40.0),
        ("gpu_envs, one core", 400.0, None),
    ]
    assert [peers.format_bar(bar) for bar in bars] == ["5  (1.8x)", "9", "10  (40x)", "400"]
    del sections["ours"]["results"]["rows"][:]  # a later run measured other workloads of gpu_envs
    assert peers.bars_of(sections, peers.GROUPS[0])[-1] == ("gpu_envs", 400.0, None)
    del sections["other"]
    assert peers.bars_of(sections, peers.GROUPS[0]) == []  # no comparison without a peer


def test_bar_names_on_a_gpu() -> None:
    sections = {
        "ours": section("gpu_envs", peer_row(50.0, None, device="cuda", cores=None), gpu="a GPU"),
        "other": section("Other", peer_row(1.0, 50.0, way="step", device="cuda", cores=None)),
    }
    assert peers.bar_name("gpu_envs", sections["ours"]["results"]["rows"][0], sections) == "gpu_envs, GPU"
    assert peers.bar_name("Other", sections["other"]["results"]["rows"][0], sections) == "Other"
    assert peers.bar_name("Other", peer_row(1, 1, way="graph", device="cuda"), sections) == "Other, CUDA graph"
    assert peers.bar_name("Other", peer_row(1, 1, way="step"), sections) == "Other, CPU"
