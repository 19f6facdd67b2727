"""Measurements on a GPU: bandwidth, one and many steps per launch, the Python call, CUDA graphs, compilation."""

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.compiling import measure_compilation
from benchmarks.record import BYTES_PER_STEP
from benchmarks.replicas import action_tensors, make_staggered
from benchmarks.throughput import teams
from benchmarks.timing import capture_steps, device_milliseconds


def copy_bandwidth() -> float:
    """Measure the bytes that a large device-to-device copy reads and writes per second."""
    source = torch.randint(0, 255, (4 * 2**30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def work() -> None:
        for _ in range(5):
            target.copy_(source)

    return 2 * source.numel() / (device_milliseconds(work, inner=5) / 1e3)


def single_steps(env_id: str, num_envs: int, **options: Any) -> float:
    """Measure steps per second with one step per launch, SameStep, staggered, and random actions sampled before."""
    env = make_staggered(env_id, num_envs, "cuda", **options)
    actions = action_tensors(env)
    for t in range(256):  # until episodes end at different steps
        env.step(actions[t % 16])

    def work() -> None:
        for action in actions * 2:
            env.step(action)

    return num_envs / (device_milliseconds(work, inner=32) / 1e3)


def fused_steps(env_id: str, num_envs: int, steps: int = 512) -> float:
    """Measure steps per second of a rollout, whose kernel samples random actions and keeps statistics."""
    env = make_staggered(env_id, num_envs, "cuda")
    env.rollout(steps)
    return num_envs * steps / (device_milliseconds(lambda: env.rollout(steps), repeats=5) / 1e3)


def python_call(num_envs: int = 4096, steps: int = 2000) -> float:
    """Measure microseconds of the calling thread per ``step`` with torch tensors."""
    env = make_staggered("CartPole-v1", num_envs, "cuda")
    action = action_tensors(env, 1)[0]
    rounds = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            env.step(action)
        rounds.append((time.perf_counter() - start) / steps * 1e6)
    return sorted(rounds)[4]


def replay_microseconds(num_envs: int = 4096, steps: int = 32) -> float:
    """Measure microseconds per replay of a CUDA graph of several steps."""
    env = make_staggered("CartPole-v1", num_envs, "cuda")
    actions = action_tensors(env, steps)
    graph = capture_steps(env, actions, steps)

    def work() -> None:
        for _ in range(20):
            graph.replay()

    return device_milliseconds(work, inner=20) * 1e3


def measure(log: Callable[[str], None]) -> dict[str, Any]:
    """Run all measurements, and print a line for each."""
    results: dict[str, Any] = {"copy_bytes_per_s": copy_bandwidth()}
    bandwidth = results["copy_bytes_per_s"]
    log(f"device-to-device copy: {bandwidth / 1e12:.2f} TB/s")
    results["single"] = {}
    for name, size in BYTES_PER_STEP.items():
        rate = single_steps(name, 2**22)
        results["single"][name] = {"num_envs": 2**22, "steps_per_s": rate, "share_of_copy": rate * size / bandwidth}
        log(
            f"{name}: one step per launch, 4 M replicas: {rate / 1e9:.1f} G steps/s, "
            f"{rate * size / bandwidth:.0%} of copy"
        )
    results["without_statistics"] = {}
    for name in BYTES_PER_STEP:
        rate = single_steps(name, 2**22, statistics=False)
        results["without_statistics"][name] = {"num_envs": 2**22, "steps_per_s": rate}
        log(f"{name}: the same with statistics=False: {rate / 1e9:.1f} G steps/s")
    results["fused"] = {}
    for name in BYTES_PER_STEP:
        rate = fused_steps(name, 2**20)
        results["fused"][name] = {"num_envs": 2**20, "steps_per_s": rate}
        log(f"{name}: 512 random steps per launch, 1 M replicas: {rate / 1e9:.1f} G steps/s")
    results["teams"] = teams.on_cuda(bandwidth, log)
    results["python_us"] = python_call()
    log(f"Python cost of a step, 4,096 replicas: {results['python_us']:.1f} us")
    results["graph_32_us"] = replay_microseconds()
    log(f"CUDA graph of 32 steps, 4,096 replicas: {results['graph_32_us']:.1f} us")
    results["compile_s"] = measure_compilation("cuda:0", log)
    return results
