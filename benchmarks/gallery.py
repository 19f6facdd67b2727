"""Train a policy for each environment, and record it: ``python -m benchmarks.gallery [ID ...]``.

Writes ``docs/environments/*.gif``. Runs are kept in ``build/gallery``; only missing ones are trained, on a GPU in a few
minutes.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import gpu_envs
from gpu_envs import replays
from gpu_envs.cli import main as run_command
from gpu_envs.envs import ALL

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "environments"
RUNS = ROOT / "build" / "gallery"


class Recording(NamedTuple):
    """How an environment is recorded."""

    preset: str = "default"
    steps: int = 100
    width: int = 240
    """Width in pixels."""
    fps: int | None = None
    """Steps per second; None for real time."""
    greedy: bool = True
    """Whether policies take the most likely action instead of sampling."""


RECORDINGS = {
    "CartPole-v0": Recording(steps=150, greedy=False),
    "CartPole-v1": Recording(steps=150, greedy=False),
    "MountainCar-v0": Recording(steps=120),
    "MountainCarContinuous-v0": Recording(steps=90),
    "Pendulum-v1": Recording(steps=100),
    "Acrobot-v1": Recording(steps=80),
    "TagContinuous-v0": Recording("taggers", steps=200, width=400, greedy=False),
    "TagGridWorld-v0": Recording("taggers", steps=60, greedy=False),
    "RiceN-v0": Recording(steps=40),
    "CovidEconomy-v0": Recording(steps=270, width=320, fps=30),
}
"""Recordings by environment; of the others, two episodes of the default preset's policy."""


def stem(env_id: str) -> str:
    """Return the name of an environment's page and picture, without suffix."""
    return Path(str(gpu_envs.spec(env_id).header)).stem


def record(env_id: str) -> Path:
    """Train the environment's policy unless there is one, write the recording, and return its path."""
    recording, run, path = RECORDINGS.get(env_id, Recording(steps=50)), RUNS / env_id, FOLDER / f"{stem(env_id)}.gif"
    if not run.is_dir():
        run_command(["train", env_id, "--preset", recording.preset, "--run-dir", str(run)])
    replay = replays.record(run, replicas=1, steps=recording.steps, seed=3, greedy=recording.greedy, device="cpu")
    replay.save_video(path, width=recording.width, fps=recording.fps)
    return path


def main() -> None:
    """Record all environments, or those named."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gallery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="environments; without: all that have a picture")
    pictured = {stem(spec.id): spec.id for spec in ALL}  # the last version of each environment
    for env_id in parser.parse_args().ids or pictured.values():
        path = record(env_id)
        print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size / 1000:.0f} KB", flush=True)


if __name__ == "__main__":
    main()
