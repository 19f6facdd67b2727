"""What ``render`` gives: of the right states, in every mode, at no cost to the simulation."""

import copy
import dataclasses
import math
import pickle
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import golden
import gymnasium
import numpy as np
import pytest
from harness import (
    DEVICES,
    IDS,
    MODES,
    PLACES,
    TEAM_IDS,
    Place,
    assert_same_bits,
    moved,
    numpy_of,
    on_host,
    with_package,
)
from harness import random_actions as actions_of_one

import gpu_envs
from gpu_envs import painter, rendering
from gpu_envs.pictures import Drawing, Picture
from gpu_envs.rendering import GAP, GAP_SHADE, MOST_TILES, Frames, tile_size
from gpu_envs.spec import EnvSpec

ALL_IDS = [*IDS, *TEAM_IDS]


@pytest.fixture(params=ALL_IDS)
def any_id(request: pytest.FixtureRequest) -> str:
    """The id of each environment, of one agent or with a team."""
    return str(request.param)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Windows do not wait for the time of the next picture; the rates at which they would have."""
    pygame = pytest.importorskip("pygame")
    rates: list[int] = []

    class Clock:
        def tick(self, rate: int) -> None:
            rates.append(rate)

    monkeypatch.setattr(pygame.time, "Clock", Clock)
    return rates


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many replicas' pictures each call of a painter has painted."""
    counts: list[int] = []
    paint = painter.Painter.paint

    def counted(self: painter.Painter, picture: Picture, size: tuple[int, int]) -> np.ndarray:
        frames = paint(self, picture, size)
        counts.append(len(frames))
        return frames

    monkeypatch.setattr(painter.Painter, "paint", counted)
    return counts


def drawing_of(env_id: str) -> Drawing:
    found = gpu_envs.spec(env_id).drawing
    assert found is not None
    return found


def actions_for(env_id: str, num_envs: int, steps: int) -> list[Any]:
    """Random actions, of either kind of environment, in NumPy."""
    if env_id in IDS:
        return list(actions_of_one(env_id, steps, num_envs))
    env = gpu_envs.make(env_id, num_envs, device="cpu")
    for i, space in enumerate(env.action_spaces.values()):
        space.seed(i)
    drawn = [{role: space.sample() for role, space in env.action_spaces.items()} for _ in range(steps)]
    env.close()
    return drawn


def moved_to(actions: Any, place: Place) -> Any:
    if isinstance(actions, dict):
        return {role: moved(array, place) for role, array in actions.items()}
    return moved(actions, place)


def assert_alike(one: np.ndarray, other: np.ndarray) -> None:
    """Fails unless two frames are the same but for roundings: NumPy's sines differ with their number."""
    assert one.shape == other.shape
    assert np.abs(one.astype(int) - other.astype(int)).max() <= 2


def nothing(_: object) -> None:
    """Does not look."""


def all_of(frames: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(frames)


# --- what is seen ---


@pytest.mark.parametrize("device", DEVICES)
def test_pictures_are_as_they_were(any_id: str, device: str) -> None:
    """``python -m tests.golden`` stores them anew; look at them before you keep them."""
    image = pytest.importorskip("PIL.Image")
    with image.open(golden.path_of(any_id)) as file:
        stored = np.asarray(file.convert("RGB")).astype(int)
    found = golden.painted(any_id, device).astype(int)
    assert found.shape == stored.shape
    difference = np.abs(found - stored)
    # The sines of NumPy may differ in their last place from machine to machine: less than a shade.
    assert difference.max() <= 2, "pictures have changed: python -m tests.golden, and look at them"
    assert difference.mean() < 0.01


def test_no_picture_is_left_over() -> None:
    assert sorted(path.stem for path in golden.FOLDER.iterdir()) == sorted(ALL_IDS)


def test_every_replica_of_the_stored_pictures_looks_different(any_id: str) -> None:
    """Or they would say nothing of the states."""
    env = golden.env_in_states(any_id, device="cpu", render_mode="rgb_array")
    frames = all_of(env.render()).astype(int)
    for i in range(1, len(frames)):
        assert np.abs(frames[i] - frames[i - 1]).mean() > 0.2
    env.close()


CLASSIC = [name for name in IDS if name != "CartPole-v0"]


@pytest.mark.parametrize("env_id", CLASSIC)
def test_frames_look_like_gymnasium_s(env_id: str) -> None:
    """Gymnasium draws with whole pixels here and there; a fourth of the size, that is little."""
    pytest.importorskip("pygame")
    states = golden.states_of(env_id)
    names = gpu_envs.spec(env_id).fields
    ours = golden.env_in_states(env_id, device="cpu", render_mode="rgb_array")
    theirs = gymnasium.make(env_id, render_mode="rgb_array", disable_env_checker=True).unwrapped
    theirs.reset(seed=0)
    frames = []
    for i in range(ours.num_envs):
        state = [float(states[name][i]) if name in states else 0.0 for name in names]
        vars(theirs).update({"state": np.array(state), "last_u": None})
        frames.append(np.array(theirs.render()))
    theirs.close()
    for i, frame in enumerate(ours.render()):
        assert frame.shape == frames[i].shape
        differences = [np.abs(golden.smaller(frame) - golden.smaller(other)) for other in frames]
        assert differences[i].mean() < 0.4
        assert differences[i].max() < 95
        others = [each.mean() for j, each in enumerate(differences) if j != i]
        assert min(others) > 2 * differences[i].mean()  # the frame of another state is none of this one
    ours.close()


@pytest.mark.parametrize("env_id", CLASSIC)
def test_rates_and_sizes_are_gymnasium_s(env_id: str) -> None:
    env = gpu_envs.make(env_id, 1, device="cpu", render_mode="rgb_array")
    assert env.metadata["render_fps"] == gymnasium.spec(env_id).make().metadata["render_fps"]
    assert set(env.metadata["render_modes"]) == {"rgb_array", "tiled", "human"}
    env.close()


def test_a_frame_is_pixels(any_id: str, device: str) -> None:
    env = gpu_envs.make(any_id, 3, device=device, render_mode="rgb_array")
    env.reset(seed=0)
    frames = env.render()
    width, height = drawing_of(any_id).size
    assert len(frames) == 3
    for frame in frames:
        assert isinstance(frame, np.ndarray)
        assert (frame.shape, frame.dtype) == ((height, width, 3), np.uint8)
        assert frame.flags.writeable
        assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 2
    env.close()


def test_devices_paint_the_same_bytes(any_id: str) -> None:
    if len(DEVICES) < 2:
        pytest.skip("needs a CUDA device")
    for mode in ("rgb_array", "tiled"):
        pictures = []
        for device in DEVICES:
            env = golden.env_in_states(any_id, device=device, render_mode=mode)
            pictures.append(all_of(env.render()))
            env.close()
        assert_same_bits(pictures[0], pictures[1])


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.device}-{place.output}")
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_every_output_is_drawn_alike(any_id: str, place: Place, precision: str) -> None:
    kwargs: dict[str, Any] = {"device": place.device, "output": place.output, "precision": precision}
    frames = []
    for options in ({"device": "cpu"}, kwargs):
        env = gpu_envs.make(any_id, 2, render_mode="rgb_array", **options)
        env.reset(seed=5)
        frames.append(all_of(env.render()).astype(int))
        env.close()
    assert np.abs(frames[0] - frames[1]).max() <= (0 if precision == "float32" else 3)


# --- parameters ---

VARIED: Mapping[str, Mapping[str, Any]] = {
    "CartPole": {"x_threshold": [1.2, 2.4, 3.6], "length": [0.25, 0.5, 1.0]},
    "MountainCar": {
        "min_position": [-1.2, -1.5, -1.0],
        "max_position": [0.6, 0.7, 0.9],
        "goal_position": [0.5, 0.4, 0.3],
    },
    "MountainCarContinuous": {"goal_position": [0.45, 0.2, 0.0]},
    "Pendulum": {"l": [0.5, 1.0, 3.0]},
    "Acrobot": {"link_length_1": [1.0, 0.5, 2.0], "link_length_2": [1.0, 1.5, 0.5]},
    "TagContinuous": {"grid_length": [20.0, 10.0, 30.0], "tagging_distance": [0.02, 0.1, 0.0]},
    "TagGridWorld": {"grid_length": [100, 10, 30]},
}
"""Parameters that are seen, three replicas' own."""


def test_each_replica_s_own_parameters_are_drawn(any_id: str) -> None:
    """Its frame is that of an environment that has them for itself, whatever is looked at beside it."""
    own = VARIED[any_id.partition("-")[0]]
    env = gpu_envs.make(any_id, 3, device="cpu", render_mode="rgb_array", **own)
    env.reset(seed=[3, 3, 3])
    frames = env.render()
    together = all_of(frames)
    for i in range(3):
        alone = gpu_envs.make(
            any_id, 1, device="cpu", render_mode="rgb_array", **{name: values[i] for name, values in own.items()}
        )
        alone.reset(seed=3)
        golden.put(alone, {name: numpy_of(env.state[name])[i : i + 1] for name in env.state})
        assert_alike(alone.render()[0], together[i])
        assert_alike(frames[i], together[i])
        alone.close()
    assert not np.array_equal(together[0], together[1])
    assert not np.array_equal(together[1], together[2])
    env.close()


def test_a_parameter_that_is_set_later_is_drawn() -> None:
    env = gpu_envs.make("CartPole-v1", 2, device="cpu", render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    env.set_attr("length", 1.0)
    after = env.render()
    env.set_attr("length", [0.1, 0.9])
    assert pole_pixels(before[0]) < pole_pixels(after[0])
    assert pole_pixels(env.render()[0]) < pole_pixels(before[0])
    assert pole_pixels(env.render()[1]) > pole_pixels(before[1])
    env.close()


def pole_pixels(frame: np.ndarray) -> int:
    return int((frame == (202, 152, 101)).all(-1).sum())


def test_lengths_are_to_scale() -> None:
    """125 pixels are a metre. A pole begins half its width below the hinge, which is 107.5 above the ground."""
    env = gpu_envs.make("CartPole-v1", 3, device="cpu", render_mode="rgb_array", length=[0.5, 1.0, 0.5])
    env.reset(seed=0)
    golden.put(env, {"x": [0.0, 0.0, 1.0], "theta": [0.0, 0.0, math.pi / 2]})
    upright, longer, level = ((frame == (202, 152, 101)).all(-1) for frame in env.render())
    assert np.flatnonzero(upright.any(1))[0] == math.ceil(400 - (107.5 + 125 - 5))
    assert np.flatnonzero(longer.any(1))[0] == math.ceil(400 - (107.5 + 250 - 5))
    assert np.flatnonzero(level.any(0))[-1] == 300 + 125 + 125 - 5 - 1
    env.close()


@pytest.mark.parametrize("length", [1, 2, 5, 23, 24, 100, 999])
def test_the_grid_s_lines_are_between_cells(length: int) -> None:
    drawing = drawing_of("TagGridWorld-v0")
    state = {name: np.zeros((1, 5), np.int64) for name in ("x", "y", "in_game")}
    shape = drawing.draw(state, {"num_taggers": 4, "grid_length": length}).shapes[0]
    assert shape.shown is not None
    lines = shape.points[shape.shown]
    upright = lines[lines[:, 0, 0] == lines[:, 1, 0]][:, 0, 0] * (length + 1)
    np.testing.assert_allclose(upright, np.round(upright), atol=1e-9)
    assert upright[0] == 0
    assert upright[-1] == pytest.approx(length + 1)
    assert len(upright) <= 25
    assert (np.diff(upright) > 0.5).all()


# --- at no cost to the simulation ---


def trajectory(
    env_id: str, mode: str | None, autoreset: str, place: Place, actions: list[Any], look: Callable[[Any], object]
) -> tuple[list[Any], Any]:
    kwargs: dict[str, Any] = {"device": place.device, "output": place.output, "render_mode": mode}
    env = gpu_envs.make(env_id, 3, autoreset_mode=autoreset, max_episode_steps=7, **kwargs)
    if autoreset == "Disabled":
        env.allow_frozen_steps()
    results = [on_host(env.reset(seed=1))]
    for action in actions:
        look(env)
        results.append(on_host(env.step(moved_to(action, place))))
    state = on_host(env.get_state())
    env.close()
    return results, state


def look_at_frames(env: Any) -> None:
    frames = env.render()
    frames[0].fill(7)
    assert len(list(frames[1:])) == 2


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.device}-{place.output}")
def test_rendering_changes_no_bit_of_a_trajectory(any_id: str, place: Place, autoreset: str) -> None:
    actions = actions_for(any_id, 3, 12)
    unseen = trajectory(any_id, None, autoreset, place, actions, nothing)
    for mode, look in (
        ("rgb_array", look_at_frames),
        ("rgb_array", nothing),
        ("tiled", lambda env: env.render().fill(7)),
        ("human", nothing),
    ):
        assert_same_bits(unseen, trajectory(any_id, mode, autoreset, place, actions, look), mode)


def test_a_frame_is_of_the_time_of_the_call(any_id: str, device: str) -> None:
    actions = actions_for(any_id, 2, 10)
    env = gpu_envs.make(any_id, 2, device=device, render_mode="rgb_array")
    env.reset(seed=0)
    kept = [env.render()]
    seen = [all_of(kept[0])]
    for action in actions:
        env.step(action)
        kept.append(env.render())
        seen.append(all_of(kept[-1]))
    env.reset(seed=99)
    for frames, then in zip(kept, seen, strict=True):
        assert_same_bits(all_of(frames), then)
    assert not np.array_equal(seen[0], seen[-1])
    env.close()
    assert_alike(kept[3][1], seen[3][1])  # even of one that is closed


def test_frames_keep_the_parameters_of_their_time() -> None:
    env = gpu_envs.make("CartPole-v1", 2, device="cpu", render_mode="rgb_array", length=[0.5, 0.6])
    env.reset(seed=0)
    frames = env.render()
    before = all_of(frames)
    env.params["length"][:] = 2.0  # the live array
    assert_same_bits(all_of(frames), before)
    env.set_attr("length", [2.0, 2.5])
    assert_same_bits(all_of(frames), before)
    env.close()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_a_state_that_diverged_is_drawn_as_far_as_it_goes(any_id: str, value: float) -> None:
    env = gpu_envs.make(any_id, 2, device="cpu", render_mode="rgb_array")
    env.reset(seed=0)
    good = env.render()[1]
    for name in env.state:
        if numpy_of(env.state[name]).dtype.kind == "f":
            env.state[name][0] = value
    frames = env.render()
    assert frames[0].shape == good.shape
    assert_alike(frames[1], good)
    env.close()


# --- frames are painted when they are looked at ---


def test_only_what_is_looked_at_is_painted(painted: list[int]) -> None:
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
    assert_alike(list(some)[1], frames[10_010])
    assert painted == [1, 1, 5, 1]
    env.close()


def test_tiles_are_painted_of_few_replicas(painted: list[int]) -> None:
    env = gpu_envs.make("CartPole-v1", 100_000, device="cpu", render_mode="tiled")
    env.reset(seed=0)
    env.render()
    assert painted == [MOST_TILES]
    env.close()


def test_frames_are_a_sequence() -> None:
    env = gpu_envs.make("Pendulum-v1", 130, device="cpu", render_mode="rgb_array")
    env.reset(seed=0)
    frames = env.render()
    everything = np.array(frames)
    assert everything.shape == (130, 500, 500, 3)
    assert everything.dtype == np.uint8
    for got, expected in (
        (frames[5], everything[5]),
        (frames[-2], everything[-2]),
        (frames[np.int64(7)], everything[7]),
        (all_of(frames[3:6]), everything[3:6]),
        (all_of(frames[::-50]), everything[::-50]),
        (all_of(frames[-3:]), everything[-3:]),
        (all_of(frames[10:100][20:25]), everything[30:35]),
        (frames[10:100][-1], everything[99]),
        (np.stack(list(frames)), everything),
        (np.stack(list(reversed(frames[:4]))), everything[3::-1]),
    ):
        assert_alike(got, expected)
    assert len(frames[500:]) == 0
    assert list(frames[500:]) == []
    assert all_of(frames[500:]).shape == (0, 500, 500, 3)
    assert np.asarray(frames[:2], np.float32).dtype == np.float32
    assert repr(frames[3:9]) == "Frames(6 of 500 x 500 pixels)"
    for index in (130, -131, 10**9):
        with pytest.raises(IndexError, match=f"there is no frame {index}: there are 130"):
            frames[index]
    with pytest.raises(IndexError, match="there are 2"):
        frames[:2][2]
    with pytest.raises(TypeError):
        frames["first"]
    with pytest.raises(ValueError, match="nothing to share"):
        np.asarray(frames[:1], copy=False)
    env.close()


# --- many in one picture ---


@pytest.mark.parametrize(("replicas", "columns", "rows"), [(1, 1, 1), (2, 2, 1), (5, 3, 2), (64, 8, 8), (100, 8, 8)])
def test_tiles(any_id: str, replicas: int, columns: int, rows: int) -> None:
    env = gpu_envs.make(any_id, replicas, device="cpu", render_mode="tiled")
    env.reset(seed=0)
    picture = env.render()
    drawing = drawing_of(any_id)
    shown = min(replicas, MOST_TILES)
    width, height = tile_size(drawing, shown)
    assert picture.dtype == np.uint8
    assert picture.shape == (rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3)
    assert max(picture.shape) <= 1200
    assert width / height == pytest.approx(drawing.size[0] / drawing.size[1], rel=0.02)
    state = {name: numpy_of(env.state[name])[:shown].astype(np.float64) for name in env.state}
    tiles = painter.Painter("cpu").paint(drawing.draw(state, env.params), (width, height))
    expected = np.full(picture.shape, GAP_SHADE, np.uint8)
    for i, tile in enumerate(tiles):
        top, left = i // columns * (height + GAP), i % columns * (width + GAP)
        expected[top : top + height, left : left + width] = tile
    assert_alike(picture, expected)
    env.close()


def test_one_tile_is_the_frame() -> None:
    pictures = []
    for mode in ("rgb_array", "tiled"):
        env = gpu_envs.make("Acrobot-v1", 1, device="cpu", render_mode=mode)
        env.reset(seed=0)
        pictures.append(all_of(env.render()).reshape(500, 500, 3))
        env.close()
    assert_same_bits(pictures[0], pictures[1])


@pytest.mark.timing
def test_500_pictures_of_64_cartpoles_take_little() -> None:
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


# --- a window ---


@pytest.fixture
def display() -> Iterator[Any]:
    """pygame's display, which nobody sees; closed again afterwards."""
    pygame = pytest.importorskip("pygame")
    yield pygame.display
    pygame.display.quit()


def on_screen(display: Any) -> np.ndarray:
    import pygame

    return np.asarray(pygame.surfarray.array3d(display.get_surface()).swapaxes(0, 1))


def test_the_window_shows_every_step(any_id: str, impatient: list[int], display: Any) -> None:
    env = gpu_envs.make(any_id, 5, device="cpu", render_mode="human")
    twin = gpu_envs.make(any_id, 5, device="cpu", render_mode="tiled")
    assert not display.get_init()  # nothing opens before there is something to see
    for each in (env, twin):
        each.reset(seed=0)
    assert_same_bits(on_screen(display), twin.render())
    for action in actions_for(any_id, 5, 3):
        for each in (env, twin):
            each.step(action)
        assert_same_bits(on_screen(display), twin.render())
    assert env.render() is None
    assert impatient == [drawing_of(any_id).frames_a_second] * 5
    assert display.get_caption()[0] == any_id
    env.close()
    assert not display.get_init()
    env.close()
    twin.close()


@pytest.mark.usefixtures("display")
def test_the_window_waits_for_its_time() -> None:
    env = gpu_envs.make("TagGridWorld-v0", 1, device="cpu", render_mode="human")
    env.reset(seed=0)
    actions = actions_for("TagGridWorld-v0", 1, 4)
    env.step(actions[0])
    begin = time.perf_counter()
    for action in actions[1:]:
        env.step(action)
    assert time.perf_counter() - begin > 2.5 / drawing_of("TagGridWorld-v0").frames_a_second
    env.close()


@pytest.mark.usefixtures("impatient")
def test_another_window_that_is_closed_takes_none_with_it(display: Any) -> None:
    """There is one window at a time in pygame; who shows last has it."""
    one, other = (gpu_envs.make("Pendulum-v1", 1, device="cpu", render_mode="human") for _ in range(2))
    one.reset(seed=0)
    other.reset(seed=1)
    seen = on_screen(display)
    one.close()
    other.render()
    assert_same_bits(on_screen(display), seen)
    other.close()


def test_the_single_environment_s_window(impatient: list[int], display: Any) -> None:
    env = gymnasium.make("gpu_envs/CartPole-v1", render_mode="human")
    env.reset(seed=0)
    for _ in range(3):
        env.step(1)
    assert len(impatient) == 4
    assert on_screen(display).shape == (400, 600, 3)
    assert env.render() is None
    env.close()


def test_without_pygame_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    env = gpu_envs.make("CartPole-v1", 1, device="cpu", render_mode="human")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'gpu_envs\[render\]'"):
        env.reset(seed=0)
    env.close()


def test_rendering_needs_no_pygame_and_importing_neither() -> None:
    script = """
        import sys
        import gpu_envs
        assert {"pygame", "PIL", "imageio", "torch", "cupy"}.isdisjoint(sys.modules)
        sys.modules["pygame"] = None
        env = gpu_envs.make("CartPole-v1", 2, device="cpu", render_mode="rgb_array")
        env.reset(seed=0)
        print(env.render()[1].shape)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=with_package(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "(400, 600, 3)\n"), done.stderr


# --- modes, and mistakes ---


def test_unknown_modes_are_refused(any_id: str) -> None:
    with pytest.raises(ValueError, match=f"render_mode is 'ansi'; {any_id} can be made with 'rgb_array', 'tiled', "):
        gpu_envs.make(any_id, 1, device="cpu", render_mode="ansi")


def test_without_a_mode_there_is_no_picture(any_id: str) -> None:
    env = gpu_envs.make(any_id, 1, device="cpu")
    assert env.render_mode is None
    env.reset(seed=0)
    with pytest.raises(gymnasium.error.Error, match=r"make it with render_mode='rgb_array', 'tiled' or 'human'"):
        env.render()
    env.close()


@pytest.mark.parametrize("mode", rendering.MODES)
def test_there_is_nothing_to_see_before_the_reset_and_after_the_close(any_id: str, mode: str) -> None:
    env = gpu_envs.make(any_id, 1, device="cpu", render_mode=mode)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"call reset\(\) before render\(\)"):
        env.render()
    env.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="is closed"):
        env.render()


def test_a_spec_without_a_drawing_cannot_be_rendered() -> None:
    blind = dataclasses.replace(gpu_envs.spec("CartPole-v1"), drawing=None)
    assert isinstance(blind, EnvSpec)
    with pytest.raises(ValueError, match="can be made with None only: its spec has no drawing"):
        gpu_envs.VectorEnv(blind, 1, device="cpu", render_mode="rgb_array")
    env = gpu_envs.VectorEnv(blind, 1, device="cpu")
    assert env.metadata["render_modes"] == []
    env.reset(seed=0)
    env.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("copied", [lambda env: pickle.loads(pickle.dumps(env)), copy.deepcopy])
@pytest.mark.parametrize("mode", [None, *rendering.MODES])
def test_copies_keep_the_mode(any_id: str, mode: str | None, copied: Callable[[Any], Any]) -> None:
    env = gpu_envs.make(any_id, 2, device="cpu", render_mode=mode)
    env.reset(seed=0)
    twin = copied(env)
    assert twin.render_mode == mode
    assert twin.metadata == env.metadata
    if mode in ("rgb_array", "tiled"):
        assert_same_bits(all_of(twin.render()), all_of(env.render()))
    env.close()
    twin.close()


@pytest.mark.filterwarnings("ignore:.*For Box action spaces, we recommend")  # of Pendulum's torque, from -2 to 2
@pytest.mark.parametrize("mode", ["rgb_array", "human", None])
def test_gymnasium_makes_it_in_every_mode(env_id: str, mode: str | None, impatient: list[int]) -> None:
    from gymnasium.utils.env_checker import check_env

    env = gymnasium.make(f"gpu_envs/{env_id}", render_mode=mode)
    assert env.render_mode == mode
    check_env(env.unwrapped)  # looks at the other modes too
    impatient.clear()
    env.reset(seed=0)
    if mode == "rgb_array":
        frame: Any = env.render()
        assert frame.shape == (*drawing_of(env_id).size[::-1], 3)
    assert bool(impatient) == (mode == "human")
    env.close()


def test_gymnasium_makes_vectors_of_it(env_id: str) -> None:
    envs = gymnasium.make_vec(f"gpu_envs/{env_id}", num_envs=3, render_mode="rgb_array", device="cpu")
    assert envs.render_mode == "rgb_array"
    envs.reset(seed=0)
    frames: Any = envs.render()
    theirs = gymnasium.make_vec(env_id, num_envs=3, render_mode="rgb_array", vectorization_mode="sync")
    theirs.reset(seed=0)
    expected: Any = theirs.render()
    assert len(frames) == len(expected) == 3
    assert frames[0].shape == expected[0].shape
    assert frames[0].dtype == expected[0].dtype
    envs.close()
    theirs.close()


def test_the_single_environment_s_frame_is_the_vector_s(env_id: str) -> None:
    single = gymnasium.make(f"gpu_envs/{env_id}", render_mode="rgb_array", device="cpu")
    vector = gpu_envs.make(env_id, 1, render_mode="rgb_array", device="cpu")
    single.reset(seed=4)
    vector.reset(seed=4)
    frame: Any = single.render()
    assert_same_bits(frame, vector.render()[0])
    single.close()
    vector.close()


# --- PettingZoo ---


@pytest.mark.parametrize("env_id", TEAM_IDS)
def test_pettingzoo_s_environments_are_seen(env_id: str, impatient: list[int]) -> None:
    adapter = pytest.importorskip("gpu_envs.adapters.pettingzoo")
    batch = gpu_envs.make(env_id, 1, device="cpu", render_mode="rgb_array")
    batch.reset(seed=2)
    for maker in (adapter.parallel_env, adapter.env, adapter.raw_env):
        env = maker(env_id, render_mode="rgb_array", device="cpu")
        assert env.render_mode == "rgb_array"
        env.reset(seed=2)
        assert_alike(env.render(), batch.render()[0])
        env.close()
    many = adapter.vector_env(env_id, 3, render_mode="rgb_array", device="cpu")
    many.reset(seed=2)
    assert len(many.render()) == 3
    assert_alike(many.render()[0], batch.render()[0])
    many.close()
    assert impatient == []
    shown = adapter.parallel_env(env_id, render_mode="human", device="cpu")
    shown.reset(seed=2)
    shown.step({agent: shown.action_space(agent).sample() for agent in shown.agents})
    assert len(impatient) == 2
    shown.close()
    batch.close()


@pytest.mark.parametrize("env_id", TEAM_IDS)
def test_pettingzoo_s_own_test_of_rendering(env_id: str, impatient: list[int]) -> None:
    adapter = pytest.importorskip("gpu_envs.adapters.pettingzoo")
    from pettingzoo.test import render_test

    def make_env(render_mode: str | None = None) -> Any:
        return adapter.env(env_id, render_mode=render_mode, device="cpu")

    render_test(make_env)
    assert impatient


def test_windows_take_turns() -> None:
    """pygame has one: each shows its own picture whole, and closing one leaves the other's alone."""
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
    for _ in range(3):  # an environment for evaluation, made anew each time
        fresh = gpu_envs.make("CartPole-v1", device="cpu", render_mode="human")
        fresh.reset(seed=0)
        one.step(np.zeros(1, int))
        fresh.close()
        assert pygame.display.get_surface().get_size() == sizes[0]
    many.close()
    one.close()
    assert not pygame.display.get_init()


def test_a_short_road_shows_its_flag() -> None:
    params: dict[str, Any] = {"min_position": -0.7, "max_position": 0.55}
    env = gpu_envs.make("MountainCar-v0", device="cpu", render_mode="rgb_array", **params)
    env.reset(seed=0)
    frame = env.render()[0]
    assert ((frame[..., 0] == 204) & (frame[..., 2] == 0)).sum() > 50
    env.close()
