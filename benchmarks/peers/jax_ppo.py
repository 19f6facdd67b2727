"""Train CartPole with PPO in JAX: ``python -m benchmarks.peers.jax_ppo`` and a task, such as ``solve``.

Prints a line of JSON. ``once`` is for callers that time the process; the others exclude compilation from their times.
``recurrent`` measures the throughput of policies with memory. Needs only jax.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.peers import jax_cartpole, jax_learner, jax_recurrent
from benchmarks.peers.jax_cartpole import TIME_LIMIT, CartPoles, cartpole
from benchmarks.peers.jax_learner import LearnerState, Settings

LAST_EPISODES = 100


class Run(NamedTuple):
    """The state of training until the target."""

    learner: LearnerState
    ended: Any
    """[window, 2] float32: number of ended episodes and sum of their returns, for each of the last steps."""


def initialize(settings: Settings, key: Any) -> Run:
    """Initialize training. The window holds enough horizons for 100 ended episodes."""
    steps = TIME_LIMIT + -(-LAST_EPISODES // settings.num_envs) * TIME_LIMIT
    window = -(-steps // settings.horizon) * settings.horizon
    return Run(jax_learner.initialize(settings, cartpole(settings.num_envs), key), jnp.zeros((window, 2)))


def mean_of_last(ended: Any) -> Any:
    """Return the mean return of at least the last 100 episodes; minus infinity before 100 have ended."""
    counts, sums = jnp.cumsum(ended[::-1], 0).T
    enough = counts >= LAST_EPISODES
    index = jnp.argmax(enough)
    return jnp.where(enough[index], sums[index] / counts[index], -jnp.inf)


def train_iteration(settings: Settings, run: Run) -> Run:
    """Take one iteration."""
    learner, ended = jax_learner.train_iteration(settings, cartpole(settings.num_envs), run.learner)
    return Run(learner, jnp.concatenate((run.ended[settings.horizon :], ended)))


def train(settings: Settings, run: Run) -> Any:
    """Train until the target or the maximum number of updates."""

    def unsolved(run: Run) -> Any:
        return (mean_of_last(run.ended) < settings.target) & (run.learner.update < settings.updates)

    return jax.lax.while_loop(unsolved, partial(train_iteration, settings), run)


def evaluation(settings: Settings, weights: Any, key: Any) -> Any:
    """Return the mean return of 1,000 new episodes with sampled actions."""
    key, start_key = jax.random.split(key)

    def scan_step(carry: tuple[CartPoles, Any], key: Any) -> tuple[tuple[CartPoles, Any], None]:
        world, alive = carry
        actions = jax_learner.sample_actions(key, jax_learner.act(settings, weights, world.state)[0])
        state, fallen = jax_cartpole.move(world.state, actions)
        return (CartPoles(state, world.elapsed + alive), alive & ~fallen), None

    initial = cartpole(1000).start(start_key), jnp.ones(1000, bool)
    (world, _), _ = jax.lax.scan(scan_step, initial, jax.random.split(key, TIME_LIMIT))
    return world.elapsed.mean()


def compile_for(function: Callable[..., Any], *examples: Any) -> tuple[Any, float]:
    """Compile a function for the types of example arguments; return it and the seconds."""
    start = time.perf_counter()
    compiled = jax.jit(function).lower(*examples).compile()
    return compiled, time.perf_counter() - start


def seconds_of(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the complete result of ``work``, and the seconds."""
    start = time.perf_counter()
    result = jax.block_until_ready(work())
    return result, time.perf_counter() - start


def solve(settings: Settings, seeds: int) -> dict[str, Any]:
    """Train each seed to the target; return its seconds, and its return in 1,000 new episodes."""
    initialize_compiled, initialize_s = compile_for(partial(initialize, settings), jax.random.key(0))
    train_compiled, train_s = compile_for(partial(train, settings), initialize_compiled(jax.random.key(0)))
    weights = initialize_compiled(jax.random.key(0)).learner.weights
    evaluate, _ = compile_for(partial(evaluation, settings), weights, jax.random.key(0))
    jax.block_until_ready(train_compiled(initialize_compiled(jax.random.key(1_000_000))))  # warm up with another seed
    runs = []
    for seed in range(seeds):
        run = jax.block_until_ready(initialize_compiled(jax.random.key(seed)))
        run, seconds = seconds_of(partial(train_compiled, run))
        updates = int(run.learner.update)
        runs.append(
            {
                "seed": seed,
                "seconds": seconds,
                "steps": updates * settings.num_envs * settings.horizon,
                "updates": updates,
                "last_100": float(mean_of_last(run.ended)),
                "evaluated": float(evaluate(run.learner.weights, jax.random.key(seed + 2_000_000))),
            }
        )
    return {"compile_s": initialize_s + train_s, "runs": runs}


def once(settings: Settings, seed: int) -> dict[str, Any]:
    """Train once, without warm-up and evaluation, for callers that time the process."""
    run = jax.jit(partial(initialize, settings))(jax.random.key(seed))
    run, seconds = seconds_of(partial(jax.jit(partial(train, settings)), run))
    last_100 = float(mean_of_last(run.ended))
    return {"runs": [{"seed": seed, "seconds": seconds, "updates": int(run.learner.update), "last_100": last_100}]}


def throughput(
    settings: Settings,
    updates: int,
    repeats: int = 5,
    runs: int = 1,
    functions: tuple[Callable[..., Any], Callable[..., Any]] = (initialize, train_iteration),
) -> dict[str, Any]:
    """Return the steps per second of training, of several runs together, the median of several measurements.

    ``functions`` start a run from settings and a key, and take an iteration from settings and a run.
    """

    def several(run: Any) -> Any:
        final, _ = jax.lax.scan(lambda run, _: (functions[1](settings, run), None), run, length=updates)
        return final

    start = partial(functions[0], settings)
    if runs > 1:
        run = jax.jit(jax.vmap(start))(jax.random.split(jax.random.key(0), runs))
        train_updates, compile_s = compile_for(jax.vmap(several), run)
    else:
        run = jax.jit(start)(jax.random.key(0))
        train_updates, compile_s = compile_for(several, run)
    run = jax.block_until_ready(train_updates(run))
    times = []
    for _ in range(repeats):
        run, seconds = seconds_of(partial(train_updates, run))
        times.append(seconds)
    steps = runs * settings.num_envs * settings.horizon * updates
    return {"compile_s": compile_s, "steps_per_s": steps / statistics.median(times)}


def parser() -> argparse.ArgumentParser:
    """Return the argument parser: the task and each setting."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    result.add_argument("task", choices=("solve", "once", "throughput", "recurrent"))
    result.add_argument("--platform", default="cpu", help="the device in JAX: cpu or cuda")
    result.add_argument("--seeds", type=int, default=10, help="number of seeds of solve")
    result.add_argument("--seed", type=int, default=0, help="seed of once")
    result.add_argument("--runs", type=int, default=1, help="number of runs that throughput trains at once")
    result.add_argument("--repeats", type=int, default=5, help="number of measurements of throughput")
    for field in dataclasses.fields(Settings):
        option = f"--{field.name.replace('_', '-')}"
        result.add_argument(option, type=type(field.default), default=field.default, help=" ")
    return result


def main() -> None:
    """Run the task and print its results as a line of JSON."""
    options = vars(parser().parse_args())
    task, platform, seeds, seed, repeats, runs = (
        options.pop(name) for name in ("task", "platform", "seeds", "seed", "repeats", "runs")
    )
    settings = Settings(**options)
    try:
        device = jax.devices(platform)[0]
    except RuntimeError as error:
        print(json.dumps({"skipped": f"JAX has no {platform} device: {str(error).splitlines()[0]}"}))
        return
    with jax.default_device(device):
        if task == "solve":
            results = solve(settings, seeds)
        elif task == "once":
            results = once(settings, seed)
        elif task == "throughput":
            results = throughput(settings, settings.updates, repeats, runs)
        else:
            functions = jax_recurrent.initialize, jax_recurrent.train_iteration
            results = throughput(settings, settings.updates, repeats, functions=functions)
    package_versions = {"jax": jax.__version__, "python": sys.version.split()[0], "device": device.device_kind}
    print(json.dumps({"settings": dataclasses.asdict(settings), "versions": package_versions} | results))


if __name__ == "__main__":
    main()
