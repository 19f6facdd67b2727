"""Cart-pole in torch operations over all replicas: called one by one, compiled, and captured in a CUDA graph."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch._inductor.config

from benchmarks.peers import child
from benchmarks.peers.works import GRAPH_STEPS, Measured, Work
from benchmarks.timing import graph_of as captured
from benchmarks.timing import seconds_per_call, waiting

GRAVITY, POLE_MASS, MASS, HALF_LENGTH, FORCE, TAU = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
X_LIMIT, THETA_LIMIT, TIME_LIMIT = 2.4, 0.20943951, 500


class CartPoleStep(NamedTuple):
    """A step's results, and the state after it."""

    state: torch.Tensor
    """[N, 4] float32; what is observed."""
    elapsed: torch.Tensor
    """[N] int32."""
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor


def start(num_envs: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """States and steps of new episodes."""
    state = torch.rand((num_envs, 4), device=device) * 0.1 - 0.05
    return state, torch.zeros(num_envs, dtype=torch.int32, device=device)


def step(state: torch.Tensor, elapsed: torch.Tensor, actions: torch.Tensor) -> CartPoleStep:
    """All replicas a step later; those whose episode ended begin anew."""
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
    fresh = torch.rand_like(state) * 0.1 - 0.05
    return CartPoleStep(
        torch.where(done[:, None], fresh, moved),
        torch.where(done, 0, elapsed),
        torch.ones_like(x),
        terminated,
        truncated,
    )


def graph_of(
    stepped: Callable[..., CartPoleStep], state: torch.Tensor, elapsed: torch.Tensor, actions: list[torch.Tensor]
) -> Any:
    """Several steps, each of which writes the state back to where the first one reads it."""

    def several() -> None:
        for t in range(GRAPH_STEPS):
            seen = stepped(state, elapsed, actions[t % len(actions)])
            state.copy_(seen.state)
            elapsed.copy_(seen.elapsed)

    torch.cuda.synchronize()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's
    with torch.cuda.stream(side):
        several()
    side.synchronize()
    return captured(several)


@torch.no_grad()
def measure(work: Work, seconds: float) -> Measured:
    """Seconds of a step."""
    torch.manual_seed(0)
    actions = [torch.randint(0, 2, (work.num_envs,), device=work.device) for _ in range(16)]
    wait = waiting(work.device)
    state, elapsed = start(work.num_envs, work.device)
    wait()
    torch.compiler.reset()  # the sizes of earlier work would be taken for a sign that sizes vary
    torch._inductor.config.fallback_random = work.device == "cpu"  # there the compiler's own numbers are the slow ones
    begin = time.perf_counter()
    stepped: Callable[..., CartPoleStep] = torch.compile(step) if work.variant == "torch.compile" else step
    latest = stepped(state, elapsed, actions[0])
    if work.way == "graph":
        graph = graph_of(stepped, state, elapsed, actions)
        graph.replay()
        wait()
        prepare = time.perf_counter() - begin
        return Measured(seconds_per_call(lambda _: graph.replay(), wait, seconds=seconds) / GRAPH_STEPS, prepare)
    wait()
    prepare = time.perf_counter() - begin

    def call(t: int) -> None:
        nonlocal latest
        latest = stepped(latest.state, latest.elapsed, actions[t % 16])

    return Measured(seconds_per_call(call, wait, seconds=seconds), prepare)


if __name__ == "__main__":
    child.serve(("torch", "triton"), measure)
