"""Compilation times of environments, each measured in a new process."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

from benchmarks.peers.process import variables
from benchmarks.record import BYTES_PER_STEP

COMPILED = (*BYTES_PER_STEP, "TagContinuous-v0", "TagGridWorld-v0", "RiceN-v0", "CovidEconomy-v0")
"""Environments whose compilation is timed."""

NO_DRIVER_CACHE = {"CUDA_CACHE_DISABLE": "1"}
"""Turns off the driver's cache of compiled kernels."""

_COMPILE = """
import sys, time
import gpu_envs
from gpu_envs.backend import open_backend
from gpu_envs.codegen import SimulationConfig, generate, layout_of
backend = open_backend(sys.argv[1])
backend.arrays("cupy" if backend.device != "cpu" else "numpy").zeros((1,), "float32")
for env_id in sys.argv[2:]:
    spec = gpu_envs.spec(env_id)
    config = SimulationConfig(spec, 4096, "SameStep", "float32", 500, spec.check_params({}, 1))
    layout = layout_of(config, backend.traits)
    start = time.perf_counter()
    backend.load(generate(layout, layout.modules[0]))
    print(env_id, time.perf_counter() - start)
"""


def compile_seconds(device: str, names: Sequence[str], cache: str, setup: str = "") -> dict[str, float]:
    """Measure the seconds that a new process takes to compile or load each environment's kernels.

    Args:
        device: The device, such as ``cpu`` or ``cuda:0``.
        names: The environments' IDs.
        cache: The folder of compiled programs.
        setup: Python code that the process runs first, to register environments.
    """
    output = run_script(setup + _COMPILE, device, *names, GPU_ENVS_CACHE_DIR=cache, **NO_DRIVER_CACHE)
    return {name: float(seconds) for name, seconds in (line.split() for line in output.splitlines())}


def measure_compilation(device: str, log: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Return the seconds to get each environment's kernels: with an empty cache, and then from that cache."""
    with tempfile.TemporaryDirectory() as cache:
        cold, cached = (compile_seconds(device, COMPILED, cache) for _ in range(2))
    for name in COMPILED:
        log(f"{name}: compiled in {cold[name]:.2f} s, from cache in {cached[name] * 1e3:.0f} ms")
    return {name: {"cold": cold[name], "cached": cached[name]} for name in COMPILED}


def run_script(script: str, *arguments: str, **environment: str) -> str:
    """Run a Python script in a new process; return its output."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=variables(environment), capture_output=True, text=True, check=True).stdout
