"""The policies of a run in a loop of the user's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import pytest

pytest.importorskip("torch")

import torch
from trainers import GRID, TrainedRuns, small

import gpu_envs
from gpu_envs.seeds import derived_seed
from gpu_envs.training import evaluate, load_policies, train

pytestmark = pytest.mark.usefixtures("one_thread")

ENVS: Mapping[str, dict[str, Any]] = {
    "CartPole-v1": {},
    "Pendulum-v1": {"params": {"max_episode_steps": 30}},
    GRID: {"params": {"max_episode_steps": 20}, "policies": {"runner": "random"}},
    "RiceN-v0": {"params": {"num_regions": 3, "negotiation": True}},
}
"""Choices, a box, a team of which one role is random, and action masks."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A run of each, trained for a moment."""

    def train_one(env: str, folder: str) -> None:
        train(small("cpu", env, total_steps=8 * 16, run_dir=folder, **ENVS[env]), progress=False)

    return TrainedRuns(tmp_path_factory.mktemp("runs"), train_one)


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("env_id", ENVS)
def test_they_act_as_in_an_evaluation(env_id: str, greedy: bool, device: str, runs: Mapping[str, Path]) -> None:
    found = evaluate(runs[env_id], episodes=6, greedy=greedy, device=device, seed=5)
    policies = load_policies(runs[env_id], device=device)
    env = policies.make(6, autoreset_mode="SameStep")
    act = policies.acting_in(env, greedy=greedy, seed=5)
    observations, _ = env.reset(seed=derived_seed(5, "evaluation"))
    returns: dict[str, torch.Tensor] = {}
    over = torch.zeros(6, dtype=torch.bool, device=env.device)
    while not over.all():
        observations, *_, infos = env.step(act(observations))
        ended = infos["_episode"]
        episodes = infos["episode"]["r"]
        for role, each in episodes.items() if isinstance(episodes, Mapping) else [("agent", episodes.unsqueeze(1))]:
            kept = returns.setdefault(role, torch.zeros(6, dtype=torch.float64, device=env.device))
            returns[role] = torch.where(ended & ~over, each.double().mean(1), kept)
        over |= ended
    assert {role: each.mean().item() for role, each in returns.items()} == {
        role: pytest.approx(each.mean, rel=1e-12) for role, each in found.items()
    }


def test_environments_that_do_not_fit_are_refused(runs: Mapping[str, Path]) -> None:
    policies = load_policies(runs["RiceN-v0"], device="cpu")
    with pytest.raises(ValueError, match=r"arrays of numpy, .* make it with output='torch', or by make"):
        policies.acting_in(gpu_envs.make("RiceN-v0", 2, device="cpu", output="numpy"))
    with pytest.raises(ValueError, match=r"arrays of another library, "):
        policies.acting_in(gymnasium.make("CartPole-v1"))
    with pytest.raises(ValueError, match=r"act for 3 region of \d+ features .*, and the environment has 27 region"):
        policies.acting_in(gpu_envs.make("RiceN-v0", 2, device="cpu", output="torch", negotiation=True))
    with pytest.raises(ValueError, match=r"act for 3 region .*, and the environment has 1 agent"):
        policies.acting_in(gpu_envs.make("CartPole-v1", 2, device="cpu", output="torch"))


@pytest.mark.cuda
def test_the_device_is_that_of_the_environment(device: str, runs: Mapping[str, Path]) -> None:
    if device == "cpu":
        pytest.skip("needs a CUDA device")
    policies = load_policies(runs["CartPole-v1"], device="cpu")
    with pytest.raises(ValueError, match=r"the environment is on cuda:0, and the policies are on cpu; load them with"):
        policies.acting_in(gpu_envs.make("CartPole-v1", 2, device="cuda", output="torch"))


def test_other_policies_and_parameters(runs: Mapping[str, Path]) -> None:
    policies = load_policies(
        runs[GRID], device="cpu", policies={"tagger": f"frozen:{runs[GRID]}"}, params={"grid_length": 7}
    )
    env = policies.make(3, render_mode=None)
    assert env.params["grid_length"] == 7
    observations, _ = env.reset(seed=1)
    act = policies.acting_in(env)
    for _ in range(25):
        observations, *_ = env.step(act(observations))
    assert (env.state["x"] <= 7).all()
