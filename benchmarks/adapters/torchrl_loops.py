"""TorchRL's loops with a random policy: ``rollout`` and the collector."""

import contextlib
from collections.abc import Callable
from typing import Any

from torchrl.collectors import Collector, RandomPolicy

from benchmarks.adapters.loops import Loops, Pair
from benchmarks.peers.torchrl_constant import ConstantEnv
from gpu_envs.adapters import torchrl as adapter

ENV = "CartPole-v1"
EPISODE = 22
"""Mean length of CartPole's episodes with random actions: TorchRL's resets of ended episodes take time, too."""


def loops(num_envs: int, device: str, steps: int) -> Loops:
    """Return the loops ``rollout`` and ``collector``."""
    cleanup = contextlib.ExitStack()

    def make_adapter() -> Any:
        env = adapter.Env(ENV, num_envs, device=device, seed=0)
        cleanup.callback(env.close, raise_if_closed=False)
        return env

    def rollout(env: Any) -> Callable[[], object]:
        """Reset, step with resets of ended episodes, and stack the steps."""
        return lambda: env.rollout(steps, break_when_any_done=False)

    def collector(env: Any) -> Callable[[], object]:
        """Return the next batch of an endless collector; episodes continue in the next batch."""
        policy = RandomPolicy(env.action_spec)
        torch_collector = Collector(env, policy, frames_per_batch=num_envs * steps, total_frames=-1)
        cleanup.callback(torch_collector.shutdown)
        batches = iter(torch_collector)
        return lambda: next(batches)

    loop_makers: dict[str, Callable[[Any], Callable[[], object]]] = {"rollout": rollout, "collector": collector}
    pairs = {}
    for name, make_loop in loop_makers.items():
        env = make_adapter()
        endings, endless = ConstantEnv(num_envs, env.device, EPISODE), ConstantEnv(num_envs, env.device)
        pairs[name] = Pair(make_loop(env), make_loop(endings), make_loop(endless))
    return Loops(ENV, pairs, cleanup.close)
