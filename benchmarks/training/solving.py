"""How long CartPole-v1 takes to be solved: within a process that is ready, and from the shell, beside JAX and SB3."""

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

from benchmarks.compiling import NO_OTHER_CACHE, in_new_process
from benchmarks.peers import process
from benchmarks.timing import waiting
from benchmarks.training.plan import EPISODES, TrainingPlan, finite, preset, summary, told

ENV, TARGET = "CartPole-v1", 475.0
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
"""What the JAX peer is tried with on each device, where its defaults are not meant; the soonest counts, and from the
shell the first. Found by a search on a CPU."""

SHELL_RUNS = 5
"""Timed runs of a process, one seed each."""


def solve(plan: TrainingPlan) -> dict[str, Any]:
    """From training's start, with everything compiled and captured and nothing learnt, to the target."""
    ours = summary([solve_once(plan, seed) for seed in range(plan.seeds)], TARGET)
    plan.log(f"CartPole, training to {TARGET:g}: {told(ours)}")
    tried = [jax_solve(plan, settings) for settings in JAX_SETTINGS[plan.device]]
    best = min(tried, key=lambda found: found.get("median_s") or float("inf"))
    plan.log(f"  JAX, the best of {len(tried)} settings: {told(best)}")
    settings = dict(preset(ENV))
    return {
        "target": TARGET,
        "episodes": EPISODES,
        "settings": settings,
        "ours": ours,
        "jax": best,
        "jax_tried": tried,
    }


def solve_once(plan: TrainingPlan, seed: int) -> dict[str, Any]:
    """One seed: the seconds of ``run`` alone, from when all that was queued is done to when it returns."""
    from gpu_envs.training import Run, Trainer

    own = {"target_return": TARGET, "seed": seed, "device": plan.device, "run_dir": ""}
    trainer = Trainer(Run.from_flat({"env": ENV} | dict(preset(ENV)) | own))
    begin = time.perf_counter()
    trainer.prepare()
    waiting(plan.device)()
    ready = time.perf_counter()
    result = trainer.run(progress=False)
    seconds = time.perf_counter() - ready
    (last_100,) = result.returns.values()
    (evaluation,) = trainer.evaluate(episodes=EPISODES).values()
    return {
        "seed": seed,
        "seconds": seconds,
        "prepare_s": ready - begin,
        "steps": result.steps,
        "updates": result.iterations,
        "last_100": last_100,
        "evaluated": evaluation.mean,
        "interval": evaluation.interval,
    }


def jax_solve(plan: TrainingPlan, settings: Mapping[str, float | str]) -> dict[str, Any]:
    """Training to the target by JAX, compiled and warm."""
    found = jax_figures(plan, "solve", "--seeds", plan.seeds, *options(settings))
    if "skipped" in found:
        return found
    return found | summary(found["runs"], TARGET)


def jax_figures(plan: TrainingPlan, *arguments: object, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """What the JAX peer prints on this device. It takes memory as it needs it, not three quarters at once."""
    own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | (environment or {})
    return process.figures(plan.jax_python, "jax", "jax_ppo", *arguments, "--platform", plan.device, environment=own)


def options(settings: Mapping[str, float | str]) -> list[object]:
    """Settings as a command line."""
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]


def shell(plan: TrainingPlan) -> dict[str, Any]:
    """From the start of a process to its end, caches warm: training to the target, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {"target": TARGET, "ours": shell_ours(plan, Path(folder))}
        plan.log(f"CartPole from the shell: {told(found['ours'])}; {found['ours']['cold_s']:.1f} s with empty caches")
        plan.log(f"  {found['ours']['beyond_torch_s']:.2f} s more than a process that only imports torch")
        found["first"] = first_iteration(plan, str(folder))
        for caches, of in found["first"].items():
            plan.log(f"  {caches}: a Trainer in {of['made_s']:.2f} s, its first iteration in {of['iterate_s']:.2f} s")
        found["jax"] = shell_jax(plan, Path(folder))
    if not plan.on_gpu:
        found["sb3"] = shell_sb3(plan)
    for peer in ("jax", "sb3"):
        if peer in found:
            plan.log(f"  {peer}: {told(found[peer])}")
    return found


_FIRST = """
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
    """Seconds from when torch is there to a Trainer, our imports included, and those of its first iteration."""
    settings = json.dumps({"env": ENV, "device": plan.device, "run_dir": ""} | dict(preset(ENV)))
    caches = {"GPU_ENVS_CACHE_DIR": f"{folder}/first"}
    found = [
        in_new_process(_FIRST, plan.device, settings, **caches, **others)
        for others in (NO_OTHER_CACHE, *[{}] * SHELL_RUNS)
    ]
    runs = [tuple(map(float, line.split())) for line in found]
    return {
        name: dict(zip(("made_s", "iterate_s"), map(statistics.median, zip(*some, strict=True)), strict=True))
        for name, some in (("caches empty", runs[:1]), ("caches warm", runs[1:]))
    }


def shell_ours(plan: TrainingPlan, folder: Path) -> dict[str, Any]:
    """Our command: first with empty caches, then several times; before each, a process that only imports torch."""
    from gpu_envs.training import evaluate

    caches = {"GPU_ENVS_CACHE_DIR": str(folder / "kernels")}
    command = [sys.executable, "-m", "gpu_envs", "train", ENV, "--target-return", f"{TARGET:g}"]
    command += ["--device", plan.device, "--no-progress"]
    runs: list[dict[str, Any]] = []
    for seed in (0, *range(SHELL_RUNS)):
        run_dir = folder / f"run-{len(runs)}"
        before = time.perf_counter()
        in_new_process("import torch")
        begin = time.perf_counter()
        done = subprocess.run(
            [*command, "--seed", str(seed), "--run-dir", str(run_dir)],
            cwd=process.ROOT,
            env=process.variables(caches if runs else caches | NO_OTHER_CACHE),
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - begin
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-4000:]}")
        reported = re.search(r"^return +([-\d.e+]+)", done.stdout, re.MULTILINE)
        assert reported is not None, done.stdout
        (evaluation,) = evaluate(str(run_dir), episodes=EPISODES, greedy=False, device=plan.device).values()
        runs.append(
            {
                "seed": seed,
                "seconds": seconds,
                "torch_s": begin - before,
                "last_100": float(reported[1]),
                "evaluated": evaluation.mean,
            }
        )
    return summary(runs[1:], TARGET) | {
        "cold_s": runs[0]["seconds"],
        "beyond_torch_s": statistics.median(run["seconds"] - run["torch_s"] for run in runs[1:]),
        "printed": done.stdout.partition("run directory")[0],
    }


def shell_jax(plan: TrainingPlan, folder: Path) -> dict[str, Any]:
    """The JAX peer's process, with JAX's own cache of compiled programs."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    chosen = options(JAX_SETTINGS[plan.device][0])
    runs = [jax_figures(plan, "once", "--seed", seed, *chosen, environment=cache) for seed in (0, *range(SHELL_RUNS))]
    return timed(runs, cold=True)


def shell_sb3(plan: TrainingPlan) -> dict[str, Any]:
    """The SB3 peer's process."""
    name = "stable_baselines3"
    return timed([process.figures(plan.sb3_python, name, "sb3_ppo", "--seed", seed) for seed in range(SHELL_RUNS)])


def timed(found: list[dict[str, Any]], *, cold: bool = False) -> dict[str, Any]:
    """A summary of processes: those whose own account reaches the target count, as they do not evaluate.

    Args:
        found: What each printed.
        cold: The first one had no cache.
    """
    if "skipped" in found[0]:
        return found[0]
    warm = found[1:] if cold else found
    runs = [peer["runs"][0] | {"seconds": peer["process_s"]} for peer in warm]
    reached = [run for run in runs if run["last_100"] >= TARGET]
    return {
        "versions": found[0]["versions"],
        "settings": found[0].get("settings"),
        "cold_s": found[0]["process_s"] if cold else None,
        "median_s": statistics.median(run["seconds"] for run in reached) if len(reached) == len(runs) else None,
        "solved": len(reached),
        "seeds": len(runs),
        "runs": [finite(run) for run in runs],
    }
