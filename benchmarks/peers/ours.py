"""What we do of every kind of work; its process is run and timed as those of the others are."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import gpu_envs
from benchmarks import teams
from benchmarks.on_cpu import sample_actions
from benchmarks.peers import child
from benchmarks.peers.works import FUSED_STEPS, GRAPH_STEPS, GRID, HORIZON, SIMPLE_TAG, Measured, Work
from benchmarks.timing import nothing, seconds_per_call

TURNS = 16
"""Steps whose actions are drawn beforehand, and taken in turn."""


def params(work: Work) -> Mapping[str, Any]:
    """The environment's own, which make its team."""
    if work.team is None:
        return {}
    taggers, runners = work.team
    if work.task == GRID:
        return {"num_taggers": taggers}
    return {"num_taggers": taggers, "num_runners": runners, "use_full_observation": work.task == SIMPLE_TAG}


def made(work: Work) -> Any:
    """The replicas, with the output that suits the way; teams are staggered over their episode."""
    env = gpu_envs.make(
        "TagContinuous-v0" if work.task == SIMPLE_TAG else work.task,
        work.num_envs,
        device=work.device,
        output="numpy" if work.way == "host" else "torch",
        autoreset_mode=work.autoreset,
        threads=1 if work.cores == "one" else None,
        **params(work),
    )
    env.reset(seed=0)
    if work.team is not None:
        env.stagger(seed=1)
    return env


def actions_of(work: Work, env: Any) -> list[Any]:
    """Random ones for some steps: NumPy arrays for the host, else tensors of the device."""
    if work.way == "host":
        return sample_actions(env.single_action_space, work.num_envs, TURNS)
    import torch

    if work.team is None:
        return list(drawn_on_device(work, env.single_action_space, TURNS, torch.int64))
    drawn = teams.random_actions(env, TURNS, "int64")

    return [{role: torch.from_numpy(part).to(work.device) for role, part in step.items()} for step in drawn]


def drawn_on_device(work: Work, space: Any, steps: int, whole: Any) -> Any:
    """Random actions ``[steps, replicas, ...]`` of one agent, whole numbers of this kind."""
    import torch

    if hasattr(space, "n"):
        return torch.randint(0, int(space.n), (steps, work.num_envs), device=work.device, dtype=whole)
    low, high = float(space.low[0]), float(space.high[0])
    return torch.empty((steps, work.num_envs, 1), device=work.device).uniform_(low, high)


def waiting(work: Work) -> Callable[[], None]:
    """What waits for the device; what comes out as NumPy is there already."""
    if work.device == "cpu" or work.way == "host":
        return nothing
    import torch

    return torch.cuda.synchronize


def measure(work: Work, seconds: float) -> Measured:
    """Seconds of a step."""
    if work.way == "train":
        return trained(work, seconds)
    begin = time.perf_counter()
    env = made(work)
    ready = time.perf_counter() - begin
    actions = actions_of(work, env)
    wait = waiting(work)
    call, steps = fused(work, env) if work.way == "fused" else ((lambda t: env.step(actions[t % TURNS])), 1)
    begin = time.perf_counter()
    call(0)
    wait()
    if work.way == "graph":
        call, steps = graph(env, actions), GRAPH_STEPS
    prepare = ready + time.perf_counter() - begin
    if work.team is not None:
        for t in range(600 // steps):  # until the share of agents in the game is stationary
            call(t)
    spent = seconds_per_call(call, wait, seconds=seconds, warm_up=2 if steps > 1 else 64)
    env.close()
    return Measured(spent / steps, prepare)


def fused(work: Work, env: Any) -> tuple[Callable[[int], object], int]:
    """Calls that take many given actions; they are 32-bit, as a JAX user's are."""
    import torch

    block = drawn_on_device(work, env.single_action_space, FUSED_STEPS, torch.int32)
    return lambda _: env.rollout(FUSED_STEPS, block), FUSED_STEPS


def graph(env: Any, actions: list[Any]) -> Callable[[int], object]:
    """Calls that replay several steps."""
    import torch

    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for t in range(GRAPH_STEPS):
            env.step(actions[t % TURNS])
    return lambda _: captured.replay()


def trained(work: Work, seconds: float) -> Measured:
    """PPO, as ``benchmarks.training`` measures it."""
    from benchmarks.speed import steps_per_second

    updates = max(1, round(seconds * 2)) if work.device == "cpu" else 10
    settings = {
        "env": work.task,
        "num_envs": work.num_envs,
        "device": work.device,
        "horizon": HORIZON,
        "epochs": 1,
        "minibatches": 4,
        "learning_rate": 3e-4,
        "precision": "float32",
        "hidden": (64, 64),
        "activation": "tanh",
    }
    found = steps_per_second(settings, updates, updates, repeats=3)
    return Measured(work.num_envs / found["steps_per_s"], found["prepare_s"])


if __name__ == "__main__":
    child.serve(("gpu_envs", "torch", "numpy"), measure)
