"""What the environments look like, after some random steps."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import gpu_envs
from benchmarks.plot import style
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.envs import PARTICLES

SHOWN = {
    "CartPole-v1": 12,
    "MountainCarContinuous-v0": 60,
    "TagContinuous-v0": 60,
    "Pendulum-v1": 45,
    "Acrobot-v1": 70,
    "TagGridWorld-v0": 30,
}
"""By id: how many steps were taken before the picture."""

ALSO = {"MountainCar-v0": 60, "RiceN-v0": 12, "CovidEconomy-v0": 200, **{spec.id: 10 for spec in PARTICLES}}
"""Others, whose pages have a picture too."""

WIDTH = 360
"""Of those pictures, in pixels."""

LARGEST = {"TagGridWorld-v0": {"grid_length": 20}}
"""Parameters with which there is more to see."""


def draw() -> Figure:
    """A frame of each."""
    figure = Figure(figsize=(style.WIDTH, 4.6), layout="constrained")
    for axes, (env_id, steps) in zip(figure.subplots(2, 3).flat, SHOWN.items(), strict=True):
        axes.imshow(frame(env_id, steps))
        axes.set_title(env_id)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(True)
    return figure


def write(into: Path) -> list[Path]:
    """A picture for the page of each."""
    written = []
    for env_id, steps in (SHOWN | ALSO).items():
        written.append(into / f"{Path(str(gpu_envs.spec(env_id).header)).stem}.png")
        picture(env_id, steps).save(written[-1], optimize=True)
    return written


def picture(env_id: str, steps: int) -> Image.Image:
    """Small, in few colours."""
    made = Image.fromarray(frame(env_id, steps))
    made.thumbnail((WIDTH, WIDTH))
    return made.quantize(64)


def frame(env_id: str, steps: int) -> np.ndarray:
    """The picture of one replica."""
    params: dict[str, Any] = LARGEST.get(env_id, {})
    env: Any = gpu_envs.make(env_id, device="cpu", autoreset_mode="Disabled", render_mode="rgb_array", **params)
    env.reset(seed=3)
    rng = np.random.default_rng(0)
    teams = isinstance(env, gpu_envs.MultiAgentEnv)
    spaces = env.action_spaces if teams else {"": env.action_space}
    for space in spaces.values():
        space.seed(int(rng.integers(2**31)))
    env.allow_frozen_steps()
    for _ in range(steps):
        actions = {name: space.sample() for name, space in spaces.items()}
        env.step(actions if teams else actions[""])
    shown = np.asarray(to_numpy(env.render()[0]))
    env.close()
    return shown
