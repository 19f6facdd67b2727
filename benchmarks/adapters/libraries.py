"""TorchRL, skrl and rsl_rl: the overhead of their training loops with environments of gpu_envs.

The baseline is the time of the environment alone plus the time of the library's loop with an environment that returns
constants.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from benchmarks.adapters.loops import Loops
from benchmarks.adapters.plan import AdapterPlan, check_maximum
from benchmarks.adapters.timing import medians, time_in_turns
from benchmarks.replicas import action_tensors
from benchmarks.timing import wait_function
from gpu_envs.training.process.device import torch_threads

LIBRARIES = ("torchrl", "skrl", "rsl_rl")
THREADS = 1
"""Number of torch threads on the CPU, where the computations are small."""
BAR = 0.2
"""Maximum time above the baseline, as a fraction of the baseline."""


def torch_libraries(plan: AdapterPlan) -> dict[str, Any]:
    """Measure the loops of every library."""
    num_envs = plan.size(65_536 if plan.on_gpu else 4096, 16)
    steps = plan.size(64, 4)
    with torch_threads("cpu", THREADS):
        results = {
            library: plan.part(library, functools.partial(measure_library, plan, library, num_envs, steps))
            for library in LIBRARIES
        }
    return {"num_envs": num_envs, "steps": steps, "torch_threads": THREADS, "bar": BAR, "libraries": results}


def measure_library(plan: AdapterPlan, library: str, num_envs: int, steps: int) -> dict[str, Any]:
    """Measure microseconds per step of a library's loops, and of the environment alone."""
    loops: Loops = importlib.import_module(f"benchmarks.adapters.{library}_loops").loops(num_envs, plan.device, steps)
    workloads: dict[str, Callable[[], object]] = {"bare": bare(plan, loops.env_id, num_envs, steps)}
    for name, pair in loops.pairs.items():
        workloads[f"{name}/ours"], workloads[f"{name}/constant"] = pair.ours, pair.constant
        if pair.endless is not None:
            workloads[f"{name}/endless"] = pair.endless
    rounds = time_in_turns(workloads, plan.size(15, 1), wait_function(plan.device))
    loops.close()
    step = {name: 1e6 * seconds / steps for name, seconds in medians(rounds).items()}
    result: dict[str, Any] = {"env": loops.env_id, "bare_us": step["bare"], "loops": {}}
    for name in loops.pairs:
        baselines = {kind.removeprefix(f"{name}/"): time for kind, time in step.items() if kind.startswith(f"{name}/")}
        ours = baselines.pop("ours")
        overheads = {kind: ours / (step["bare"] + constant) - 1 for kind, constant in baselines.items()}
        result["loops"][name] = {"ours_us": ours, "yardsticks_us": baselines, "overheads": overheads}
        plan.log(
            f"{library}, {name}, {num_envs:,} replicas of {loops.env_id}: {ours:,.1f} us a step; bare "
            f"{step['bare']:,.1f}, loop around constants {baselines['constant']:,.1f}: {overheads['constant']:+.1%} "
            f"({check_maximum(overheads['constant'], BAR)})"
        )
        if "endless" in baselines:
            plan.log(f"  around constants that never end {baselines['endless']:,.1f}: {overheads['endless']:+.1%}")
    return result | {"rounds_s": rounds}


def bare(plan: AdapterPlan, env_id: str, num_envs: int, steps: int) -> Callable[[], None]:
    """Return a function that steps the environment alone, with random actions and torch outputs on the device."""
    import gpu_envs

    env = gpu_envs.make(env_id, num_envs, device=plan.device, output="torch", autoreset_mode="SameStep")
    env.reset(seed=0)
    actions = action_tensors(env)

    def run() -> None:
        for t in range(steps):
            env.step(actions[t % 16])

    return run
