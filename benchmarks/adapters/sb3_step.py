"""The time of one step of the Stable-Baselines3 adapter with 16,384 replicas, and of its parts."""

import statistics
import time
from typing import Any

import numpy as np

from benchmarks.adapters.plan import AdapterPlan, check_maximum
from benchmarks.adapters.timing import seconds
from benchmarks.timing import time_methods, wait_function

ENV = "CartPole-v1"
STEP_BAR = 1.0
"""Maximum milliseconds of a step, with the transfer of actions and results."""

PARTS = ("env_step", "fetch", "infos")
"""Parts of a step. ``env_step``: checking and sending the actions, launching the kernel. ``fetch``: waiting for the
kernel and the results, and copying them. ``infos``: the infos of ended episodes."""


def sb3_step(plan: AdapterPlan) -> dict[str, Any]:
    """Measure the median step with random actions, its parts, and a transfer of the same bytes."""
    from gpu_envs.adapters import sb3 as adapter

    num_envs, steps = plan.size(16_384, 64), plan.size(1000, 20)
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, 2, num_envs) for _ in range(16)]  # int64, as in SB3
    venv: Any = adapter.VecEnv(ENV, num_envs, device=plan.device, seed=0)
    venv.reset()
    run(venv, actions, plan.size(300, 20))  # until episodes end at different times
    times, ended = run(venv, actions, steps)
    parts = split(venv, actions, steps)
    total = statistics.median(times)
    result = {
        "num_envs": num_envs,
        "steps": steps,
        "ended_per_step": ended / steps,
        "finish_rate": ended / steps / num_envs,
        "step_ms": total * 1e3,
        "percentile_95_ms": float(np.percentile(times, 95)) * 1e3,
        "parts_ms": parts,
        "yardstick": measure_bounds(plan, actions, result_bytes(venv.env)),
    }
    venv.close()
    log_result(plan, result)
    return result


def run(venv: Any, actions: list[np.ndarray], steps: int) -> tuple[list[float], int]:
    """Return the seconds of each step and the number of ended episodes."""
    times, ended = [], 0
    for t in range(steps):
        start = time.perf_counter()
        venv.step_async(actions[t % len(actions)])
        _, _, dones, _ = venv.step_wait()
        times.append(time.perf_counter() - start)
        ended += int(dones.sum())
    return times, ended


def split(venv: Any, actions: list[np.ndarray], steps: int) -> dict[str, float]:
    """Return the median milliseconds of each part of a step, and of the remainder."""
    methods = dict(
        zip(PARTS, ((venv.env, "step"), (venv._slots._results, "fetch"), (venv, "_set_episode_infos")), strict=True)
    )
    with time_methods(methods) as seconds_by_part:
        times, _ = run(venv, actions, steps)
    # steps without an ended episode create no infos
    medians = {
        name: 1e3 * statistics.median(parts + [0.0] * (steps - len(parts))) for name, parts in seconds_by_part.items()
    }
    return medians | {"other": 1e3 * statistics.median(times) - sum(medians.values())}


def result_bytes(env: Any) -> int:
    """Return the number of bytes of a step's results."""
    from gpu_envs.adapters.sb3.results import result_shapes

    return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in result_shapes(env, None).values())


def measure_bounds(plan: AdapterPlan, actions: list[np.ndarray], back: int) -> dict[str, Any]:
    """Measure lower bounds: a bare step with actions on the device and, on a GPU, one transfer of the same bytes.

    Args:
        plan: The device and the sizes.
        actions: The actions of several steps.
        back: The number of bytes of a step's results.
    """
    import torch

    import gpu_envs

    num_envs, repeats = len(actions[0]), plan.size(200, 4)
    env = gpu_envs.make(ENV, num_envs, device=plan.device, output="torch", autoreset_mode="SameStep")
    env.reset(seed=0)
    on_device = [torch.from_numpy(array).to(env.device) for array in actions]

    def bare() -> None:
        for array in on_device:
            env.step(array)

    synchronise = wait_function(plan.device)
    bare()
    result: dict[str, Any] = {
        "bare_step_ms": 1e3 * statistics.median(seconds(bare, synchronise) for _ in range(repeats)) / len(on_device)
    }
    if plan.on_gpu:
        from benchmarks.timing import device_milliseconds

        results, host = torch.empty(back, dtype=torch.uint8, device="cuda"), torch.empty(back, dtype=torch.uint8)
        pinned, upload = host.pin_memory(), torch.from_numpy(actions[0])
        target = torch.empty_like(on_device[0])

        def together() -> None:
            target.copy_(upload)
            env.step(target)
            pinned.copy_(results)

        result |= {
            "bytes_down": back,
            "bytes_up": actions[0].nbytes,
            "down_ms": device_milliseconds(lambda: pinned.copy_(results, non_blocking=True), repeats),
            "up_ms": device_milliseconds(lambda: target.copy_(upload), repeats),
            "together_ms": 1e3 * statistics.median(seconds(together, synchronise) for _ in range(repeats)),
        }
    env.close()
    return result


def log_result(plan: AdapterPlan, result: dict[str, Any]) -> None:
    """Print the results, and add the share of the transfers to them."""
    bounds, parts, total = result["yardstick"], result["parts_ms"], result["step_ms"]
    bar = check_maximum(total, STEP_BAR).replace("bar < 1", "bar < 1 ms")
    plan.log(
        f"SB3 step, {result['num_envs']:,} replicas, {result['ended_per_step']:.0f} episodes ending in each "
        f"(1 in {1 / result['finish_rate']:.0f}): {total:.3f} ms ({bar})"
    )
    plan.log("  parts: " + ", ".join(f"{name} {value:.3f} ms" for name, value in parts.items()))
    plan.log(f"  bare step, without transfers: {bounds['bare_step_ms']:.3f} ms")
    if "together_ms" in bounds:
        result["transfer_share"] = (bounds["up_ms"] + bounds["down_ms"]) / total
        plan.log(
            f"  {bounds['bytes_up']:,} bytes up {bounds['up_ms']:.3f} ms, {bounds['bytes_down']:,} down "
            f"{bounds['down_ms']:.3f} ms: transfers are {result['transfer_share']:.0%} of a step; "
            f"transfers and a bare step together: {bounds['together_ms']:.3f} ms"
        )
