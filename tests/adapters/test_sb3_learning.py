"""Stable-Baselines3's algorithms learn on the adapter: small budgets, seconds on one core.

Each bound lies well between what a random policy gets and the worst of the seeds that were tried, which its comment
names.
"""

from typing import Any

import numpy as np
import pytest

stable = pytest.importorskip("stable_baselines3", minversion="2.9")

from sb3_tools import make_vec  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402

from gpu_envs.adapters import sb3  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def mean_return(model: Any, venv: Any, *, deterministic: bool = False) -> float:
    """Return the mean return of the first two episodes of each environment."""
    mean, _ = evaluate_policy(model, venv, 2 * venv.num_envs, deterministic=deterministic)
    return float(mean)


@pytest.mark.parametrize("algorithm", [pytest.param(stable.PPO, id="stock"), pytest.param(sb3.PPO, id="ours")])
def test_ppo_learns_cartpole(algorithm: Any, device: str) -> None:
    venv = make_vec("CartPole-v1", 32, device=device, stagger=True)
    settings = {"n_steps": 64, "batch_size": 256, "n_epochs": 6, "learning_rate": 2e-3, "gamma": 0.98}
    model = algorithm("MlpPolicy", venv, gae_lambda=0.9, device="cpu", seed=0, **settings).learn(60_000)
    # random policy: 22; four seeds: 500 each
    assert mean_return(model, make_vec("CartPole-v1", 20, device=device, seed=1000)) >= 450


def test_dqn_learns_cartpole(device: str) -> None:
    venv = make_vec("CartPole-v1", 8, device=device)
    settings = {"train_freq": 4, "gradient_steps": 8, "target_update_interval": 256, "learning_starts": 1000}
    settings |= {"batch_size": 64, "buffer_size": 50_000, "seed": 0}
    model = stable.DQN(
        "MlpPolicy", venv, learning_rate=1e-3, gamma=0.98, exploration_fraction=0.3, device="cpu", **settings
    ).learn(20_000)
    # random policy: 22; last hundred episodes of four seeds: 152 to 166
    assert np.mean([episode["r"] for episode in model.ep_info_buffer]) >= 100


def test_sac_learns_pendulum(device: str) -> None:
    venv = make_vec("Pendulum-v1", 8, device=device, stagger=True)
    settings = {"batch_size": 128, "gradient_steps": 4, "learning_starts": 800, "buffer_size": 50_000, "seed": 0}
    small = {"net_arch": [64, 64]}
    model = stable.SAC(
        "MlpPolicy", venv, learning_rate=3e-3, gamma=0.98, tau=0.02, policy_kwargs=small, device="cpu", **settings
    ).learn(4000)
    # random policy: -1200; four seeds: -181 to -188
    assert mean_return(model, make_vec("Pendulum-v1", 20, device=device, seed=1000), deterministic=True) >= -350


def test_ppo_learns_to_tag(device: str) -> None:
    params = {"grid_length": 10, "num_taggers": 2, "episode_length": 30, "use_full_observation": False}
    venv = make_vec("TagGridWorld-v0", 32, device=device, role="tagger", stagger=True, **params)
    settings = {"n_steps": 32, "batch_size": 512, "n_epochs": 6, "learning_rate": 3e-3, "gamma": 0.95}
    model = sb3.PPO("MlpPolicy", venv, gae_lambda=0.9, ent_coef=0.01, device="cpu", seed=0, **settings)
    evaluation = make_vec("TagGridWorld-v0", 100, device=device, role="tagger", seed=1000, **params)
    before = mean_return(model, evaluation)
    model.learn(60_000)
    # the reward of a capture is 10; three seeds: 1.6 to 2.5 before training, 9.9 after
    assert before < 4
    assert mean_return(model, evaluation) >= 8
