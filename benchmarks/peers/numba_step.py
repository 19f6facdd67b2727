"""CartPole in Numba-CUDA: one thread per replica, with states and random generators in arrays."""

import math
import time
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

from benchmarks.peers import child
from benchmarks.peers.workloads import Measurement, Workload
from benchmarks.timing import seconds_per_call

vars(np).setdefault("row_stack", np.vstack)  # numba-cuda 0.30 needs it to compile; NumPy 2.5 has removed it

REAL = np.float32
GRAVITY, POLE_MASS, MASS, HALF_LENGTH, FORCE, TAU = map(REAL, (9.8, 0.1, 1.1, 0.5, 10.0, 0.02))
POLE_MOMENT = REAL(0.1 * 0.5)
FOUR_THIRDS = REAL(4 / 3)
REACH, WIDTH = REAL(0.05), REAL(0.1)
X_LIMIT, THETA_LIMIT = REAL(2.4), REAL(0.20943951)
TIME_LIMIT = 500
BLOCK = 256


@cuda.jit(fastmath=True)  # type: ignore[untyped-decorator, unused-ignore]  # numba's
def step(
    state: Any,
    elapsed: Any,
    generators: Any,
    actions: Any,
    observations: Any,
    rewards: Any,
    terminated: Any,
    truncated: Any,
) -> None:
    """Step each replica, with auto-reset.

    Args:
        state: [4, N] float32, updated.
        elapsed: [N] int32, updated.
        generators: [N] states of random generators, updated.
        actions: [N] integers.
        observations: [N, 4] float32, written.
        rewards: [N] float32, written.
        terminated: [N] bool, written.
        truncated: [N] bool, written.
    """
    i = cuda.grid(1)
    if i >= elapsed.shape[0]:
        return
    x, x_dot, theta, theta_dot = state[0, i], state[1, i], state[2, i], state[3, i]
    force = FORCE if actions[i] == 1 else -FORCE
    sine, cosine = math.sin(theta), math.cos(theta)
    push = (force + POLE_MOMENT * theta_dot * theta_dot * sine) / MASS
    theta_acc = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (FOUR_THIRDS - POLE_MASS * cosine * cosine / MASS))
    x_acc = push - POLE_MOMENT * theta_acc * cosine / MASS
    x += TAU * x_dot
    x_dot += TAU * x_acc
    theta += TAU * theta_dot
    theta_dot += TAU * theta_acc
    steps = elapsed[i] + 1
    fallen = abs(x) > X_LIMIT or abs(theta) > THETA_LIMIT
    late = steps >= TIME_LIMIT
    if fallen or late:
        x = WIDTH * xoroshiro128p_uniform_float32(generators, i) - REACH
        x_dot = WIDTH * xoroshiro128p_uniform_float32(generators, i) - REACH
        theta = WIDTH * xoroshiro128p_uniform_float32(generators, i) - REACH
        theta_dot = WIDTH * xoroshiro128p_uniform_float32(generators, i) - REACH
        steps = 0
    state[0, i], state[1, i], state[2, i], state[3, i] = x, x_dot, theta, theta_dot
    elapsed[i] = steps
    observations[i, 0], observations[i, 1], observations[i, 2], observations[i, 3] = x, x_dot, theta, theta_dot
    rewards[i] = 1.0
    terminated[i] = fallen
    truncated[i] = late


def world(state: np.ndarray) -> tuple[Any, ...]:
    """Return the arguments of ``step`` in order, without the actions."""
    count = state.shape[1]
    generators = create_xoroshiro128p_states(count, seed=0)
    elapsed = cuda.to_device(np.zeros(count, np.int32))
    updated = (cuda.to_device(state), elapsed, generators)
    flags = [cuda.device_array(count, np.bool_) for _ in range(2)]
    return *updated, cuda.device_array((count, 4), np.float32), cuda.device_array(count, np.float32), *flags


def measure(work: Workload, seconds: float) -> Measurement:
    """Measure the seconds per step."""
    rng = np.random.default_rng(0)
    actions = [cuda.to_device(rng.integers(0, 2, work.num_envs)) for _ in range(16)]
    start = time.perf_counter()
    state, elapsed, generators, *outputs = world(rng.uniform(-0.05, 0.05, (4, work.num_envs)).astype(np.float32))
    run = step[-(-work.num_envs // BLOCK), BLOCK]

    def call(t: int) -> None:
        run(state, elapsed, generators, actions[t % 16], *outputs)

    call(0)
    cuda.synchronize()
    prepare = time.perf_counter() - start
    return Measurement(seconds_per_call(call, cuda.synchronize, seconds=seconds), prepare)


if __name__ == "__main__":
    child.serve(("numba", "numba-cuda", "numpy"), measure)
