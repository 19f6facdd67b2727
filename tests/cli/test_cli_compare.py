"""``gpu-envs compare``: its table, JSON, page and picture, and messages for mistakes."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from cli_tools import code_without, error_of, output_of, run_process

from gpu_envs.cli.completion import completions

pytest.importorskip("torch")

VOID = ("meta", "link", "br", "img")
"""Elements without an end tag."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of two algorithms each, with different seeds, whose logs are written by hand."""
    from gpu_envs.training.record.log import RunLog
    from gpu_envs.training.record.run_directory import RunDirectory
    from gpu_envs.training.run import Run

    folder, numbers = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    few = {"env": "CartPole-v1", "device": "cpu", "num_envs": 8, "horizon": 16, "total_steps": 1024}
    for algorithm in ("ppo", "a2c"):
        for seed in (0, 1):
            config = Run.from_flat({**few, "algorithm": algorithm, "seed": seed})
            log = RunLog(RunDirectory.create(folder / f"{algorithm}-{seed}", config).log_path)
            for iteration in range(1, 9):
                row = {"return": 10.0 + iteration * numbers.random(), "metrics/angle": 0.01 * numbers.random()}
                log.write(iteration, 128 * iteration, row, 0.5 * iteration)
    return folder


class Page(HTMLParser):
    """Check that elements nest, and collect their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_table(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heading, first, second = output_of(capsys, "compare", str(runs)).splitlines()
    columns = ["CartPole-v1, return", "runs", "steps", "iqm", "interval", "median", "mean", "min", "max"]
    assert re.split(r"  +", heading) == [*columns, "above first", "its interval"]
    assert (first.split()[:3], second.split()[:3]) == (["a2c", "2", "1024"], ["ppo", "2", "1024"])


def test_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gpu_envs.training import compare

    for column in ("return", "metrics/angle"):
        shown = json.loads(output_of(capsys, "compare", str(runs), "--value", column, "--json"))
        expected = compare([runs], column)
        assert shown.keys() == expected.keys() == {f"CartPole-v1, {column}"}
        for (name, scores), (_, group) in zip(
            *(next(iter(it.values())).items() for it in (shown, expected)), strict=True
        ):
            assert name in ("a2c", "ppo")
            assert scores["values"] == group["values"]
            assert scores["curve"]["iqm"] == group["curve"]["iqm"].tolist()
            assert scores["reached_target"] is None


def test_a_page(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is one file that loads nothing."""
    file = tmp_path / "page.html"
    table = output_of(capsys, "compare", str(runs), "--html", str(file))
    text = file.read_text()
    found = Page(text)
    assert (found.tags.count("svg"), found.tags.count("table"), found.tags.count("tr")) == (1, 1, 3)
    assert found.addresses == ["data:,"]  # an empty icon, so that browsers ask for none
    assert "://" not in text
    assert "url(" not in text
    cells = re.findall(r"<t[hd]>(.*?)</t[hd]>", text)
    assert cells[0] == "CartPole-v1, return"
    assert all(cell in table for cell in cells)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_picture(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    file = tmp_path / "curves.png"
    output_of(capsys, "compare", str(runs), "--png", str(file))
    with image.open(file) as picture:
        assert (picture.format, picture.size) == ("PNG", (700, 450))
        colours = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    assert len(np.unique(colours, axis=0)) > 20
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no runs to compare"),
        (["RUNS", "--html", "page.txt"], "its name ends in .html"),
        (["RUNS", "--png", "curves.jpg"], "its name ends in .png"),
        (["RUNS", "--png", "no/such/folder/curves.png"], "the folder no/such/folder of no/such/folder/curves.png"),
        (["RUNS", "--value", "retrun"], "Did you mean 'return'?"),
        (["RUNS", "--vlue", "return"], "Did you mean '--value'?"),
        (["CartPole-v1"], "the run directory CartPole-v1 does not exist"),
    ],
)
def test_mistakes(
    words: list[str],
    message: str,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in error_of(capsys, "compare", *(word.replace("RUNS", str(runs)) for word in words))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_matplotlib_is_optional(runs: Path, tmp_path: Path) -> None:
    code = code_without("matplotlib")
    assert run_process("compare", str(runs), code=code, cwd=tmp_path).returncode == 0
    done = run_process("compare", str(runs), "--png", "curves.png", code=code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'matplotlib' is not installed: pip install 'gpu_envs[plot]'" in done.stderr


def test_runs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    assert completions(["compare", "r"]) == ["runs/a"]
