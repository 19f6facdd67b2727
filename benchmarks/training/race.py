"""How long SAC trains until it swings Pendulum up: ours, and other libraries with their own settings."""

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, final

from benchmarks.peers import process
from benchmarks.timing import waiting
from benchmarks.training.plan import TrainingPlan, preset

ENV = "Pendulum-v1"


@final
@dataclasses.dataclass(frozen=True)
class Rule:
    """What is to be reached, and how often it is looked whether it is: the same for all."""

    target: float = -150.0
    """A mean return, acting greedily."""
    episodes: int = 100
    """Of an evaluation, from other starts each time."""
    every: int = 1000
    """Steps between evaluations."""
    limit: int = 30_000
    """Steps after which a run ends in any case."""
    limit_s: float = 60.0
    """Seconds of training after which it does."""

    @classmethod
    def read(cls, text: str) -> Self:
        """The rule that was written as JSON."""
        return cls(**json.loads(text))

    def race(self, train: Callable[[int], int], evaluated: Callable[[], float]) -> dict[str, Any]:
        """Trains until the target or the limit; evaluations cost no time.

        Args:
            train: Trains for about so many steps, and returns how many there have been in all.
            evaluated: Returns the mean return of that many episodes, acting greedily.

        Raises:
            FloatingPointError: What was learnt gives no numbers.
        """
        seconds, steps, returns, reached = 0.0, 0, list[float](), False
        while steps < self.limit and seconds < self.limit_s and not reached:
            begin = time.perf_counter()
            steps = train(self.every)
            seconds += time.perf_counter() - begin
            returns.append(evaluated())
            if not math.isfinite(returns[-1]):
                raise FloatingPointError(f"the mean return is {returns[-1]} after {steps} steps")
            reached = returns[-1] >= self.target
        return {"seconds": seconds, "steps": steps, "returns": returns, "reached": reached}


class Peer(NamedTuple):
    """A library that runs in a process of its own."""

    package: str
    """What its Python must have."""
    module: str
    """Below ``benchmarks.peers``."""
    arguments: tuple[str, ...] = ()
    """Of its command line."""


PEERS = {
    "sbx": Peer("sbx", "sb3_sac", ("race", "--library", "sbx")),
    "rejax": Peer("rejax", "rejax_sac"),
    "skrl": Peer("skrl", "skrl_sac"),
}

PEER_SEEDS = 5
"""Seeds of a peer, at most."""


def race(plan: TrainingPlan, rule: Rule = Rule(), peers: Iterable[str] = tuple(PEERS)) -> dict[str, Any]:
    """Seconds of training until the target, without what is compiled and started before: ours and the peers'."""
    found = {"ours": outcome([_ours(plan, seed, rule) for seed in range(plan.seeds)])}
    plan.log(f"SAC on Pendulum, training to {rule.target:g}: {told(found['ours'])}")
    for name in peers:
        found[name] = _peer(plan, PEERS[name], rule)
        plan.log(f"  {name}: {told(found[name])}")
    return {"env": ENV, "rule": dataclasses.asdict(rule), "settings": dict(preset(ENV, "sac")), **found}


def _ours(plan: TrainingPlan, seed: int, rule: Rule) -> dict[str, Any]:
    from gpu_envs.training import Run, Trainer

    own = {"seed": seed, "device": plan.device, "run_dir": "", "checkpoint_interval": 0}
    run, wait = Run.from_flat({"env": ENV} | dict(preset(ENV, "sac")) | own), waiting(plan.device)
    begin = time.perf_counter()
    trainer = Trainer(run)
    trainer.prepare()
    wait()
    prepared = time.perf_counter() - begin

    def train(steps: int) -> int:
        trainer.iterate(max(1, round(steps / run.steps_at(1))))
        wait()
        return trainer.steps

    def evaluated() -> float:
        return trainer.evaluate(rule.episodes, seed=1000 * seed + trainer.iteration)["agent"].mean

    return {"seed": seed, "prepare_s": prepared, **rule.race(train, evaluated)}


def _peer(plan: TrainingPlan, peer: Peer, rule: Rule) -> dict[str, Any]:
    python = plan.jax_python if peer.package == "rejax" else plan.sb3_python
    runs: list[dict[str, Any]] = []
    for seed in range(min(plan.seeds, PEER_SEEDS)):
        given = ("--seed", seed, "--device", plan.device, "--rule", json.dumps(dataclasses.asdict(rule)))
        try:
            run = process.figures(
                python, peer.package, peer.module, *peer.arguments, *given, environment=plan.jax_environment
            )
        except RuntimeError as error:
            plan.log(str(error))
            run = {"seed": seed, "failed": process.why(str(error))}
        if "skipped" in run:
            return run
        runs.append(run)
    return outcome(runs)


def outcome(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many runs reached the target, the medians of those that did, and how long all prepared."""
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
    found = list(values)
    return statistics.median(found) if found else None


def told(found: Mapping[str, Any]) -> str:
    """An outcome in a few words."""
    if "skipped" in found:
        return f"skipped: {found['skipped']}"
    many = f"{found['reached']} of {found['seeds']} seeds"
    if not found["reached"]:
        return many
    return (
        f"{many}, median {found['median_s']:.2f} s and {found['median_steps']:,.0f} steps, "
        f"after {found['prepare_s']:.2f} s to prepare"
    )
