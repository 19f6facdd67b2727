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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.peers import jax_cartpole, jax_learner
from benchmarks.peers.jax_cartpole import TIME_LIMIT, CartPoles
from benchmarks.peers.jax_learner import Game, LearnerState, Settings

LAST_EPISODES = 100


class Run(NamedTuple):
    """Training until the target, on the way."""

    learner: LearnerState
    ended: Any
    """[window, 2] float32: for each of the last steps, how many episodes ended, and the sum of their returns."""


def cartpole(num_envs: int) -> Game:
    """So many cart-poles; the note of a step says how many episodes ended, and the sum of their returns."""

    def start(key: Any) -> CartPoles:
        return CartPoles(jax_cartpole.start(key, num_envs), jnp.zeros(num_envs, jnp.int32))

    def step(world: CartPoles, actions: Any, key: Any) -> tuple[CartPoles, Any, Any]:
        after, done, steps = jax_cartpole.step(world, actions, key)
        return after, done, jnp.stack((done.sum(), jnp.where(done, steps, 0).sum())).astype(jnp.float32)

    return Game(4, 2, start, lambda world: world.state, step, lambda _: 1.0)


def begin(settings: Settings, key: Any) -> Run:
    """New weights and new episodes. The steps to look back at are whole horizons in which enough are sure to end."""
    steps = TIME_LIMIT + -(-LAST_EPISODES // settings.num_envs) * TIME_LIMIT
    window = -(-steps // settings.horizon) * settings.horizon
    return Run(jax_learner.begin(settings, cartpole(settings.num_envs), key), jnp.zeros((window, 2)))


def mean_of_last(ended: Any) -> Any:
    """The mean return of the most recent whole steps in which at least 100 episodes ended; minus infinity before."""
    counts, sums = jnp.cumsum(ended[::-1], 0).T
    enough = counts >= LAST_EPISODES
    at = jnp.argmax(enough)
    return jnp.where(enough[at], sums[at] / counts[at], -jnp.inf)


def improve(settings: Settings, run: Run) -> Run:
    """One update."""
    learner, ended = jax_learner.improve(settings, cartpole(settings.num_envs), run.learner)
    return Run(learner, jnp.concatenate((run.ended[settings.horizon :], ended)))


def train(settings: Settings, run: Run) -> Any:
    """The run after updates until the target is reached, or there have been enough."""

    def unsolved(run: Run) -> Any:
        return (mean_of_last(run.ended) < settings.target) & (run.learner.update < settings.updates)

    return jax.lax.while_loop(unsolved, partial(improve, settings), run)


def evaluation(settings: Settings, weights: Any, key: Any) -> Any:
    """The mean return of 1,000 new episodes of the policy, which chooses at random as it did in training."""
    key, start_key = jax.random.split(key)

    def one(carry: tuple[CartPoles, Any], key: Any) -> tuple[tuple[CartPoles, Any], None]:
        world, alive = carry
        actions = jax_learner.drawn(key, jax_learner.act(settings, weights, world.state)[0])
        state, fallen = jax_cartpole.move(world.state, actions)
        return (CartPoles(state, world.elapsed + alive), alive & ~fallen), None

    fresh = cartpole(1000).start(start_key), jnp.ones(1000, bool)
    (world, _), _ = jax.lax.scan(one, fresh, jax.random.split(key, TIME_LIMIT))
    return world.elapsed.mean()


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
    started, begin_s = compiled(partial(begin, settings), jax.random.key(0))
    trained, train_s = compiled(partial(train, settings), started(jax.random.key(0)))
    weights = started(jax.random.key(0)).learner.weights
    evaluate, _ = compiled(partial(evaluation, settings), weights, jax.random.key(0))
    jax.block_until_ready(trained(started(jax.random.key(1_000_000))))  # warm: a seed that is not measured
    runs = []
    for seed in range(seeds):
        run = jax.block_until_ready(started(jax.random.key(seed)))
        run, seconds = seconds_of(partial(trained, run))
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
    return {"compile_s": begin_s + train_s, "runs": runs}


def once(settings: Settings, seed: int) -> dict[str, Any]:
    """The same, not warmed up and not evaluated: what a process that does nothing else would do."""
    run = jax.jit(partial(begin, settings))(jax.random.key(seed))
    run, seconds = seconds_of(partial(jax.jit(partial(train, settings)), run))
    last_100 = float(mean_of_last(run.ended))
    return {"runs": [{"seed": seed, "seconds": seconds, "updates": int(run.learner.update), "last_100": last_100}]}


def throughput(settings: Settings, updates: int, repeats: int = 5) -> dict[str, Any]:
    """Steps per second of whole training, rollouts and updates: the median of some runs of some updates each."""

    def several(run: Run) -> Any:
        after, _ = jax.lax.scan(lambda now, _: (improve(settings, now), None), run, length=updates)
        return after

    run = jax.jit(partial(begin, settings))(jax.random.key(0))
    ready, compile_s = compiled(several, run)
    run = jax.block_until_ready(ready(run))
    times = []
    for _ in range(repeats):
        run, seconds = seconds_of(partial(ready, run))
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
