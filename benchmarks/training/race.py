"""Time until SAC solves Pendulum, compared with other libraries and their settings."""

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, final

from benchmarks.peers import process
from benchmarks.timing import wait_function
from benchmarks.training.plan import TrainingPlan, preset

ENV = "Pendulum-v1"


@final
@dataclasses.dataclass(frozen=True)
class Rule:
    """The target and the evaluations of a race, the same for all libraries."""

    target: float = -150.0
    """Target mean return with greedy actions."""
    episodes: int = 100
    """Episodes of an evaluation, with new initial states each time."""
    every: int = 1000
    """Steps between evaluations."""
    limit: int = 30_000
    """Maximum number of steps of a run."""
    limit_s: float = 60.0
    """Maximum seconds of training of a run."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Create a rule from JSON."""
        return cls(**json.loads(text))

    def race(self, train: Callable[[int], int], evaluate: Callable[[], float]) -> dict[str, Any]:
        """Train until the target or a limit; the seconds exclude evaluations.

        Args:
            train: Trains for about a number of steps, and returns the total number of steps.
            evaluate: Returns the mean return of ``episodes`` episodes with greedy actions.

        Raises:
            FloatingPointError: The mean return is not finite.
        """
        seconds, steps, returns, reached = 0.0, 0, list[float](), False
        while steps < self.limit and seconds < self.limit_s and not reached:
            start = time.perf_counter()
            steps = train(self.every)
            seconds += time.perf_counter() - start
            returns.append(evaluate())
            if not math.isfinite(returns[-1]):
                raise FloatingPointError(f"the mean return is {returns[-1]} after {steps} steps")
            reached = returns[-1] >= self.target
        return {"seconds": seconds, "steps": steps, "returns": returns, "reached": reached}


class Peer(NamedTuple):
    """A library that runs in its own process."""

    package: str
    """The module that it needs."""
    module: str
    """The module's name in ``benchmarks.peers``."""
    arguments: tuple[str, ...] = ()
    """Its command-line arguments."""


PEERS = {
    "sbx": Peer("sbx", "sb3_sac", ("race", "--library", "sbx")),
    "rejax": Peer("rejax", "rejax_sac"),
    "skrl": Peer("skrl", "skrl_sac"),
}

PEER_SEEDS = 5
"""Maximum number of seeds of a peer."""


def race(plan: TrainingPlan, rule: Rule = Rule(), peers: Iterable[str] = tuple(PEERS)) -> dict[str, Any]:
    """Measure the seconds of training until the target, without compilation, of gpu_envs and of the peers."""
    results = {"ours": summarize([_ours(plan, seed, rule) for seed in range(plan.seeds)])}
    plan.log(f"SAC on Pendulum, training to {rule.target:g}: {format_summary(results['ours'])}")
    for name in peers:
        results[name] = _peer(plan, PEERS[name], rule)
        plan.log(f"  {name}: {format_summary(results[name])}")
    return {"env": ENV, "rule": dataclasses.asdict(rule), "settings": dict(preset(ENV, "sac")), **results}


def _ours(plan: TrainingPlan, seed: int, rule: Rule) -> dict[str, Any]:
    from gpu_envs.training import Run, Trainer

    run_settings = {"seed": seed, "device": plan.device, "run_dir": "", "checkpoint_interval": 0}
    run, wait = Run.from_flat({"env": ENV} | dict(preset(ENV, "sac")) | run_settings), wait_function(plan.device)
    start = time.perf_counter()
    trainer = Trainer(run)
    trainer.prepare()
    wait()
    prepared = time.perf_counter() - start

    def train(steps: int) -> int:
        trainer.iterate(max(1, round(steps / run.steps_at(1))))
        wait()
        return trainer.steps

    def evaluate() -> float:
        return trainer.evaluate(rule.episodes, seed=1000 * seed + trainer.iteration)["agent"].mean

    return {"seed": seed, "prepare_s": prepared, **rule.race(train, evaluate)}


def _peer(plan: TrainingPlan, peer: Peer, rule: Rule) -> dict[str, Any]:
    python = plan.jax_python if peer.package == "rejax" else plan.sb3_python
    runs: list[dict[str, Any]] = []
    for seed in range(min(plan.seeds, PEER_SEEDS)):
        arguments = ("--seed", seed, "--device", plan.device, "--rule", json.dumps(dataclasses.asdict(rule)))
        try:
            run = process.run_peer(
                python, peer.package, peer.module, *peer.arguments, *arguments, environment=plan.jax_environment
            )
        except RuntimeError as error:
            plan.log(str(error))
            run = {"seed": seed, "failed": process.error_line(str(error))}
        if "skipped" in run:
            return run
        runs.append(run)
    return summarize(runs)


def summarize(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of runs that reached the target, their medians, and the median preparation time."""
    reached = [run for run in runs if run.get("reached")]
    return {
        "seeds": len(runs),
        "reached": len(reached),
        "median_s": _median(run["seconds"] for run in reached),
        "median_steps": _median(run["steps"] for run in reached),
        "prepare_s": _median(run["prepare_s"] for run in runs if "prepare_s" in run),
        "runs": list(runs),
    }


def _median(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return statistics.median(numbers) if numbers else None


def format_summary(result: Mapping[str, Any]) -> str:
    """Return a summary as text."""
    if "skipped" in result:
        return f"skipped: {result['skipped']}"
    reached = f"{result['reached']} of {result['seeds']} seeds"
    if not result["reached"]:
        return reached
    return (
        f"{reached}, median {result['median_s']:.2f} s and {result['median_steps']:,.0f} steps, "
        f"after {result['prepare_s']:.2f} s of preparation"
    )
