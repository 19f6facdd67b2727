"""Parameters sampled for each episode: their cost per step, and policies trained with them."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gpu_envs
from benchmarks.replicas import action_tensors, make_staggered
from benchmarks.timing import seconds_per_call, wait_function
from benchmarks.training.plan import TrainingPlan, preset, train_preset
from gpu_envs.training.callbacks.presets import pole_lengths, pole_masses

ENV = "CartPole-v1"

KINDS = ("uniform:0.05:0.4", "loguniform:0.025:0.4", "normal:0.1:0.05:0.02:0.4", "choice:0.05:0.1:0.2")
"""Distributions of the pole's mass."""

REPLICAS = {"cpu": 4096, "cuda": 2**22}
STEPS = 32
"""Steps of a rollout."""

SEEDS, WORLDS, EPISODES = 5, 10_000, 10
SOLVED = 475.0
"""Minimum mean return of the episodes of a solved world."""


def drawn(plan: TrainingPlan) -> dict[str, Any]:
    """Measure the relative speed with a sampled parameter, and the share of sampled worlds that policies solve."""
    return {"rates": _rates(plan), "worlds": _worlds(plan)}


def curriculum(plan: TrainingPlan) -> dict[str, Any]:
    """Measure the share of sampled worlds that a curriculum solves, and the same settings without it."""
    settings = dict(preset(ENV, "curriculum"))
    last = {made.parameter: str(made.stages[-1]) for made in (pole_masses(), pole_lengths())}
    changes: dict[str, dict[str, Any]] = {"curriculum": {}, "drawn": {"params": last, "callbacks": ()}}
    results: dict[str, Any] = {"params": last, "worlds": WORLDS, "settings": settings, "runs": []}
    for seed in range(min(SEEDS, plan.seeds)):
        entry: dict[str, Any] = {"seed": seed}
        for name, change in changes.items():
            with tempfile.TemporaryDirectory() as folder:
                run = Path(folder) / "run"
                train_preset(plan, ENV, "curriculum", seed, run, change)
                entry[name] = float((returns(plan, run, last, episodes=1) >= SOLVED).mean())
        results["runs"].append(entry)
        plan.log(
            f"seed {seed}: {entry['curriculum']:.1%} of {WORLDS:,} worlds, without curriculum {entry['drawn']:.1%}"
        )
    return results


def _rates(plan: TrainingPlan) -> dict[str, Any]:
    """Measure all distributions in turns, on a CPU with one thread; return medians over rounds."""
    options: dict[str, Any] = {} if plan.on_gpu else {"threads": 1, "output": "torch"}
    count, wait = REPLICAS[plan.device], wait_function(plan.device)

    def calls(**params: Any) -> dict[str, Callable[[int], object]]:
        env = make_staggered(ENV, count, plan.device, **options, **params)
        actions = action_tensors(env)
        return {"step": lambda t: env.step(actions[t % len(actions)]), "rollout": lambda _: env.rollout(STEPS)}

    functions = {"none": calls()} | {kind: calls(pole_mass=kind) for kind in KINDS}
    times: dict[str, dict[str, list[float]]] = {
        kind: {way: [] for way in functions_by_way} for kind, functions_by_way in functions.items()
    }
    for _ in range(plan.rounds):
        for kind, functions_by_way in functions.items():
            for way, call in functions_by_way.items():
                times[kind][way].append(seconds_per_call(call, wait, seconds=0.2, warm_up=2))
    results: dict[str, Any] = {"num_envs": count, "rollout_steps": STEPS, "kinds": {}}
    for kind, by_way in times.items():
        results["kinds"][kind] = {
            way: float(np.median(np.divide(times["none"][way], round_times))) for way, round_times in by_way.items()
        }
        plan.log(
            f"pole_mass {kind}: " + ", ".join(f"{way} {share:.1%}" for way, share in results["kinds"][kind].items())
        )
    results["steps_per_s"] = {
        way: count * (STEPS if way == "rollout" else 1) / float(np.median(round_times))
        for way, round_times in times["none"].items()
    }
    return results


def _worlds(plan: TrainingPlan) -> dict[str, Any]:
    """Evaluate the preset with a sampled parameter and the default preset, with several seeds, in the same worlds."""
    params = preset(ENV, "drawn")["params"]
    results: dict[str, Any] = {"params": params, "worlds": WORLDS, "episodes": EPISODES, "presets": {}}
    for name in ("drawn", "default"):
        runs = []
        for seed in range(min(SEEDS, plan.seeds)):
            with tempfile.TemporaryDirectory() as folder:
                _, run = train_preset(plan, ENV, name, seed, Path(folder) / "run")
                run["solved"] = float((returns(plan, Path(folder) / "run", params) >= SOLVED).mean())
            runs.append(run)
            plan.log(f"{name}, seed {seed}: {run['solved']:.2%} of {WORLDS:,} worlds, after {run['seconds']:.1f} s")
        results["presets"][name] = {"settings": dict(preset(ENV, name)), "runs": runs}
    return results


def returns(
    plan: TrainingPlan, run: Path, params: Mapping[str, Any], worlds: int = WORLDS, episodes: int = EPISODES
) -> np.ndarray:
    """Return the mean return in each sampled world, with the most likely actions of a run's policy."""
    from gpu_envs.training import load_policies

    source = gpu_envs.make(ENV, worlds, device="cpu", **params)
    source.reset(seed=12345)
    values = {name: np.tile(np.asarray(source.params[name]), episodes) for name in params}
    policies = load_policies(run, device=plan.device, params=values)
    env = policies.make(worlds * episodes, autoreset_mode="Disabled")
    env.allow_frozen_steps()
    act = policies.acting_in(env)
    observations, _ = env.reset(seed=0)
    with act.settings():
        for _ in range(env.max_episode_steps):
            observations, *_ = env.step(act(observations))
    by_world: np.ndarray = env.episode_return.cpu().numpy().reshape(episodes, worlds)
    return np.asarray(by_world.mean(0))
