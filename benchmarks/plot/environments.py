"""Frames of the environments after random steps."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import gpu_envs
from benchmarks.plot import style
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.envs import PARTICLES

OVERVIEW = {
    "CartPole-v1": 12,
    "MountainCarContinuous-v0": 60,
    "TagContinuous-v0": 60,
    "Pendulum-v1": 45,
    "Acrobot-v1": 70,
    "TagGridWorld-v0": 30,
}
"""Environments of the overview, and the number of steps before the frame."""

MORE_PAGES = {"MountainCar-v0": 60, "RiceN-v0": 12, "CovidEconomy-v0": 200, **{spec.id: 10 for spec in PARTICLES}}
"""Other environments with a picture on their page, and the number of steps."""

WIDTH = 360
"""Width of the pages' pictures, in pixels."""

PICTURE_PARAMS = {"TagGridWorld-v0": {"grid_length": 20}}
"""Parameters for the pictures."""


def draw() -> Figure:
    """Draw the overview."""
    figure = Figure(figsize=(style.WIDTH, 4.6), layout="constrained")
    for axes, (env_id, steps) in zip(figure.subplots(2, 3).flat, OVERVIEW.items(), strict=True):
        axes.imshow(frame(env_id, steps))
        axes.set_title(env_id)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(True)
    return figure


def write(folder: Path) -> list[Path]:
    """Write the picture of each environment's page; return their paths."""
    written = []
    for env_id, steps in (OVERVIEW | MORE_PAGES).items():
        written.append(folder / f"{Path(str(gpu_envs.spec(env_id).header)).stem}.png")
        picture(env_id, steps).save(written[-1], optimize=True)
    return written


def picture(env_id: str, steps: int) -> Image.Image:
    """Return a small frame with few colours."""
    image = Image.fromarray(frame(env_id, steps))
    image.thumbnail((WIDTH, WIDTH))
    return image.quantize(64)


def frame(env_id: str, steps: int) -> np.ndarray:
    """Return a frame of one replica."""
    params: dict[str, Any] = PICTURE_PARAMS.get(env_id, {})
    env: Any = gpu_envs.make(env_id, device="cpu", autoreset_mode="Disabled", render_mode="rgb_array", **params)
    env.reset(seed=3)
    rng = np.random.default_rng(0)
    is_team = isinstance(env, gpu_envs.MultiAgentEnv)
    spaces = env.action_spaces if is_team else {"": env.action_space}
    for space in spaces.values():
        space.seed(int(rng.integers(2**31)))
    env.allow_frozen_steps()
    for _ in range(steps):
        actions = {name: space.sample() for name, space in spaces.items()}
        env.step(actions if is_team else actions[""])
    pixels = np.asarray(to_numpy(env.render()[0]))
    env.close()
    return pixels
