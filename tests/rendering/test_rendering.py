"""Frames by parameters and states, and no effect of rendering on the simulation."""

import math
from collections.abc import Callable, Mapping
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
    Place,
    assert_same_bits,
    numpy_of,
    on_host,
    to_place,
)
from rendering_tools import actions_for, assert_similar_frames, do_nothing, drawing_of

import gpu_envs
from gpu_envs.envs import ALL, PARTICLES


def moved_to(actions: Any, place: Place) -> Any:
    if isinstance(actions, dict):
        return {role: to_place(array, place) for role, array in actions.items()}
    return to_place(actions, place)


EVERY = pytest.mark.parametrize("any_id", [spec.id for spec in ALL])


@EVERY
@pytest.mark.parametrize("device", DEVICES)
def test_pictures_equal_stored_pictures(any_id: str, device: str) -> None:
    """``python -m tests.golden`` updates the stored pictures; look at them before you commit them."""
    image = pytest.importorskip("PIL.Image")
    with image.open(golden.picture_path(any_id)) as file:
        stored = np.asarray(file.convert("RGB")).astype(int)
    painted = golden.paint_pictures(any_id, device).astype(int)
    assert painted.shape == stored.shape
    difference = np.abs(painted - stored)
    # NumPy's sines differ between machines in the last place.
    assert difference.max() <= 2, "pictures have changed: run python -m tests.golden and look at them"
    assert difference.mean() < 0.01


def test_every_stored_picture_has_an_environment() -> None:
    assert sorted(path.stem for path in golden.FOLDER.iterdir()) == sorted(spec.id for spec in ALL)


CLASSIC = [name for name in IDS if name in gymnasium.registry and name != "CartPole-v0"]


@pytest.mark.parametrize("env_id", CLASSIC)
def test_frames_look_like_gymnasiums(env_id: str) -> None:
    """Gymnasium rounds some coordinates to pixels, which matters little at a fourth of the size."""
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
        differences = [np.abs(golden.downsample(frame) - golden.downsample(other)) for other in frames]
        assert differences[i].mean() < 0.4
        assert differences[i].max() < 95
        others = [difference.mean() for j, difference in enumerate(differences) if j != i]
        assert min(others) > 2 * differences[i].mean()  # frames of other states differ more
    ours.close()


@pytest.mark.parametrize("env_id", CLASSIC)
def test_frame_rates_are_gymnasiums(env_id: str) -> None:
    env = gpu_envs.make(env_id, 1, device="cpu", render_mode="rgb_array")
    assert env.metadata["render_fps"] == gymnasium.spec(env_id).make().metadata["render_fps"]
    assert set(env.metadata["render_modes"]) == {"rgb_array", "tiled", "human"}
    env.close()


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.device}-{place.output}")
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_frames_do_not_depend_on_output_and_device(any_id: str, place: Place, precision: str) -> None:
    kwargs: dict[str, Any] = {"device": place.device, "output": place.output, "precision": precision}
    frames = []
    for options in ({"device": "cpu"}, kwargs):
        env = gpu_envs.make(any_id, 2, render_mode="rgb_array", **options)
        env.reset(seed=5)
        frames.append(np.asarray(env.render()).astype(int))
        env.close()
    assert np.abs(frames[0] - frames[1]).max() <= (0 if precision == "float32" else 3)


VARIED: Mapping[str, Mapping[str, Any]] = {
    "CartPole": {"x_threshold": [1.2, 2.4, 3.6], "length": [0.25, 0.5, 1.0]},
    "CartPoleHidden": {"x_threshold": [1.2, 2.4, 3.6], "length": [0.25, 0.5, 1.0]},
    "MountainCar": {
        "min_position": [-1.2, -1.5, -1.0],
        "max_position": [0.6, 0.7, 0.9],
        "goal_position": [0.5, 0.4, 0.3],
    },
    "MountainCarContinuous": {"goal_position": [0.45, 0.2, 0.0]},
    "Pendulum": {"l": [0.5, 1.0, 3.0]},
    "Acrobot": {"link_length_1": [1.0, 0.5, 2.0], "link_length_2": [1.0, 1.5, 0.5]},
    "RepeatPrevious": {},
    "TMaze": {},
    "TagContinuous": {"grid_length": [20.0, 10.0, 30.0], "tagging_distance": [0.02, 0.1, 0.0]},
    "TagGridWorld": {"grid_length": [100, 10, 30]},
    "RiceN": {"initial_temperature": [0.85, 2.0, 4.0]},
    "CovidEconomy": {},
    **{spec.id.partition("-")[0]: {} for spec in PARTICLES},
    "SimpleTag": {"agent_size": [0.05, 0.1, 0.2], "obstacle_size": [0.2, 0.1, 0.3]},
}
"""Parameters that change the picture, with values for three replicas."""


def test_parameters_per_replica_are_drawn(any_id: str) -> None:
    """A replica's frame is the same as in an environment with a single replica and its parameters."""
    params = VARIED[any_id.partition("-")[0]]
    if not params:
        pytest.skip("its picture depends on no parameter")
    env = gpu_envs.make(any_id, 3, device="cpu", render_mode="rgb_array", **params)
    env.reset(seed=[3, 3, 3])
    frames = env.render()
    together = np.asarray(frames)
    for i in range(3):
        single = gpu_envs.make(
            any_id, 1, device="cpu", render_mode="rgb_array", **{name: values[i] for name, values in params.items()}
        )
        single.reset(seed=3)
        golden.write_states(single, {name: numpy_of(env.state[name])[i : i + 1] for name in env.state})
        assert_similar_frames(single.render()[0], together[i])
        assert_similar_frames(frames[i], together[i])
        single.close()
    assert not np.array_equal(together[0], together[1])
    assert not np.array_equal(together[1], together[2])
    env.close()


def test_lengths_are_to_scale() -> None:
    """A metre is 125 pixels. The pole starts 5 pixels below the hinge, which is 107.5 pixels above the ground."""
    env = gpu_envs.make("CartPole-v1", 3, device="cpu", render_mode="rgb_array", length=[0.5, 1.0, 0.5])
    env.reset(seed=0)
    golden.write_states(env, {"x": [0.0, 0.0, 1.0], "theta": [0.0, 0.0, math.pi / 2]})
    upright, longer, level = ((frame == (202, 152, 101)).all(-1) for frame in env.render())
    assert np.flatnonzero(upright.any(1))[0] == math.ceil(400 - (107.5 + 125 - 5))
    assert np.flatnonzero(longer.any(1))[0] == math.ceil(400 - (107.5 + 250 - 5))
    assert np.flatnonzero(level.any(0))[-1] == 300 + 125 + 125 - 5 - 1
    env.close()


@pytest.mark.parametrize("length", [1, 2, 5, 23, 24, 100, 999])
def test_grid_lines_are_between_cells(length: int) -> None:
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


def trajectory(
    env_id: str, mode: str | None, autoreset: str, place: Place, actions: list[Any], render: Callable[[Any], object]
) -> tuple[list[Any], Any]:
    kwargs: dict[str, Any] = {"device": place.device, "output": place.output, "render_mode": mode}
    env = gpu_envs.make(env_id, 3, autoreset_mode=autoreset, max_episode_steps=7, **kwargs)
    if autoreset == "Disabled":
        env.allow_frozen_steps()
    results = [on_host(env.reset(seed=1))]
    for action in actions:
        render(env)
        results.append(on_host(env.step(moved_to(action, place))))
    state = on_host(env.get_state())
    env.close()
    return results, state


def paint_and_overwrite_frames(env: Any) -> None:
    frames = env.render()
    frames[0].fill(7)
    assert len(list(frames[1:])) == 2


@pytest.mark.fast_cases(12)
@pytest.mark.usefixtures("unthrottled_clock")
@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.device}-{place.output}")
def test_rendering_changes_no_bit_of_a_trajectory(any_id: str, place: Place, autoreset: str) -> None:
    actions = actions_for(any_id, 3, 12)
    expected = trajectory(any_id, None, autoreset, place, actions, do_nothing)
    for mode, render in (
        ("rgb_array", paint_and_overwrite_frames),
        ("rgb_array", do_nothing),
        ("tiled", lambda env: env.render().fill(7)),
        ("human", do_nothing),
    ):
        assert_same_bits(expected, trajectory(any_id, mode, autoreset, place, actions, render), mode)


def test_frames_show_the_state_at_render(any_id: str, device: str) -> None:
    actions = actions_for(any_id, 2, 10)
    env = gpu_envs.make(any_id, 2, device=device, render_mode="rgb_array")
    env.reset(seed=0)
    lazy = [env.render()]
    painted = [np.asarray(lazy[0])]
    for action in actions:
        env.step(action)
        lazy.append(env.render())
        painted.append(np.asarray(lazy[-1]))
    env.reset(seed=99)
    for frames, expected in zip(lazy, painted, strict=True):
        assert_same_bits(np.asarray(frames), expected)
    assert not np.array_equal(painted[0], painted[-1])
    env.close()
    assert_similar_frames(lazy[3][1], painted[3][1])  # even after the environment is closed


def test_frames_show_the_parameters_at_render() -> None:
    env = gpu_envs.make("CartPole-v1", 2, device="cpu", render_mode="rgb_array", length=[0.5, 0.6])
    env.reset(seed=0)
    frames = env.render()
    before = np.asarray(frames)
    env.params["length"][:] = 2.0  # the live array
    assert_same_bits(np.asarray(frames), before)
    env.set_attr("length", [2.0, 2.5])
    assert_same_bits(np.asarray(frames), before)
    for length in (1.0, [0.1, 0.9]):
        env.set_attr("length", length)
        after = np.asarray(env.render())
        assert all((after[i] != before[i]).any() for i in range(2))
        before = after
    env.close()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_diverged_states_are_drawn(any_id: str, value: float) -> None:
    env = gpu_envs.make(any_id, 2, device="cpu", render_mode="rgb_array")
    env.reset(seed=0)
    good = env.render()[1]
    for name in env.state:
        if numpy_of(env.state[name]).dtype.kind == "f":
            env.state[name][0] = value
    frames = env.render()
    assert frames[0].shape == good.shape
    assert_similar_frames(frames[1], good)
    env.close()
