"""Train CartPole with Stable-Baselines3's PPO on the CPU: ``python -m benchmarks.peers.sb3_ppo``.

Prints a line of JSON. The settings are RL-Zoo's for CartPole-v1. Training stops when the mean return of the last 100
episodes is 475. Needs only stable-baselines3.
"""

import argparse
import json
import time
from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks.record import versions

ENV = "CartPole-v1"
TARGET, LAST_EPISODES = 475.0, 100
TOTAL_STEPS = 100_000
"""Steps over which RL-Zoo's schedules fall to zero."""


def mean_of_last(model: Any) -> float:
    """Return the mean return of the last 100 episodes; minus infinity before 100 have ended."""
    ended = [episode["r"] for episode in model.ep_info_buffer or ()]
    return float(np.mean(ended)) if len(ended) >= LAST_EPISODES else -np.inf


def solve(seed: int, episodes: int) -> dict[str, Any]:
    """Train until the target; return the seconds, with making the environments, and the return of an evaluation."""
    start, cpu = time.perf_counter(), time.process_time()
    model = PPO(
        "MlpPolicy",
        make_vec_env(ENV, n_envs=8, seed=seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        ent_coef=0.0,
        learning_rate=lambda remaining: 1e-3 * remaining,
        clip_range=lambda remaining: 0.2 * remaining,
        seed=seed,
        device="cpu",
    )
    model.learn(TOTAL_STEPS, callback=ConvertCallback(lambda _locals, _globals: mean_of_last(model) < TARGET))
    result = {
        "seed": seed,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "steps": model.num_timesteps,
        "last_100": mean_of_last(model),
    }
    if episodes:
        env = make_vec_env(ENV, n_envs=64, seed=seed + 1_000_000)
        result["evaluated"] = float(evaluate_policy(model, env, n_eval_episodes=episodes, deterministic=False)[0])
    return result


def main() -> None:
    """Train once, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and environments")
    parser.add_argument("--episodes", type=int, default=0, help="episodes of an evaluation, which the seconds exclude")
    options = parser.parse_args()
    result = solve(options.seed, options.episodes)
    print(json.dumps({"versions": versions(("stable-baselines3", "torch", "gymnasium")), "runs": [result]}))


if __name__ == "__main__":
    main()
