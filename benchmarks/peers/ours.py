"""What we do of every kind of work; its process is run and timed as those of the others are."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import gpu_envs
from benchmarks.peers import child
from benchmarks.peers.works import (
    BARE,
    FUSED_STEPS,
    GRAPH_STEPS,
    GRID,
    HORIZON,
    SIMPLE_SPREAD,
    SIMPLE_TAG,
    TAG,
    Measured,
    Work,
)
from benchmarks.replicas import random_actions, tensors_of_actions
from benchmarks.throughput import teams
from benchmarks.timing import graph_of_steps, seconds_per_call, training_rate, waiting

TEAMS = {
    TAG: ("num_taggers", "num_runners"),
    GRID: ("num_taggers",),
    SIMPLE_TAG: ("num_adversaries", "num_good"),
    SIMPLE_SPREAD: ("N",),
}
"""The parameters that are the numbers of agents."""

TURNS = 16
"""Steps whose actions are drawn beforehand, and taken in turn."""


def params(work: Work) -> Mapping[str, Any]:
    """The environment's own, which make its team."""
    if work.team is None:
        return {}
    return dict(zip(TEAMS[work.task], work.team, strict=False))


def made(work: Work) -> Any:
    """The replicas, with the output that suits the way; teams are staggered over their episode."""
    env = gpu_envs.make(
        work.task,
        work.num_envs,
        device=work.device,
        output="numpy" if work.way == "host" else "torch",
        autoreset_mode=work.autoreset,
        statistics=False if work.variant == BARE else None,
        threads=1 if work.cores == "one" else None,
        **params(work),
    )
    env.reset(seed=0)
    if work.team is not None:
        env.stagger(seed=1)
    return env


def actions_of(work: Work, env: Any) -> list[Any]:
    """Random ones for some steps: NumPy arrays for the host, else tensors of the device."""
    if work.way == "host":
        return random_actions(env.single_action_space, work.num_envs, TURNS)
    return tensors_of_actions(env, TURNS) if work.team is None else teams.tensors_of_actions(env, TURNS, "int64")


def measure(work: Work, seconds: float) -> Measured:
    """Seconds of a step."""
    if work.way == "train":
        return trained(work, seconds)
    begin = time.perf_counter()
    env = made(work)
    ready = time.perf_counter() - begin
    actions = actions_of(work, env)
    wait = waiting("cpu" if work.way == "host" else work.device)  # what comes out as NumPy is there already
    call, steps = fused(env) if work.way == "fused" else ((lambda t: env.step(actions[t % TURNS])), 1)
    begin = time.perf_counter()
    call(0)
    wait()
    if work.way == "graph":
        graph = graph_of_steps(env, actions, GRAPH_STEPS)
        call, steps = (lambda _: graph.replay()), GRAPH_STEPS
    prepare = ready + time.perf_counter() - begin
    if work.team is not None:
        for t in range(600 // steps):  # until the share of agents in the game is stationary
            call(t)
    spent = seconds_per_call(call, wait, seconds=seconds, warm_up=2 if steps > 1 else 64)
    env.close()
    return Measured(spent / steps, prepare)


def fused(env: Any) -> tuple[Callable[[int], object], int]:
    """Calls that take many given actions; they are 32-bit, as a JAX user's are."""
    import torch

    block = torch.stack(tensors_of_actions(env, FUSED_STEPS, "int32"))
    return lambda _: env.rollout(FUSED_STEPS, block), FUSED_STEPS


def trained(work: Work, seconds: float) -> Measured:
    """PPO, as ``benchmarks.training`` measures it."""
    updates = max(1, round(seconds * 2)) if work.device == "cpu" else 10
    settings = {
        "env": work.task,
        "num_envs": work.num_envs,
        "device": work.device,
        "horizon": HORIZON,
        "epochs": 1,
        "minibatches": 4,
        "learning_rate": 3e-4,
        "precision": "float32",
        "hidden": (64, 64),
        "activation": "tanh",
    }
    found = training_rate(settings, updates, updates, repeats=3)
    return Measured(work.num_envs / found["steps_per_s"], found["prepare_s"])


if __name__ == "__main__":
    child.serve(("gpu_envs", "torch", "numpy"), measure)
