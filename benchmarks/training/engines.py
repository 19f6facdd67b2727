"""Training on a CPU in kernels and in torch: presets in turns, and PPO with the settings of Stable-Baselines3's."""

import statistics
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.peers import process
from benchmarks.training.plan import TrainingPlan, preset

CASES = (
    ("CartPole-v1", "default"),
    ("CartPole-v1", "pqn"),
    ("Acrobot-v1", "default"),
    ("Pendulum-v1", "default"),
    ("TagContinuous-v0", "small"),
)
"""Environments and presets."""

SB3_SETTINGS: Mapping[str, Any] = {
    "env": "CartPole-v1",
    "num_envs": 8,
    "horizon": 32,
    "epochs": 20,
    "minibatches": 1,
    "learning_rate": "0:0.001,1:0",
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "total_steps": 100_000,
}
"""The settings of ``benchmarks.peers.sb3_ppo``."""

_RUNS = 3
"""Runs of Stable-Baselines3."""


def engines(plan: TrainingPlan) -> dict[str, Any]:
    """Measure rates and CPU time of training with kernels and with torch, in turns, and of SB3's PPO."""
    results: dict[str, Any] = {}
    for env_id, name in CASES:
        settings = {"env": env_id, **preset(env_id, name)}
        kernels, torch = _measure(plan, [settings, settings | {"fused": False}])
        results[f"{env_id} {name}"] = {"settings": settings, "kernels": kernels, "torch": torch}
        plan.log(
            f"{env_id}, preset {name}: {kernels['steps_per_s'] / 1e3:,.0f} k steps/s, in torch "
            f"{torch['steps_per_s'] / 1e3:,.0f} k; CPU time {kernels['cpu_us']:.2f} us a step, {torch['cpu_us']:.2f} us"
        )
    (ours,) = _measure(plan, [dict(SB3_SETTINGS)])
    runs = [
        process.run_peer(plan.sb3_python, "stable_baselines3", "sb3_ppo", "--seed", seed)["runs"][0]
        for seed in range(_RUNS)
    ]
    cpu_us = statistics.median(run["cpu_seconds"] / run["steps"] * 1e6 for run in runs)
    results["sb3"] = {"settings": dict(SB3_SETTINGS), "ours": ours, "sb3": {"cpu_us": cpu_us, "runs": runs}}
    plan.log(f"PPO with SB3's settings: {ours['cpu_us']:.1f} us of CPU time a step, SB3 {cpu_us:.1f} us")
    return results


def _measure(plan: TrainingPlan, runs: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the median steps per second and the CPU time per step of runs, over rounds in turns."""
    from gpu_envs.training import Run, Trainer

    others = {"device": plan.device, "run_dir": "", "target_return": None, "total_steps": 10**9}
    trainers = [Trainer(Run.from_flat(run | others)) for run in runs]
    rounds: list[list[tuple[float, float]]] = [[] for _ in trainers]
    for trainer in trainers:
        trainer.iterate(2)
    for _ in range(plan.rounds):
        for trainer, turns in zip(trainers, rounds, strict=True):
            before, start, cpu = trainer.steps, time.perf_counter(), time.process_time()
            while time.perf_counter() - start < plan.seconds / 10:
                trainer.iterate(1)
            seconds, steps = time.perf_counter() - start, trainer.steps - before
            turns.append((steps / seconds, (time.process_time() - cpu) / steps * 1e6))
    medians = [map(statistics.median, zip(*turns, strict=True)) for turns in rounds]
    return [dict(zip(("steps_per_s", "cpu_us"), values, strict=True)) for values in medians]
