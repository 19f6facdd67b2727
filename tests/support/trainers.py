"""Helpers for tests of the trainer: small runs, and comparisons of their results."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from harness import assert_same_bits, numpy_of

from gpu_envs.training.policy import Network, algorithms_with
from gpu_envs.training.run import Run

WIDE_BOX = gymnasium.spaces.Box(np.array([-2, 0, 5, -1, -1], np.float32), np.array([2, 1, 7, 1, 3], np.float32))
SPACES = {
    "discrete": gymnasium.spaces.Discrete(7, start=3),
    "wide": gymnasium.spaces.Discrete(200),
    "multidiscrete": gymnasium.spaces.MultiDiscrete([21, 3, 2, 5, 21]),
    "box": WIDE_BOX,
    "many": gymnasium.spaces.Box(-1, 1, (50,)),
    "many choices": gymnasium.spaces.MultiDiscrete([10] * 111 + [2] * 27),
}
"""Action spaces of every supported kind."""

GRID = "TagGridWorld-v0"
FIELD = "TagContinuous-v0"

FIELD_PARAMS = {
    "num_taggers": 2,
    "num_runners": 3,
    "grid_length": 5.0,
    "episode_length": 20,
    "tagging_distance": 0.2,
    "num_acceleration_levels": 2,
    "num_turn_levels": 2,
    "num_other_agents_observed": 2,
}
"""Parameters of a game in which many runners are tagged early."""

TIMES = ("seconds", "steps_per_second", "rollout_seconds", "update_seconds")
"""Columns of a log that differ between runs."""


MODULE_SETTINGS: dict[str, Any] = {"hidden": Network().hidden}
"""Settings of small runs with custom modules, which must keep the network's defaults."""


def small_run(device: str, env: str = "CartPole-v1", **settings: Any) -> Run:
    """Returns a run with few replicas and no folder."""
    few: dict[str, Any] = {
        "num_envs": 8,
        "horizon": 16,
        "hidden": (16, 16),
        "epochs": 2,
        "minibatches": 2,
        "threads": 1,
        "seed": 3,
        "run_dir": "",
        "total_steps": 8 * 16 * 100,
    }
    if env == FIELD:
        few["params"] = FIELD_PARAMS
    algorithm = settings.get("algorithm", "ppo")
    supported = {
        name: value for name, value in few.items() if not algorithms_with(name) or algorithm in algorithms_with(name)
    }
    return run_of(env=env, device=device, **(supported | settings))


def run_of(**settings: Any) -> Run:
    """Returns a run from settings with flat names."""
    return Run.from_flat(settings)


def off_policy_run(device: str, env: str = "Pendulum-v1", **settings: Any) -> Run:
    """Returns a small off-policy run with short episodes."""
    few: dict[str, Any] = {
        "algorithm": "sac",
        "learning_starts": 0,
        "batch_size": 96,
        "gradient_steps": 1,
        "buffer_size": 200,
        "max_grad_norm": None,
        "gamma": 0.9,
        "tau": 0.2,
        "learning_rate": 0.01,
    }
    if env == "Pendulum-v1":
        few["params"] = {"max_episode_steps": 9}
    if env == FIELD:
        few["params"] = {**FIELD_PARAMS, "actions": "continuous"}
    return small_run(device, env, **(few | settings))


def default_run(env: str, device: str, **settings: Any) -> Run:
    """Returns a run with default settings and no folder."""
    return run_of(env=env, device=device, threads=1, **({"run_dir": ""} | settings))


def without_times(state: dict[str, Any]) -> dict[str, Any]:
    """Returns a trainer's state without its times."""
    rest = {name: value for name, value in state.items() if name not in ("seconds", "recent")}
    return rest | {"recent": [entry[:2] for entry in state["recent"]]}


def assert_resumes_identically(config: Run) -> None:
    """Checks that a trainer that loads another trainer's state continues bit for bit like it."""
    from gpu_envs.training import Trainer

    trainer = Trainer(config)
    state = trainer.state()
    trainer.iterate(2)
    other = Trainer(config, saved_players=state["players"])
    other.load(state)
    other.iterate(2)
    assert_same_bits(without_times(trainer.state()), without_times(other.state()))


def last_checkpoint(run: Path | str, device: str = "cpu") -> dict[str, Any]:
    """Loads the last checkpoint of a run."""
    from gpu_envs.training import RunDirectory
    from gpu_envs.training.record.checkpoint import load

    latest = RunDirectory.open(run).checkpoints.latest()
    assert latest is not None
    return load(latest, device)


def call_after(trainer: Any, iterations: int, act: Callable[[], object]) -> None:
    """Call ``act`` after the update of iteration number ``iterations``, before its report is read."""
    learner = next(iter(trainer.learners.values()))
    end_iteration, done = learner.end_iteration, []

    def counted() -> None:
        end_iteration()
        done.append(1)
        if len(done) == iterations:
            act()

    learner.end_iteration = counted


def rows_of(log: Path) -> list[dict[str, str]]:
    """Returns the rows of a log without its times."""
    header, *lines = log.read_text().splitlines()
    names = header.split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in lines]
    return [{name: cell for name, cell in row.items() if name not in TIMES} for row in rows]


EPS = 2.0**-24
"""Relative rounding error of float32."""


def metrics_of(learner: Any) -> dict[str, float]:
    from gpu_envs.training.horizon import METRICS

    return dict(zip(METRICS, learner.metrics.tolist(), strict=True))


def rollout_of(trainer: Any, name: str) -> dict[str, np.ndarray]:
    """Returns the rollout's arrays of a policy, ``[T, rows, ...]``."""
    learner, storage = trainer.learners[name], trainer.horizon_env.storage
    names = ("observations", "rewards", "terminations", "truncations", "final_obs", "alive")
    present = [n for n in names if getattr(next(iter(storage.values())), n) is not None]
    arrays = {n: numpy_of(learner._gather(storage, n)) for n in present}  # noqa: SLF001 - the rows of a policy, as its learner takes them
    horizon = len(arrays["rewards"])
    alive = arrays["alive"][:horizon] if "alive" in arrays else np.ones_like(arrays["terminations"])
    return arrays | {"alive": alive}
