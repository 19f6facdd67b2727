"""What presets of the particle environments learn, beside random actions."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.training.learning import figures, play_at_random
from benchmarks.training.plan import TrainingPlan, preset, trained
from gpu_envs.registry.known import team_spec

SEEDS, EPISODES = 5, 10_000


class Learnt(NamedTuple):
    """What a preset should come to."""

    preset: str
    metric: str
    share: float
    """Of what random actions have: at most where that is less than 1, and otherwise at least."""


EXPECTED: Mapping[str, Learnt] = {
    "SimpleSpread-v3": Learnt("default", "distance", 0.4),
    "SimpleTag-v3": Learnt("adversaries", "collisions", 5.0),
}


def particles(plan: TrainingPlan) -> dict[str, Any]:
    """Trains each with several seeds, and evaluates with the likeliest actions."""
    found = {}
    for env_id, (name, metric, share) in EXPECTED.items():
        roles = [role.name for role in team_spec(env_id).roles]
        at_random = _mean(play_at_random(plan, env_id, roles, {}), metric)
        runs = []
        for seed in range(min(SEEDS, plan.seeds)):
            trainer, run = trained(plan, env_id, name, seed)
            run["evaluated"] = _mean(figures(trainer.evaluate(episodes=EPISODES)), metric)
            runs.append(run)
        reached = [(run["evaluated"] <= share * at_random) == (share < 1) for run in runs]
        found[env_id] = {
            "preset": name,
            "metric": metric,
            "share": share,
            "settings": dict(preset(env_id, name)),
            "random": at_random,
            "reached": sum(reached),
            "runs": runs,
        }
        ends = ", ".join(f"{run['evaluated']:.3g} in {run['seconds']:.1f} s" for run in runs)
        plan.log(f"{env_id}, {metric}: {at_random:.3g} at random; {ends}; {sum(reached)} of {len(runs)} seeds suffice")
    return found


def _mean(by_role: Mapping[str, Any], metric: str) -> float:
    """Of a metric, which all roles have in common."""
    return float(next(iter(by_role.values()))["metrics"][metric]["mean"])
