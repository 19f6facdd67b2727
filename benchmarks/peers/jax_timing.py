"""Measures environments in JAX, given as functions from a state to the next."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from benchmarks.peers.workloads import FUSED_STEPS, Measurement, Workload
from benchmarks.timing import seconds_per_call

Start = Callable[[Any], Any]
"""Function from a key to the state of all replicas."""
Step = Callable[[Any, Any, Any], tuple[Any, Any, Any]]
"""Function from a key, a state and actions to the next state, observations, and rewards and ends."""


def measure(work: Workload, start: Start, step: Step, draw: Start, seconds: float) -> Measurement:
    """Measure the seconds per step, with one or many steps per call.

    Args:
        work: The workload.
        start: Returns the initial state.
        step: Takes a step, with auto-reset.
        draw: Samples the actions of a step.
        seconds: The duration of the measurement.
    """
    with jax.default_device(jax.devices(work.device)[0]):
        return (fused if work.way == "fused" else single)(start, step, draw, seconds)


def single(start: Start, step: Step, draw: Start, seconds: float) -> Measurement:
    """Measure one step per call; the state is donated, so that JAX reuses its memory."""
    keys = jax.random.split(jax.random.key(1), 16)
    actions = jax.block_until_ready([jax.jit(draw)(key) for key in keys])
    start_time = time.perf_counter()

    @partial(jax.jit, donate_argnums=(0, 1))
    def run(key: Any, state: Any, action: Any) -> Any:
        key, step_key = jax.random.split(key)
        state, *outputs = step(step_key, state, action)
        return key, state, outputs

    return _measure_calls(run, start, actions, start_time, seconds, 64)


def fused(start: Start, step: Step, draw: Start, seconds: float) -> Measurement:
    """Measure many steps per call, which returns the last observations and the sums of rewards and ends."""
    keys = jax.random.split(jax.random.key(1), FUSED_STEPS)
    actions = jax.block_until_ready(jax.jit(lambda keys: jax.lax.map(draw, keys))(keys))
    start_time = time.perf_counter()

    def scan_step(carry: Any, inputs: Any) -> Any:
        state, _, sums = carry
        state, observations, results = step(inputs[0], state, inputs[1])
        return (state, observations, jax.tree_util.tree_map(jax.numpy.add, sums, results)), None

    @partial(jax.jit, donate_argnums=(0, 1))
    def run(key: Any, state: Any, actions: Any) -> Any:
        key, step_key = jax.random.split(key)
        first = jax.tree_util.tree_map(lambda block: block[0], actions)
        _, observation_shapes, result_shapes = jax.eval_shape(step, step_key, state, first)
        observations = jax.tree_util.tree_map(lambda like: jax.numpy.zeros(like.shape, like.dtype), observation_shapes)
        sums = jax.tree_util.tree_map(lambda like: jax.numpy.zeros(like.shape, "float32"), result_shapes)
        inputs = (jax.random.split(step_key, FUSED_STEPS), actions)
        (state, *outputs), _ = jax.lax.scan(scan_step, (state, observations, sums), inputs)
        return key, state, outputs

    measurement = _measure_calls(run, start, [actions], start_time, seconds, 2)
    return measurement._replace(seconds=measurement.seconds / FUSED_STEPS)


def _measure_calls(
    run: Callable[..., Any], start: Start, actions: Sequence[Any], start_time: float, seconds: float, warm_up: int
) -> Measurement:
    """Measure calls from a key and a state to the next ones and the outputs."""
    latest = [jax.random.key(0), jax.jit(start)(jax.random.key(2)), None]

    def call(t: int) -> None:
        latest[:] = run(latest[0], latest[1], actions[t % len(actions)])

    def wait() -> object:
        return jax.block_until_ready(latest)

    call(0)
    wait()
    prepare = time.perf_counter() - start_time
    return Measurement(seconds_per_call(call, wait, seconds=seconds, warm_up=warm_up), prepare)
