"""Time that each wrapper of ``gpu_envs.wrappers`` adds to a step, compared with Gymnasium's wrappers."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from gymnasium.wrappers import vector

import gpu_envs
from benchmarks.timing import capture_steps, seconds_per_call
from gpu_envs.wrappers import (
    ClipAction,
    FlattenObservation,
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    RescaleAction,
)

ENV = "Pendulum-v1"
"""Has continuous actions, which all wrappers accept."""

SIZES = {"cpu": (16, 4096, 65_536), "cuda": (4096, 65_536, 1_048_576)}
QUICK = {"cpu": (16,), "cuda": (256,)}

WRAPPERS: Mapping[str, Callable[[Any], Any]] = {
    "none": lambda env: env,
    "RecordEpisodeStatistics": RecordEpisodeStatistics,
    "NormalizeObservation": NormalizeObservation,
    "NormalizeReward": NormalizeReward,
    "ClipAction": ClipAction,
    "RescaleAction": lambda env: RescaleAction(env, -1.0, 1.0),
    "FrameStackObservation(4)": lambda env: FrameStackObservation(env, 4),
    "FlattenObservation": FlattenObservation,
    "tower": lambda env: NormalizeReward(NormalizeObservation(RecordEpisodeStatistics(ClipAction(env)))),
}
"""``tower``: the usual wrappers for PPO."""

GYMNASIUM: Mapping[str, Callable[[Any], Any]] = {
    "none": lambda env: env,
    "RecordEpisodeStatistics": vector.RecordEpisodeStatistics,
    "NormalizeObservation": vector.NormalizeObservation,
    "NormalizeReward": vector.NormalizeReward,
    "ClipAction": vector.ClipAction,
}
"""Gymnasium has no FrameStackObservation for vector environments, and its NormalizeObservation needs NextStep."""

SECONDS = 1.0
"""Approximate duration of a measurement."""
GRAPH_STEPS = 32


def measure(device: str, *, quick: bool = False, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Measure a step with each wrapper.

    Args:
        device: ``cpu`` or ``cuda``.
        quick: Use tiny sizes, to test the code.
        log: Prints a line.

    Returns:
        By number of replicas and wrapper: microseconds of a step, and the time that the wrapper adds; on a GPU for a
        call from the host and for a step in a CUDA graph; on the CPU also for Gymnasium's wrapper and NumPy arrays.
    """
    seconds = 0.01 if quick else SECONDS
    results: dict[str, Any] = {"env": ENV, "sizes": {}}
    for count in (QUICK if quick else SIZES)[device]:
        rows: dict[str, dict[str, float]] = {}
        for name, wrap in WRAPPERS.items():
            rows[name] = on_cuda(wrap, count, seconds) if device == "cuda" else on_cpu(wrap, count, seconds)
            if device == "cpu" and name in GYMNASIUM:
                rows[name] |= {"gymnasium_us": gymnasium_step(GYMNASIUM[name], count, seconds)}
            times = rows[name]
            for kind in [kind for kind in times if kind.endswith("us")]:
                times[f"added_{kind}"] = times[kind] - rows["none"][kind]
            added = ", ".join(f"{kind} {time:,.1f}" for kind, time in times.items() if kind.startswith("added"))
            log(f"{count:,} replicas, {name}: {added}")
        results["sizes"][str(count)] = rows
    return results


def on_cpu(wrap: Callable[[Any], Any], count: int, seconds: float) -> dict[str, float]:
    """Return the microseconds per step on one thread of the CPU."""
    env = wrap(gpu_envs.make(ENV, count, device="cpu", output="torch", autoreset_mode="SameStep", threads=1))
    env.reset(seed=0)
    actions = torch.zeros(count, 1)
    return {"us": 1e6 * seconds_per_call(lambda _: env.step(actions), seconds=seconds)}


def gymnasium_step(wrap: Callable[[Any], Any], count: int, seconds: float) -> float:
    """Return the microseconds per step on the CPU with NumPy arrays and Gymnasium's wrapper."""
    env = wrap(gpu_envs.make(ENV, count, device="cpu", autoreset_mode="NextStep", threads=1))
    env.reset(seed=0)
    actions = torch.zeros(count, 1).numpy()
    return 1e6 * seconds_per_call(lambda _: env.step(actions), seconds=seconds)


def on_cuda(wrap: Callable[[Any], Any], count: int, seconds: float) -> dict[str, float]:
    """Return the microseconds per step, called by the host and in a CUDA graph."""
    env = wrap(gpu_envs.make(ENV, count, device="cuda", output="torch", autoreset_mode="SameStep"))
    env.reset(seed=0)
    actions = torch.zeros(count, 1, device="cuda")
    eager = 1e6 * seconds_per_call(lambda _: env.step(actions), torch.cuda.synchronize, seconds=seconds)
    graph = capture_steps(env, [actions], GRAPH_STEPS)
    replayed = 1e6 * seconds_per_call(lambda _: graph.replay(), torch.cuda.synchronize, seconds=seconds)
    return {"us": eager, "graph_us": replayed / GRAPH_STEPS}
