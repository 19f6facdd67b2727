"""Steps per second of environments with a team of agents: on a GPU in CUDA graphs, and on one CPU core."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import gpu_envs
from benchmarks.timing import capture_steps, device_milliseconds, seconds_per_call
from gpu_envs.cli.bench import random_actions as uniform_actions


class Workload(NamedTuple):
    """An environment with a team, and the options of its measurement."""

    name: str
    env_id: str
    num_envs: int
    params: Mapping[str, Any] = {}
    """Parameters and options that differ from the defaults."""
    warm_up: int = 600
    """Steps before the measurement, until the share of active agents is stationary."""
    dtype: str = "int64"
    """The data type of the actions."""
    compare_with_copy: bool = False
    """Whether to compare the bytes of observations per second with the bandwidth of a copy."""


TAG = "TagContinuous-v0"
GRID = "TagGridWorld-v0"
SHARED = {"shared_observations": True}
STAY = {"runner_exits_game_after_tagged": False}

WORKLOADS = (
    Workload("tag_10_100", TAG, 5_000),
    Workload("tag_10_100_all_in_game", TAG, 5_000, STAY, 100),
    Workload(
        "tag_5_100_full", TAG, 2_000, {"num_taggers": 5, "use_full_observation": True}, 100, compare_with_copy=True
    ),
    Workload("grid_4_1_100k", GRID, 100_000, warm_up=200, dtype="uint8"),
    Workload("grid_4_1_1m", GRID, 1_000_000, warm_up=200, dtype="uint8"),
    Workload("grid_4_1_1m_int64", GRID, 1_000_000, warm_up=200),
    Workload("grid_999_1", GRID, 2_000, {"num_taggers": 999, "use_full_observation": False}, 200),
    Workload("rice", "RiceN-v0", 10_000, SHARED, 40, "uint8"),
    Workload("rice_negotiating", "RiceN-v0", 10_000, {"negotiation": True, **SHARED}, 60, "uint8"),
    Workload("rice_whole_rows", "RiceN-v0", 10_000, warm_up=40, dtype="uint8"),
    Workload("covid", "CovidEconomy-v0", 10_000, warm_up=60, dtype="uint8"),
    Workload("tag_10000_agents", TAG, 1, {"num_taggers": 1_000, "num_runners": 9_000, **STAY}, 20),
)


def random_actions(env: gpu_envs.MultiAgentEnv, count: int, dtype: str) -> list[dict[str, np.ndarray]]:
    """Return uniform random actions for several steps, by role, as integers."""
    rng = np.random.default_rng(0)
    steps = (uniform_actions(env, rng) for _ in range(count))
    return [{role: actions.astype(dtype) for role, actions in step.items()} for step in steps]


def action_tensors(env: gpu_envs.MultiAgentEnv, count: int, dtype: str) -> list[dict[str, Any]]:
    """Return uniform random actions for several steps, by role, as torch tensors on the environment's device."""
    import torch

    arrays = random_actions(env, count, dtype)
    return [{role: torch.from_numpy(actions).to(env.device) for role, actions in step.items()} for step in arrays]


def make_env(work: Workload, **kwargs: Any) -> gpu_envs.MultiAgentEnv:
    """Make the environment, staggered if it has a time limit."""
    env: gpu_envs.MultiAgentEnv = gpu_envs.make(
        work.env_id, work.num_envs, autoreset_mode="SameStep", **kwargs, **work.params
    )
    env.reset(seed=0)
    if env.max_episode_steps is not None:
        env.stagger(seed=1)
    return env


def share_in_game(env: gpu_envs.MultiAgentEnv) -> float:
    """Return the share of active agents."""
    from gpu_envs.backend.arrays import to_numpy

    return float(to_numpy(env.state["in_game"]).mean())


def summarize(env: gpu_envs.MultiAgentEnv, seconds: float, work: Workload) -> dict[str, Any]:
    """Return the results of one measurement."""
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
    """Measure every workload on a GPU, with 32 steps in a CUDA graph."""
    import torch

    results = {}
    for work in WORKLOADS:
        env = make_env(work, device="cuda", output="torch")
        actions = action_tensors(env, 16, work.dtype)
        for t in range(work.warm_up):
            env.step(actions[t % 16])
        graph = capture_steps(env, actions, 32)
        seconds = device_milliseconds(graph.replay, repeats=9, inner=32) / 1e3
        result = summarize(env, seconds, work)
        if work.compare_with_copy:
            bytes_per_step = 4 * sum(int(np.prod(space.shape or ())) for space in env.observation_spaces.values())
            result["share_of_copy"] = bytes_per_step / seconds / bandwidth
        results[work.name] = result
        share = f", {result['share_of_copy']:.1%} of copy" if work.compare_with_copy else ""
        log(
            f"{work.name}: {env.num_envs:,} x {env.num_agents:,} agents, {result['in_game']:.0%} active: "
            f"{result['us_per_step']:,.1f} us/step, {result['env_steps_per_s'] / 1e6:,.2f} M env-steps/s{share}"
        )
        del env, graph, actions
        torch.cuda.empty_cache()
    return results


def seconds_of_step(env: gpu_envs.MultiAgentEnv, actions: list[dict[str, np.ndarray]]) -> float:
    """Return the seconds per step with the actions in turn."""
    return seconds_per_call(lambda t: env.step(actions[t % len(actions)]), seconds=1.5, warm_up=0)


def on_cpu(log: Callable[[str], None]) -> dict[str, Any]:
    """Measure the workloads on one core, with fewer replicas, NumPy arrays and ``copy=False``."""
    results = {}
    for work in WORKLOADS:
        if work.name.endswith("int64"):
            continue
        max_envs = 20_000 if work.env_id == GRID and not work.params else 256 if work.name == "covid" else 64
        small = work._replace(num_envs=min(work.num_envs, max_envs))
        env = make_env(small, device="cpu", copy=False, threads=1)
        actions = random_actions(env, 16, work.dtype)
        for t in range(min(small.warm_up, 100 if env.num_envs > 1_000 else small.warm_up)):
            env.step(actions[t % 16])
        result = summarize(env, seconds_of_step(env, actions), small)
        results[work.name] = result
        log(
            f"{work.name}: {env.num_envs:,} x {env.num_agents:,} agents on one core, {result['in_game']:.0%} "
            f"active: {result['env_steps_per_s'] / 1e3:,.1f} k env-steps/s"
        )
    return results
