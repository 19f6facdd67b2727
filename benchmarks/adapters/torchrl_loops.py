"""TorchRL's loops: ``rollout``, and its collector, both with a random policy."""

import contextlib
from collections.abc import Callable
from typing import Any

from torchrl.collectors import Collector, RandomPolicy

from benchmarks.adapters.loops import Loops, Pair
from benchmarks.peers.torchrl_constant import ConstantEnv
from gpu_envs.adapters import torchrl as adapter

ENV = "CartPole-v1"
EPISODE = 22
"""Steps of cart-pole's episodes under random actions: TorchRL resets what is done, which is a cost of its own."""


def loops(num_envs: int, device: str, steps: int) -> Loops:
    """Rollout and collector."""
    closing = contextlib.ExitStack()

    def ours() -> Any:
        env = adapter.Env(ENV, num_envs, device=device, seed=0)
        closing.callback(env.close, raise_if_closed=False)
        return env

    def rollout(env: Any) -> Callable[[], object]:
        """Resets, then steps, resetting what is done; the steps are stacked in the end."""
        return lambda: env.rollout(steps, break_when_any_done=False)

    def collector(env: Any) -> Callable[[], object]:
        """The next batch of a collector that never ends; episodes go on from batch to batch."""
        policy = RandomPolicy(env.action_spec)
        made = Collector(env, policy, frames_per_batch=num_envs * steps, total_frames=-1)
        closing.callback(made.shutdown)
        batches = iter(made)
        return lambda: next(batches)

    ways: dict[str, Callable[[Any], Callable[[], object]]] = {"rollout": rollout, "collector": collector}
    pairs = {}
    for name, way in ways.items():
        env = ours()
        endings, endless = ConstantEnv(num_envs, env.device, EPISODE), ConstantEnv(num_envs, env.device)
        pairs[name] = Pair(way(env), way(endings), way(endless))
    return Loops(ENV, pairs, closing.close)
