"""What the tests of the trainer share: small runs, and what of them must be equal."""

from pathlib import Path
from typing import Any

from gpu_envs.training.config import Config

GRID = "TagGridWorld-v0"
FIELD = "TagContinuous-v0"

FIELD_PARAMS = {
    "num_taggers": 2, "num_runners": 3, "grid_length": 5.0, "episode_length": 20, "tagging_distance": 0.2,
    "num_acceleration_levels": 2, "num_turn_levels": 2, "num_other_agents_observed": 2,
}  # fmt: skip
"""A game in which many runners are tagged long before the end."""

TIMES = ("seconds", "steps_per_second", "rollout_seconds", "update_seconds")
"""Columns of a log that no two runs share."""


def small(device: str, env: str = "CartPole-v1", **settings: Any) -> Config:
    """A run of few replicas that is kept nowhere."""
    few: dict[str, Any] = {
        "num_envs": 8, "horizon": 16, "hidden": (16, 16), "epochs": 2, "minibatches": 2, "threads": 1, "seed": 3,
        "run_dir": "", "total_steps": 8 * 16 * 100,
    }  # fmt: skip
    if env == FIELD:
        few["params"] = FIELD_PARAMS
    return Config(env=env, device=device, **(few | settings))


def usual(env: str, device: str, **settings: Any) -> Config:
    """A run with the settings that are the default, kept nowhere."""
    return Config(env=env, device=device, threads=1, **({"run_dir": ""} | settings))


def timeless(state: dict[str, Any]) -> dict[str, Any]:
    """A trainer's state without the times in it."""
    rest = {name: value for name, value in state.items() if name not in ("seconds", "recent")}
    return rest | {"recent": [entry[:2] for entry in state["recent"]]}


def rows_of(log: Path) -> list[dict[str, str]]:
    """The rows of a log, without the times in it."""
    header, *lines = log.read_text().splitlines()
    names = header.split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in lines]
    return [{name: cell for name, cell in row.items() if name not in TIMES} for row in rows]
