"""What a CUDA device does: bandwidth, one step a launch, many steps a launch, the Python call, graphs, compilation."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import gpu_envs
from benchmarks import teams
from benchmarks.record import BYTES, COMPILE, COMPILED


def milliseconds(work: Callable[[], None], repeats: int = 7, inner: int = 1) -> float:
    """The median device time of ``work``, warmed up, between CUDA events; divided by ``inner``."""
    work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(sorted(times)[repeats // 2]) / inner


def copy_bandwidth() -> float:
    """Bytes read and written per second by a large device-to-device copy."""
    source = torch.randint(0, 255, (4 * 2**30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def work() -> None:
        for _ in range(5):
            target.copy_(source)

    return 2 * source.numel() / (milliseconds(work, inner=5) / 1e3)


def random_actions(env: gpu_envs.VectorEnv, count: int) -> list[torch.Tensor]:
    """Uniform actions for several steps, in int64 or float32."""
    space = env.single_action_space
    if hasattr(space, "n"):
        return [torch.randint(0, int(space.n), (env.num_envs,), device="cuda") for _ in range(count)]
    low, high = float(space.low[0]), float(space.high[0])  # type: ignore[attr-defined]  # a Box
    return [torch.empty((env.num_envs, 1), device="cuda").uniform_(low, high) for _ in range(count)]


def single_steps(env_id: str, num_envs: int, **kwargs: Any) -> float:
    """Steps per second, one step a launch, SameStep, new random actions each step (drawn beforehand), staggered."""
    env = gpu_envs.make(env_id, num_envs, device="cuda", output="torch", autoreset_mode="SameStep", **kwargs)
    env.reset(seed=0)
    env.stagger(seed=1)  # else all replicas reach the time limit together
    actions = random_actions(env, 16)
    for t in range(256):  # until episodes end at different times
        env.step(actions[t % 16])

    def work() -> None:
        for action in actions * 2:
            env.step(action)

    return num_envs / (milliseconds(work, inner=32) / 1e3)


def fused_steps(env_id: str, num_envs: int, steps: int = 512, **kwargs: Any) -> float:
    """Steps per second with random actions drawn in the kernel, statistics kept."""
    env = gpu_envs.make(env_id, num_envs, device="cuda", output="torch", autoreset_mode="SameStep", **kwargs)
    env.reset(seed=0)
    env.rollout(steps)
    return num_envs * steps / (milliseconds(lambda: void(env.rollout(steps)), repeats=5) / 1e3)


def void(_: object) -> None:
    """Drops a result."""


def python_call(num_envs: int = 4096, steps: int = 2000) -> float:
    """Microseconds of the calling thread per ``step`` with torch in and out."""
    env = gpu_envs.make("CartPole-v1", num_envs, device="cuda", output="torch", autoreset_mode="SameStep")
    env.reset(seed=0)
    action = random_actions(env, 1)[0]
    best = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            env.step(action)
        best.append((time.perf_counter() - start) / steps * 1e6)
    return sorted(best)[4]


def graph_of_steps(num_envs: int = 4096, steps: int = 32) -> float:
    """Microseconds to replay a captured CUDA graph of several steps."""
    env = gpu_envs.make("CartPole-v1", num_envs, device="cuda", output="torch", autoreset_mode="SameStep")
    env.reset(seed=0)
    actions = random_actions(env, steps)
    env.step(actions[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for action in actions:
            env.step(action)

    def work() -> None:
        for _ in range(20):
            graph.replay()

    return milliseconds(work, inner=20) * 1e3


def compile_seconds() -> dict[str, dict[str, float]]:
    """Seconds to have an environment's kernels, in new processes: the first, with an empty cache, and the second."""
    found: dict[str, dict[str, float]] = {name: {} for name in COMPILED}
    with tempfile.TemporaryDirectory() as cache:
        for kind in ("cold", "cached"):
            done = subprocess.run(
                [sys.executable, "-c", COMPILE, "cuda:0", *COMPILED],
                env={**os.environ, "CUPY_CACHE_DIR": cache},
                capture_output=True,
                text=True,
                check=True,
            )
            for line in done.stdout.splitlines():
                name, seconds = line.split()
                found[name][kind] = float(seconds)
    return found


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
    results["fused"] = {}
    for name in BYTES:
        rate = fused_steps(name, 2**20)
        results["fused"][name] = {"num_envs": 2**20, "steps_per_s": rate}
        log(f"{name}: 512 random steps a launch, 1 M replicas: {rate / 1e9:.1f} G steps/s")
    results["teams"] = teams.on_cuda(bandwidth, log)
    results["python_us"] = python_call()
    log(f"Python cost of a step, 4,096 replicas: {results['python_us']:.1f} us")
    results["graph_32_us"] = graph_of_steps()
    log(f"CUDA graph of 32 steps, 4,096 replicas: {results['graph_32_us']:.1f} us")
    results["compile_s"] = compile_seconds()
    for name, seconds in results["compile_s"].items():
        log(f"{name}: compiled in {seconds['cold']:.2f} s, from cache in {seconds['cached'] * 1e3:.0f} ms")
    return results
