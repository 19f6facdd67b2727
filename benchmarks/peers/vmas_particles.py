"""VMAS's MPE with discrete actions, in torch operations: tag among two obstacles, and spread."""

import time
from typing import Any

import torch
import vmas

from benchmarks.peers import child
from benchmarks.peers.works import SIMPLE_SPREAD, Measured, Work
from benchmarks.timing import seconds_per_call, waiting

LIMIT = 25
"""Steps of an episode, as MPE has it. All replicas begin together, and end together."""


def measure(work: Work, seconds: float) -> Measured:
    """Seconds of a step of all agents. VMAS restarts nothing by itself: all replicas are reset at the limit."""
    assert work.team is not None
    if work.task == SIMPLE_SPREAD:
        name, sizes = "simple_spread", {"n_agents": work.team[0]}
    else:
        name, sizes = "simple_tag", dict(zip(("num_adversaries", "num_good_agents"), work.team, strict=True))
    generator = torch.Generator(work.device).manual_seed(0)
    begin = time.perf_counter()
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

    def turn(t: int) -> None:
        nonlocal steps
        if steps == LIMIT:
            env.reset()
            steps = 0
        env.step(actions[t % 16])
        steps += 1

    wait = waiting(work.device)
    turn(0)
    wait()
    prepare = time.perf_counter() - begin
    return Measured(seconds_per_call(turn, wait, seconds=seconds), prepare)


if __name__ == "__main__":
    child.serve(("vmas", "torch"), measure)
