"""VMAS's MPE with discrete actions: simple_tag and simple_spread."""

import time
from typing import Any

import torch
import vmas

from benchmarks.peers import child
from benchmarks.peers.workloads import SIMPLE_SPREAD, Measurement, Workload
from benchmarks.timing import seconds_per_call, wait_function

LIMIT = 25
"""Length of an episode, as in MPE. All replicas start and end together."""


def measure(work: Workload, seconds: float) -> Measurement:
    """Measure the seconds per step of all agents. VMAS has no auto-reset: all replicas are reset at the limit."""
    assert work.team is not None
    if work.task == SIMPLE_SPREAD:
        name, sizes = "simple_spread", {"n_agents": work.team[0]}
    else:
        name, sizes = "simple_tag", dict(zip(("num_adversaries", "num_good_agents"), work.team, strict=True))
    generator = torch.Generator(work.device).manual_seed(0)
    start = time.perf_counter()
    env: Any = vmas.make_env(
        name,
        num_envs=work.num_envs,
        device=work.device,
        continuous_actions=False,
        max_steps=LIMIT,
        seed=0,
        **sizes,
    )
    actions = [
        [
            torch.randint(0, space.n, (work.num_envs, 1), device=work.device, generator=generator)
            for space in env.action_space
        ]
        for _ in range(16)
    ]
    steps = 0

    def call(t: int) -> None:
        nonlocal steps
        if steps == LIMIT:
            env.reset()
            steps = 0
        env.step(actions[t % 16])
        steps += 1

    wait = wait_function(work.device)
    call(0)
    wait()
    prepare = time.perf_counter() - start
    return Measurement(seconds_per_call(call, wait, seconds=seconds), prepare)


if __name__ == "__main__":
    child.serve(("vmas", "torch"), measure)
