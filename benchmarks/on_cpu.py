"""What the CPU does: CartPole on one core and on all, vectorisation, a single environment's step, compilation."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

import gpu_envs
from benchmarks import teams
from benchmarks.record import BYTES, COMPILE, COMPILED
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
from benchmarks.on_cpu import steps_per_second
print(steps_per_second(env_id, threads=1))
"""


def sample_actions(space: gymnasium.Space[Any], num_envs: int, count: int = 16) -> list[np.ndarray]:
    """Uniform actions for several steps."""
    rng = np.random.default_rng(0)
    if isinstance(space, gymnasium.spaces.Discrete):
        return [rng.integers(0, space.n, num_envs) for _ in range(count)]
    return [rng.uniform(-1, 1, (num_envs, 1)).astype(np.float32) for _ in range(count)]


def steps_per_second(
    env_id: str, num_envs: int = 16384, threads: int | None = 1, autoreset_mode: str = "SameStep"
) -> float:
    """Steps per second through ``step``, with NumPy in and out and ``copy=False``."""
    env = gpu_envs.make(env_id, num_envs, device="cpu", autoreset_mode=autoreset_mode, copy=False, threads=threads)
    env.reset(seed=0)
    env.stagger(seed=1)  # else all replicas reach the time limit together
    actions = sample_actions(env.single_action_space, num_envs)
    return num_envs / seconds_per_call(lambda t: env.step(actions[t % len(actions)]), seconds=1.0)


def single_microseconds(env_id: str) -> float:
    """Microseconds of one step of a single environment, without wrappers."""
    env = gymnasium.make(env_id).unwrapped
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(16)]
    best = []
    for _ in range(5):
        start = time.perf_counter()
        for t in range(2000):
            if env.step(actions[t % 16])[2]:
                env.reset()
        best.append((time.perf_counter() - start) / 2000 * 1e6)
    return sorted(best)[2]


def _in_new_process(script: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def measure(log: Callable[[str], None]) -> dict[str, Any]:
    """Everything, with a line for each figure."""
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
    for name in BYTES:
        fast, slow = (float(_in_new_process(_RATE, name, flag)) for flag in ("1", "0"))
        results["vectorised"][name] = {"steps_per_s": fast, "not_vectorised": slow, "ratio": fast / slow}
        log(f"{name}: {fast / 1e6:.0f} M steps/s on one core, {fast / slow:.1f}x its build without vectorisation")
    results["single_us"] = {
        name: {"ours": single_microseconds(f"gpu_envs/{name}"), "gymnasium": single_microseconds(name)}
        for name in BYTES
    }
    for name, us in results["single_us"].items():
        log(f"{name}: a single environment's step {us['ours']:.1f} us, Gymnasium's {us['gymnasium']:.1f} us")
    results["teams"] = teams.on_cpu(log)
    results["compile_s"] = {name: {} for name in COMPILED}
    with tempfile.TemporaryDirectory() as cache:
        for kind in ("cold", "cached"):
            for line in _in_new_process(COMPILE, "cpu", *COMPILED, GPU_ENVS_CACHE_DIR=cache).splitlines():
                name, seconds = line.split()
                results["compile_s"][name][kind] = float(seconds)
    for name, seconds in results["compile_s"].items():
        log(f"{name}: compiled in {seconds['cold']:.2f} s, from cache in {seconds['cached'] * 1e3:.0f} ms")
    return results
