"""Times environments written in JAX: a state, and a function from one state to the next."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from benchmarks.peers.works import FUSED_STEPS, Measured, Work
from benchmarks.timing import seconds_per_call

Start = Callable[[Any], Any]
"""From a key to the state of all replicas."""
Step = Callable[[Any, Any, Any], tuple[Any, Any, Any]]
"""From a key, a state and actions to the state a step later, its observations, and rewards and ends."""


def timed(work: Work, start: Start, step: Step, draw: Start, seconds: float) -> Measured:
    """Seconds of a step, by itself or one of many in a call.

    Args:
        work: What is measured; its device is asked for.
        start: Begins episodes.
        step: Takes a step, and begins anew where episodes ended.
        draw: Draws the actions of a step.
        seconds: To measure for.
    """
    with jax.default_device(jax.devices(work.device)[0]):
        return (fused if work.way == "fused" else single)(start, step, draw, seconds)


def single(start: Start, step: Step, draw: Start, seconds: float) -> Measured:
    """One step a call; the state is given up to it, so that its memory can be used again."""
    keys = jax.random.split(jax.random.key(1), 16)
    actions = jax.block_until_ready([jax.jit(draw)(key) for key in keys])
    begin = time.perf_counter()

    @partial(jax.jit, donate_argnums=(0, 1))
    def run(key: Any, state: Any, action: Any) -> Any:
        key, now = jax.random.split(key)
        state, *seen = step(now, state, action)
        return key, state, seen

    return _measured(run, start, actions, begin, seconds, 64)


def fused(start: Start, step: Step, draw: Start, seconds: float) -> Measured:
    """Many steps a call; the last observations and the sums of rewards and ends come out."""
    keys = jax.random.split(jax.random.key(1), FUSED_STEPS)
    actions = jax.block_until_ready(jax.jit(lambda keys: jax.lax.map(draw, keys))(keys))
    begin = time.perf_counter()

    def one(carry: Any, given: Any) -> Any:
        state, _, sums = carry
        state, observations, results = step(given[0], state, given[1])
        return (state, observations, jax.tree_util.tree_map(jax.numpy.add, sums, results)), None

    @partial(jax.jit, donate_argnums=(0, 1))
    def run(key: Any, state: Any, actions: Any) -> Any:
        key, now = jax.random.split(key)
        first = jax.tree_util.tree_map(lambda block: block[0], actions)
        _, seen, summed = jax.eval_shape(step, now, state, first)
        observations = jax.tree_util.tree_map(lambda like: jax.numpy.zeros(like.shape, like.dtype), seen)
        sums = jax.tree_util.tree_map(lambda like: jax.numpy.zeros(like.shape, "float32"), summed)
        given = (jax.random.split(now, FUSED_STEPS), actions)
        (state, *seen), _ = jax.lax.scan(one, (state, observations, sums), given)
        return key, state, seen

    found = _measured(run, start, [actions], begin, seconds, 2)
    return found._replace(seconds=found.seconds / FUSED_STEPS)


def _measured(
    run: Callable[..., Any], start: Start, actions: Sequence[Any], begin: float, seconds: float, warm_up: int
) -> Measured:
    """Times calls that lead from a key and a state to the next ones, and to what was seen."""
    latest = [jax.random.key(0), jax.jit(start)(jax.random.key(2)), None]

    def call(t: int) -> None:
        latest[:] = run(latest[0], latest[1], actions[t % len(actions)])

    def wait() -> object:
        return jax.block_until_ready(latest)

    call(0)
    wait()
    prepare = time.perf_counter() - begin
    return Measured(seconds_per_call(call, wait, seconds=seconds, warm_up=warm_up), prepare)
