"""What presets of the particle environments learn, beside random play, and JaxMARL's IPPO on its own environments."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.peers import process
from benchmarks.training.learning import figures, play_at_random
from benchmarks.training.plan import TrainingPlan, preset, trained
from gpu_envs.registry.catalog import team_spec

SEEDS, EPISODES = 5, 10_000


class Learnt(NamedTuple):
    """What a preset should come to."""

    preset: str
    metric: str
    share: float
    """Of what random actions have: at most where that is less than 1, and otherwise at least."""

    def reached(self, value: float, at_random: float) -> bool:
        """Whether this is enough."""
        return (value <= self.share * at_random) == (self.share < 1)


EXPECTED: Mapping[str, Learnt] = {
    "SimpleSpread-v3": Learnt("default", "distance", 0.4),
    "SimpleTag-v3": Learnt("adversaries", "collisions", 5.0),
}


def particles(plan: TrainingPlan) -> dict[str, Any]:
    """Trains each with several seeds, and evaluates with the likeliest actions."""
    found = {}
    for env_id, expected in EXPECTED.items():
        name, metric, share = expected
        roles = [role.name for role in team_spec(env_id).roles]
        at_random = _mean(play_at_random(plan, env_id, roles, {}), metric)
        runs = []
        for seed in range(min(SEEDS, plan.seeds)):
            trainer, run = trained(plan, env_id, name, seed)
            run["evaluated"] = _mean(figures(trainer.evaluate(episodes=EPISODES)), metric)
            runs.append(run)
        reached = [expected.reached(run["evaluated"], at_random) for run in runs]
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


def ippo(plan: TrainingPlan) -> dict[str, Any]:
    """The same of JaxMARL's IPPO, in its own environments; a seed takes about a minute."""
    return {env_id: jaxmarl(plan, env_id) for env_id in EXPECTED}


def jaxmarl(plan: TrainingPlan, env_id: str, *options: object) -> dict[str, Any]:
    """In one environment: what it comes to, and the seconds of training until it first suffices.

    Args:
        plan: Where; fewer seeds where one takes long.
        env_id: Ours.
        options: More of the peer's command line.
    """
    given = ("--env-id", env_id, "--seeds", min(SEEDS, plan.seeds), "--device", plan.device, *options)
    try:
        found = process.figures(
            plan.jax_python, "jaxmarl", "jaxmarl_ippo", "--episodes", EPISODES, *given, environment=plan.jax_environment
        )
    except RuntimeError as error:
        plan.log(str(error))
        found = {"skipped": process.why(str(error))}
    if "skipped" in found:
        plan.log(f"JaxMARL's IPPO in {env_id}: skipped: {found['skipped']}")
        return found
    for run in found["runs"]:
        sufficed = (s for s, value in run["evaluated"] if EXPECTED[env_id].reached(value, found["random"]))
        run["reached_s"], run["evaluated"] = next(sufficed, None), run["evaluated"][-1][1]
    found["reached"] = sum(EXPECTED[env_id].reached(run["evaluated"], found["random"]) for run in found["runs"])
    ends = ", ".join(f"{run['evaluated']:.3g} in {run['seconds']:.1f} s" for run in found["runs"])
    first = ", ".join(f"{run['reached_s']:.1f} s" for run in found["runs"] if run["reached_s"] is not None) or "never"
    plan.log(
        f"JaxMARL's IPPO in {env_id}: {found['random']:.3g} at random; {ends}; {found['reached']} suffice, "
        f"first: {first}"
    )
    return found


def _mean(by_role: Mapping[str, Any], metric: str) -> float:
    """Of a metric, which all roles have in common."""
    return float(next(iter(by_role.values()))["metrics"][metric]["mean"])
