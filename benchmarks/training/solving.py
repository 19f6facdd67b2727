"""Time until CartPole-v1 is solved: in a prepared process, and from the shell, compared with JAX and SB3."""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.compiling import NO_DRIVER_CACHE, run_script
from benchmarks.peers import process
from benchmarks.timing import wait_function
from benchmarks.training.plan import EPISODES, TrainingPlan, finite, format_summary, preset, summary

ENV, TARGET = "CartPole-v1", 475.0
PRESETS = {"cuda": "default", "cpu": "cpu"}
"""The preset of each device."""
JAX_SETTINGS: Mapping[str, tuple[Mapping[str, float | str], ...]] = {
    "cuda": (
        {"num_envs": 512},
        {"num_envs": 1024, "learning_rate": 5e-3},
        {"num_envs": 1024, "minibatches": 2},
        {"num_envs": 4096, "epochs": 4, "minibatches": 2, "learning_rate": 5e-3},
    ),
    "cpu": (
        {"num_envs": 32, "learning_rate": 4e-3},
        {"num_envs": 64},
        {"num_envs": 16, "epochs": 4, "minibatches": 2, "learning_rate": 4e-3},
    ),
}
"""Settings of the JAX peer to try on each device, as differences from its defaults; the fastest counts, and from the
shell the first. They come from a search on a CPU."""

BATCHES = ((512, "0:0.004,1:0", 8), (1024, "0:0.004,1:0", 8), (1024, "0:0.0057,1:0", 8), (1024, "0:0.004,1:0", 16))
"""Total replicas, learning rates and minibatches to compare: the preset's, and twice as many replicas."""
BATCH_SEEDS = 5

SHELL_RUNS = 5
"""Number of measured processes, with one seed each."""


def solve(plan: TrainingPlan) -> dict[str, Any]:
    """Measure training from initial weights to the target, without compilation and graph capture."""
    ours = summary([solve_once(plan, seed) for seed in range(plan.seeds)], TARGET)
    plan.log(f"CartPole, training to {TARGET:g}: {format_summary(ours)}")
    tried = [jax_solve(plan, settings) for settings in JAX_SETTINGS[plan.device]]
    best = min(tried, key=lambda result: result.get("median_s") or float("inf"))
    plan.log(f"  JAX, the fastest of {len(tried)} settings: {format_summary(best)}")
    settings = dict(preset(ENV, PRESETS[plan.device]))
    return {
        "target": TARGET,
        "episodes": EPISODES,
        "settings": settings,
        "ours": ours,
        "jax": best,
        "jax_tried": tried,
    }


def batch_sizes(plan: TrainingPlan) -> dict[str, Any]:
    """Count updates and steps until the target, for different numbers of replicas and minibatches."""
    results = {}
    for num_envs, learning_rate, minibatches in BATCHES:
        settings = {"num_envs": num_envs, "learning_rate": learning_rate, "minibatches": minibatches}
        runs = [solve_once(plan, seed, {**preset(ENV), **settings}) for seed in range(min(BATCH_SEEDS, plan.seeds))]
        name = f"{num_envs}_{learning_rate}_{minibatches}"
        results[name] = {"settings": settings, **summary(runs, TARGET)}
        plan.log(f"CartPole, {settings}: {[run['updates'] for run in runs]} updates; {format_summary(results[name])}")
    return results


def solve_once(plan: TrainingPlan, seed: int, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Train one seed, with the device's preset if ``settings`` is None.

    ``seconds`` is the time of ``run``, from an idle device.
    """
    from gpu_envs.training import Run, Trainer

    run_settings = {"target_return": TARGET, "seed": seed, "device": plan.device, "run_dir": ""}
    trainer = Trainer(Run.from_flat({"env": ENV} | dict(settings or preset(ENV, PRESETS[plan.device])) | run_settings))
    start = time.perf_counter()
    trainer.prepare()
    wait_function(plan.device)()
    ready = time.perf_counter()
    result = trainer.run(progress=False)
    seconds = time.perf_counter() - ready
    (last_100,) = result.returns.values()
    (evaluation,) = trainer.evaluate(episodes=EPISODES).values()
    return {
        "seed": seed,
        "seconds": seconds,
        "prepare_s": ready - start,
        "steps": result.steps,
        "updates": result.iterations,
        "last_100": last_100,
        "evaluated": evaluation.mean,
        "interval": evaluation.interval,
    }


def jax_solve(plan: TrainingPlan, settings: Mapping[str, float | str]) -> dict[str, Any]:
    """Train to the target with JAX, compiled and after a warm-up."""
    result = run_jax_peer(plan, "solve", "--seeds", plan.seeds, *options(settings))
    if "skipped" in result:
        return result
    return result | summary(result["runs"], TARGET)


def run_jax_peer(plan: TrainingPlan, *arguments: object, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run the JAX peer on this device, without preallocation of GPU memory."""
    variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | (environment or {})
    return process.run_peer(
        plan.jax_python, "jax", "jax_ppo", *arguments, "--platform", plan.device, environment=variables
    )


def options(settings: Mapping[str, float | str]) -> list[object]:
    """Return settings as command-line options."""
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]


def shell(plan: TrainingPlan) -> dict[str, Any]:
    """Measure processes that train to the target, from start to end, with warm caches."""
    with tempfile.TemporaryDirectory() as folder:
        results: dict[str, Any] = {"target": TARGET, "ours": shell_ours(plan, Path(folder))}
        ours = results["ours"]
        plan.log(f"CartPole from the shell: {format_summary(ours)}; {ours['cold_s']:.1f} s with empty caches")
        plan.log(f"  {ours['beyond_torch_s']:.2f} s more than a process that only imports torch")
        results["first"] = first_iteration(plan, str(folder))
        for caches, seconds in results["first"].items():
            plan.log(
                f"  {caches}: Trainer in {seconds['made_s']:.2f} s, first iteration in {seconds['iterate_s']:.2f} s"
            )
        results["jax"] = shell_jax(plan, Path(folder))
    if not plan.on_gpu:
        results["sb3"] = shell_sb3(plan)
    for peer in ("jax", "sb3"):
        if peer in results:
            plan.log(f"  {peer}: {format_summary(results[peer])}")
    return results


_FIRST_ITERATION = """
import json, sys, time, torch
torch.zeros(1, device=sys.argv[1])
imported = time.perf_counter()
from gpu_envs.training import Run, Trainer
trainer = Trainer(Run.from_flat(json.loads(sys.argv[2])))
made = time.perf_counter()
trainer.iterate(1)
print(made - imported, time.perf_counter() - made)
"""


def first_iteration(plan: TrainingPlan, folder: str) -> dict[str, Any]:
    """Measure the creation of a Trainer, with imports except torch, and its first iteration."""
    settings = json.dumps({"env": ENV, "device": plan.device, "run_dir": ""} | dict(preset(ENV, PRESETS[plan.device])))
    caches = {"GPU_ENVS_CACHE_DIR": f"{folder}/first"}
    outputs = [
        run_script(_FIRST_ITERATION, plan.device, settings, **caches, **others)
        for others in (NO_DRIVER_CACHE, *[{}] * SHELL_RUNS)
    ]
    runs = [tuple(map(float, line.split())) for line in outputs]
    return {
        name: dict(zip(("made_s", "iterate_s"), map(statistics.median, zip(*cache_runs, strict=True)), strict=True))
        for name, cache_runs in (("caches empty", runs[:1]), ("caches warm", runs[1:]))
    }


def shell_ours(plan: TrainingPlan, folder: Path) -> dict[str, Any]:
    """Run ``gpu-envs train`` with empty caches, then several times; before each run, a process that imports torch."""
    from gpu_envs.training import evaluate

    caches = {"GPU_ENVS_CACHE_DIR": str(folder / "kernels")}
    command = [sys.executable, "-m", "gpu_envs", "train", ENV, "--target-return", f"{TARGET:g}"]
    command += ["--preset", PRESETS[plan.device], "--device", plan.device, "--no-progress"]
    runs: list[dict[str, Any]] = []
    for seed in (0, *range(SHELL_RUNS)):
        run_dir = folder / f"run-{len(runs)}"
        before = time.perf_counter()
        run_script("import torch")
        start = time.perf_counter()
        completed = subprocess.run(
            [*command, "--seed", str(seed), "--run-dir", str(run_dir)],
            cwd=process.ROOT,
            env=process.variables(caches if runs else caches | NO_DRIVER_CACHE),
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - start
        if completed.returncode:
            raise RuntimeError(f"{' '.join(command)} failed with {completed.returncode}:\n{completed.stderr[-4000:]}")
        reported = re.search(r"^return +([-\d.e+]+)", completed.stdout, re.MULTILINE)
        assert reported is not None, completed.stdout
        (evaluation,) = evaluate(str(run_dir), episodes=EPISODES, greedy=False, device=plan.device).values()
        runs.append(
            {
                "seed": seed,
                "seconds": seconds,
                "torch_s": start - before,
                "last_100": float(reported[1]),
                "evaluated": evaluation.mean,
            }
        )
    return summary(runs[1:], TARGET) | {
        "cold_s": runs[0]["seconds"],
        "beyond_torch_s": statistics.median(run["seconds"] - run["torch_s"] for run in runs[1:]),
        "printed": completed.stdout.partition("run directory")[0],
    }


def shell_jax(plan: TrainingPlan, folder: Path) -> dict[str, Any]:
    """Run the JAX peer's process, with JAX's persistent cache of compiled programs."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    arguments = options(JAX_SETTINGS[plan.device][0])
    runs = [
        run_jax_peer(plan, "once", "--seed", seed, *arguments, environment=cache) for seed in (0, *range(SHELL_RUNS))
    ]
    return summarize_processes(runs, cold=True)


def shell_sb3(plan: TrainingPlan) -> dict[str, Any]:
    """Run the SB3 peer's process."""
    name = "stable_baselines3"
    return summarize_processes(
        [process.run_peer(plan.sb3_python, name, "sb3_ppo", "--seed", seed) for seed in range(SHELL_RUNS)]
    )


def summarize_processes(results: list[dict[str, Any]], *, cold: bool = False) -> dict[str, Any]:
    """Summarize peers' processes. They do not evaluate, so their return in training decides whether they are solved.

    Args:
        results: The results of each process.
        cold: Whether the first process had empty caches.
    """
    if "skipped" in results[0]:
        return results[0]
    warm = results[1:] if cold else results
    runs = [peer["runs"][0] | {"seconds": peer["process_s"]} for peer in warm]
    reached = [run for run in runs if run["last_100"] >= TARGET]
    return {
        "versions": results[0]["versions"],
        "settings": results[0].get("settings"),
        "cold_s": results[0]["process_s"] if cold else None,
        "median_s": statistics.median(run["seconds"] for run in reached) if len(reached) == len(runs) else None,
        "solved": len(reached),
        "seeds": len(runs),
        "runs": [finite(run) for run in runs],
    }
