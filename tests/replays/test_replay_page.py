"""The page in a real browser: pictures like the painter's, no network, and no error messages."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import REDUCED_MOTION, Browser, OpenReplay, Tab, point_in, set_input, shown_frame, text_of
from harness import IDS, TEAM_IDS

import gpu_envs
from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, cells, disc, line, placed, polygon, rectangle
from gpu_envs.registry import catalog as registry
from gpu_envs.rendering.painter import Painter
from gpu_envs.replays import Replay, record


def playing(tab: Tab) -> bool:
    return bool(tab.run("document.getElementById('play').getAttribute('aria-label') === 'Pause'"))


def differences(pixels: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """Return the mean difference over the drawn pixels of ``expected``, and the largest difference."""
    assert pixels.shape == expected.shape
    difference = np.abs(pixels.astype(int) - expected).max(-1)
    drawn = (expected != expected[0, 0]).any(-1)
    assert drawn.any()
    return float(difference[drawn].mean()), float(difference.max())


ANTIALIASING = 20, 110
"""Largest mean and largest pixel difference between two antialiasing methods: coverage differs by at most a half."""


def painted(replay: Replay, number: int, pixels: np.ndarray, replica: int | None = None) -> np.ndarray:
    """Return the painter's image of a frame, with the size of a canvas."""
    painter = Painter("cpu")
    height, width, _ = pixels.shape
    if replica is not None:
        frame: np.ndarray = painter.paint(replay.picture(number), (width, height))[replica]
        return frame
    columns = math.ceil(math.sqrt(replay.replicas))
    rows = math.ceil(replay.replicas / columns)
    tile = (width - 2 * (columns - 1)) // columns, (height - 2 * (rows - 1)) // rows
    return replay.pixels(number, painter, tile)


def pictures_of(tab: Tab) -> np.ndarray:
    """Return the pixels of the replicas' pictures, without the texts below them."""
    pixels = tab.canvas("#picture")
    rows, text = tab.run(
        "(() => { const all = [...document.querySelectorAll('#tiles li')].map((it) => it.style); "
        "return [new Set(all.map((it) => it.top)).size, Math.round(parseFloat(all[0].height) * devicePixelRatio)]; })()"
    )
    height = (len(pixels) + 2) // rows  # with the text and the gap of 2 pixels
    place = np.arange(len(pixels)) % height
    return pixels.compress((place < height - 2 - text) | (place >= height - 2), axis=0)


def labels(tab: Tab) -> list[str]:
    """Return the texts below the pictures."""
    texts: list[str] = tab.run("[...document.querySelectorAll('#tiles li')].map((it) => it.textContent)")
    return texts


# --- appearance ---


@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_pictures_agree_with_the_painter(env_id: str, width: int, height: int, open_replay: OpenReplay) -> None:
    replay = record(env_id, replicas=3, steps=60, seed=2, device="cpu")
    tab = open_replay(replay, width=width, height=height)
    for selected, number in (("all", 0), ("all", 45), ("2", 31)):
        set_input(tab, "replica", selected)
        set_input(tab, "scrub", number)
        shown = pictures_of(tab)
        replica = None if selected == "all" else int(selected)
        mean, largest = differences(shown, painted(replay, number, shown, replica))
        assert mean < ANTIALIASING[0]
        assert largest <= ANTIALIASING[1]
    if width > 1000:  # in small pictures the cart moves too little
        other = painted(replay, 60, shown, 0)
        assert differences(shown, other)[1] > ANTIALIASING[1]  # another replica at another time


def draw_all_shapes(state: State, params: Params) -> Picture:
    """Draw all kinds of shapes: thin and thick, hidden and distant, moving and fixed, in a moving view."""
    del params
    count = len(state["x"])
    x, turn = state["x"] * 40, state["theta"] * 20
    corners = np.stack([np.cos(np.arange(8) * math.pi / 4), -np.sin(np.arange(8) * math.pi / 4)], -1)  # clockwise
    spiral = np.stack([np.cos(np.arange(30) / 3), np.sin(np.arange(30) / 3)], -1) * np.arange(30)[:, None] / 10
    dots = np.stack([np.stack([x - 1 + i / 2, np.full_like(x, -3 + i / 3)], -1) for i in range(6)], 1)
    broken = np.where(turn[:, None] > 0, np.nan, 1.0)
    with np.errstate(all="ignore"):
        lost = placed([[0.5, 0], [0, 0.5], [0, 0]], x / broken[:, 0], 2)
    shift = float(state["x_dot"][0]) / 2
    return Picture(
        (-4 + shift, -4, 4 + shift, 4),
        (
            line([[-4, 0.01], [4, 0.01]], 0.001, (0, 90, 200)),
            line([[0.3, -50_000], [0.3, 50_000]], 0.3, (230, 230, 120)),
            line(placed(spiral, x, 0, turn), 0.1, (20, 130, 40)),
            polygon(placed(corners, x, 1, turn), (200, 60, 20)),
            polygon(placed([[-1, -0.5], [1, -0.5], [0, 1]], 1e4 * x, -2, turn), BLACK),
            disc(dots, 0.001, BLACK),
            disc(dots + 1, 0.25, (120, 0, 120), np.sin(turn * 9)[:, None] * np.arange(-3, 3) > 0),
            polygon(lost, (0, 0, 255), np.ones((count, 1), bool)),
            disc(dots, 0.2, (1, 2, 3), np.zeros((count, 6), bool)),
            rectangle(-3.9, -3.8, x, -3.5, (150, 90, 0)),
            *cells(
                np.sin(turn[:, None, None] + np.arange(12).reshape(3, 4)) > 0, {True: BLACK}, corner=(1, 1), side=0.5
            ),
        ),
        (240, 245, 250),
    )


def test_all_kinds_of_shapes(open_replay: OpenReplay) -> None:
    drawing = Drawing(draw_all_shapes, (400, 400), 25)
    spec = dataclasses.replace(registry.env_spec("CartPole-v1"), id="AllShapes-v0", drawing=drawing)
    replay = record(gpu_envs.VectorEnv(spec, 4, device="cpu"), steps=40, seed=4)
    views = {replay.picture(number).view for number in range(41)}
    assert len(views) > 20
    tab = open_replay(replay, width=1200, height=800)
    for number in (0, 9, 17, 33, 40):
        set_input(tab, "scrub", number)
        shown = pictures_of(tab)
        mean, largest = differences(shown, painted(replay, number, shown))
        assert mean < ANTIALIASING[0]
        assert largest <= ANTIALIASING[1]
        assert differences(shown, painted(replay, (number + 4) % 41, shown))[1] > ANTIALIASING[1]


def test_finished_replicas_are_faded(open_replay: OpenReplay) -> None:
    replay = record("CartPole-v1", replicas=4, device="cpu")
    first = int(replay.last.argmin())
    tab = open_replay(replay)
    assert text_of(tab, "#status") == "4 replicas: 4 running."
    set_input(tab, "scrub", replay.steps)
    shown = pictures_of(tab)
    assert differences(shown, painted(replay, replay.steps, shown))[0] < ANTIALIASING[0]
    assert (shown == 128).all(-1).any()  # a faded cart, else black
    mean = replay.returns()["agent"].mean()
    assert text_of(tab, "#status") == f"4 replicas: 4 terminated. Mean return of 4 ended episodes: {mean:g}."
    set_input(tab, "replica", first)
    at = f"replica {first}, step {replay.last[first]} of its episode: terminated."
    assert text_of(tab, "#status") == f"{at} Return of 1 ended episode: {replay.last[first]}."


def test_canvases_have_the_resolution_of_the_screen(open_replay: OpenReplay) -> None:
    replay = record("Pendulum-v1", replicas=4, steps=5, device="cpu")
    for ratio in (1.0, 2.0, 1.5):
        tab = open_replay(replay, width=700, height=700, ratio=ratio)
        size = tab.run(
            "(() => { const it = document.getElementById('picture'), style = it.style;"
            " return [it.width, it.height, parseFloat(style.width), parseFloat(style.height)]; })()"
        )
        assert size[:2] == pytest.approx([side * ratio for side in size[2:]], abs=0.1)
        assert tab.run("document.querySelector('figure canvas').width") == pytest.approx(
            tab.run("document.querySelector('figure canvas').clientWidth") * ratio, abs=2
        )
        shown = pictures_of(tab)
        assert differences(shown, painted(replay, 0, shown))[0] < ANTIALIASING[0]


@pytest.mark.parametrize(("width", "height"), [(320, 568), (390, 844), (844, 390), (1600, 1000)])
def test_the_page_fits_the_window(width: int, height: int, open_replay: OpenReplay) -> None:
    name = "an environment with a name that is longer than a line on a telephone " * 2
    replay = dataclasses.replace(record("TagContinuous-v0", replicas=9, steps=5, device="cpu"), title=name)
    tab = open_replay(replay, width=width, height=height, ratio=2.0)
    wide, high = tab.run("[document.documentElement.scrollWidth, document.getElementById('picture').clientHeight]")
    assert wide <= width
    assert high <= max(230, 0.75 * height)  # picture and controls are visible together
    boxes = tab.run(
        "[...document.querySelectorAll('button, select, input, #picture, figure, h1')].map((it) => "
        "{ const box = it.getBoundingClientRect(); return [box.left, box.right, box.height]; })"
    )
    assert all(0 <= left < right <= width for left, right, _ in boxes)
    assert min(box_height for *_, box_height in boxes) >= 20
    assert text_of(tab, "h1") == name


@pytest.mark.parametrize(("width", "height"), [(1024, 640), (1280, 720), (1920, 1080)])
def test_help_is_within_the_first_screen(width: int, height: int, open_replay: OpenReplay) -> None:
    for env in ("CartPole-v1", "TagContinuous-v0"):
        tab = open_replay(record(env, replicas=4, steps=3, device="cpu"), width=width, height=height)
        assert tab.run("document.getElementById('help').getBoundingClientRect().bottom") <= height
        assert tab.run("document.getElementById('picture').clientHeight") > 0.4 * height


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_colour_scheme(scheme: str, open_replay: OpenReplay) -> None:
    """Page, controls and charts change with the system's preference."""
    tab = open_replay(record("Pendulum-v1", replicas=2, steps=30, device="cpu"))
    tab.call(
        "Emulation.setEmulatedMedia", features=[*REDUCED_MOTION, {"name": "prefers-color-scheme", "value": scheme}]
    )
    paper = float(tab.screenshot()[2:8].mean())
    assert (paper > 200) == (scheme == "light")
    assert (paper < 60) == (scheme == "dark")
    texts = ("h1", "dt", "dd", "#status", "#frame", "select", "#back", ".hint", "figcaption span")
    for selector in (*texts, "#measured h2", "#metrics b", "#metrics small", "#metrics span", "#tiles li"):
        ink = tab.run(f"getComputedStyle(document.querySelector({selector!r})).color")
        red, green, blue = (int(part) for part in ink.removeprefix("rgb(").removesuffix(")").split(","))
        assert abs((red + green + blue) / 3 - paper) > 90, selector
    tab.run("document.querySelector('figure canvas').id = 'curve'")
    context = "document.getElementById('curve').getContext('2d')"
    shades = tab.run(
        f"[...{context}.getImageData(0, 0, 25, 150).data].filter((_, i, all) => i % 4 < 3 && all[i | 3] > 200)"
    )
    assert max(abs(shade - paper) for shade in shades) > 60  # the axis labels


def test_resizing_the_window(open_replay: OpenReplay) -> None:
    replay = record("Acrobot-v1", replicas=2, steps=5, device="cpu")
    tab = open_replay(replay, width=1200, height=900)
    before = tab.run("document.getElementById('picture').width")
    tab.call("Emulation.setDeviceMetricsOverride", width=500, height=900, deviceScaleFactor=1, mobile=False)
    tab.wait(f"document.getElementById('picture').width < {before}")
    tab.wait("document.documentElement.scrollWidth <= 500")
    shown = pictures_of(tab)
    assert differences(shown, painted(replay, 0, shown[:, : shown.shape[1]]))[0] < ANTIALIASING[0]


# --- controls ---


@pytest.fixture(scope="module")
def long() -> Replay:
    """A replay of half a minute at 30 frames per second."""
    return record("Pendulum-v1", replicas=4, steps=1000, seed=1, device="cpu")


@pytest.mark.end_to_end
def test_play_and_pause(long: Replay, open_replay: OpenReplay) -> None:
    tab = open_replay(long, moving=True)
    assert playing(tab)  # starts without a click
    tab.wait_until(lambda: shown_frame(tab) > 5, "the fifth frame")
    tab.run("document.getElementById('play').click()")
    assert not playing(tab)
    stopped = shown_frame(tab)
    shown = pictures_of(tab)
    assert differences(shown, painted(long, stopped, shown))[0] < ANTIALIASING[0]
    tab.run("new Promise((done) => setTimeout(done, 200))")
    assert shown_frame(tab) == stopped
    assert tab.run("Number(document.getElementById('scrub').value)") == stopped
    tab.run("document.getElementById('play').click()")
    tab.wait_until(lambda: shown_frame(tab) > stopped, "a later frame")


def test_play_at_the_end_restarts(open_replay: OpenReplay) -> None:
    tab = open_replay(record("Pendulum-v1", replicas=1, steps=12, device="cpu"), moving=True, fps=60)
    assert tab.run("document.getElementById('replica').clientWidth") == 0  # hidden for a single replica
    tab.wait_until(lambda: not playing(tab), "the end")
    assert shown_frame(tab) == 12
    set_input(tab, "speed", 0.1)
    tab.run("document.getElementById('play').click()")
    assert playing(tab)
    assert shown_frame(tab) < 12
    tab.wait_until(lambda: shown_frame(tab) == 2, "the second frame")


SPEED = """
new Promise((done) => {
  const at = () => Number(document.getElementById('scrub').value);
  let first, before, since, longest = 0;
  const look = (now) => {
    if (first === undefined) [first, since] = [at(), now];
    else longest = Math.max(longest, now - before);
    before = now;
    if (now - since < 1500) requestAnimationFrame(look);
    else done([(at() - first) / ((now - since) / 1000), longest]);
  };
  requestAnimationFrame(look);
})
"""


@pytest.mark.parametrize(("speed", "fps"), [("0.5", None), ("1", None), ("8", None), ("1", 90)])
def test_playback_speed(speed: str, fps: int | None, long: Replay, open_replay: OpenReplay) -> None:
    tab = open_replay(long, moving=True, fps=fps)
    for _ in range(10):
        set_input(tab, "scrub", 0)
        set_input(tab, "speed", speed)
        tab.run("document.getElementById('play').click()")
        frames_per_second, longest = tab.run(SPEED)
        tab.run("document.getElementById('play').click()")
        if longest < 200:  # longer gaps between drawings do not count as playing time
            break
    else:
        pytest.skip("this machine draws too slowly")
    assert frames_per_second == pytest.approx(float(speed) * (fps or 30), rel=0.15, abs=2)


def test_scrubbing_and_keys(long: Replay, open_replay: OpenReplay) -> None:
    tab = open_replay(long)
    assert (shown_frame(tab), playing(tab)) == (0, False)  # no autoplay with reduced motion
    set_input(tab, "scrub", 400)
    assert (shown_frame(tab), playing(tab)) == (400, False)
    for key, shift, expected in (
        ("ArrowRight", False, 401),
        ("ArrowRight", True, 411),
        ("ArrowLeft", False, 410),
        ("ArrowLeft", True, 400),
        ("End", False, 1000),
        ("ArrowRight", False, 1000),
        ("Home", False, 0),
        ("ArrowLeft", True, 0),
    ):
        tab.press(key, shift=shift)
        assert shown_frame(tab) == expected
    for name, expected in (("forward", 1), ("forward", 2), ("back", 1)):
        tab.run(f"document.getElementById('{name}').click()")
        assert shown_frame(tab) == expected
    for key, speed in (("ArrowUp", "2"), ("ArrowUp", "4"), ("ArrowDown", "2")):
        tab.press(key)
        assert tab.run("document.getElementById('speed').value") == speed
    for focused in ("", "play", "scrub", "picture", "back"):  # space plays or pauses, with focus on any control
        if focused:
            tab.run(f"document.getElementById('{focused}').focus()")
        before = playing(tab)
        at = shown_frame(tab)
        tab.press(" ")
        if focused == "back":  # but presses another button
            tab.wait_until(lambda at=at: shown_frame(tab) < at, "the previous frame")  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            continue
        assert playing(tab) is not before
        tab.press(" ")
        assert playing(tab) is before
    shown = pictures_of(tab)
    assert differences(shown, painted(long, shown_frame(tab), shown))[0] < ANTIALIASING[0]


def test_picking_a_replica(open_replay: OpenReplay) -> None:
    env = gpu_envs.make("CartPole-v1", 60, device="cpu")
    replay = record(env, replicas=[7, 11, 42, 5], steps=10, seed=3)
    tab = open_replay(replay)
    names = tab.run("[...document.getElementById('replica').options].map((option) => option.text)")
    assert names == ["all 4", "replica 7", "replica 11", "replica 42", "replica 5"]
    set_input(tab, "scrub", 6)
    for index, (across, down) in enumerate([(0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75)]):
        tab.click(*point_in(tab, "#picture", across, down))
        assert tab.run("document.getElementById('replica').value") == str(index)
        assert text_of(tab, "#status") == f"{names[index + 1]}, step 6 of its episode: running."
        shown = pictures_of(tab)
        assert differences(shown, painted(replay, 6, shown, index))[0] < ANTIALIASING[0]
        if index % 2:
            tab.press("Escape")
        else:
            tab.click(*point_in(tab, "#picture", 0.5, 0.5))
        assert text_of(tab, "#status") == "4 replicas: 4 running."
    shown = pictures_of(tab)
    assert differences(shown, painted(replay, 6, shown))[0] < ANTIALIASING[0]


# --- texts and charts ---


def test_texts_show_returns(open_replay: OpenReplay) -> None:
    """Captions show the mean return so far, over all replicas or of one; below a picture are its return and status."""
    replay = record("CartPole-v1", replicas=3, episodes=3, seed=6, device="cpu")
    tab = open_replay(replay)
    totals = np.zeros((replay.frames, 3))
    for number in range(1, replay.frames):
        recorded = number <= replay.last
        starts = replay.ends[number - 1] != 0
        totals[number] = np.where(recorded & starts, 0, totals[number - 1]) + replay.rewards["agent"][number]
    first_end = int(np.flatnonzero(replay.ends.any(1))[0])
    for number in (0, 5, first_end, first_end + 1, int(np.sort(replay.last)[1]) + 1, replay.steps):
        set_input(tab, "scrub", number)
        for selected in ("all", "1"):
            set_input(tab, "replica", selected)
            which = [0, 1, 2] if selected == "all" else [1]
            now = text_of(tab, "#charts span")
            assert float(now.removeprefix("mean ")) == pytest.approx(totals[number, which].mean(), rel=1e-3)
            at = np.minimum(number, replay.last)
            assert labels(tab) == [
                f"replica {r}: return {totals[number, r]:g}episode {1 + np.count_nonzero(replay.ends[: at[r], r])}: "
                + ("terminated" if replay.ends[at[r], r] else "running")
                for r in which
            ]
    assert replay.returns()["agent"] == pytest.approx(
        [totals[t, r] for r in range(3) for t in np.flatnonzero(replay.ends[:, r])]
    )
    means = f"Mean return of 3 ended episodes: {totals[replay.ends[:, 1] != 0, 1].mean():.4g}."
    assert text_of(tab, "#status").endswith(f"step {totals[-1, 1]:.0f} of its episode: terminated. {means}")


@pytest.mark.parametrize("width", [1280, 400])
def test_time_axes_are_aligned(width: int, open_replay: OpenReplay) -> None:
    """The time cursors of all charts and the middle of the slider's thumb are at the same place."""
    tab = open_replay(record("TagContinuous-v0", replicas=2, steps=80, device="cpu"), width=width)
    for number in (0, 25, 80):
        set_input(tab, "scrub", number)
        left, wide = tab.run(
            "(({ left, width }) => [left, width])(document.getElementById('scrub').getBoundingClientRect())"
        )
        thumb = left + 8 + (wide - 16) * number / 80
        places = tab.run("[...document.querySelectorAll('figure canvas')].map((it) => it.getBoundingClientRect().left)")
        assert len(places) == 4
        for chart, place in enumerate(places):
            tab.run(f"document.querySelectorAll('figure canvas')[{chart}].id = 'chart{chart}'")
            pixels = tab.canvas(f"#chart{chart}")
            dark = ((pixels.max(-1) < 200) & (np.ptp(pixels, -1) < 10)).sum(0)
            assert place + 1 + dark.argmax() == pytest.approx(thumb, abs=1.5), chart


def test_legend(open_replay: OpenReplay) -> None:
    """It names the drawing's colours. Roles have the same colours in texts and charts."""
    drawing = registry.spec("SimpleTag-v3").drawing
    assert drawing is not None
    tab = open_replay(record("SimpleTag-v3", replicas=1, steps=2, device="cpu"))

    def keys(place: str) -> dict[str, str]:
        script = "[it.textContent, getComputedStyle(it, '::before').backgroundColor]"
        rows: list[list[str]] = tab.run(f"[...document.querySelectorAll('{place} .key')].map((it) => {script})")
        return {name: colour for name, colour in rows}  # noqa: C416  # rows are lists

    colours = {name: f"rgb{colour}" for name, colour in drawing.legend.items()}
    assert keys("#legend") == colours
    assert set(colours) > {"adversary", "agent"}
    for role in ("adversary", "agent"):
        assert keys("#charts")[f"return of {role}"] == keys("#tiles")[f"{role} 0"] == colours[role]


def test_step_counts_include_steps_before_the_recording(open_replay: OpenReplay) -> None:
    """In SameStep mode, the first frame of the next episode is its step 1."""
    env = gpu_envs.make("Pendulum-v1", 2, device="cpu", autoreset_mode="SameStep", max_episode_steps=10)
    env.reset(seed=0)
    for _ in range(4):
        env.step(env.action_space.sample())
    tab = open_replay(record(env, steps=9))
    set_input(tab, "replica", "0")
    for number, status in (
        (0, "4 of its episode: running"),
        (6, "10 of its episode: truncated"),
        (7, "1 of its episode: running"),
    ):
        set_input(tab, "scrub", number)
        assert text_of(tab, "#status") == f"replica 0, step {status}."


def test_curves_are_drawn(open_replay: OpenReplay) -> None:
    """Curves of returns have the colour of their role, and rise or fall with the return."""
    replay = record("TagContinuous-v0", replicas=1, params={"num_taggers": 2, "num_runners": 5}, device="cpu")
    tab = open_replay(replay)
    names = tab.run("[...document.querySelectorAll('#charts b')].map((it) => it.textContent)")
    assert names == ["return of tagger", "return of runner"]
    for number, sign in enumerate((1, -1)):  # red, blue
        tab.run(f"document.querySelectorAll('figure canvas')[{number}].id = 'curve{number}'")
        red, _, blue = np.moveaxis(tab.canvas(f"#curve{number}").astype(int), -1, 0)
        drawn = np.asarray(sign * (red - blue) > 30)
        heights = [np.flatnonzero(drawn[:, x]).mean() for x in np.flatnonzero(drawn.any(0))]
        assert len(heights) > 250
        total = replay.rewards[list(replay.agents)[number]].sum()
        assert np.sign(heights[0] - heights[-1]) == np.sign(total)


def test_equal_curves_are_drawn_once(open_replay: OpenReplay) -> None:
    """Nine equal curves look like a single one."""
    different = record("Pendulum-v1", replicas=9, steps=40, device="cpu")
    equal = dataclasses.replace(different, rewards={r: np.ones_like(v) for r, v in different.rewards.items()})
    equal_tab = open_replay(equal)
    single = record("Pendulum-v1", replicas=1, steps=40, device="cpu")
    rewards = {role: values[:, :1] for role, values in equal.rewards.items()}
    single_tab = open_replay(dataclasses.replace(single, rewards=rewards))
    pictures = []
    for tab in (equal_tab, single_tab):
        tab.run("document.querySelector('figure canvas').id = 'curve'")
        pictures.append(tab.canvas("#curve"))
    assert np.array_equal(pictures[0], pictures[1])


def test_facts(open_replay: OpenReplay) -> None:
    """A title is not repeated as a fact, and long numbers are abbreviated."""
    facts = {"Run": "taggers <3>", "Trained for": "4,000,000 steps", "Return in training": "tagger 85.2, runner -8.6"}
    replay = dataclasses.replace(record("Acrobot-v1", replicas=1, steps=2, device="cpu"), facts=facts, title="<i>T</i>")
    tab = open_replay(replay)
    cells = tab.run(
        "[...document.querySelectorAll('#facts div')].map((it) => [...it.children].map((e) => e.textContent))"
    )
    assert cells == [["Environment", "Acrobot-v1"], *map(list, facts.items())]
    assert text_of(tab, "h1") == tab.run("document.title") == "<i>T</i>"
    facts = {"Run": "Acrobot-v1-20250131-120000", "Seed": "2179790209390371970", "Steps": "4,000,000"}
    tab = open_replay(dataclasses.replace(replay, facts=facts, title=facts["Run"]))
    cells = tab.run("[...document.querySelectorAll('dd')].map((it) => [it.textContent, it.title])")
    assert cells == [["2179\u20261970", facts["Seed"]], ["4,000,000", ""]]
    assert text_of(open_replay(dataclasses.replace(replay, facts={}, title="Acrobot-v1")), "#facts") == ""


def test_a_page_with_one_step(open_replay: OpenReplay) -> None:
    """A constant return has a curve too."""
    replay = record(
        "MountainCarContinuous-v0", policy=lambda _: np.zeros((1, 1), np.float32), replicas=1, steps=1, device="cpu"
    )
    tab = open_replay(replay)
    assert shown_frame(tab) == 0
    assert text_of(tab, "figcaption span") == "0"


def test_message_in_old_browsers(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    record("Acrobot-v1", replicas=1, steps=2, device="cpu").save_html(path)
    tab = Tab(browser)
    tab.call("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
    tab.open(path, ready="!document.getElementById('trouble').hidden")
    assert "cannot be played here" in text_of(tab, "#trouble")
    assert len(tab.problems()) == 1
    tab.close()


# --- in an iframe, as in a notebook ---

FRAMES = "[...document.querySelectorAll('iframe')].map((it) => it.contentDocument)"
FRAMES_READY = f"{FRAMES}.every((it) => it.getElementById('player') && !it.getElementById('player').hidden)"


@pytest.fixture(name="tab")
def _tab(browser: Browser) -> Iterator[Tab]:
    tab = Tab(browser)
    yield tab
    tab.close()


def host(replays: list[Replay], folder: Path, ink: str = "#000") -> Path:
    """Write a page with replays far below each other."""
    shown = "<p style='height: 3000px'></p>".join(replay._repr_html_() for replay in replays)
    page = folder / "host.html"
    page.write_text(f"<!DOCTYPE html><meta charset='utf-8'><body style='color: {ink}'>{shown}</body>")
    return page


@pytest.fixture(name="replay", scope="module")
def _replay() -> Replay:
    return record("TagContinuous-v0", replicas=2, steps=40, params={"num_taggers": 2, "num_runners": 5}, device="cpu")


def frame_of(tab: Tab, number: int) -> int:
    return int(tab.run(f"{FRAMES}[{number}].getElementById('scrub').value"))


@pytest.mark.parametrize("width", [1280, 700, 390])
def test_iframe_height_fits_the_page(width: int, replay: Replay, tab: Tab, tmp_path: Path) -> None:
    """Also after a text gets longer or the window is resized."""
    tab.call("Emulation.setEmulatedMedia", features=REDUCED_MOTION)
    tab.open(host([replay], tmp_path), width=width, ready=FRAMES_READY)
    fits = f"{FRAMES}.every((it) => it.documentElement.offsetHeight === it.defaultView.innerHeight)"
    tab.wait(fits)
    assert tab.run(f"{FRAMES}[0].documentElement.scrollWidth") <= width
    before = tab.run(f"{FRAMES}[0].defaultView.innerHeight")
    tab.run(f"{FRAMES}[0].querySelector('h1').textContent = 'word '.repeat(400)")
    tab.wait(f"{fits} && {FRAMES}[0].defaultView.innerHeight > {before}")
    tab.call("Emulation.setDeviceMetricsOverride", width=500, height=900, deviceScaleFactor=1, mobile=False)
    tab.wait(f"{fits} && {FRAMES}[0].defaultView.innerWidth < 500")
    assert tab.problems() == []


def test_replays_play_when_they_scroll_into_view(replay: Replay, tab: Tab, tmp_path: Path) -> None:
    """Unless the reader used the controls before."""
    tab.open(host([replay, replay, replay], tmp_path), ready=FRAMES_READY)
    tab.wait_until(lambda: frame_of(tab, 0) > 2, "the first plays")
    assert frame_of(tab, 1) == 0
    tab.run("document.querySelectorAll('iframe')[1].scrollIntoView()")
    tab.wait_until(lambda: frame_of(tab, 1) > 2, "the second plays")
    tab.run(f"{FRAMES}[2].getElementById('forward').click()")
    tab.run("document.querySelectorAll('iframe')[2].scrollIntoView()")
    tab.run("new Promise((done) => setTimeout(done, 300))")
    assert frame_of(tab, 2) == 1


@pytest.mark.parametrize(("ink", "scheme"), [("#ddd", "light"), ("#222", "dark")])
def test_iframe_colours_match_the_outer_page(ink: str, scheme: str, replay: Replay, tab: Tab, tmp_path: Path) -> None:
    """The system's preference is ignored."""
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    tab.open(host([replay], tmp_path, ink), ready=FRAMES_READY)
    colours = [
        tab.run(f"getComputedStyle({FRAMES}[0].querySelector('{selector}')).{style}")
        for selector, style in (("html", "backgroundColor"), ("h1", "color"))
    ]
    paper, text = (sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) for colour in colours)
    assert (text > 384 > paper) is (ink == "#ddd")
    assert (text < 384 < paper) is (ink == "#222")


def test_replays_work_in_a_sandboxed_iframe(replay: Replay, tab: Tab, tmp_path: Path) -> None:
    """Some notebooks sandbox their outputs, which denies access to the outer page."""
    page = host([replay], tmp_path)
    page.write_text(page.read_text().replace("<iframe ", "<iframe sandbox='allow-scripts' "))
    tab.open(page)
    tab.wait("document.querySelector('iframe').clientHeight > 600")
    tab.run("new Promise((done) => setTimeout(done, 500))")
    assert tab.problems() == []
