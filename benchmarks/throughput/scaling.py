"""Scaling of steps per second: with the number of replicas, and for teams with the number of agents per replica."""

from collections.abc import Callable, Mapping
from typing import Any

import gpu_envs
from benchmarks.record import BYTES_PER_STEP
from benchmarks.replicas import action_tensors, make_staggered, random_actions
from benchmarks.throughput import teams
from benchmarks.timing import capture_steps, no_wait, seconds_per_call

REPLICAS = {"cuda": tuple(4**n for n in range(13)), "cpu": tuple(4**n for n in range(10))}
"""Numbers of replicas, by device."""
AGENTS = {"cuda": (2, 5, 11, 30, 110, 300, 1000, 3000, 10_000), "cpu": (2, 11, 110, 1000, 10_000)}
"""Numbers of agents per replica; one in eleven is a tagger in TagContinuous, all but one in TagGridWorld."""
TOTAL_AGENTS = {"cuda": 550_000, "cpu": 5_500}
"""Number of agents in all replicas together, approximately."""

GRAPH_STEPS, FUSED_STEPS = 32, 512
WAYS: Mapping[str, Mapping[str, str]] = {
    "cuda": {
        "step": "one step per call, with torch tensors",
        "graph": f"{GRAPH_STEPS} such steps in a CUDA graph, replayed",
        "fused": f"{FUSED_STEPS} random steps per call",
    },
    "cpu": {
        "step": "one step per call, with NumPy arrays and copy=False, all cores",
        "fused": f"{FUSED_STEPS} random steps per call, all cores",
    },
}
"""How replicas are stepped, with SameStep and staggered; ``step`` and ``graph`` take random actions in turn."""

Log = Callable[[str], None]


def measure(
    device: str,
    log: Log,
    *,
    seconds: float = 0.05,
    replicas: tuple[int, ...] | None = None,
    agents: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """Run all measurements.

    Args:
        device: cpu or cuda.
        log: Prints a line.
        seconds: The duration of each measurement.
        replicas: Numbers of replicas; None: ``REPLICAS``.
        agents: Numbers of agents per replica; None: ``AGENTS``.
    """
    single: dict[str, dict[str, list[dict[str, float]]]] = {}
    for env_id in BYTES_PER_STEP:
        curves: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS[device]}
        for num_envs in replicas or REPLICAS[device]:
            for way, step_seconds in measure_size(env_id, num_envs, device, seconds).items():
                curves[way].append(
                    {"num_envs": num_envs, "steps_per_s": num_envs / step_seconds, "us_per_step": step_seconds * 1e6}
                )
        single[env_id] = curves
        for way, curve in curves.items():
            best = max(curve, key=lambda point: point["steps_per_s"])
            log(
                f"{env_id}, {way}: {curve[0]['steps_per_s'] / 1e6:,.3g} M steps/s with {curve[0]['num_envs']} replica, "
                f"maximum {best['steps_per_s'] / 1e6:,.4g} M with {best['num_envs']:,}"
            )
    team_points: dict[str, list[dict[str, Any]]] = {}
    for env_id in (teams.TAG, teams.GRID):
        team_points[env_id] = [measure_team(env_id, count, device, seconds) for count in agents or AGENTS[device]]
        for point in team_points[env_id]:
            log(
                f"{env_id}, {point['agents']:,} agents x {point['num_envs']:,}: "
                f"{point['agent_steps_per_s'] / 1e6:,.4g} M agent-steps/s, {point['us_per_step']:,.4g} us/step"
            )
    return {"ways": WAYS[device], "single": single, "teams": team_points}


def measure_size(env_id: str, num_envs: int, device: str, seconds: float) -> dict[str, float]:
    """Return the seconds per step of each way for a number of replicas."""
    if device == "cuda":
        return on_cuda(env_id, num_envs, seconds)
    env = make_staggered(env_id, num_envs, "cpu", copy=False)
    actions = random_actions(env.single_action_space, num_envs)
    step = seconds_per_call(lambda t: env.step(actions[t % 16]), seconds=seconds)
    fused = seconds_per_call(lambda _: env.rollout(FUSED_STEPS), seconds=seconds, warm_up=2)
    env.close()
    return {"step": step, "fused": fused / FUSED_STEPS}


def on_cuda(env_id: str, num_envs: int, seconds: float) -> dict[str, float]:
    """Return the seconds per step of each way on the GPU."""
    import torch

    env = make_staggered(env_id, num_envs, "cuda")
    actions = action_tensors(env)
    wait = torch.cuda.synchronize
    step = seconds_per_call(lambda t: env.step(actions[t % 16]), wait, seconds=seconds, warm_up=256)
    graph = capture_steps(env, actions, GRAPH_STEPS)
    graphed = seconds_per_call(lambda _: graph.replay(), wait, seconds=seconds, warm_up=2)
    fused = seconds_per_call(lambda _: env.rollout(FUSED_STEPS), wait, seconds=seconds, warm_up=2)
    env.close()
    return {"step": step, "graph": graphed / GRAPH_STEPS, "fused": fused / FUSED_STEPS}


def workload(env_id: str, agents: int, device: str) -> teams.Workload:
    """Return the workload with a number of agents per replica, ``TOTAL_AGENTS`` in total; no agent leaves the game."""
    num_envs = max(1, TOTAL_AGENTS[device] // agents)
    if env_id == teams.GRID:
        params: dict[str, Any] = {"num_taggers": agents - 1, "use_full_observation": False}
    else:
        taggers = max(1, agents // 11)
        params = {"num_taggers": taggers, "num_runners": agents - taggers, **teams.STAY}
    return teams.Workload(f"{agents} agents", env_id, num_envs, params)


def measure_team(env_id: str, agents: int, device: str, seconds: float) -> dict[str, Any]:
    """Measure a team of ``agents`` agents with one step per call: on a GPU in a CUDA graph, on a CPU on all cores."""
    work = workload(env_id, agents, device)
    if device == "cpu":
        env = teams.make_env(work, device="cpu", copy=False)
        actions = teams.random_actions(env, 4, work.dtype)
        step_seconds = seconds_per_call(lambda t: env.step(actions[t % 4]), no_wait, seconds=seconds, warm_up=4)
    else:
        env = teams.make_env(work, device="cuda", output="torch")
        step_seconds = team_on_cuda(env, work, seconds)
    return teams.summarize(env, step_seconds, work)


def team_on_cuda(env: gpu_envs.MultiAgentEnv, work: teams.Workload, seconds: float) -> float:
    """Return the seconds per step in a CUDA graph, which has fewer steps if these are long."""
    import torch

    wait = torch.cuda.synchronize
    actions = teams.action_tensors(env, 4, work.dtype)
    one = seconds_per_call(lambda t: env.step(actions[t % 4]), wait, seconds=seconds / 5, warm_up=16)
    steps = GRAPH_STEPS if one < seconds / GRAPH_STEPS else 4
    graph = capture_steps(env, actions, steps)
    return seconds_per_call(lambda _: graph.replay(), wait, seconds=seconds, warm_up=2) / steps
