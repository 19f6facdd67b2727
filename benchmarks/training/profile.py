"""Time of each kernel in an iteration of training on a GPU."""

import collections
import statistics
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.timing import free_memory
from benchmarks.training.plan import TrainingPlan, preset

ITERATIONS = 5

_CARTPOLE = {"env": "CartPole-v1", "num_envs": 65_536, "horizon": 32, "minibatches": 4, "hidden": (64, 64)}
_TAG = {
    "env": "TagContinuous-v0",
    "num_envs": 2000,
    "horizon": 32,
    "hidden": (256, 256),
    "shared_trunk": True,
    "stagger": True,
}

RUNS: Mapping[str, Mapping[str, Any]] = {
    **{
        f"CartPole, {precision}, epochs {epochs}": _CARTPOLE | {"precision": precision, "epochs": epochs}
        for precision in ("tf32", "bf16")
        for epochs in (1, 4)
    },
    "Pendulum, tf32": {
        "env": "Pendulum-v1",
        "num_envs": 4096,
        "horizon": 16,
        "epochs": 4,
        "minibatches": 4,
        "hidden": (64, 64),
        "precision": "tf32",
    },
    "CartPole, preset": {"env": "CartPole-v1"} | dict(preset("CartPole-v1")),
    **{
        f"Tag, {algorithm}, {precision}": _TAG | {"algorithm": algorithm, "precision": precision}
        for algorithm, precision in (("a2c", "tf32"), ("a2c", "bf16"), ("ppo", "bf16"))
    },
}
"""Settings of the profiled runs."""


def profile(plan: TrainingPlan) -> dict[str, Any]:
    """Profile the kernels of each run, the slowest first."""
    results: dict[str, Any] = {}
    for name, settings in RUNS.items():
        results[name] = _profile_run(settings)
        kernels = results[name]["kernels"]
        longest = ", ".join(f"{kernel['name']} {kernel['us']:,.0f}" for kernel in kernels[:6])
        busy = sum(kernel["us"] for kernel in kernels)
        plan.log(
            f"{name}: {results[name]['iteration_us']:,.0f} us per iteration, kernels {busy:,.0f}, slowest {longest}; "
            f"first iteration after {results[name]['first_s']:.2f} s, {results[name]['memory_bytes'] / 2**20:,.0f} MiB"
        )
    return results


def _profile_run(settings: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    from gpu_envs.training import Run, Trainer

    free = free_memory("cuda")
    start = time.perf_counter()
    steps = {"run_dir": "", "target_return": None, "total_steps": 10**9, "device": "cuda"}
    trainer = Trainer(Run.from_flat(dict(settings) | steps))
    trainer.iterate(1)
    first = time.perf_counter() - start
    trainer.iterate(20)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        trainer.iterate(ITERATIONS)
        times.append((time.perf_counter() - start) / ITERATIONS)
    memory = free - free_memory("cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        trainer.iterate(ITERATIONS)
    microseconds: collections.Counter[str] = collections.Counter()
    launches: collections.Counter[str] = collections.Counter()
    for event in profiler.events():
        if str(event.device_type).endswith("CUDA"):
            kernel = event.name.removeprefix("void ").split("<")[0].split("(")[0].rpartition("::")[2][:60]
            microseconds[kernel] += event.time_range.elapsed_us()
            launches[kernel] += 1
    del trainer
    torch.cuda.empty_cache()
    return {
        "settings": {name: value for name, value in settings.items() if name != "params"},
        "iteration_us": statistics.median(times) * 1e6,
        "first_s": first,
        "memory_bytes": memory,
        "kernels": [
            {"name": kernel, "us": us / ITERATIONS, "launches": launches[kernel] / ITERATIONS}
            for kernel, us in microseconds.most_common()
        ],
    }
