"""Gymnasium's vectorised CartPole: SyncVectorEnv, AsyncVectorEnv, and CartPoleVectorEnv in NumPy."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from benchmarks.peers import child
from benchmarks.peers.workloads import Measurement, Workload


def make_env() -> gymnasium.Env[Any, Any]:
    """Make a replica, without the environment checker."""
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


def make(work: Workload) -> Any:
    """Make the vectorised environment."""
    if work.variant == "CartPoleVectorEnv":
        return gymnasium.make_vec("CartPole-v1", num_envs=work.num_envs, vectorization_mode="vector_entry_point")
    kind = {"SyncVectorEnv": SyncVectorEnv, "AsyncVectorEnv": AsyncVectorEnv}[work.variant]
    return kind([make_env] * work.num_envs)


def measure(work: Workload, seconds: float) -> Measurement:
    """Measure the seconds per step. All three use NextStep auto-reset."""
    actions = np.random.default_rng(0).integers(0, 2, (16, work.num_envs))
    start = time.perf_counter()
    env = make(work)
    try:
        assert env.metadata["autoreset_mode"].value == work.autoreset
        env.reset(seed=0)
        return child.time_steps(env, actions, start, seconds)
    finally:
        env.close()


if __name__ == "__main__":
    child.serve(("gymnasium", "numpy"), measure)
