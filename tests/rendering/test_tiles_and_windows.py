"""Lazy frames, tiled images, windows, and refused render modes."""

import copy
import dataclasses
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import (
    TEAM_IDS,
    assert_same_bits,
    numpy_of,
)
from rendering_tools import actions_for, assert_similar_frames, drawing_of

import gpu_envs
from gpu_envs.pictures import Picture
from gpu_envs.rendering import painter
from gpu_envs.rendering import renderer as rendering
from gpu_envs.rendering.frames import GAP, GAP_SHADE, MAX_TILES, Frames, tile_size
from gpu_envs.specs.single import EnvSpec


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of frames that each call of a painter has painted."""
    counts: list[int] = []
    paint = painter.Painter.paint

    def counted(self: painter.Painter, picture: Picture, size: tuple[int, int]) -> np.ndarray:
        frames = paint(self, picture, size)
        counts.append(len(frames))
        return frames

    monkeypatch.setattr(painter.Painter, "paint", counted)
    return counts


def test_frames_are_painted_at_access(painted: list[int]) -> None:
    env = gpu_envs.make("CartPole-v1", 100_000, device="cpu", render_mode="rgb_array")
    env.reset(seed=0)
    frames = env.render()
    assert isinstance(frames, Frames)
    assert len(frames) == 100_000
    some = frames[10:50_000:10_000]
    assert len(some) == 5
    assert painted == []
    assert_same_bits(frames[-1], frames[99_999])
    assert painted == [1, 1]
    assert_similar_frames(list(some)[1], frames[10_010])
    assert painted == [1, 1, 5, 1]
    env.close()
    painted.clear()
    tiled = gpu_envs.make("CartPole-v1", 100_000, device="cpu", render_mode="tiled")
    tiled.reset(seed=0)
    tiled.render()
    assert painted == [MAX_TILES]
    tiled.close()


@pytest.mark.slow
def test_frames_are_a_sequence() -> None:
    env = gpu_envs.make("Pendulum-v1", 130, device="cpu", render_mode="rgb_array")
    env.reset(seed=0)
    frames = env.render()
    all_frames = np.array(frames)
    assert all_frames.shape == (130, 500, 500, 3)
    assert all_frames.dtype == np.uint8
    for some, expected in (
        (frames[5], all_frames[5]),
        (frames[-2], all_frames[-2]),
        (frames[np.int64(7)], all_frames[7]),
        (np.asarray(frames[3:6]), all_frames[3:6]),
        (np.asarray(frames[::-50]), all_frames[::-50]),
        (np.asarray(frames[-3:]), all_frames[-3:]),
        (np.asarray(frames[10:100][20:25]), all_frames[30:35]),
        (frames[10:100][-1], all_frames[99]),
        (np.stack(list(frames)), all_frames),
        (np.stack(list(reversed(frames[:4]))), all_frames[3::-1]),
    ):
        assert_similar_frames(some, expected)
    assert len(frames[500:]) == 0
    assert list(frames[500:]) == []
    assert np.asarray(frames[500:]).shape == (0, 500, 500, 3)
    assert np.asarray(frames[:2], np.float32).dtype == np.float32
    assert repr(frames[3:9]) == "Frames(6 of 500 x 500 pixels)"
    for index in (130, -131, 10**9):
        with pytest.raises(IndexError, match=f"frame {index} is out of range: there are 130 frames"):
            frames[index]
    with pytest.raises(IndexError, match="there are 2"):
        frames[:2][2]
    with pytest.raises(TypeError):
        frames["first"]
    with pytest.raises(ValueError, match="no memory to share"):
        np.asarray(frames[:1], copy=False)
    env.close()


@pytest.mark.parametrize(("replicas", "columns", "rows"), [(1, 1, 1), (2, 2, 1), (5, 3, 2), (64, 8, 8), (100, 8, 8)])
def test_tiles(any_id: str, replicas: int, columns: int, rows: int) -> None:
    env = gpu_envs.make(any_id, replicas, device="cpu", render_mode="tiled")
    env.reset(seed=0)
    picture = env.render()
    drawing = drawing_of(any_id)
    shown = min(replicas, MAX_TILES)
    width, height = tile_size(drawing, shown)
    assert picture.dtype == np.uint8
    assert picture.shape == (rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3)
    assert max(picture.shape) <= 1200
    assert replicas > 1 or (width, height) == drawing.size
    assert width / height == pytest.approx(drawing.size[0] / drawing.size[1], rel=0.02)
    state = {name: numpy_of(env.state[name])[:shown].astype(np.float64) for name in env.state}
    tiles = painter.Painter("cpu").paint(drawing.draw(state, env.params), (width, height))
    expected = np.full(picture.shape, GAP_SHADE, np.uint8)
    for i, tile in enumerate(tiles):
        top, left = i // columns * (height + GAP), i % columns * (width + GAP)
        expected[top : top + height, left : left + width] = tile
    assert_similar_frames(picture, expected)
    env.close()


@pytest.mark.slow
@pytest.mark.timing
def test_500_tiled_images_take_under_6_seconds() -> None:
    env = gpu_envs.make("CartPole-v1", 64, device="cpu", render_mode="tiled", autoreset_mode="SameStep")
    env.reset(seed=0)
    actions = actions_for("CartPole-v1", 64, 500)
    env.render()
    begin = time.perf_counter()
    for action in actions:
        env.step(action)
        env.render()
    assert time.perf_counter() - begin < 6
    env.close()


@pytest.fixture
def display() -> Iterator[Any]:
    """pygame's display without a screen, closed after the test."""
    pygame = pytest.importorskip("pygame")
    yield pygame.display
    pygame.display.quit()


def on_screen(display: Any) -> np.ndarray:
    import pygame

    return np.asarray(pygame.surfarray.array3d(display.get_surface()).swapaxes(0, 1))


def test_the_window_shows_every_step(any_id: str, unthrottled_clock: list[int], display: Any) -> None:
    env = gpu_envs.make(any_id, 5, device="cpu", render_mode="human")
    twin = gpu_envs.make(any_id, 5, device="cpu", render_mode="tiled")
    assert not display.get_init()  # opens at the reset
    for stepped in (env, twin):
        stepped.reset(seed=0)
    assert_same_bits(on_screen(display), twin.render())
    for action in actions_for(any_id, 5, 3):
        for stepped in (env, twin):
            stepped.step(action)
        assert_same_bits(on_screen(display), twin.render())
    assert env.render() is None
    assert unthrottled_clock == [drawing_of(any_id).frames_a_second] * 5
    assert display.get_caption()[0] == any_id
    env.close()
    assert not display.get_init()
    env.close()
    twin.close()


@pytest.mark.usefixtures("display")
def test_the_window_limits_the_frame_rate() -> None:
    env = gpu_envs.make("TagGridWorld-v0", 1, device="cpu", render_mode="human")
    env.reset(seed=0)
    actions = actions_for("TagGridWorld-v0", 1, 4)
    env.step(actions[0])
    begin = time.perf_counter()
    for action in actions[1:]:
        env.step(action)
    assert time.perf_counter() - begin > 2.5 / drawing_of("TagGridWorld-v0").frames_a_second
    env.close()


def test_pygame_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pygame, frames work and a window raises an error that names the extra."""
    monkeypatch.setitem(sys.modules, "pygame", None)
    plain = gpu_envs.make("CartPole-v1", 2, device="cpu", render_mode="rgb_array")
    plain.reset(seed=0)
    assert plain.render()[1].shape == (400, 600, 3)
    plain.close()
    env = gpu_envs.make("CartPole-v1", 1, device="cpu", render_mode="human")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'gpu_envs\[render\]'"):
        env.reset(seed=0)
    env.close()


def test_render_needs_a_render_mode(any_id: str) -> None:
    env = gpu_envs.make(any_id, 1, device="cpu")
    assert env.render_mode is None
    env.reset(seed=0)
    with pytest.raises(gymnasium.error.Error, match=r"make it with render_mode='rgb_array', 'tiled' or 'human'"):
        env.render()
    env.close()


@pytest.mark.parametrize("mode", rendering.MODES)
def test_render_needs_a_reset_and_an_open_environment(any_id: str, mode: str) -> None:
    env = gpu_envs.make(any_id, 1, device="cpu", render_mode=mode)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"call reset\(\) before render\(\)"):
        env.render()
    env.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="is closed"):
        env.render()


def test_a_spec_without_a_drawing_cannot_be_rendered() -> None:
    undrawn = dataclasses.replace(gpu_envs.spec("CartPole-v1"), drawing=None)
    assert isinstance(undrawn, EnvSpec)
    with pytest.raises(ValueError, match="can be made with None only: its spec has no drawing"):
        gpu_envs.VectorEnv(undrawn, 1, device="cpu", render_mode="rgb_array")
    env = gpu_envs.VectorEnv(undrawn, 1, device="cpu")
    assert env.metadata["render_modes"] == []
    env.reset(seed=0)
    env.close()


@pytest.mark.usefixtures("unthrottled_clock")
@pytest.mark.parametrize("make_copy", [lambda env: pickle.loads(pickle.dumps(env)), copy.deepcopy])
@pytest.mark.parametrize("mode", [None, *rendering.MODES])
def test_copies_keep_the_mode(any_id: str, mode: str | None, make_copy: Callable[[Any], Any]) -> None:
    env = gpu_envs.make(any_id, 2, device="cpu", render_mode=mode)
    env.reset(seed=0)
    twin = make_copy(env)
    assert twin.render_mode == mode
    assert twin.metadata == env.metadata
    if mode in ("rgb_array", "tiled"):
        assert_same_bits(np.asarray(twin.render()), np.asarray(env.render()))
    env.close()
    twin.close()


@pytest.mark.filterwarnings("ignore:.*For Box action spaces, we recommend")  # Pendulum's torque is from -2 to 2
@pytest.mark.parametrize("mode", ["rgb_array", "human", None])
def test_gymnasium_makes_it_in_every_mode(env_id: str, mode: str | None, unthrottled_clock: list[int]) -> None:
    from gymnasium.utils.env_checker import check_env

    env = gymnasium.make(f"gpu_envs/{env_id}", render_mode=mode)
    assert env.render_mode == mode
    check_env(env.unwrapped)  # also checks the other modes
    unthrottled_clock.clear()
    env.reset(seed=4)
    if mode == "rgb_array":
        vector = gpu_envs.make(env_id, 1, render_mode=mode, device="cpu")
        vector.reset(seed=4)
        frame: Any = env.render()
        assert_same_bits(frame, vector.render()[0])
        vector.close()
    env.step(env.action_space.sample())
    assert len(unthrottled_clock) == (2 if mode == "human" else 0)
    env.close()


@pytest.mark.parametrize("env_id", TEAM_IDS)
def test_pettingzoo_environments_render(env_id: str, unthrottled_clock: list[int]) -> None:
    adapter = pytest.importorskip("gpu_envs.adapters.pettingzoo")
    batch = gpu_envs.make(env_id, 1, device="cpu", render_mode="rgb_array")
    batch.reset(seed=2)
    for maker in (adapter.parallel_env, adapter.env, adapter.raw_env):
        env = maker(env_id, render_mode="rgb_array", device="cpu")
        assert env.render_mode == "rgb_array"
        env.reset(seed=2)
        assert_similar_frames(env.render(), batch.render()[0])
        env.close()
    many = adapter.vector_env(env_id, 3, render_mode="rgb_array", device="cpu")
    many.reset(seed=2)
    assert len(many.render()) == 3
    assert_similar_frames(many.render()[0], batch.render()[0])
    many.close()
    assert unthrottled_clock == []
    shown = adapter.parallel_env(env_id, render_mode="human", device="cpu")
    shown.reset(seed=2)
    shown.step({agent: shown.action_space(agent).sample() for agent in shown.agents})
    assert len(unthrottled_clock) == 2
    shown.close()
    batch.close()


def test_environments_share_the_window() -> None:
    """Each environment sets the window's size; closing one environment leaves another's window open."""
    pygame = pytest.importorskip("pygame")
    one, many = (
        gpu_envs.make("CartPole-v1", n, device="cpu", autoreset_mode="SameStep", render_mode="human") for n in (1, 64)
    )
    sizes = []
    for _ in range(3):
        for env in (one, many):
            env.reset(seed=0)
            sizes.append(pygame.display.get_surface().get_size())
    assert sizes[0] != sizes[1]
    assert sizes == sizes[:2] * 3
    for _ in range(3):  # as for an evaluation
        temporary = gpu_envs.make("CartPole-v1", device="cpu", render_mode="human")
        temporary.reset(seed=0)
        one.step(np.zeros(1, int))
        temporary.close()
        assert pygame.display.get_surface().get_size() == sizes[0]
    many.close()
    one.close()
    assert not pygame.display.get_init()


def test_mountain_car_shows_the_flag_with_a_short_track() -> None:
    params: dict[str, Any] = {"min_position": -0.7, "max_position": 0.55}
    env = gpu_envs.make("MountainCar-v0", device="cpu", render_mode="rgb_array", **params)
    env.reset(seed=0)
    frame = env.render()[0]
    assert ((frame[..., 0] == 204) & (frame[..., 2] == 0)).sum() > 50
    env.close()
