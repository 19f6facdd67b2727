"""What each wrapper of ``gpu_envs.wrappers`` adds to a step, beside what Gymnasium's own adds to a NumPy step."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from gymnasium.wrappers import vector

import gpu_envs
from benchmarks.timing import graph_of_steps, seconds_per_call
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
"""With actions in a box, which all wrappers take."""

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
"""The tower is what PPO is usually given."""

GYMNASIUM: Mapping[str, Callable[[Any], Any]] = {
    "none": lambda env: env,
    "RecordEpisodeStatistics": vector.RecordEpisodeStatistics,
    "NormalizeObservation": vector.NormalizeObservation,
    "NormalizeReward": vector.NormalizeReward,
    "ClipAction": vector.ClipAction,
}
"""Its FrameStackObservation is not for vectors, and its NormalizeObservation for NextStep alone."""

SECONDS = 1.0
"""Of a measurement, about."""
STEPS_OF_GRAPH = 32


def measure(device: str, *, quick: bool = False, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Times a step of each wrapper.

    Args:
        device: ``cpu`` or ``cuda``.
        quick: Tiny sizes, to see that it runs.
        log: Told each figure.

    Returns:
        By the number of replicas and the wrapper: microseconds of a step and of what the wrapper adds; on CUDA as the
        host sees it, and as a step of a graph; on the CPU what Gymnasium's own wrapper adds to a NumPy step too.
    """
    seconds = 0.01 if quick else SECONDS
    found: dict[str, Any] = {"env": ENV, "sizes": {}}
    for count in (QUICK if quick else SIZES)[device]:
        rows: dict[str, dict[str, float]] = {}
        for name, wrap in WRAPPERS.items():
            rows[name] = on_cuda(wrap, count, seconds) if device == "cuda" else on_cpu(wrap, count, seconds)
            if device == "cpu" and name in GYMNASIUM:
                rows[name] |= {"gymnasium_us": gymnasium_step(GYMNASIUM[name], count, seconds)}
            figures = rows[name]
            for kind in [kind for kind in figures if kind.endswith("us")]:
                figures[f"added_{kind}"] = figures[kind] - rows["none"][kind]
            told = ", ".join(f"{kind} {figure:,.1f}" for kind, figure in figures.items() if kind.startswith("added"))
            log(f"{count:,} replicas, {name}: {told}")
        found["sizes"][str(count)] = rows
    return found


def on_cpu(wrap: Callable[[Any], Any], count: int, seconds: float) -> dict[str, float]:
    """Microseconds of a step on one thread of the CPU."""
    env = wrap(gpu_envs.make(ENV, count, device="cpu", output="torch", autoreset_mode="SameStep", threads=1))
    env.reset(seed=0)
    actions = torch.zeros(count, 1)
    return {"us": 1e6 * seconds_per_call(lambda _: env.step(actions), seconds=seconds)}


def gymnasium_step(wrap: Callable[[Any], Any], count: int, seconds: float) -> float:
    """The same with NumPy output and Gymnasium's own wrapper."""
    env = wrap(gpu_envs.make(ENV, count, device="cpu", autoreset_mode="NextStep", threads=1))
    env.reset(seed=0)
    actions = torch.zeros(count, 1).numpy()
    return 1e6 * seconds_per_call(lambda _: env.step(actions), seconds=seconds)


def on_cuda(wrap: Callable[[Any], Any], count: int, seconds: float) -> dict[str, float]:
    """Microseconds of a step that the host launches, and of one in a CUDA graph."""
    env = wrap(gpu_envs.make(ENV, count, device="cuda", output="torch", autoreset_mode="SameStep"))
    env.reset(seed=0)
    actions = torch.zeros(count, 1, device="cuda")
    eager = 1e6 * seconds_per_call(lambda _: env.step(actions), torch.cuda.synchronize, seconds=seconds)
    graph = graph_of_steps(env, [actions], STEPS_OF_GRAPH)
    replayed = 1e6 * seconds_per_call(lambda _: graph.replay(), torch.cuda.synchronize, seconds=seconds)
    return {"us": eager, "graph_us": replayed / STEPS_OF_GRAPH}
