"""Gymnasium's vectorised cart-poles: one process, a process for each replica, and its own in NumPy."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from benchmarks.peers import child
from benchmarks.peers.works import Measured, Work


def one() -> gymnasium.Env[Any, Any]:
    """A replica, without the checks that are meant for those who write environments."""
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


def make(work: Work) -> Any:
    """The replicas."""
    if work.variant == "CartPoleVectorEnv":
        return gymnasium.make_vec("CartPole-v1", num_envs=work.num_envs, vectorization_mode="vector_entry_point")
    kind = {"SyncVectorEnv": SyncVectorEnv, "AsyncVectorEnv": AsyncVectorEnv}[work.variant]
    return kind([one] * work.num_envs)


def measure(work: Work, seconds: float) -> Measured:
    """Seconds of a step. All three restart an episode in the step after its end."""
    actions = np.random.default_rng(0).integers(0, 2, (16, work.num_envs))
    begin = time.perf_counter()
    env = make(work)
    try:
        assert env.metadata["autoreset_mode"].value == work.autoreset
        env.reset(seed=0)
        return child.stepped(env, actions, begin, seconds)
    finally:
        env.close()


if __name__ == "__main__":
    child.serve(("gymnasium", "numpy"), measure)
