"""PettingZoo's mpe2: one replica in Python, a ParallelEnv with discrete actions."""

import time
from typing import Any

import numpy as np
from mpe2 import simple_spread_v3, simple_tag_v3

from benchmarks.peers import child
from benchmarks.peers.workloads import SIMPLE_SPREAD, Measurement, Workload
from benchmarks.timing import seconds_per_call


def make_env(work: Workload) -> Any:
    """Make the environment."""
    assert work.team is not None
    if work.task == SIMPLE_SPREAD:
        return simple_spread_v3.parallel_env(N=work.team[0])
    adversaries, good = work.team
    return simple_tag_v3.parallel_env(num_adversaries=adversaries, num_good=good)


def measure(work: Workload, seconds: float) -> Measurement:
    """Measure the seconds per step of one replica, times the number of replicas of the workload."""
    start = time.perf_counter()
    env = make_env(work)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = [{a: int(rng.integers(env.action_space(a).n)) for a in env.possible_agents} for _ in range(16)]

    def call(t: int) -> None:
        env.step(actions[t % 16])
        if not env.agents:
            env.reset()

    call(0)
    prepare = time.perf_counter() - start
    return Measurement(work.num_envs * seconds_per_call(call, seconds=seconds), prepare)


if __name__ == "__main__":
    child.serve(("mpe2", "pettingzoo"), measure)
