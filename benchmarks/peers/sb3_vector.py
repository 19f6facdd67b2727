"""Stable-Baselines3's vectorised environments around Gymnasium's cart-pole: in one process, and in several."""

import time

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks.peers import child
from benchmarks.peers.gymnasium_vector import one
from benchmarks.peers.works import Measured, Work


def measure(work: Work, seconds: float) -> Measured:
    """Seconds of a step."""
    actions = np.random.default_rng(0).integers(0, 2, (16, work.num_envs))
    replicas = [one] * work.num_envs
    begin = time.perf_counter()
    # other ways to start a process would import this module, and torch with it, in each
    env = DummyVecEnv(replicas) if work.variant == "DummyVecEnv" else SubprocVecEnv(replicas, start_method="fork")
    try:
        env.reset()
        return child.stepped(env, actions, begin, seconds)
    finally:
        env.close()


if __name__ == "__main__":
    child.serve(("stable-baselines3", "gymnasium", "numpy"), measure)
