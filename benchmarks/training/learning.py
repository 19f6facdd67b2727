"""Results of presets: returns compared with thresholds, and the survival of runners in Tag."""

import csv
import math
import statistics
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gpu_envs
from benchmarks.training.plan import EPISODES, TrainingPlan, preset, train_preset

PUBLISHED = {
    "CartPole-v0": None,
    "CartPole-v1": 500.0,
    "MountainCar-v0": -110.423,
    "MountainCarContinuous-v0": 88.343,
    "Pendulum-v1": -172.225,
    "Acrobot-v1": -73.506,
}
"""Environments, and the return of RL-Zoo's PPO with greedy actions (benchmark.md, one run). It is the threshold of
environments without ``reward_threshold``, such as Pendulum."""

OTHER_PRESETS: Mapping[tuple[str, str], tuple[str, float, int]] = {
    ("Pendulum-v1", "sac"): ("agent", -150.0, 10),
    ("Pendulum-v1", "td3"): ("agent", -150.0, 10),
    ("MountainCarContinuous-v0", "sac"): ("agent", 94.0, 5),
    ("MountainCarContinuous-v0", "td3"): ("agent", 93.0, 5),
    ("MountainCarContinuous-v0", "ddpg"): ("agent", 93.0, 5),
    ("CartPole-v1", "pqn"): ("agent", 475.0, 10),
    ("Acrobot-v1", "pqn"): ("agent", -80.0, 5),
    ("MountainCar-v0", "pqn"): ("agent", -110.0, 10),
    ("TagGridWorld-v0", "pqn-taggers"): ("tagger", 60.0, 5),
    ("TagContinuous-v0", "sac-taggers"): ("tagger", 75.0, 5),
    ("TagContinuous-v0", "sac-runners"): ("runner", 250.0, 5),
}
"""Presets of other algorithms than PPO: the trained role, the target (a return, or the runners' survival, which taggers
shorten), and the maximum number of seeds."""

TEAMS = ("TagContinuous-v0", "TagGridWorld-v0")
ROLES = ("tagger", "runner")


def to_dicts(by_role: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return evaluations as dicts: mean return and length, with the half widths of their 95 % confidence intervals."""
    return {role: evaluation.as_dict() for role, evaluation in by_role.items()}


def presets(plan: TrainingPlan) -> dict[str, Any]:
    """Train each environment's default preset with several seeds; evaluate with sampled and with greedy actions."""
    results = {}
    for env_id, published in PUBLISHED.items():
        reward_threshold = gpu_envs.spec(env_id).reward_threshold
        threshold: Any = published if reward_threshold is None else reward_threshold
        runs = []
        for seed in range(plan.seeds):
            trainer, run = train_preset(plan, env_id, "default", seed)
            for kind, greedy in (("drawn", False), ("greedy", True)):
                (run[kind],) = to_dicts(trainer.evaluate(episodes=EPISODES, greedy=greedy)).values()
            runs.append(run)
        reached = {kind: sum(run[kind]["mean"] >= threshold for run in runs) for kind in ("drawn", "greedy")}
        results[env_id] = {
            "threshold": threshold,
            "settings": dict(preset(env_id)),
            "reached": reached,
            "runs": runs,
        }
        returns = ", ".join(f"{run['drawn']['mean']:.4g}" for run in runs)
        plan.log(
            f"{env_id}: {returns} with sampled actions; {reached['drawn']} of {len(runs)} seeds reach {threshold:g}, "
            f"{reached['greedy']} with greedy ones; median {statistics.median(run['seconds'] for run in runs):.1f} s, "
            f"{statistics.median(run['steps'] for run in runs):,.0f} steps"
        )
    return results


def algorithms(plan: TrainingPlan) -> dict[str, Any]:
    """Train presets of other algorithms with several seeds; evaluate greedy actions from the same initial states."""
    return _train_other_presets(plan, teams=False)


def team_algorithms(plan: TrainingPlan) -> dict[str, Any]:
    """Train presets of other algorithms for teams, which take longer."""
    return _train_other_presets(plan, teams=True)


def _train_other_presets(plan: TrainingPlan, *, teams: bool) -> dict[str, Any]:
    results = {}
    for (env_id, name), (role, threshold, seeds) in OTHER_PRESETS.items():
        runs, single = [], role == "agent"
        if single == teams:
            continue
        for seed in range(min(seeds, plan.seeds)):
            trainer, run = train_preset(plan, env_id, name, seed)
            evaluated = trainer.evaluate(episodes=10 * EPISODES if single else EPISODES, seed=0)
            run["evaluated"] = evaluated[role].mean if single else evaluated["runner"].metrics["survival"].mean
            runs.append(run)
        minimize = role == "tagger"
        reached = sum((run["evaluated"] <= threshold) if minimize else (run["evaluated"] >= threshold) for run in runs)
        settings = dict(preset(env_id, name))
        results[f"{env_id} {name}"] = {"role": role, "threshold": threshold, "settings": settings, "reached": reached}
        results[f"{env_id} {name}"]["runs"] = runs
        ends = sorted(run["evaluated"] for run in runs)
        plan.log(
            f"{env_id}, {name}: from {ends[0]:.4g} to {ends[-1]:.4g}; {reached} of {len(runs)} seeds reach "
            f"{threshold:g}; median {statistics.median(run['seconds'] for run in runs):.2f} s"
        )
    return results


def tag(plan: TrainingPlan) -> dict[str, Any]:
    """How long runners survive: random ones under trained taggers, trained ones under random ones, and all random.

    On a GPU each is trained in torch too, from the same seeds, so that what our kernels learn has its measure.
    """
    results = {}
    ways: dict[str, dict[str, Any]] = {"kernels": {}} | ({"torch": {"fused": False}} if plan.on_gpu else {})
    for env_id in TEAMS:
        params, other = (preset(env_id, name).get("params", {}) for name in ("taggers", "runners"))
        if params != other:
            raise ValueError(f"{env_id}: the presets taggers and runners have different params, {params} and {other}")
        at_random = play_at_random(plan, env_id, ROLES, params)["runner"]
        teams: dict[str, Any] = {"random": at_random}
        plan.log(f"{env_id}, all random: a runner lasts {at_random['length']:.1f} steps")
        for name in ("taggers", "runners"):
            teams[name] = {"settings": dict(preset(env_id, name)), "runs": {}}
            for where, extra_settings in ways.items():
                runs = [_survival(plan, env_id, name, seed, extra_settings) for seed in range(plan.seeds)]
                teams[name]["runs"][where] = runs
                ends = sorted(run["evaluated"]["length"] for run in runs)
                plan.log(
                    f"{env_id}, trained {name} against random others, in {where}: a runner lasts from {ends[0]:.1f} to "
                    f"{ends[-1]:.1f} steps; after {statistics.median(run['seconds'] for run in runs):.1f} s of training"
                )
        results[env_id] = teams
    return results


def _survival(
    plan: TrainingPlan, env_id: str, name: str, seed: int, extra_settings: Mapping[str, Any]
) -> dict[str, Any]:
    """One run: the runners after it, and how it went, in seconds and steps that the last 100 runners lasted."""
    with tempfile.TemporaryDirectory() as folder:
        trainer, run = train_preset(plan, env_id, name, seed, Path(folder), extra_settings)
        with (Path(folder) / "log.csv").open() as file:
            rows = [(float(row["seconds"]), float(row["runner/length"])) for row in csv.DictReader(file)]
    run["curve"] = [[round(seconds, 4), round(length, 2)] for seconds, length in rows if math.isfinite(length)]
    run["evaluated"] = trainer.evaluate(episodes=EPISODES)["runner"].as_dict()
    return run


def play_at_random(
    plan: TrainingPlan, env_id: str, roles: Iterable[str], params: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """The figures where everybody acts at random, in the environment as presets have it."""
    from gpu_envs.training.rollout.evaluation import play
    from gpu_envs.training.runs import load_frozen_policies

    guests = load_frozen_policies(env_id, dict.fromkeys(roles, "random"), device=plan.device, params=params)
    return to_dicts(play(guests, episodes=EPISODES, greedy=False, seed=0, num_envs=None))
