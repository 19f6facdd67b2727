"""Reference pictures of fixed states, which somebody has checked by eye.

``python tests/support/golden.py`` repaints them into ``tests/rendering/golden``; look at the changes
before you commit them.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gpu_envs
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.envs import PARTICLES

FOLDER = Path(__file__).parents[1] / "rendering" / "golden"
DOWNSAMPLING = 4
"""Factor by which stored pictures are smaller than frames."""

States = Mapping[str, Any]
"""By field: a value for each replica, or for each agent of each replica in teams."""


def cart_pole() -> States:
    """Leaning poles, one of them near the end of the track."""
    return {"x": [0.0, 1.3, -2.3], "theta": [0.0, 0.2, -0.15]}


def tag_continuous() -> States:
    """Agents on a spiral, some of them inactive; rotated in the second replica."""
    agents = np.arange(110)
    turns = np.stack([2.4 * agents, 2.4 * agents + 1])
    far = 9.5 * np.sqrt(agents / 110)
    in_game = np.stack([agents >= 0, (agents < 10) | (agents % 3 == 0)])
    return {
        "x": 10 + far * np.cos(turns),
        "y": 10 + far * np.sin(turns),
        "heading": 0.3 * turns,
        "in_game": in_game,
    }


def rice_n() -> States:
    """Different regions, and three temperatures."""
    tenths = np.arange(27) % 10 / 10
    return {
        "savings": [tenths, tenths[::-1], 0 * tenths],
        "mitigation_rate": [0 * tenths, tenths, 0.9 - tenths],
        "temperature": [[0.85, 0.0], [2.5, 0.0], [7.0, 0.0]],
    }


def covid_economy() -> States:
    """States with different stringency, and increasing numbers of infected and unemployed people."""
    agents, enlarged = np.arange(51), np.array([[1.0], [2.0], [5.0]])
    return {
        "stringency": [agents % 10 + 1, (agents // 5) % 10 + 1, 10 - agents % 3],
        "infected": 2e4 * enlarged * (1 + agents % 4),
        "unemployed": 1e5 * enlarged * (1 + agents % 7),
    }


def particles(env_id: str) -> States:
    """Agents and landmarks on two circles; in the second replica some are outside of the picture."""
    env = gpu_envs.make(env_id, 2, device="cpu")
    states: dict[str, Any] = {}
    for prefix, far in (("", 0.8), ("landmark_", 0.5)):
        count = env.state[f"{prefix}x"].shape[1]
        turns = 2 * np.pi * (np.arange(count) + far) / count
        for axis, turned in (("x", np.cos), ("y", np.sin)):
            states[f"{prefix}{axis}"] = far * np.array([[1.0], [2.0]]) * turned(turns)
    for name in {"goal", "key"} & env.state.keys():
        states[name] = np.ones(env.state[name].shape)
    if "c" in env.state:
        states["c"] = np.broadcast_to(np.eye(env.state["c"].shape[2])[1], env.state["c"].shape)
    env.close()
    return states


STATES: Mapping[str, Callable[[], States]] = {
    "CartPole": cart_pole,
    "CartPoleHidden": cart_pole,
    "MountainCar": lambda: {"position": [-0.5, 0.3, -1.15, 0.5], "velocity": [0.0, 0.02, 0.0, 0.01]},
    "MountainCarContinuous": lambda: {"position": [-0.5, 0.2, -1.15, 0.45], "velocity": [0.0, 0.02, 0.0, 0.01]},
    "Pendulum": lambda: {"theta": [0.0, 0.7, 3.0, -1.2], "theta_dot": [0.0, 1.0, -2.0, 8.0]},
    "Acrobot": lambda: {"theta1": [0.0, 1.0, -2.2], "theta2": [0.0, -0.5, 1.5]},
    "RepeatPrevious": lambda: {"suits": [0b_01_10_11_00_01, 0b_10_11, 0b_11_00_00_10_01], "steps": [9, 1, 47]},
    "TMaze": lambda: {
        "cell": [0, 4, 10, 10],
        "cue": [1, -1, 1, -1],
        "side": [0, 0, 1, 1],
        "shown": [True, False, False, False],
    },
    "TagContinuous": tag_continuous,
    "TagGridWorld": lambda: {
        "x": [[0, 20, 50, 100, 70], [10, 30, 40, 60, 60]],
        "y": [[0, 80, 50, 100, 20], [90, 30, 10, 60, 60]],
        "in_game": [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]],
    },
    "RiceN": rice_n,
    "CovidEconomy": covid_economy,
    **{spec.id.partition("-")[0]: functools.partial(particles, spec.id) for spec in PARTICLES},
}
"""By the environment's name without its version."""


def states_of(env_id: str) -> States:
    """Returns the states of an environment's reference pictures."""
    return STATES[env_id.partition("-")[0]]()


def env_in_states(env_id: str, **kwargs: Any) -> Any:
    """Makes an environment whose replicas are in the states of its reference pictures."""
    states = states_of(env_id)
    env = gpu_envs.make(env_id, len(next(iter(states.values()))), **kwargs)
    env.reset(seed=0)
    write_states(env, states)
    return env


def write_states(env: Any, states: States) -> None:
    """Writes states into an environment."""
    for name, values in states.items():
        like = to_numpy(env.state[name])
        env.state[name] = np.asarray(values).astype(like.dtype)


def paint_pictures(env_id: str, device: str) -> np.ndarray:
    """Paints an environment's reference pictures, downsampled and stacked vertically."""
    env = env_in_states(env_id, device=device, render_mode="rgb_array")
    frames = np.concatenate([downsample(frame) for frame in env.render()])
    env.close()
    return frames.round().astype(np.uint8)


def downsample(frame: np.ndarray, factor: int = DOWNSAMPLING) -> np.ndarray:
    """Averages blocks of ``factor`` by ``factor`` pixels."""
    height, width, _ = frame.shape
    return np.asarray(frame.reshape(height // factor, factor, width // factor, factor, 3).mean((1, 3)))


def picture_path(env_id: str) -> Path:
    """Returns the file of an environment's reference pictures."""
    return FOLDER / f"{env_id}.png"


def main() -> None:
    """Paints all pictures."""
    from PIL import Image

    FOLDER.mkdir(exist_ok=True)
    for env_id in gpu_envs.ids():
        Image.fromarray(paint_pictures(env_id, "cpu")).save(picture_path(env_id), optimize=True)
        print(f"painted {picture_path(env_id)}")


if __name__ == "__main__":
    main()
