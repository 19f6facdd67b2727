"""Populations: many runs at once, compared with JAX under vmap and with the same runs one after the other."""

import statistics
from typing import Any

from benchmarks.timing import training_rate
from benchmarks.training.plan import TrainingPlan, preset
from benchmarks.training.solving import options, run_jax_peer
from gpu_envs.training import Population, Run

STEPS = 500_000
"""Environment steps of each run."""

SIZES = {True: ((256, 64), (1024, 64), (64, 512), (1, 64)), False: ((16, 64),)}
"""Numbers of runs and of replicas of each, by whether the device is a GPU."""

SEEDS, TAG_RUNS, TAG_REPLICAS, TAG_UPDATES = 64, 32, 256, 100
"""Runs of CartPole's preset; runs, replicas and updates of TagGridWorld's preset for taggers."""

_UPDATES = 50
"""Updates that JAX measures."""


def populations(plan: TrainingPlan) -> dict[str, Any]:
    """Measure populations of CartPole and, on a GPU, of seeds of two presets."""
    results: dict[str, Any] = {"steps": STEPS, "cartpole": {}}
    for runs, replicas in SIZES[plan.on_gpu]:
        setting: dict[str, float | str] = {"num_envs": replicas, "horizon": 32, "minibatches": 4, "epochs": 4}
        setting |= {"learning_rate": 3e-4, "precision": "tf32" if plan.on_gpu else "float32"}
        common = setting | {"env": "CartPole-v1", "device": plan.device, "hidden": (64, 64), "total_steps": STEPS}
        ours = _seconds(common, runs)
        alone = training_rate(_without_steps(common), 100, 5)
        peer = run_jax_peer(plan, "throughput", "--runs", runs, "--updates", _UPDATES, *options(setting))
        entry = {"settings": setting, "seconds": ours, "alone_s": runs * STEPS / alone["steps_per_s"], "jax": peer}
        if not plan.on_gpu:
            one_core = training_rate({**_without_steps(common), "threads": 1}, 100, 5)
            entry["one_core_s"] = runs * STEPS / one_core["steps_per_s"]
        results["cartpole"][f"{runs} x {replicas}"] = entry
        other = f"skipped: {peer['skipped']}" if "skipped" in peer else f"{runs * STEPS / peer['steps_per_s']:.2f} s"
        plan.log(
            f"{runs:,} runs of CartPole, {replicas} replicas: {ours:.3f} s; one after the other "
            f"{entry['alone_s']:.2f} s; JAX {other}"
        )
    if plan.on_gpu:
        results["preset"] = _seeds_of_preset(plan)
        results["tag"] = _tag(plan)
    return results


def _without_steps(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "total_steps"}


def _seconds(settings: dict[str, Any], runs: int, rounds: int = 3) -> float:
    """Return the median training time of a population, after a training that compiles."""
    run = Run.from_flat(settings | {"run_dir": "", "checkpoint_interval": 0})
    results = [Population(run, seeds=runs).train(progress=False) for _ in range(rounds + 1)]
    return statistics.median(result.seconds for result in results[1:])


def _seeds_of_preset(plan: TrainingPlan) -> dict[str, Any]:
    """Train seeds of CartPole's preset to its target return; the slowest seed has the most updates."""
    run = Run.from_flat({"env": "CartPole-v1", "device": plan.device, "run_dir": "", **preset("CartPole-v1")})
    results = [Population(run, seeds=SEEDS).train(progress=False) for _ in range(4)][1:]
    updates = [outcome.iterations for outcome in results[0].outcomes]
    slowest = max(range(SEEDS), key=updates.__getitem__)
    solved = sum(outcome.reason == "target_return" for outcome in results[0].outcomes)
    seconds = statistics.median(result.seconds for result in results)
    plan.log(f"{SEEDS} seeds of CartPole's preset: {seconds:.3f} s, {solved} solved; slowest seed {slowest}")
    return {"seconds": seconds, "solved": solved, "slowest": slowest, "updates": updates[slowest]}


def _tag(plan: TrainingPlan) -> dict[str, Any]:
    """Train seeds of TagGridWorld's preset for taggers at once, and a single run."""
    settings = {**preset("TagGridWorld-v0", "taggers"), "env": "TagGridWorld-v0", "device": plan.device}
    settings |= {"num_envs": TAG_REPLICAS, "total_steps": TAG_REPLICAS * int(settings["horizon"]) * TAG_UPDATES}
    settings["target_return"] = None
    together, alone = _seconds(settings, TAG_RUNS), _seconds(settings, 1)
    rate = training_rate(_without_steps(settings), 100, 5)
    lone = settings["total_steps"] / rate["steps_per_s"]
    plan.log(
        f"{TAG_RUNS} seeds of TagGridWorld: {together:.3f} s; a population of one {alone:.3f} s; alone {lone:.3f} s"
    )
    return {"settings": settings, "seconds": together, "population_of_one_s": alone, "alone_s": lone}
