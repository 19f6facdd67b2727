"""Parameters that are drawn for each episode: what they cost a step, and what a policy that saw many worlds can do."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gpu_envs
from benchmarks.replicas import staggered, tensors_of_actions
from benchmarks.timing import seconds_per_call, waiting
from benchmarks.training.plan import TrainingPlan, preset, trained

ENV = "CartPole-v1"

KINDS = ("uniform:0.05:0.4", "loguniform:0.025:0.4", "normal:0.1:0.05:0.02:0.4", "choice:0.05:0.1:0.2")
"""Of the pole's mass."""

REPLICAS = {"cpu": 4096, "cuda": 2**22}
STEPS = 32
"""Of a rollout."""

SEEDS, WORLDS, EPISODES = 5, 10_000, 10
SOLVED = 475.0
"""The mean return of a world's episodes from which it is solved."""


def drawn(plan: TrainingPlan) -> dict[str, Any]:
    """The rate with one drawn parameter, as a share of the rate with none; and how many drawn worlds policies solve."""
    return {"rates": _rates(plan), "worlds": _worlds(plan)}


def _rates(plan: TrainingPlan) -> dict[str, Any]:
    """All are called in turn, on a CPU with one thread; each kind's share is the median over the rounds."""
    options: dict[str, Any] = {} if plan.on_gpu else {"threads": 1, "output": "torch"}
    count, wait = REPLICAS[plan.device], waiting(plan.device)

    def calls(**params: Any) -> dict[str, Callable[[int], object]]:
        env = staggered(ENV, count, plan.device, **options, **params)
        actions = tensors_of_actions(env)
        return {"step": lambda t: env.step(actions[t % len(actions)]), "rollout": lambda _: env.rollout(STEPS)}

    every = {"none": calls()} | {kind: calls(pole_mass=kind) for kind in KINDS}
    spent: dict[str, dict[str, list[float]]] = {kind: {way: [] for way in own} for kind, own in every.items()}
    for _ in range(plan.rounds):
        for kind, own in every.items():
            for way, call in own.items():
                spent[kind][way].append(seconds_per_call(call, wait, seconds=0.2, warm_up=2))
    found: dict[str, Any] = {"num_envs": count, "rollout_steps": STEPS, "kinds": {}}
    for kind, by_way in spent.items():
        found["kinds"][kind] = {
            way: float(np.median(np.divide(spent["none"][way], times))) for way, times in by_way.items()
        }
        plan.log(f"pole_mass {kind}: " + ", ".join(f"{way} {share:.1%}" for way, share in found["kinds"][kind].items()))
    found["steps_per_s"] = {
        way: count * (STEPS if way == "rollout" else 1) / float(np.median(times))
        for way, times in spent["none"].items()
    }
    return found


def _worlds(plan: TrainingPlan) -> dict[str, Any]:
    """The preset that draws, and the default one, each with several seeds, in the same worlds."""
    params = preset(ENV, "drawn")["params"]
    found: dict[str, Any] = {"params": params, "worlds": WORLDS, "episodes": EPISODES, "presets": {}}
    for name in ("drawn", "default"):
        runs = []
        for seed in range(min(SEEDS, plan.seeds)):
            with tempfile.TemporaryDirectory() as folder:
                _, run = trained(plan, ENV, name, seed, Path(folder) / "run")
                run["solved"] = float((returns(plan, Path(folder) / "run", params) >= SOLVED).mean())
            runs.append(run)
            plan.log(f"{name}, seed {seed}: {run['solved']:.2%} of {WORLDS:,} worlds, after {run['seconds']:.1f} s")
        found["presets"][name] = {"settings": dict(preset(ENV, name)), "runs": runs}
    return found


def returns(plan: TrainingPlan, run: Path, params: Mapping[str, Any], worlds: int = WORLDS) -> np.ndarray:
    """The mean return of the episodes of each drawn world, in which a run's policy takes its likeliest actions."""
    from gpu_envs.training import load_policies

    source = gpu_envs.make(ENV, worlds, device="cpu", **params)
    source.reset(seed=12345)
    numbers = {name: np.tile(np.asarray(source.params[name]), EPISODES) for name in params}
    policies = load_policies(run, device=plan.device, params=numbers)
    env = policies.make(worlds * EPISODES, autoreset_mode="Disabled")
    env.allow_frozen_steps()
    act = policies.acting_in(env)
    seen, _ = env.reset(seed=0)
    with act.settings():
        for _ in range(env.max_episode_steps):
            seen, *_ = env.step(act(seen))
    by_world: np.ndarray = env.episode_return.cpu().numpy().reshape(EPISODES, worlds)
    return np.asarray(by_world.mean(0))
