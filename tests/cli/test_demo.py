"""Tests of ``gpu-envs demo`` and of the page that it writes, in a browser."""

import itertools
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from browser import Browser, Tab
from cli_tools import error_of, run_process, start_process

from gpu_envs.cli import INTERRUPTED, OK

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the demo briefly, as on a machine with a screen; its output is in the file ``output`` of the folder."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "tmp").mkdir()
    (folder / "work").mkdir()
    settings = {"TMPDIR": str(folder / "tmp"), "DISPLAY": ":0", "BROWSER": f"{sys.executable} -c {RECORD} %s"}
    words = ("--device", "cpu", "--total-steps", "20000", "--seed", "3")
    done = run_process("demo", *words, cwd=folder / "work", OPENED=str(folder / "opened"), **settings)
    assert (done.returncode, done.stderr) == (OK, "")
    (folder / "output").write_text(done.stdout)
    return folder


RECORD = "'import os,sys,pathlib;pathlib.Path(os.environ[\"OPENED\"]).write_text(sys.argv[1])'"
"""A fake browser that writes the address to a file."""


@pytest.mark.slow
def test_the_output_and_the_files(folder: Path) -> None:
    """It prints returns, speeds and the page's path in 80 columns, and writes only the page."""
    page = folder / "work" / "demo.html"
    assert list((folder / "work").iterdir()) == [page]
    assert list((folder / "tmp").iterdir()) == []
    assert (folder / "opened").read_text() == page.as_uri()
    lines = (folder / "output").read_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if not line.startswith(" ")][:-1] == [
        "Training CartPole-v1",
        "Training TagContinuous-v0",
        "Measuring CartPole-v1, here and in Gymnasium",
    ]
    first, last = map(float, re.findall(r"([\d.]+) at first, ([\d.]+) at the end, target 475", lines[1])[0])
    assert 10 < first <= last < 475
    assert re.match(r"page: demo.html \(\d+ KB\), opened in the browser$", lines[-1])
    rows = [re.split("  +", line.strip()) for line in lines if re.match("  (Gymnasium|gpu_envs), ", line)]
    assert [row[0].split()[1] for row in rows] == ["SyncVectorEnv", "CartPoleVectorEnv", "one", "many"]
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    sync, vectorised, one, many = (float(rate.split()[0]) * units[rate[-1]] for *_, rate in rows)
    assert 10 * sync < vectorised < many  # far apart, so that load on the machine does not matter
    assert one > 10 * sync


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_plays(width: int, folder: Path, browser: Browser) -> None:
    """It shows replays, curves and speeds, needs no network, and fits any width."""
    tab = Tab(browser)
    tab.open(folder / "work" / "demo.html", width=width)
    tab.wait(f"{FRAMES}.every((it) => it.getElementById('player') && !it.getElementById('player').hidden)")
    titles = tab.run(f"{FRAMES}.map((it) => it.querySelector('h1').textContent)")
    assert titles == [
        "CartPole-v1: random actions",
        "CartPole-v1: after 21,504 steps of training",
        "TagContinuous-v0: random actions",
        "TagContinuous-v0: after 20,480 steps of training",
    ]
    tab.run("document.querySelector('iframe').scrollIntoView()")
    tab.wait(f"{FRAMES}[0].getElementById('scrub').value > 3")  # a replay starts when it is scrolled into view
    tab.wait(f"{FRAMES}.every((it) => it.documentElement.scrollHeight <= it.defaultView.innerHeight)")
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run("document.querySelectorAll('svg polyline').length") == 3 + 4
    assert tab.run("document.querySelectorAll('td').length") == 4 * 2
    order = tab.run("[...document.querySelectorAll('iframe, svg, table, dl')].map((it) => it.localName)")
    assert [kind for kind, _ in itertools.groupby(order)] == ["iframe", "svg", "dl"] * 2 + ["table", "dl"]
    assert tab.problems() == []
    assert [url for url in tab.requests() if not url.startswith(("file:", "data:", "about:"))] == []
    tab.close()


FRAMES = "[...document.querySelectorAll('iframe')].map((it) => it.contentDocument)"


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_and_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    words = ("--device", "cpu", "--no-open", "--progress")
    process = start_process("demo", *words, cwd=tmp_path, TMPDIR=str(tmp_path / "tmp"))
    try:
        while not list(tmp_path.glob("tmp/*/CartPole-v1/log.csv")):
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        _, message = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == INTERRUPTED
    assert message.endswith("gpu-envs: interrupted\n")
    assert [path.name for path in tmp_path.rglob("*")] == ["tmp"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "page.pdf"], "a page cannot be 'page.pdf'; its name ends in .html"),
        (["--out", "a/b.html"], "the folder a of a/b.html does not exist"),
        (["--seed", "-1"], "--seed is -1; give an integer of at least 0"),
        (["CartPole-v1"], "gpu-envs demo does not take 'CartPole-v1'; leave it out"),
    ],
)
def test_mistakes_are_reported_before_training(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in error_of(capsys, "demo", "--device", "cpu", *words)
    assert list(tmp_path.iterdir()) == []
