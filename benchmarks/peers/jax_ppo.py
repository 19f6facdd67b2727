"""Cart-pole by PPO in JAX: ``python -m benchmarks.peers.jax_ppo solve``, ``once`` or ``throughput``.

Each prints a line of JSON. ``solve`` and ``throughput`` time compilation apart; ``once`` is for who times the process.
It needs jax alone.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from benchmarks.peers import jax_learner
from benchmarks.peers.jax_learner import LearnerState, Settings


def compiled(function: Callable[..., Any], *examples: Any) -> tuple[Any, float]:
    """The function compiled for arguments like these, and the seconds that took."""
    begin = time.perf_counter()
    ready = jax.jit(function).lower(*examples).compile()
    return ready, time.perf_counter() - begin


def seconds_of(work: Callable[[], Any]) -> tuple[Any, float]:
    """What ``work`` returns, once it is there, and the seconds until then."""
    begin = time.perf_counter()
    result = jax.block_until_ready(work())
    return result, time.perf_counter() - begin


def solve(settings: Settings, seeds: int) -> dict[str, Any]:
    """From new weights and new episodes to the target: each seed's seconds, and its return in 1,000 new episodes."""
    begin, begin_s = compiled(partial(jax_learner.begin, settings), jax.random.key(0))
    train, train_s = compiled(partial(jax_learner.train, settings), begin(jax.random.key(0)))
    weights = begin(jax.random.key(0)).weights
    evaluate, _ = compiled(partial(jax_learner.evaluation, settings), weights, jax.random.key(0))
    jax.block_until_ready(train(begin(jax.random.key(1_000_000))))  # warm: a seed that is not measured
    runs = []
    for seed in range(seeds):
        learner = jax.block_until_ready(begin(jax.random.key(seed)))
        learner, seconds = seconds_of(partial(train, learner))
        updates = int(learner.update)
        runs.append(
            {
                "seed": seed,
                "seconds": seconds,
                "steps": updates * settings.num_envs * settings.horizon,
                "updates": updates,
                "last_100": float(jax_learner.mean_of_last(learner.ended)),
                "evaluated": float(evaluate(learner.weights, jax.random.key(seed + 2_000_000))),
            }
        )
    return {"compile_s": begin_s + train_s, "runs": runs}


def once(settings: Settings, seed: int) -> dict[str, Any]:
    """The same, not warmed up and not evaluated: what a process that does nothing else would do."""
    learner = jax.jit(partial(jax_learner.begin, settings))(jax.random.key(seed))
    learner, seconds = seconds_of(partial(jax.jit(partial(jax_learner.train, settings)), learner))
    last_100 = float(jax_learner.mean_of_last(learner.ended))
    return {"runs": [{"seed": seed, "seconds": seconds, "updates": int(learner.update), "last_100": last_100}]}


def throughput(settings: Settings, updates: int, repeats: int = 5) -> dict[str, Any]:
    """Steps per second of whole training, rollouts and updates: the median of some runs of some updates each."""

    def several(learner: LearnerState) -> Any:
        after, _ = jax.lax.scan(lambda now, _: (jax_learner.improve(settings, now), None), learner, length=updates)
        return after

    learner = jax.jit(partial(jax_learner.begin, settings))(jax.random.key(0))
    run, compile_s = compiled(several, learner)
    learner = jax.block_until_ready(run(learner))
    times = []
    for _ in range(repeats):
        learner, seconds = seconds_of(partial(run, learner))
        times.append(seconds)
    steps = settings.num_envs * settings.horizon * updates
    return {"compile_s": compile_s, "steps_per_s": steps / statistics.median(times)}


def parser() -> argparse.ArgumentParser:
    """The command line: what to do, and each setting."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("task", choices=("solve", "once", "throughput"))
    made.add_argument("--platform", default="cpu", help="JAX's name of the device: cpu or cuda")
    made.add_argument("--seeds", type=int, default=10, help="of solve")
    made.add_argument("--seed", type=int, default=0, help="of once")
    made.add_argument("--repeats", type=int, default=5, help="of throughput")
    for field in dataclasses.fields(Settings):
        option = f"--{field.name.replace('_', '-')}"
        made.add_argument(option, type=type(field.default), default=field.default, help=" ")
    return made


def main() -> None:
    """Does what the command line says, and prints it as a line of JSON."""
    options = vars(parser().parse_args())
    task, platform, seeds, seed, repeats = (
        options.pop(name) for name in ("task", "platform", "seeds", "seed", "repeats")
    )
    settings = Settings(**options)
    try:
        device = jax.devices(platform)[0]
    except RuntimeError as error:
        print(json.dumps({"skipped": f"JAX has no {platform} device here: {str(error).splitlines()[0]}"}))
        return
    with jax.default_device(device):
        if task == "solve":
            found = solve(settings, seeds)
        elif task == "once":
            found = once(settings, seed)
        else:
            found = throughput(settings, settings.updates, repeats)
    about = {"jax": jax.__version__, "python": sys.version.split()[0], "device": device.device_kind}
    print(json.dumps({"settings": dataclasses.asdict(settings), "versions": about} | found))


if __name__ == "__main__":
    main()
