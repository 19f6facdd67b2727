"""A replay within another page, as in a notebook: as high as it needs to be, as dark as that page, and on its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Tab
from replay_pages import STILL

from gpu_envs.replays import Replay, record

FRAMES = "[...document.querySelectorAll('iframe')].map((it) => it.contentDocument)"
READY = f"{FRAMES}.every((it) => it.getElementById('player') && !it.getElementById('player').hidden)"


@pytest.fixture(name="tab")
def _tab(browser: Browser) -> Iterator[Tab]:
    tab = Tab(browser)
    yield tab
    tab.close()


def host(replays: list[Replay], folder: Path, ink: str = "#000") -> Path:
    """A page with replays in it, and much above the last."""
    shown = "<p style='height: 3000px'></p>".join(replay._repr_html_() for replay in replays)
    page = folder / "host.html"
    page.write_text(f"<!DOCTYPE html><meta charset='utf-8'><body style='color: {ink}'>{shown}</body>")
    return page


@pytest.fixture(scope="module")
def replay() -> Replay:
    return record("TagContinuous-v0", replicas=2, steps=40, params={"num_taggers": 2, "num_runners": 5}, device="cpu")


def frame(tab: Tab, number: int) -> int:
    return int(tab.run(f"{FRAMES}[{number}].getElementById('scrub').value"))


@pytest.mark.parametrize("width", [1280, 700, 390])
def test_it_is_as_high_as_it_needs_to_be(width: int, replay: Replay, tab: Tab, tmp_path: Path) -> None:
    """Also when a text takes more lines, and when the window changes."""
    tab.call("Emulation.setEmulatedMedia", features=STILL)
    tab.open(host([replay], tmp_path), width=width, ready=READY)
    fits = f"{FRAMES}.every((it) => it.documentElement.offsetHeight === it.defaultView.innerHeight)"
    tab.wait(fits)
    assert tab.run(f"{FRAMES}[0].documentElement.scrollWidth") <= width
    before = tab.run(f"{FRAMES}[0].defaultView.innerHeight")
    tab.run(f"{FRAMES}[0].querySelector('h1').textContent = 'word '.repeat(400)")
    tab.wait(f"{fits} && {FRAMES}[0].defaultView.innerHeight > {before}")
    tab.call("Emulation.setDeviceMetricsOverride", width=500, height=900, deviceScaleFactor=1, mobile=False)
    tab.wait(f"{fits} && {FRAMES}[0].defaultView.innerWidth < 500")
    assert tab.complaints() == []


def test_it_plays_when_it_is_seen(replay: Replay, tab: Tab, tmp_path: Path) -> None:
    """Each on its own, and not if the reader was quicker."""
    tab.open(host([replay, replay, replay], tmp_path), ready=READY)
    tab.until(lambda: frame(tab, 0) > 2, "the first plays")
    assert frame(tab, 1) == 0
    tab.run("document.querySelectorAll('iframe')[1].scrollIntoView()")
    tab.until(lambda: frame(tab, 1) > 2, "the second plays")
    tab.run(f"{FRAMES}[2].getElementById('forth').click()")
    tab.run("document.querySelectorAll('iframe')[2].scrollIntoView()")
    tab.run("new Promise((done) => setTimeout(done, 300))")
    assert frame(tab, 2) == 1


@pytest.mark.parametrize(("ink", "scheme"), [("#ddd", "light"), ("#222", "dark")])
def test_it_is_as_dark_as_the_page_around(ink: str, scheme: str, replay: Replay, tab: Tab, tmp_path: Path) -> None:
    """Whatever the system prefers."""
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    tab.open(host([replay], tmp_path, ink), ready=READY)
    colours = [
        tab.run(f"getComputedStyle({FRAMES}[0].querySelector('{place}')).{what}")
        for place, what in (("html", "backgroundColor"), ("h1", "color"))
    ]
    paper, text = (sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) for colour in colours)
    assert (text > 384 > paper) is (ink == "#ddd")
    assert (text < 384 < paper) is (ink == "#222")


def test_where_scripts_reach_no_further_it_plays_all_the_same(replay: Replay, tab: Tab, tmp_path: Path) -> None:
    """In the frame that some notebooks put around what they show; nobody looks in from outside then."""
    page = host([replay], tmp_path)
    page.write_text(page.read_text().replace("<iframe ", "<iframe sandbox='allow-scripts' "))
    tab.open(page)
    tab.wait("document.querySelector('iframe').clientHeight > 600")
    tab.run("new Promise((done) => setTimeout(done, 500))")
    assert tab.complaints() == []
