"""The loop of rsl_rl's runner without updates, checks and logs: act, step, process the step."""

import contextlib
import io
from collections.abc import Callable
from typing import Any

import torch
from rsl_rl.algorithms import PPO

from benchmarks.adapters.loops import Loops, Pair
from benchmarks.peers.rsl_rl_constant import ConstantVecEnv
from gpu_envs.adapters import rsl_rl as adapter

ENV = "Pendulum-v1"


def loops(num_envs: int, device: str, steps: int) -> Loops:
    """Return the loop with rsl_rl's PPO."""
    env = adapter.VecEnv(ENV, num_envs, device=device, seed=0)
    pair = Pair(interaction(env, steps), interaction(ConstantVecEnv(num_envs, env.device), steps))
    return Loops(ENV, {"ppo": pair}, env.close)


def settings(steps: int) -> dict[str, Any]:
    """Return a runner's settings, with small networks."""
    network = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "tanh"}
    return {
        "num_steps_per_env": steps,
        "multi_gpu": None,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": {"class_name": "PPO"},
        "actor": network | {"distribution_cfg": {"class_name": "GaussianDistribution"}},
        "critic": network,
    }


def interaction(env: Any, steps: int) -> Callable[[], object]:
    """Return the loop; its storage holds the steps of one call."""
    observations = env.get_observations()
    with contextlib.redirect_stdout(io.StringIO()):  # rsl_rl prints its networks
        algorithm = PPO.construct_algorithm(observations, env, settings(steps), str(env.device))
    algorithm.train_mode()

    def run() -> None:
        nonlocal observations
        algorithm.storage.clear()
        with torch.inference_mode():
            for _ in range(steps):
                observations, rewards, dones, extras = env.step(algorithm.act(observations))
                algorithm.process_env_step(observations, rewards, dones, extras)

    return run
