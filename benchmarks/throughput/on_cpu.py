"""Measurements on the CPU: CartPole on one core and on all, vectorisation, a single environment's step, compilation."""

import time
from collections.abc import Callable
from typing import Any

import gymnasium

from benchmarks.compiling import measure_compilation, run_script
from benchmarks.record import BYTES_PER_STEP
from benchmarks.replicas import make_staggered, random_actions
from benchmarks.throughput import teams
from benchmarks.timing import seconds_per_call

_RATE = """
import sys, time
import numpy as np
import gpu_envs
from gpu_envs.backend import toolchain
env_id, vectorised = sys.argv[1], sys.argv[2] == "1"
if not vectorised:
    toolchain.FLAGS = tuple(f for f in toolchain.FLAGS if f != "-fopenmp-simd")
    toolchain.FLAGS += ("-fno-tree-vectorize", "-fno-tree-slp-vectorize")
from benchmarks.throughput.on_cpu import steps_per_second
print(steps_per_second(env_id, threads=1))
"""


def steps_per_second(
    env_id: str, num_envs: int = 16384, threads: int | None = 1, autoreset_mode: str = "SameStep"
) -> float:
    """Measure steps per second of ``step``, with NumPy arrays and ``copy=False``."""
    env = make_staggered(env_id, num_envs, "cpu", autoreset_mode=autoreset_mode, copy=False, threads=threads)
    actions = random_actions(env.single_action_space, num_envs)
    return num_envs / seconds_per_call(lambda t: env.step(actions[t % len(actions)]), seconds=1.0)


def single_microseconds(env_id: str) -> float:
    """Measure microseconds per step of a single environment, without wrappers."""
    env = gymnasium.make(env_id).unwrapped
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(16)]
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for t in range(2000):
            if env.step(actions[t % 16])[2]:
                env.reset()
        rounds.append((time.perf_counter() - start) / 2000 * 1e6)
    return sorted(rounds)[2]


def measure(log: Callable[[str], None]) -> dict[str, Any]:
    """Run all measurements, and print a line for each."""
    results: dict[str, Any] = {}
    ours = steps_per_second("CartPole-v1")
    results["cartpole_one_core"] = {"num_envs": 16384, "steps_per_s": ours}
    log(f"CartPole, 16,384 replicas, one core: {ours / 1e6:.0f} M steps/s")
    results["next_step"] = steps_per_second("CartPole-v1", autoreset_mode="NextStep")
    results["all_cores"] = steps_per_second("CartPole-v1", 2**16, threads=None)
    log(
        f"CartPole, NextStep: {results['next_step'] / 1e6:.0f} M; "
        f"65,536 replicas on all cores: {results['all_cores'] / 1e6:.0f} M"
    )
    results["vectorised"] = {}
    for name in BYTES_PER_STEP:
        fast, slow = (float(run_script(_RATE, name, flag)) for flag in ("1", "0"))
        results["vectorised"][name] = {"steps_per_s": fast, "not_vectorised": slow, "ratio": fast / slow}
        log(f"{name}: {fast / 1e6:.0f} M steps/s on one core, {fast / slow:.1f}x its build without vectorisation")
    results["single_us"] = {
        name: {"ours": single_microseconds(f"gpu_envs/{name}"), "gymnasium": single_microseconds(name)}
        for name in BYTES_PER_STEP
    }
    for name, us in results["single_us"].items():
        log(f"{name}: a single environment's step {us['ours']:.1f} us, Gymnasium's {us['gymnasium']:.1f} us")
    results["teams"] = teams.on_cpu(log)
    results["compile_s"] = measure_compilation("cpu", log)
    return results
