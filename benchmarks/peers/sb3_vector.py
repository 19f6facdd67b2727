"""Stable-Baselines3's DummyVecEnv and SubprocVecEnv with Gymnasium's CartPole."""

import time

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks.peers import child
from benchmarks.peers.gymnasium_vector import make_env
from benchmarks.peers.workloads import Measurement, Workload


def measure(work: Workload, seconds: float) -> Measurement:
    """Measure the seconds per step."""
    actions = np.random.default_rng(0).integers(0, 2, (16, work.num_envs))
    env_functions = [make_env] * work.num_envs
    start = time.perf_counter()
    # other start methods import this module, and torch, in each process
    env = (
        DummyVecEnv(env_functions)
        if work.variant == "DummyVecEnv"
        else SubprocVecEnv(env_functions, start_method="fork")
    )
    try:
        env.reset()
        return child.time_steps(env, actions, start, seconds)
    finally:
        env.close()


if __name__ == "__main__":
    child.serve(("stable-baselines3", "gymnasium", "numpy"), measure)
