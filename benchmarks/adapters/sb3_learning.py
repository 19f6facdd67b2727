"""Training of CartPole with Stable-Baselines3's PPO and 4,096 replicas."""

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
MAX_STEPS = 10_000_000
"""Maximum number of steps."""
EPISODES = 1000
"""Episodes of the evaluation, with sampled actions."""


def learn(plan: AdapterPlan, target: float, seed: int = 0) -> dict[str, Any]:
    """Train until the last 100 episodes reach the target, then evaluate.

    Args:
        plan: The device and the sizes.
        target: The target mean return.
        seed: The seed of training and evaluation.
    """
    venv: Any = adapter.VecEnv(ENV, plan.size(4096, 64), device=plan.device, stagger=True, seed=seed)
    settings = {**SETTINGS, "batch_size": plan.size(SETTINGS["batch_size"], 256)}
    episodes = plan.size(EPISODES, 8)
    start = time.perf_counter()
    model = adapter.PPO("MlpPolicy", venv, seed=seed, device="cpu", **settings)
    model.learn(plan.size(MAX_STEPS, 4096), callback=ConvertCallback(lambda *_: mean_of_last(model) < target))
    result = {
        "env": ENV,
        "num_envs": venv.num_envs,
        "settings": settings,
        "seconds": time.perf_counter() - start,
        "steps": model.num_timesteps,
        "evaluated": evaluate(model, episodes, plan.device, derived_seed(seed, "evaluation")),
        "episodes": episodes,
        "actions": "sampled",
        "target": target,
    }
    venv.close()
    return result


def evaluate(model: Any, episodes: int, device: str, seed: int) -> float:
    """Return the mean return over one complete episode of each replica, with sampled actions."""
    env = gpu_envs.make(ENV, episodes, device=device, autoreset_mode="SameStep")
    observations, _ = env.reset(seed=seed)
    active = np.ones(episodes, bool)
    total = np.zeros(episodes)
    while active.any():
        actions, _ = model.predict(observations)
        observations, rewards, terminations, truncations, _ = env.step(actions)
        total += rewards * active
        active &= ~(terminations | truncations)
    env.close()
    return float(total.mean())
