"""Cart-pole learnt by Stable-Baselines3's PPO from 4,096 replicas."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import ConvertCallback

import gpu_envs
from benchmarks.adapters.plan import AdapterPlan
from benchmarks.peers.sb3_ppo import mean_of_last
from gpu_envs.adapters import sb3 as adapter
from gpu_envs.seeds import derived_seed

ENV = "CartPole-v1"
SETTINGS: Mapping[str, Any] = {
    "n_steps": 16,
    "batch_size": 8192,
    "n_epochs": 2,
    "learning_rate": 3e-3,
    "gamma": 0.98,
    "gae_lambda": 0.9,
}
MOST = 10_000_000
"""Steps at most."""
EPISODES = 1000
"""Of the evaluation, whose actions are drawn."""


def learn(plan: AdapterPlan, target: float, seed: int = 0) -> dict[str, Any]:
    """Trains until the last 100 episodes reach the target, then plays whole episodes.

    Args:
        plan: Where, and how long.
        target: The mean return.
        seed: Of everything.
    """
    venv: Any = adapter.VecEnv(ENV, plan.size(4096, 64), device=plan.device, stagger=True, seed=seed)
    settings = {**SETTINGS, "batch_size": plan.size(SETTINGS["batch_size"], 256)}
    episodes = plan.size(EPISODES, 8)
    begin = time.perf_counter()
    model = adapter.PPO("MlpPolicy", venv, seed=seed, device="cpu", **settings)
    model.learn(plan.size(MOST, 4096), callback=ConvertCallback(lambda *_: mean_of_last(model) < target))
    found = {
        "env": ENV,
        "num_envs": venv.num_envs,
        "settings": settings,
        "seconds": time.perf_counter() - begin,
        "steps": model.num_timesteps,
        "evaluated": evaluate(model, episodes, plan.device, derived_seed(seed, "evaluation")),
        "episodes": episodes,
        "actions": "drawn",
        "target": target,
    }
    venv.close()
    return found


def evaluate(model: Any, episodes: int, device: str, seed: int) -> float:
    """The mean return of one whole episode of each of some replicas, with actions drawn from the policy."""
    env = gpu_envs.make(ENV, episodes, device=device, autoreset_mode="SameStep")
    observations, _ = env.reset(seed=seed)
    going = np.ones(episodes, bool)
    total = np.zeros(episodes)
    while going.any():
        actions, _ = model.predict(observations)
        observations, rewards, terminations, truncations, _ = env.step(actions)
        total += rewards * going
        going &= ~(terminations | truncations)
    env.close()
    return float(total.mean())
