"""One step of the Stable-Baselines3 adapter at 16,384 replicas, and where its time goes."""

import statistics
import time
from typing import Any

import numpy as np

from benchmarks.adapters.plan import AdapterPlan, judged
from benchmarks.adapters.timing import seconds
from benchmarks.timing import calls_timed, waiting

ENV = "CartPole-v1"
STEP_BAR = 1.0
"""Milliseconds of a step, actions and results on their way included."""

PARTS = ("env_step", "fetch", "infos")
"""What a step's time goes to. ``env_step``: looking at the actions, sending them, launching the kernel. ``fetch``:
waiting for the kernel and the results, and copying them for good. ``infos``: those of ended episodes."""


def sb3_step(plan: AdapterPlan) -> dict[str, Any]:
    """The median step with random actions, its parts, and the same bytes moved by themselves."""
    from gpu_envs.adapters import sb3 as adapter

    num_envs, steps = plan.size(16_384, 64), plan.size(1000, 20)
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, 2, num_envs) for _ in range(16)]  # int64, as SB3 gives them
    venv: Any = adapter.VecEnv(ENV, num_envs, device=plan.device, seed=0)
    venv.reset()
    run(venv, actions, plan.size(300, 20))  # until episodes end at different times
    times, ended = run(venv, actions, steps)
    parts = split(venv, actions, steps)
    total = statistics.median(times)
    found = {
        "num_envs": num_envs,
        "steps": steps,
        "ended_per_step": ended / steps,
        "finish_rate": ended / steps / num_envs,
        "step_ms": total * 1e3,
        "percentile_95_ms": float(np.percentile(times, 95)) * 1e3,
        "parts_ms": parts,
        "yardstick": yardstick(plan, actions, result_bytes(venv.env)),
    }
    venv.close()
    told(plan, found)
    return found


def run(venv: Any, actions: list[np.ndarray], steps: int) -> tuple[list[float], int]:
    """The seconds of each step, and how many episodes ended in all."""
    times, ended = [], 0
    for t in range(steps):
        begin = time.perf_counter()
        venv.step_async(actions[t % len(actions)])
        _, _, dones, _ = venv.step_wait()
        times.append(time.perf_counter() - begin)
        ended += int(dones.sum())
    return times, ended


def split(venv: Any, actions: list[np.ndarray], steps: int) -> dict[str, float]:
    """The median milliseconds of each part of a step, timed where the adapter calls it, and of what is left."""
    places = dict(
        zip(PARTS, ((venv.env, "step"), (venv._slots._results, "fetch"), (venv, "_set_episode_infos")), strict=True)
    )
    with calls_timed(places) as spent:
        times, _ = run(venv, actions, steps)
    # infos are made only in steps in which an episode ended
    found = {name: 1e3 * statistics.median(parts + [0.0] * (steps - len(parts))) for name, parts in spent.items()}
    return found | {"other": 1e3 * statistics.median(times) - sum(found.values())}


def result_bytes(env: Any) -> int:
    """The bytes of what comes back from a step."""
    from gpu_envs.adapters.sb3.results import result_shapes

    return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in result_shapes(env, None).values())


def yardstick(plan: AdapterPlan, actions: list[np.ndarray], back: int) -> dict[str, Any]:
    """The least that a step can be: a bare step with actions already there; on a GPU, the same bytes moved once too.

    Args:
        plan: Where to measure.
        actions: Some steps' actions.
        back: The bytes of a step's results.
    """
    import torch

    import gpu_envs

    num_envs, repeats = len(actions[0]), plan.size(200, 4)
    env = gpu_envs.make(ENV, num_envs, device=plan.device, output="torch", autoreset_mode="SameStep")
    env.reset(seed=0)
    there = [torch.from_numpy(each).to(env.device) for each in actions]

    def bare() -> None:
        for each in there:
            env.step(each)

    synchronise = waiting(plan.device)
    bare()
    found: dict[str, Any] = {
        "bare_step_ms": 1e3 * statistics.median(seconds(bare, synchronise) for _ in range(repeats)) / len(there)
    }
    if plan.on_gpu:
        from benchmarks.timing import milliseconds

        results, landed = torch.empty(back, dtype=torch.uint8, device="cuda"), torch.empty(back, dtype=torch.uint8)
        pinned, upload = landed.pin_memory(), torch.from_numpy(actions[0])
        target = torch.empty_like(there[0])

        def together() -> None:
            target.copy_(upload)
            env.step(target)
            pinned.copy_(results)

        found |= {
            "bytes_down": back,
            "bytes_up": actions[0].nbytes,
            "down_ms": milliseconds(lambda: pinned.copy_(results, non_blocking=True), repeats),
            "up_ms": milliseconds(lambda: target.copy_(upload), repeats),
            "together_ms": 1e3 * statistics.median(seconds(together, synchronise) for _ in range(repeats)),
        }
    env.close()
    return found


def told(plan: AdapterPlan, found: dict[str, Any]) -> None:
    """Prints what was found, and adds the share of the transfers."""
    yard, parts, total = found["yardstick"], found["parts_ms"], found["step_ms"]
    bar = judged(total, STEP_BAR).replace("bar < 1", "bar < 1 ms")
    plan.log(
        f"SB3 step, {found['num_envs']:,} replicas, {found['ended_per_step']:.0f} episodes ending in each "
        f"(1 in {1 / found['finish_rate']:.0f}): {total:.3f} ms ({bar})"
    )
    plan.log("  of which " + ", ".join(f"{name} {value:.3f} ms" for name, value in parts.items()))
    plan.log(f"  bare step, actions there and results left: {yard['bare_step_ms']:.3f} ms")
    if "together_ms" in yard:
        found["transfer_share"] = (yard["up_ms"] + yard["down_ms"]) / total
        plan.log(
            f"  {yard['bytes_up']:,} bytes up {yard['up_ms']:.3f} ms, {yard['bytes_down']:,} down "
            f"{yard['down_ms']:.3f} ms: transfers are {found['transfer_share']:.0%} of a step; "
            f"both and a bare step, together: {yard['together_ms']:.3f} ms"
        )
