"""What a CUDA device does: bandwidth, one step a launch, many steps a launch, the Python call, graphs, compilation."""

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.compiling import cold_and_cached
from benchmarks.record import BYTES
from benchmarks.replicas import staggered, tensors_of_actions
from benchmarks.throughput import teams
from benchmarks.timing import graph_of_steps, milliseconds


def copy_bandwidth() -> float:
    """Bytes read and written per second by a large device-to-device copy."""
    source = torch.randint(0, 255, (4 * 2**30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def work() -> None:
        for _ in range(5):
            target.copy_(source)

    return 2 * source.numel() / (milliseconds(work, inner=5) / 1e3)


def single_steps(env_id: str, num_envs: int, **options: Any) -> float:
    """Steps per second, one step a launch, SameStep, new random actions each step (drawn beforehand), staggered."""
    env = staggered(env_id, num_envs, "cuda", **options)
    actions = tensors_of_actions(env)
    for t in range(256):  # until episodes end at different times
        env.step(actions[t % 16])

    def work() -> None:
        for action in actions * 2:
            env.step(action)

    return num_envs / (milliseconds(work, inner=32) / 1e3)


def fused_steps(env_id: str, num_envs: int, steps: int = 512) -> float:
    """Steps per second with random actions drawn in the kernel, statistics kept."""
    env = staggered(env_id, num_envs, "cuda")
    env.rollout(steps)
    return num_envs * steps / (milliseconds(lambda: env.rollout(steps), repeats=5) / 1e3)


def python_call(num_envs: int = 4096, steps: int = 2000) -> float:
    """Microseconds of the calling thread per ``step`` with torch in and out."""
    env = staggered("CartPole-v1", num_envs, "cuda")
    action = tensors_of_actions(env, 1)[0]
    best = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            env.step(action)
        best.append((time.perf_counter() - start) / steps * 1e6)
    return sorted(best)[4]


def replay_microseconds(num_envs: int = 4096, steps: int = 32) -> float:
    """Microseconds to replay a captured CUDA graph of several steps."""
    env = staggered("CartPole-v1", num_envs, "cuda")
    actions = tensors_of_actions(env, steps)
    graph = graph_of_steps(env, actions, steps)

    def work() -> None:
        for _ in range(20):
            graph.replay()

    return milliseconds(work, inner=20) * 1e3


def measure(log: Callable[[str], None]) -> dict[str, Any]:
    """Everything, with a line for each figure."""
    results: dict[str, Any] = {"copy_bytes_per_s": copy_bandwidth()}
    bandwidth = results["copy_bytes_per_s"]
    log(f"device-to-device copy: {bandwidth / 1e12:.2f} TB/s")
    results["single"] = {}
    for name, size in BYTES.items():
        rate = single_steps(name, 2**22)
        results["single"][name] = {"num_envs": 2**22, "steps_per_s": rate, "share_of_copy": rate * size / bandwidth}
        log(
            f"{name}: one step a launch, 4 M replicas: {rate / 1e9:.1f} G steps/s, "
            f"{rate * size / bandwidth:.0%} of copy"
        )
    results["without_statistics"] = {}
    for name in BYTES:
        rate = single_steps(name, 2**22, statistics=False)
        results["without_statistics"][name] = {"num_envs": 2**22, "steps_per_s": rate}
        log(f"{name}: the same with statistics=False: {rate / 1e9:.1f} G steps/s")
    results["fused"] = {}
    for name in BYTES:
        rate = fused_steps(name, 2**20)
        results["fused"][name] = {"num_envs": 2**20, "steps_per_s": rate}
        log(f"{name}: 512 random steps a launch, 1 M replicas: {rate / 1e9:.1f} G steps/s")
    results["teams"] = teams.on_cuda(bandwidth, log)
    results["python_us"] = python_call()
    log(f"Python cost of a step, 4,096 replicas: {results['python_us']:.1f} us")
    results["graph_32_us"] = replay_microseconds()
    log(f"CUDA graph of 32 steps, 4,096 replicas: {results['graph_32_us']:.1f} us")
    results["compile_s"] = cold_and_cached("cuda:0", log)
    return results
