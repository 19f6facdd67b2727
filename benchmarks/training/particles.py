"""Results of presets of the particle environments, compared with random actions and with JaxMARL's IPPO."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.peers import process
from benchmarks.training.learning import play_at_random, to_dicts
from benchmarks.training.plan import TrainingPlan, preset, train_preset
from gpu_envs.registry.catalog import team_spec

SEEDS, EPISODES = 5, 10_000


class Target(NamedTuple):
    """A preset, and the target of its metric."""

    preset: str
    metric: str
    share: float
    """The target relative to random actions: a maximum if less than 1, otherwise a minimum."""

    def reached(self, value: float, random_value: float) -> bool:
        """Return whether a value reaches the target."""
        return (value <= self.share * random_value) == (self.share < 1)


TARGETS: Mapping[str, Target] = {
    "SimpleSpread-v3": Target("default", "distance", 0.4),
    "SimpleTag-v3": Target("adversaries", "collisions", 5.0),
}


def particles(plan: TrainingPlan) -> dict[str, Any]:
    """Train each preset with several seeds, and evaluate with greedy actions."""
    results = {}
    for env_id, target in TARGETS.items():
        name, metric, share = target
        roles = [role.name for role in team_spec(env_id).roles]
        random_value = _mean(play_at_random(plan, env_id, roles, {}), metric)
        runs = []
        for seed in range(min(SEEDS, plan.seeds)):
            trainer, run = train_preset(plan, env_id, name, seed)
            run["evaluated"] = _mean(to_dicts(trainer.evaluate(episodes=EPISODES)), metric)
            runs.append(run)
        reached = [target.reached(run["evaluated"], random_value) for run in runs]
        results[env_id] = {
            "preset": name,
            "metric": metric,
            "share": share,
            "settings": dict(preset(env_id, name)),
            "random": random_value,
            "reached": sum(reached),
            "runs": runs,
        }
        ends = ", ".join(f"{run['evaluated']:.3g} in {run['seconds']:.1f} s" for run in runs)
        plan.log(
            f"{env_id}, {metric}: {random_value:.3g} at random; {ends}; {sum(reached)} of {len(runs)} seeds reach the "
            "target"
        )
    return results


def ippo(plan: TrainingPlan) -> dict[str, Any]:
    """Train JaxMARL's IPPO in its environments; a seed takes about a minute."""
    return {env_id: jaxmarl(plan, env_id) for env_id in TARGETS}


def jaxmarl(plan: TrainingPlan, env_id: str, *options: object) -> dict[str, Any]:
    """Train IPPO in one environment; return its metric, and the seconds of training until it first reaches the target.

    Args:
        plan: The device and the sizes.
        env_id: The environment's ID in gpu_envs.
        options: Additional command-line arguments of the peer.
    """
    arguments = ("--env-id", env_id, "--seeds", min(SEEDS, plan.seeds), "--device", plan.device, *options)
    try:
        results = process.run_peer(
            plan.jax_python,
            "jaxmarl",
            "jaxmarl_ippo",
            "--episodes",
            EPISODES,
            *arguments,
            environment=plan.jax_environment,
        )
    except RuntimeError as error:
        plan.log(str(error))
        results = {"skipped": process.error_line(str(error))}
    if "skipped" in results:
        plan.log(f"JaxMARL's IPPO in {env_id}: skipped: {results['skipped']}")
        return results
    for run in results["runs"]:
        times = (s for s, value in run["evaluated"] if TARGETS[env_id].reached(value, results["random"]))
        run["reached_s"], run["evaluated"] = next(times, None), run["evaluated"][-1][1]
    results["reached"] = sum(TARGETS[env_id].reached(run["evaluated"], results["random"]) for run in results["runs"])
    ends = ", ".join(f"{run['evaluated']:.3g} in {run['seconds']:.1f} s" for run in results["runs"])
    first = ", ".join(f"{run['reached_s']:.1f} s" for run in results["runs"] if run["reached_s"] is not None) or "never"
    plan.log(
        f"JaxMARL's IPPO in {env_id}: {results['random']:.3g} at random; {ends}; {results['reached']} reach the "
        f"target, first: {first}"
    )
    return results


def _mean(by_role: Mapping[str, Any], metric: str) -> float:
    """Return the mean of a metric that all roles share."""
    return float(next(iter(by_role.values()))["metrics"][metric]["mean"])
