"""Environments with a team of agents: replicas a second on a CUDA device, in graphs of steps, and on one CPU core."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import gpu_envs
from benchmarks.timing import graph_of_steps, milliseconds, seconds_per_call
from gpu_envs.cli.bench import random_actions as uniform_actions


class Workload(NamedTuple):
    """An environment with a team, and how it is stepped."""

    name: str
    env_id: str
    num_envs: int
    params: Mapping[str, Any] = {}
    """Parameters and options, where they are not the default."""
    warm_up: int = 600
    """Steps before the measurement: until the share of agents in the game is stationary, where they go out."""
    dtype: str = "int64"
    """The type of the actions."""
    of_copy: bool = False
    """Compare the bytes of observations written with what a copy reads and writes."""


TAG = "TagContinuous-v0"
GRID = "TagGridWorld-v0"
APART = {"shared_observations": True}
STAY = {"runner_exits_game_after_tagged": False}

WORKLOADS = (
    Workload("tag_10_100", TAG, 5_000),
    Workload("tag_10_100_all_in_game", TAG, 5_000, STAY, 100),
    Workload("tag_5_100_full", TAG, 2_000, {"num_taggers": 5, "use_full_observation": True}, 100, of_copy=True),
    Workload("grid_4_1_100k", GRID, 100_000, warm_up=200, dtype="uint8"),
    Workload("grid_4_1_1m", GRID, 1_000_000, warm_up=200, dtype="uint8"),
    Workload("grid_4_1_1m_int64", GRID, 1_000_000, warm_up=200),
    Workload("grid_999_1", GRID, 2_000, {"num_taggers": 999, "use_full_observation": False}, 200),
    Workload("rice", "RiceN-v0", 10_000, APART, 40, "uint8"),
    Workload("rice_negotiating", "RiceN-v0", 10_000, {"negotiation": True, **APART}, 60, "uint8"),
    Workload("rice_whole_rows", "RiceN-v0", 10_000, warm_up=40, dtype="uint8"),
    Workload("covid", "CovidEconomy-v0", 10_000, warm_up=60, dtype="uint8"),
    Workload("tag_10000_agents", TAG, 1, {"num_taggers": 1_000, "num_runners": 9_000, **STAY}, 20),
)


def random_actions(env: gpu_envs.MultiAgentEnv, count: int, dtype: str) -> list[dict[str, np.ndarray]]:
    """Uniform actions for several steps, by role: whole numbers."""
    rng = np.random.default_rng(0)
    steps = (uniform_actions(env, rng) for _ in range(count))
    return [{role: actions.astype(dtype) for role, actions in step.items()} for step in steps]


def tensors_of_actions(env: gpu_envs.MultiAgentEnv, count: int, dtype: str) -> list[dict[str, Any]]:
    """The same on the environment's device, as torch's tensors."""
    import torch

    drawn = random_actions(env, count, dtype)
    return [{role: torch.from_numpy(part).to(env.device) for role, part in step.items()} for step in drawn]


def start(work: Workload, **kwargs: Any) -> gpu_envs.MultiAgentEnv:
    """Makes the replicas, and staggers them over their episode where a limit ends it."""
    env: gpu_envs.MultiAgentEnv = gpu_envs.make(
        work.env_id, work.num_envs, autoreset_mode="SameStep", **kwargs, **work.params
    )
    env.reset(seed=0)
    if env.max_episode_steps is not None:
        env.stagger(seed=1)
    return env


def share_in_game(env: gpu_envs.MultiAgentEnv) -> float:
    """The share of agents that are in the game."""
    from gpu_envs.backend.arrays import to_numpy

    return float(to_numpy(env.state["in_game"]).mean())


def figures(env: gpu_envs.MultiAgentEnv, seconds: float, work: Workload) -> dict[str, Any]:
    """What is written down of one measurement."""
    rate = env.num_envs / seconds
    return {
        "env_id": work.env_id,
        "num_envs": env.num_envs,
        "agents": env.num_agents,
        "params": dict(work.params),
        "actions": work.dtype,
        "in_game": share_in_game(env),
        "us_per_step": seconds * 1e6,
        "env_steps_per_s": rate,
        "agent_steps_per_s": rate * env.num_agents,
    }


def on_cuda(bandwidth: float, log: Callable[[str], None]) -> dict[str, Any]:
    """Every workload on the CUDA device: 32 steps in one graph, replayed, by CUDA events."""
    import torch

    results = {}
    for work in WORKLOADS:
        env = start(work, device="cuda", output="torch")
        actions = tensors_of_actions(env, 16, work.dtype)
        for t in range(work.warm_up):
            env.step(actions[t % 16])
        graph = graph_of_steps(env, actions, 32)
        seconds = milliseconds(graph.replay, repeats=9, inner=32) / 1e3
        found = figures(env, seconds, work)
        if work.of_copy:
            written = 4 * sum(int(np.prod(space.shape or ())) for space in env.observation_spaces.values())
            found["share_of_copy"] = written / seconds / bandwidth
        results[work.name] = found
        share = f", {found['share_of_copy']:.1%} of copy" if work.of_copy else ""
        log(
            f"{work.name}: {env.num_envs:,} x {env.num_agents:,} agents, {found['in_game']:.0%} in the game: "
            f"{found['us_per_step']:,.1f} us a step, {found['env_steps_per_s'] / 1e6:,.2f} M env-steps/s{share}"
        )
        del env, graph, actions
        torch.cuda.empty_cache()
    return results


def seconds_of_step(env: gpu_envs.MultiAgentEnv, actions: list[dict[str, np.ndarray]]) -> float:
    """Seconds of a step with these actions in turn."""
    return seconds_per_call(lambda t: env.step(actions[t % len(actions)]), seconds=1.5, warm_up=0)


def on_cpu(log: Callable[[str], None]) -> dict[str, Any]:
    """The workloads on one core, with fewer replicas, NumPy in and out and ``copy=False``."""
    results = {}
    for work in WORKLOADS:
        if work.name.endswith("int64"):
            continue
        most = 20_000 if work.env_id == GRID and not work.params else 256 if work.name == "covid" else 64
        small = work._replace(num_envs=min(work.num_envs, most))
        env = start(small, device="cpu", copy=False, threads=1)
        actions = random_actions(env, 16, work.dtype)
        for t in range(min(small.warm_up, 100 if env.num_envs > 1_000 else small.warm_up)):
            env.step(actions[t % 16])
        found = figures(env, seconds_of_step(env, actions), small)
        results[work.name] = found
        log(
            f"{work.name}: {env.num_envs:,} x {env.num_agents:,} agents on one core, {found['in_game']:.0%} in the "
            f"game: {found['env_steps_per_s'] / 1e3:,.1f} k env-steps/s"
        )
    return results
