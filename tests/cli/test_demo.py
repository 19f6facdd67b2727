"""``gpu-envs demo``: it trains, measures, and leaves one page, which plays in a browser."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from browser import Browser, Tab
from cli_tools import refused, run, started

from gpu_envs.cli import INTERRUPTED, OK

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it ran, trained for a moment, on a machine with a screen; what it printed is in ``told``."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "tmp").mkdir()
    (folder / "work").mkdir()
    settings = {"TMPDIR": str(folder / "tmp"), "DISPLAY": ":0", "BROWSER": f"{sys.executable} -c {RECORD} %s"}
    words = ("--device", "cpu", "--total-steps", "20000", "--seed", "3")
    done = run("demo", *words, cwd=folder / "work", OPENED=str(folder / "opened"), **settings)
    assert (done.returncode, done.stderr) == (OK, "")
    (folder / "told").write_text(done.stdout)
    return folder


RECORD = "'import os,sys,pathlib;pathlib.Path(os.environ[\"OPENED\"]).write_text(sys.argv[1])'"
"""A browser that keeps a note of what it was to open."""


@pytest.mark.slow
def test_it_says_what_it_does(folder: Path) -> None:
    """What was learnt, how fast it all is, and where the page is, which is all that it leaves; in 80 columns."""
    page = folder / "work" / "demo.html"
    assert list((folder / "work").iterdir()) == [page]
    assert list((folder / "tmp").iterdir()) == []
    assert (folder / "opened").read_text() == page.as_uri()
    lines = (folder / "told").read_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if not line.startswith(" ")][:-1] == [
        "Training CartPole-v1",
        "Training TagContinuous-v0",
        "Measuring CartPole-v1, beside Gymnasium's own",
    ]
    first, last = map(float, re.findall(r"([\d.]+) at first, ([\d.]+) at the end, for 475", lines[1])[0])
    assert 10 < first <= last < 475
    assert re.match(r"page: demo.html \(\d+ KB\), opened in the browser$", lines[-1])
    rows = [re.split("  +", line.strip()) for line in lines if line.endswith(" x")]
    assert [row[0].split()[1] for row in rows] == ["SyncVectorEnv", "CartPoleVectorEnv", "one", "many"]
    sync, vectorised, one, many = (float(row[-1].removesuffix(" x")) for row in rows)
    assert sync < 0.1 < vectorised == 1 < many  # so far apart that no other process hides it
    assert one > 10 * sync


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_plays(width: int, folder: Path, browser: Browser) -> None:
    """Each environment before and after, its curves and the speeds; without a network, and whole at any width."""
    tab = Tab(browser)
    tab.open(folder / "work" / "demo.html", width=width)
    tab.wait(f"{FRAMES}.every((it) => it.getElementById('player') && !it.getElementById('player').hidden)")
    titles = tab.run(f"{FRAMES}.map((it) => it.querySelector('h1').textContent)")
    assert titles == [
        "CartPole-v1: random actions",
        "CartPole-v1: after 32,768 steps of training",
        "TagContinuous-v0: random actions",
        "TagContinuous-v0: after 20,480 steps of training",
    ]
    tab.run("document.querySelector('iframe').scrollIntoView()")
    tab.wait(f"{FRAMES}[0].getElementById('scrub').value > 3")  # it plays when it is seen
    tab.wait(f"{FRAMES}.every((it) => it.documentElement.scrollHeight <= it.defaultView.innerHeight)")
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run("document.querySelectorAll('svg polyline').length") == 3 + 4
    assert tab.run("document.querySelectorAll('td').length") == 4 * 3
    assert tab.complaints() == []
    assert [each for each in tab.requests() if not each.startswith(("file:", "data:", "about:"))] == []
    tab.close()


FRAMES = "[...document.querySelectorAll('iframe')].map((it) => it.contentDocument)"


@pytest.mark.slow
def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    """And nothing is left."""
    (tmp_path / "tmp").mkdir()
    words = ("--device", "cpu", "--no-open", "--progress")
    process = started("demo", *words, cwd=tmp_path, TMPDIR=str(tmp_path / "tmp"))
    try:
        while not list(tmp_path.glob("tmp/*/CartPole-v1/log.csv")):
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == INTERRUPTED
    assert said.endswith("gpu-envs: interrupted\n")
    assert [path.name for path in tmp_path.rglob("*")] == ["tmp"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "page.pdf"], "a page cannot be 'page.pdf'; its name ends in .html"),
        (["--out", "a/b.html"], "the folder a of a/b.html does not exist"),
        (["--seed", "-1"], "--seed is -1; give a whole number from 0 up"),
        (["CartPole-v1"], "nothing is expected after gpu-envs demo but its options; got 'CartPole-v1'"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "demo", "--device", "cpu", *words)
    assert list(tmp_path.iterdir()) == []
