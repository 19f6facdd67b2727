"""Runs and pickled environments that an earlier version wrote still open, and go on as they would have then."""

import csv
import lzma
import pickle
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import assert_same_bits, numpy_of

SAVED = Path(__file__).with_name("saved")
RUNS = ("cartpole", "pendulum", "tag_grid")
NEEDS = {
    "pettingzoo": "pettingzoo", "pettingzoo_vector": "pettingzoo", "sb3": "stable_baselines3", "skrl": "skrl",
    "rsl_rl": "rsl_rl", "vector_of_torch": "torch", "team_of_torch": "torch",
}  # fmt: skip
"""What some of the environments are written for."""
OF_TORCH = ("skrl", "rsl_rl")
"""Those that take torch's tensors alone."""


def saved() -> dict[str, dict[str, Any]]:
    """By name: the pickle of an environment amid its episodes, actions, and what steps with them gave."""
    found = pickle.loads(lzma.decompress((SAVED / "environments.pkl.xz").read_bytes()))
    assert isinstance(found, dict)
    return found


def flat(value: Any) -> list[np.ndarray]:
    """All arrays and numbers within the result of a step, in their order."""
    if isinstance(value, dict):
        return [each for key in sorted(value, key=str) for each in flat(value[key])]
    if isinstance(value, tuple | list):
        return [each for part in value for each in flat(part)]
    if hasattr(value, "to_dict"):  # a TensorDict
        return flat(value.to_dict())
    return [] if value is None else [numpy_of(value)]


@pytest.mark.parametrize("name", saved())
def test_a_pickled_environment_goes_on(name: str) -> None:
    pytest.importorskip(NEEDS.get(name, "numpy"))
    kept = saved()[name]
    env = pickle.loads(kept["pickle"])
    for actions, expected in zip(kept["actions"], kept["results"], strict=True):
        if name in OF_TORCH:
            import torch

            actions = torch.from_numpy(actions)
        assert_same_bits(expected, flat(env.step(actions)[:4]), name)


def test_gymnasium_makes_another_of_an_unpickled_environment() -> None:
    env = pickle.loads(saved()["gymnasium_vector"]["pickle"])
    assert repr(gymnasium.make_vec(env.spec)) == repr(env)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_evaluated_and_goes_on(name: str, tmp_path: Path) -> None:
    training = pytest.importorskip("gpu_envs.training")
    for found in training.evaluate(SAVED / name, episodes=4, device="cpu").values():
        assert found.episodes >= 4
        assert np.isfinite(found.mean)
    run = tmp_path / name
    shutil.copytree(SAVED / name, run)
    result = training.resume(run, total_steps=4 * 8 * 9, progress=False)
    assert result.steps == 4 * 8 * 9
    before, after = ((folder / "log.csv").read_text() for folder in (SAVED / name, run))
    assert after.startswith(before)
    times = [float(row["seconds"]) for row in csv.DictReader(after.splitlines())]
    assert len(times) > len(before.splitlines()) - 1
    assert times == sorted(times)


@pytest.mark.parametrize("name", RUNS)
def test_a_checkpoint_is_loaded_whole(name: str) -> None:
    torch = pytest.importorskip("torch")
    from gpu_envs import training
    from gpu_envs.training.record.checkpoint import load

    run = training.RunDirectory.open(SAVED / name)
    latest = run.checkpoints.latest()
    assert latest is not None
    state = load(latest)
    episode = state["environment"]["episode"]
    if "ended" in episode:  # flags of two bits, which these runs have as bools
        episode["ended"] = episode["ended"].view(torch.uint8)
    trainer = training.Trainer(run.config(), kept=state["players"])
    trainer.load(state)
    assert_same_bits(state["learners"], trainer.state()["learners"], "learners")
    environment = trainer.state()["environment"]
    for later in {"offset", "episode_metrics", "totals"} & environment["episode"].keys():
        assert not environment["episode"].pop(later).any()  # 0.1.0 knew none
    assert environment.pop("randomness")["calls"] == 0  # nor this
    assert_same_bits(state["environment"], environment, "environment")
