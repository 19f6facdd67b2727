"""The workloads of gpu_envs, run in a process as the peers are."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import gpu_envs
from benchmarks.peers import child
from benchmarks.peers.workloads import (
    BARE,
    FUSED_STEPS,
    GRAPH_STEPS,
    GRID,
    HORIZON,
    SIMPLE_SPREAD,
    SIMPLE_TAG,
    TAG,
    Measurement,
    Workload,
)
from benchmarks.replicas import action_tensors, random_actions
from benchmarks.throughput import teams
from benchmarks.timing import capture_steps, seconds_per_call, training_rate, wait_function

TEAMS = {
    TAG: ("num_taggers", "num_runners"),
    GRID: ("num_taggers",),
    SIMPLE_TAG: ("num_adversaries", "num_good"),
    SIMPLE_SPREAD: ("N",),
}
"""The parameters with the numbers of agents."""

NUM_ACTIONS = 16
"""Number of steps whose actions are sampled before, and used in turn."""


def params(work: Workload) -> Mapping[str, Any]:
    """Return the environment's parameters for the size of its team."""
    if work.team is None:
        return {}
    return dict(zip(TEAMS[work.task], work.team, strict=False))


def make_env(work: Workload) -> Any:
    """Make the environment, with the output for the workload's way; teams are staggered."""
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


def actions_of(work: Workload, env: Any) -> list[Any]:
    """Return random actions of several steps: NumPy arrays for the host, otherwise tensors on the device."""
    if work.way == "host":
        return random_actions(env.single_action_space, work.num_envs, NUM_ACTIONS)
    return action_tensors(env, NUM_ACTIONS) if work.team is None else teams.action_tensors(env, NUM_ACTIONS, "int64")


def measure(work: Workload, seconds: float) -> Measurement:
    """Measure the seconds per step."""
    if work.way == "train":
        return measure_training(work, seconds)
    start = time.perf_counter()
    env = make_env(work)
    make_seconds = time.perf_counter() - start
    actions = actions_of(work, env)
    wait = wait_function("cpu" if work.way == "host" else work.device)  # NumPy outputs are complete when step returns
    call, steps = fused(env) if work.way == "fused" else ((lambda t: env.step(actions[t % NUM_ACTIONS])), 1)
    start = time.perf_counter()
    call(0)
    wait()
    if work.way == "graph":
        graph = capture_steps(env, actions, GRAPH_STEPS)
        call, steps = (lambda _: graph.replay()), GRAPH_STEPS
    prepare = make_seconds + time.perf_counter() - start
    if work.team is not None:
        for t in range(600 // steps):  # until the share of active agents is stationary
            call(t)
    call_seconds = seconds_per_call(call, wait, seconds=seconds, warm_up=2 if steps > 1 else 64)
    env.close()
    return Measurement(call_seconds / steps, prepare)


def fused(env: Any) -> tuple[Callable[[int], object], int]:
    """Return a rollout with given actions, and its steps; the actions have 32 bits, as in JAX."""
    import torch

    block = torch.stack(action_tensors(env, FUSED_STEPS, "int32"))
    return lambda _: env.rollout(FUSED_STEPS, block), FUSED_STEPS


def measure_training(work: Workload, seconds: float) -> Measurement:
    """Measure PPO, as ``benchmarks.training`` does."""
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
    result = training_rate(settings, updates, updates, repeats=3)
    return Measurement(work.num_envs / result["steps_per_s"], result["prepare_s"])


if __name__ == "__main__":
    child.serve(("gpu_envs", "torch", "numpy"), measure)
