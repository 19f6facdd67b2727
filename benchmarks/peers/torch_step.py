"""CartPole in torch operations over all replicas: eager, compiled, and in a CUDA graph."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch._inductor.config

from benchmarks.peers import child
from benchmarks.peers.workloads import GRAPH_STEPS, Measurement, Workload
from benchmarks.timing import capture_graph, seconds_per_call, wait_function

GRAVITY, POLE_MASS, MASS, HALF_LENGTH, FORCE, TAU = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
X_LIMIT, THETA_LIMIT, TIME_LIMIT = 2.4, 0.20943951, 500


class CartPoleStep(NamedTuple):
    """The results of a step and the next state."""

    state: torch.Tensor
    """[N, 4] float32, equal to the observation."""
    elapsed: torch.Tensor
    """[N] int32."""
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor


def start(num_envs: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return states and elapsed steps of new episodes."""
    state = torch.rand((num_envs, 4), device=device) * 0.1 - 0.05
    return state, torch.zeros(num_envs, dtype=torch.int32, device=device)


def step(state: torch.Tensor, elapsed: torch.Tensor, actions: torch.Tensor) -> CartPoleStep:
    """Step all replicas, with auto-reset."""
    x, x_dot, theta, theta_dot = state.unbind(1)
    force = torch.where(actions == 1, FORCE, -FORCE)
    sine, cosine = torch.sin(theta), torch.cos(theta)
    push = (force + POLE_MASS * HALF_LENGTH * theta_dot**2 * sine) / MASS
    theta_acc = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine**2 / MASS))
    x_acc = push - POLE_MASS * HALF_LENGTH * theta_acc * cosine / MASS
    rates = torch.stack((x_dot, x_acc, theta_dot, theta_acc), 1)
    moved = state + TAU * rates
    elapsed = elapsed + 1
    terminated = (moved[:, 0].abs() > X_LIMIT) | (moved[:, 2].abs() > THETA_LIMIT)
    truncated = elapsed >= TIME_LIMIT
    done = terminated | truncated
    initial = torch.rand_like(state) * 0.1 - 0.05
    return CartPoleStep(
        torch.where(done[:, None], initial, moved),
        torch.where(done, 0, elapsed),
        torch.ones_like(x),
        terminated,
        truncated,
    )


def capture_steps(
    stepped: Callable[..., CartPoleStep], state: torch.Tensor, elapsed: torch.Tensor, actions: list[torch.Tensor]
) -> Any:
    """Capture several steps, each of which writes its state back into its input tensor."""

    def several() -> None:
        for t in range(GRAPH_STEPS):
            result = stepped(state, elapsed, actions[t % len(actions)])
            state.copy_(result.state)
            elapsed.copy_(result.elapsed)

    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's
    with torch.cuda.stream(stream):
        several()
    stream.synchronize()
    return capture_graph(several)


@torch.no_grad()
def measure(work: Workload, seconds: float) -> Measurement:
    """Measure the seconds per step."""
    torch.manual_seed(0)
    actions = [torch.randint(0, 2, (work.num_envs,), device=work.device) for _ in range(16)]
    wait = wait_function(work.device)
    state, elapsed = start(work.num_envs, work.device)
    wait()
    torch.compiler.reset()  # otherwise torch compiles for dynamic sizes after the first workload
    torch._inductor.config.fallback_random = work.device == "cpu"  # on the CPU the compiler's generator is slower
    start_time = time.perf_counter()
    stepped: Callable[..., CartPoleStep] = torch.compile(step) if work.variant == "torch.compile" else step
    latest = stepped(state, elapsed, actions[0])
    if work.way == "graph":
        graph = capture_steps(stepped, state, elapsed, actions)
        graph.replay()
        wait()
        prepare = time.perf_counter() - start_time
        return Measurement(seconds_per_call(lambda _: graph.replay(), wait, seconds=seconds) / GRAPH_STEPS, prepare)
    wait()
    prepare = time.perf_counter() - start_time

    def call(t: int) -> None:
        nonlocal latest
        latest = stepped(latest.state, latest.elapsed, actions[t % 16])

    return Measurement(seconds_per_call(call, wait, seconds=seconds), prepare)


if __name__ == "__main__":
    child.serve(("torch", "triton"), measure)
