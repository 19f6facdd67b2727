"""PettingZoo's mpe2: one replica in Python, as a ParallelEnv with discrete actions."""

import time
from typing import Any

import numpy as np
from mpe2 import simple_spread_v3, simple_tag_v3

from benchmarks.peers import child
from benchmarks.peers.works import SIMPLE_SPREAD, Measured, Work
from benchmarks.timing import seconds_per_call


def made(work: Work) -> Any:
    """The game."""
    assert work.team is not None
    if work.task == SIMPLE_SPREAD:
        return simple_spread_v3.parallel_env(N=work.team[0])
    adversaries, good = work.team
    return simple_tag_v3.parallel_env(num_adversaries=adversaries, num_good=good)


def measure(work: Work, seconds: float) -> Measured:
    """Seconds of a step of as many replicas as are asked for: of its one replica, so many times."""
    begin = time.perf_counter()
    env = made(work)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = [{a: int(rng.integers(env.action_space(a).n)) for a in env.possible_agents} for _ in range(16)]

    def turn(t: int) -> None:
        env.step(actions[t % 16])
        if not env.agents:
            env.reset()

    turn(0)
    prepare = time.perf_counter() - begin
    return Measured(work.num_envs * seconds_per_call(turn, seconds=seconds), prepare)


if __name__ == "__main__":
    child.serve(("mpe2", "pettingzoo"), measure)
