"""Video recorders and windows of Gymnasium and Stable-Baselines3.

Videos need moviepy (``pip install moviepy``); Gymnasium's vector window needs OpenCV (``opencv-python``) and pygame.
"""

import gc
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import gpu_envs

needs_moviepy = pytest.mark.skipif(importlib.util.find_spec("moviepy") is None, reason="moviepy is not installed")
needs_opencv = pytest.mark.skipif(importlib.util.find_spec("cv2") is None, reason="OpenCV is not installed")
needs_pygame = pytest.mark.skipif(importlib.util.find_spec("pygame") is None, reason="pygame is not installed")

pytestmark = [
    # moviepy and imageio-ffmpeg leave pipes to ffmpeg open until they are garbage-collected
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io:pytest.PytestUnraisableExceptionWarning"),
]

MANY = 1000


@pytest.fixture(autouse=True)
def _close_pipes() -> Iterator[None]:
    """Close leaked pipes now: in a later test of another file, the warning would be an error."""
    yield
    gc.collect()


def read_frames(path: Path) -> np.ndarray:
    """Return the frames of a video, ``[frames, height, width, 3]``."""
    import imageio_ffmpeg

    reader = imageio_ffmpeg.read_frames(str(path))
    width, height = next(reader)["size"]
    return np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader])


# --- Gymnasium ---


@needs_moviepy
def test_gymnasium_records_a_single_environment(tmp_path: Path) -> None:
    env: Any = gymnasium.make("gpu_envs/CartPole-v1", render_mode="rgb_array", device="cpu")
    env = gymnasium.wrappers.RecordVideo(env, str(tmp_path / "videos"), episode_trigger=lambda _: True)
    env.reset(seed=0)
    rendered, done = [env.render()], False
    while not done:
        _, _, terminated, truncated, _ = env.step(1)
        rendered.append(env.render())
        done = terminated or truncated
    steps = len(rendered) - 1
    env.close()
    (path,) = (tmp_path / "videos").glob("*.mp4")
    frames = read_frames(path)
    assert frames.shape[1:] == (400, 600, 3)
    assert len(frames) in (steps, steps + 1)  # moviepy may drop the last frame when it rounds times
    for frame, number in ((frames[-1], len(frames) - 1), (frames[0], 0)):
        assert np.abs(frame.astype(int) - rendered[number]).mean() < 1  # H.264 is lossy
    assert np.abs(frames[0].astype(int) - rendered[-1]).mean() > 1


@needs_moviepy
def test_gymnasium_records_the_first_of_many(tmp_path: Path) -> None:
    envs: Any = gpu_envs.make("CartPole-v1", MANY, render_mode="rgb_array", device="cpu")
    envs = gymnasium.wrappers.vector.RecordVideo(
        envs, str(tmp_path / "videos"), record_first_only=True, video_length=12, step_trigger=lambda step: step == 0
    )
    envs.reset(seed=0)
    for _ in range(20):
        envs.step(np.ones(MANY, np.int64))
    envs.close()
    (path,) = (tmp_path / "videos").glob("*.mp4")
    assert read_frames(path).shape[1:] == (400, 600, 3)


@needs_pygame
def test_gymnasium_shows_a_single_environment_in_a_window() -> None:
    import pygame

    env: Any = gymnasium.make("gpu_envs/CartPole-v1", render_mode="rgb_array", device="cpu")
    env = gymnasium.wrappers.HumanRendering(env)
    env.reset(seed=0)
    env.step(1)
    shown = pygame.surfarray.array3d(env.window).swapaxes(0, 1)
    assert np.array_equal(shown, env.env.render())
    env.close()


@needs_pygame
@needs_opencv
def test_gymnasium_shows_a_thousand_in_a_window() -> None:
    """Gymnasium renders all replicas at full size and scales them down: 0.7 GB per frame."""
    import cv2
    import pygame

    envs: Any = gpu_envs.make("CartPole-v1", MANY, render_mode="rgb_array", device="cpu")
    envs = gymnasium.wrappers.vector.HumanRendering(envs, (1280, 960))
    envs.reset(seed=0)
    shown = pygame.surfarray.array3d(envs.window)
    assert shown.shape == (1280, 960, 3)
    width, height = envs.scaled_subenv_size
    first = cv2.resize(envs.env.render()[0].swapaxes(0, 1), (height, width))
    assert np.array_equal(shown[:width, :height], first)
    assert first.min() < 50 < 200 < first.max()
    envs.close()


# --- Stable-Baselines3 ---


def sb3_env(count: int, render_mode: str | None = None) -> Any:
    sb3 = pytest.importorskip("gpu_envs.adapters.sb3")
    env = sb3.VecEnv("CartPole-v1", count, render_mode=render_mode, device="cpu", seed=0)
    env.reset()
    return env


def test_stable_baselines3_gets_images() -> None:
    env = sb3_env(5, "rgb_array")
    images = env.get_images()
    assert len(images) == 5
    frames = np.asarray(env.env.render())
    assert all(np.array_equal(image, frame) for image, frame in zip(images, frames, strict=True))
    picture = env.render("rgb_array")
    assert picture.shape == (3 * 400, 2 * 600, 3)
    assert np.array_equal(picture[:400, :600], frames[0])
    env.close()


def test_stable_baselines3_warns_without_a_render_mode() -> None:
    env = sb3_env(2)
    with pytest.warns(UserWarning, match="render_mode is None"):
        assert env.get_images() == [None, None]
    env.close()


@needs_pygame
def test_stable_baselines3_shows_a_window() -> None:
    import pygame

    env = sb3_env(2, "human")
    assert env.render() is None
    assert pygame.display.get_surface() is not None
    env.close()
    assert not pygame.display.get_init()


@needs_moviepy
def test_stable_baselines3_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = pytest.importorskip("stable_baselines3.common.vec_env").VecVideoRecorder
    inner = sb3_env(4, "rgb_array")
    env = recorder(inner, str(tmp_path), record_video_trigger=lambda step: step == 0, video_length=5)
    env.reset()
    for _ in range(8):
        env.step(np.ones(4, np.int64))
    env.close()
    capsys.readouterr()  # discard its progress bar
    (path,) = tmp_path.glob("*.mp4")
    frames = read_frames(path)
    assert frames.shape[1:] == (800, 1200, 3)
    assert len(frames) in (5, 6)  # moviepy may drop the last frame when it rounds times
