"""Videos, windows and pages of replays."""

import base64
import dataclasses
import json
import re
import subprocess
import zlib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import assert_same_bits

import gpu_envs
from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, cells, disc, placed, polygon
from gpu_envs.registry import catalog as registry
from gpu_envs.rendering.frames import tile_size
from gpu_envs.rendering.painter import Painter
from gpu_envs.replays import Replay, page, record
from gpu_envs.replays.files import replacing


def decoded(path: Path) -> tuple[np.ndarray, float]:
    """Return the frames of a video, ``[frames, height, width, 3]``, and its frames per second."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    command = [ffmpeg, "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-fps_mode", "passthrough", "-"]
    done = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    match = re.search(r"Video: h264.* (\d+)x(\d+).* ([\d.]+) fps", done.stderr.decode())
    assert match is not None, done.stderr
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, int(match[2]), int(match[1]), 3), float(match[3])


@pytest.mark.slow
@pytest.mark.parametrize(("width", "fps"), [(None, None), (301, 17)])
def test_an_mp4(replay: Replay, width: int | None, fps: int | None, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "a.mp4"
    replay.save_video(path, width=width, fps=fps)
    frames, rate = decoded(path)
    assert rate == (fps or 30)
    tile = replay.tile(width)
    assert replay.drawing is not None
    assert tile == (tile_size(replay.drawing, 4) if width is None else (149, 149))
    high, wide = (2 * side + 2 for side in (tile[1], tile[0]))
    assert frames.shape == (21, high + high % 2, wide + wide % 2, 3)
    painter = Painter("cpu")
    for number in (0, 11, 20):
        painted = replay.pixels(number, painter, tile).astype(int)
        same, earlier = (np.abs(frames[other][:high, :wide] - painted).mean() for other in (number, number - 9))
        assert same < 0.6  # the video has half the colour resolution
        assert earlier > 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_a_gif(replay: Replay, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "a.GIF"
    replay.save_video(path, width=240)
    frames, durations = [], []
    with image.open(path) as gif:
        assert gif.info["loop"] == 0  # endless
        for number in range(gif.n_frames):
            gif.seek(number)
            durations.append(gif.info["duration"])
            frames.append(np.array(gif.convert("RGB")).astype(int))
    assert len(frames) == 21
    assert sum(durations) == 700  # 21 frames, 30 per second
    assert set(durations) == {30, 40}
    painter = Painter("cpu")
    for number in (0, 20):
        painted = replay.pixels(number, painter, replay.tile(240))
        assert frames[number].shape == painted.shape
        assert np.abs(frames[number] - painted).mean() < 0.1
        assert np.abs(frames[number - 9] - painted).mean() > 2
        assert frames[number][3, 3].tolist() == [255, 255, 255]


def test_wrong_arguments_of_videos(replay: Replay, tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    for name, arguments, message in (
        ("a", {}, "its name ends in .mp4 or .gif"),
        ("a.gif", {"fps": 51}, "a gif has at most 50 frames per second"),
        ("a.gif", {"fps": 0}, "fps is 0"),
        ("a.gif", {"fps": 10**9}, "from 1 to"),
        ("a.gif", {"width": 33}, "4 replicas need a width of at least 34"),
        ("a.gif", {"width": 17_000}, "at most 16384"),
    ):
        with pytest.raises(ValueError, match=message):
            replay.save_video(tmp_path / name, **arguments)  # type: ignore[arg-type]  # arguments of several types
    with pytest.raises(FileNotFoundError, match=r"the folder .*none of .* does not exist"):
        replay.save_video(tmp_path / "none" / "a.gif")
    (tmp_path / "b.gif").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        replay.save_video(tmp_path / "b.gif")
    assert [path.name for path in tmp_path.iterdir()] == ["b.gif"]


def test_an_interrupted_write_keeps_the_old_file(
    replay: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.mp4"
    path.write_text("old")

    def text() -> None:
        with replacing(path) as partial:
            partial.write_text("incomplete")
            raise KeyboardInterrupt

    def video() -> None:
        pytest.importorskip("imageio_ffmpeg")
        replay.save_video(path)

    paint, painted = Painter.paint, list[Any]()

    def interrupted(self: Painter, *arguments: Any) -> np.ndarray:
        painted.append(arguments)
        if len(painted) == 6:  # after the first frames are written
            raise KeyboardInterrupt
        return paint(self, *arguments)

    monkeypatch.setattr(Painter, "paint", interrupted)
    for write in (text, video):
        with pytest.raises(KeyboardInterrupt):
            write()
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder where no user can create a file")
@pytest.mark.parametrize("kind", ["html", "gif", "mp4"])
def test_errors_name_the_users_path(kind: str, replay: Replay) -> None:
    """The error is Python's, not a video encoder's, and does not name the temporary file."""
    pytest.importorskip("imageio_ffmpeg")
    path = Path(f"/proc/replay.{kind}")
    save = replay.save_html if kind == "html" else replay.save_video
    with pytest.raises(FileNotFoundError) as caught:
        save(path)
    assert caught.value.filename == str(path)
    assert "partial" not in str(caught.value)


@pytest.mark.parametrize("closed_by", [None, "QUIT", "K_ESCAPE"])
def test_a_window(closed_by: str | None, replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame")
    shown: list[np.ndarray] = []

    def flip() -> None:
        shown.append(pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1))
        if closed_by == "QUIT" and len(shown) == 5:
            pygame.event.post(pygame.event.Event(pygame.QUIT))
        for key in (pygame.K_a, pygame.K_ESCAPE):  # only Escape closes the window
            if closed_by == "K_ESCAPE" and len(shown) == {pygame.K_a: 2, pygame.K_ESCAPE: 5}[key]:
                pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))

    monkeypatch.setattr(pygame.display, "flip", flip)
    replay.show(width=200, fps=1000)
    assert len(shown) == (21 if closed_by is None else 5)
    assert not pygame.display.get_init()
    assert_same_bits(shown[3], replay.pixels(3, Painter("cpu"), replay.tile(200)))


def about_of(text: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="about">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    about: dict[str, Any] = json.loads(match[1])
    return about


def bytes_of(text: str) -> bytes:
    match = re.search(r'<script type="application/octet-stream" id="bytes">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    return zlib.decompress(base64.b64decode(match[1]))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("env_id", "replicas", "most"), [("CartPole-v1", 9, 0.6e6), ("TagContinuous-v0", 4, 3e6), ("Acrobot-v1", 9, 0.6e6)]
)
def test_pages_are_small(env_id: str, replicas: int, most: float, tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    replay = record(env_id, replicas=replicas, steps=500, device="cpu")
    replay.save_html(path)
    assert replay.frames == 501
    assert 0.02e6 < path.stat().st_size < most
    assert list(tmp_path.iterdir()) == [path]


def test_a_page_has_no_external_files(replay: Replay) -> None:
    text = page.to_html(replay)
    assert not re.search(r"https?:", text)
    assert not re.search(r"""(\bsrc=|@import|url\()""", text.partition("<script")[0])
    assert "content=\"default-src 'none';" in text
    assert text == page.to_html(replay)  # the same replay, the same page
    assert about_of(text)["fps"] == 30
    assert about_of(page.to_html(replay, 12))["fps"] == 12
    assert len(bytes_of(text)) > 0


def test_names_are_escaped(replay: Replay) -> None:
    script = "</script><script>alert(1)</script>{{BYTES}} & \"'"
    text = page.to_html(dataclasses.replace(replay, title=script, facts={script: script}))
    assert text.count("<script") == 3
    about = about_of(text)
    assert about["title"] == script
    assert [script, script] in about["facts"]
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;{{BYTES}} &amp; &quot;&#x27;" in text


def test_wrong_arguments_of_pages(replay: Replay, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a page cannot be .*; its name ends in \.html"):
        replay.save_html(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="fps is 0"):
        replay.save_html(tmp_path / "a.html", fps=0)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        replay.save_html(tmp_path / "none" / "a.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", ["colour", "number", "background"])
def test_drawings_that_change_their_style(change: str, tmp_path: Path) -> None:
    """A page needs the same style in all frames; a video does not."""

    def draw(state: State, params: Params) -> Picture:
        del params
        right = bool(state["x"][0] > 0)
        spot = placed([[-1, -1], [1, -1], [0, 1]], state["x"], 0)
        shapes = [polygon(spot, (200, 0, 0) if change == "colour" and right else BLACK)]
        shapes += [disc(spot[:, :, 0], 0.1, BLACK)] * (change == "number" and right)
        return Picture((-2, -2, 2, 2), tuple(shapes), BLACK if change == "background" and right else (9, 9, 9))

    changing = dataclasses.replace(registry.env_spec("CartPole-v1"), id="Changing-v0", drawing=Drawing(draw, (64, 64)))
    env = gpu_envs.VectorEnv(changing, 1, device="cpu")
    env.reset(seed=0)
    env.state["x"] = -0.02
    replay = record(env, policy=lambda _: np.ones(1, np.int64), steps=9)
    assert replay.state["x"][0, 0] < 0 < replay.state["x"][-1, 0]
    with pytest.raises(ValueError, match="the drawing of Changing-v0 changes between frames in more than positions"):
        replay.save_html(tmp_path / "a.html")
    if pytest.importorskip("PIL.Image"):
        replay.save_video(tmp_path / "a.gif")


def test_shapes_that_never_move_take_the_memory_of_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a grid's cells, of which only ``shown`` changes."""
    monkeypatch.setattr(page, "_MAX_BYTES", 9 * 20 * 20 * 64)  # less than the points of 10 frames

    def pages(moves: bool) -> str:
        def draw(state: State, _: Params) -> Picture:
            corner = (float(state["x"][0]) if moves else 0.0, 0.0)
            return Picture((-2, -2, 20, 20), cells(np.ones((1, 20, 20), int), (None, BLACK), corner=corner))

        spec = dataclasses.replace(registry.env_spec("CartPole-v1"), id="Grid-v0", drawing=Drawing(draw, (64, 64)))
        return page.to_html(record(gpu_envs.VectorEnv(spec, 1, device="cpu"), steps=9, seed=0))

    assert len(pages(moves=False)) > 1000
    with pytest.raises(MemoryError, match="a page of 10 frames needs about 0 GiB"):
        pages(moves=True)


def test_a_wrapped_environment_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match=r"source is .*; give a run directory.*env\.unwrapped"):
        record(gymnasium.make("gpu_envs/CartPole-v1", device="cpu"))


def test_returns_leave_out_partly_recorded_episodes() -> None:
    """An episode that started before the recording has no return."""
    env = gpu_envs.make("CartPole-v1", device="cpu", autoreset_mode="NextStep", max_episode_steps=9)
    env.reset(seed=0)
    balanced = np.array([0, 1] * 50)
    for t in range(4):
        env.step(balanced[t : t + 1])
    actions = iter(balanced)
    replay = record(env, policy=lambda _: np.array([next(actions)]), steps=17)
    assert replay.returns()["agent"].tolist() == [9.0]


def test_pages_with_infinite_rewards(tmp_path: Path) -> None:
    replay = record("Pendulum-v1", replicas=2, steps=3, params={"speed_cost": 1e38}, device="cpu")
    assert not np.isfinite(replay.rewards["agent"]).all() or np.abs(replay.rewards["agent"]).max() > 1e30
    replay.save_html(tmp_path / "a.html")
