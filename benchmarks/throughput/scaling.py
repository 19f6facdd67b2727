"""How rates grow: of single agents with the number of replicas, of teams with the number of agents in a replica."""

from collections.abc import Callable, Mapping
from typing import Any

import gpu_envs
from benchmarks.record import BYTES
from benchmarks.replicas import random_actions, staggered, tensors_of_actions
from benchmarks.throughput import teams
from benchmarks.timing import graph_of_steps, nothing, seconds_per_call

REPLICAS = {"cuda": tuple(4**n for n in range(13)), "cpu": tuple(4**n for n in range(10))}
"""From one up, by device; on CUDA to 16 M."""
AGENTS = {"cuda": (2, 5, 11, 30, 110, 300, 1000, 3000, 10_000), "cpu": (2, 11, 110, 1000, 10_000)}
"""In a replica; one in eleven chases in TagContinuous, all but one in TagGridWorld."""
TOGETHER = {"cuda": 550_000, "cpu": 5_500}
"""Agents of all replicas, as many as there are of them."""

GRAPH_STEPS, FUSED_STEPS = 32, 512
WAYS: Mapping[str, Mapping[str, str]] = {
    "cuda": {
        "step": "one step a call, torch tensors in and out",
        "graph": f"{GRAPH_STEPS} such steps in a CUDA graph, replayed",
        "fused": f"{FUSED_STEPS} random steps a call",
    },
    "cpu": {
        "step": "one step a call, NumPy arrays in, the simulator's own memory out, all cores",
        "fused": f"{FUSED_STEPS} random steps a call, all cores",
    },
}
"""How replicas are stepped, SameStep, staggered. The actions of single steps are random, and drawn beforehand."""

Log = Callable[[str], None]


def measure(
    device: str,
    log: Log,
    *,
    seconds: float = 0.05,
    replicas: tuple[int, ...] | None = None,
    agents: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """Everything.

    Args:
        device: cpu or cuda.
        log: Prints a line.
        seconds: Of each measurement.
        replicas: Numbers of them; None: ``REPLICAS``.
        agents: Numbers of them; None: ``AGENTS``.
    """
    single: dict[str, dict[str, list[dict[str, float]]]] = {}
    for env_id in BYTES:
        curves: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS[device]}
        for num_envs in replicas or REPLICAS[device]:
            for way, spent in one_size(env_id, num_envs, device, seconds).items():
                curves[way].append({"num_envs": num_envs, "steps_per_s": num_envs / spent, "us_per_step": spent * 1e6})
        single[env_id] = curves
        for way, curve in curves.items():
            best = max(curve, key=lambda point: point["steps_per_s"])
            log(
                f"{env_id}, {way}: {curve[0]['steps_per_s'] / 1e6:,.3g} M steps/s of {curve[0]['num_envs']} replica, "
                f"most {best['steps_per_s'] / 1e6:,.4g} M of {best['num_envs']:,}"
            )
    found: dict[str, list[dict[str, Any]]] = {}
    for env_id in (teams.TAG, teams.GRID):
        found[env_id] = [team(env_id, count, device, seconds) for count in agents or AGENTS[device]]
        for point in found[env_id]:
            log(
                f"{env_id}, {point['agents']:,} agents x {point['num_envs']:,}: "
                f"{point['agent_steps_per_s'] / 1e6:,.4g} M agent-steps/s, {point['us_per_step']:,.4g} us a step"
            )
    return {"ways": WAYS[device], "single": single, "teams": found}


def one_size(env_id: str, num_envs: int, device: str, seconds: float) -> dict[str, float]:
    """Seconds of a step of so many replicas, in each way."""
    if device == "cuda":
        return on_cuda(env_id, num_envs, seconds)
    env = staggered(env_id, num_envs, "cpu", copy=False)
    actions = random_actions(env.single_action_space, num_envs)
    step = seconds_per_call(lambda t: env.step(actions[t % 16]), seconds=seconds)
    fused = seconds_per_call(lambda _: env.rollout(FUSED_STEPS), seconds=seconds, warm_up=2)
    env.close()
    return {"step": step, "fused": fused / FUSED_STEPS}


def on_cuda(env_id: str, num_envs: int, seconds: float) -> dict[str, float]:
    """Seconds of a step on the CUDA device, in each way."""
    import torch

    env = staggered(env_id, num_envs, "cuda")
    actions = tensors_of_actions(env)
    wait = torch.cuda.synchronize
    step = seconds_per_call(lambda t: env.step(actions[t % 16]), wait, seconds=seconds, warm_up=256)
    graph = graph_of_steps(env, actions, GRAPH_STEPS)
    graphed = seconds_per_call(lambda _: graph.replay(), wait, seconds=seconds, warm_up=2)
    fused = seconds_per_call(lambda _: env.rollout(FUSED_STEPS), wait, seconds=seconds, warm_up=2)
    env.close()
    return {"step": step, "graph": graphed / GRAPH_STEPS, "fused": fused / FUSED_STEPS}


def workload(env_id: str, agents: int, device: str) -> teams.Workload:
    """So many agents, in as many replicas as make up ``TOGETHER``; nobody leaves the game before its end."""
    num_envs = max(1, TOGETHER[device] // agents)
    if env_id == teams.GRID:
        params: dict[str, Any] = {"num_taggers": agents - 1, "use_full_observation": False}
    else:
        taggers = max(1, agents // 11)
        params = {"num_taggers": taggers, "num_runners": agents - taggers, **teams.STAY}
    return teams.Workload(f"{agents} agents", env_id, num_envs, params)


def team(env_id: str, agents: int, device: str, seconds: float) -> dict[str, Any]:
    """What a team of so many agents does, one step a call: on CUDA in a graph, on a CPU on all cores."""
    work = workload(env_id, agents, device)
    if device == "cpu":
        env = teams.start(work, device="cpu", copy=False)
        drawn = teams.random_actions(env, 4, work.dtype)
        spent = seconds_per_call(lambda t: env.step(drawn[t % 4]), nothing, seconds=seconds, warm_up=4)
    else:
        env = teams.start(work, device="cuda", output="torch")
        spent = team_on_cuda(env, work, seconds)
    return teams.figures(env, spent, work)


def team_on_cuda(env: gpu_envs.MultiAgentEnv, work: teams.Workload, seconds: float) -> float:
    """Seconds of a step of a graph's: of many, where they are short."""
    import torch

    wait = torch.cuda.synchronize
    actions = teams.tensors_of_actions(env, 4, work.dtype)
    one = seconds_per_call(lambda t: env.step(actions[t % 4]), wait, seconds=seconds / 5, warm_up=16)
    steps = GRAPH_STEPS if one < seconds / GRAPH_STEPS else 4
    graph = graph_of_steps(env, actions, steps)
    return seconds_per_call(lambda _: graph.replay(), wait, seconds=seconds, warm_up=2) / steps
