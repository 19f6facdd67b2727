"""TorchRL, skrl and rsl_rl: what their own loops cost around our environments, beyond what cannot be spared.

The yardstick is the time of our environment by itself plus that of the library's loop around an environment that does
nothing but hand out constants.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from benchmarks.adapters.loops import Loops
from benchmarks.adapters.plan import AdapterPlan, judged
from benchmarks.adapters.timing import in_turns, medians
from benchmarks.replicas import tensors_of_actions
from benchmarks.timing import waiting
from gpu_envs.training.process.device import torch_threads

LIBRARIES = ("torchrl", "skrl", "rsl_rl")
THREADS = 1
"""Of torch, on the CPU: what is computed there is small."""
BAR = 0.2
"""The time beyond the yardstick, as a part of it."""


def torch_libraries(plan: AdapterPlan) -> dict[str, Any]:
    """Every library's loops."""
    num_envs = plan.size(65_536 if plan.on_gpu else 4096, 16)
    steps = plan.size(64, 4)
    with torch_threads("cpu", THREADS):
        found = {
            library: plan.part(library, functools.partial(of_library, plan, library, num_envs, steps))
            for library in LIBRARIES
        }
    return {"num_envs": num_envs, "steps": steps, "torch_threads": THREADS, "bar": BAR, "libraries": found}


def of_library(plan: AdapterPlan, library: str, num_envs: int, steps: int) -> dict[str, Any]:
    """Microseconds a step of one library's loops, and of our environment by itself."""
    loops: Loops = importlib.import_module(f"benchmarks.adapters.{library}_loops").loops(num_envs, plan.device, steps)
    works: dict[str, Callable[[], object]] = {"bare": bare(plan, loops.env_id, num_envs, steps)}
    for name, pair in loops.pairs.items():
        works[f"{name}/ours"], works[f"{name}/constant"] = pair.ours, pair.constant
        if pair.endless is not None:
            works[f"{name}/endless"] = pair.endless
    rounds = in_turns(works, plan.size(15, 1), waiting(plan.device))
    loops.close()
    step = {name: 1e6 * seconds / steps for name, seconds in medians(rounds).items()}
    found: dict[str, Any] = {"env": loops.env_id, "bare_us": step["bare"], "loops": {}}
    for name in loops.pairs:
        own = {kind.removeprefix(f"{name}/"): time for kind, time in step.items() if kind.startswith(f"{name}/")}
        ours = own.pop("ours")
        overheads = {kind: ours / (step["bare"] + constant) - 1 for kind, constant in own.items()}
        found["loops"][name] = {"ours_us": ours, "yardsticks_us": own, "overheads": overheads}
        plan.log(
            f"{library}, {name}, {num_envs:,} replicas of {loops.env_id}: {ours:,.1f} us a step; bare "
            f"{step['bare']:,.1f}, loop around constants {own['constant']:,.1f}: {overheads['constant']:+.1%} "
            f"({judged(overheads['constant'], BAR)})"
        )
        if "endless" in own:
            plan.log(f"  around constants that never end {own['endless']:,.1f}: {overheads['endless']:+.1%}")
    return found | {"rounds_s": rounds}


def bare(plan: AdapterPlan, env_id: str, num_envs: int, steps: int) -> Callable[[], None]:
    """Our environment by itself: steps with random actions that are there already, and torch's tensors out."""
    import gpu_envs

    env = gpu_envs.make(env_id, num_envs, device=plan.device, output="torch", autoreset_mode="SameStep")
    env.reset(seed=0)
    actions = tensors_of_actions(env)

    def run() -> None:
        for t in range(steps):
            env.step(actions[t % 16])

    return run
