"""Collecting rollouts by Stable-Baselines3's PPO, from its own DummyVecEnv and SubprocVecEnv of Gymnasium's cart-pole.

``python -m benchmarks.peers.sb3_vec`` searches for the best number of environments and prints a line of JSON. It needs
stable-baselines3 alone.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks.record import versions
from benchmarks.timing import calls_timed

ENV = "CartPole-v1"
KINDS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}
SIZES = {"dummy": tuple(2**k for k in range(13)), "subproc": tuple(2**k for k in range(7))}
"""Numbers of environments that are tried: up to 4,096; up to 64, as SubprocVecEnv has a process for each."""

ROLLOUT = 2048
"""The fewest transitions of a rollout, SB3's own default."""


def environments(kind: str, num_envs: int) -> Any:
    """Gymnasium's cart-poles in one of SB3's own containers, each with SB3's Monitor, as its documentation has it.

    Gymnasium's checker of what an environment returns is left out, to their advantage.
    """
    if kind == "subproc":
        # the server that worker processes fork from imports once what else each of them would
        multiprocessing.set_forkserver_preload(
            ["stable_baselines3.common.env_util", "gymnasium.envs.classic_control.cartpole"]
        )
    return make_vec_env(ENV, n_envs=num_envs, seed=0, vec_env_cls=KINDS[kind], env_kwargs={"disable_env_checker": True})


def thread_counts() -> tuple[int, ...]:
    """Numbers of torch's threads that are tried."""
    cores = os.cpu_count() or 1
    return tuple(sorted({count for count in (1, 2, 4, cores) if count <= cores}))


def balance(model: Any) -> None:
    """Gives a policy weights by hand that keep the pole up, so that its episodes last until the time limit."""
    first, second = (layer for layer in model.policy.mlp_extractor.policy_net if isinstance(layer, torch.nn.Linear))
    last = model.policy.action_net
    with torch.no_grad():
        for layer in (first, second, last):
            layer.weight.zero_()
            layer.bias.zero_()
        first.weight[0] = torch.tensor([0.05, 0.3, 1.0, 0.8])  # where the pole leans, and is about to
        second.weight[0, 0] = 1.0
        last.weight[:, 0] = torch.tensor([-20.0, 20.0])  # push to that side


@final
class Collector:
    """A PPO model ready to collect rollouts, as within ``learn``, and nothing else.

    Attributes:
        model: The model.
        threads: Of torch, while it collects.
    """

    def __init__(
        self, venv: Any, algorithm: Callable[..., Any] = PPO, n_steps: int | None = None, threads: int = 1
    ) -> None:
        """Makes the model, with SB3's default policy, and resets the environments.

        Args:
            venv: SB3's or ours.
            algorithm: Makes the model: SB3's PPO or ours.
            n_steps: Of a rollout; None: as many as make ``ROLLOUT`` transitions, but at least 32.
            threads: Of torch, while it collects.
        """
        n_steps = n_steps or max(32, ROLLOUT // venv.num_envs)
        batch = n_steps * venv.num_envs
        self.model = algorithm("MlpPolicy", venv, n_steps=n_steps, batch_size=batch, seed=0, device="cpu", verbose=0)
        self.threads = threads
        _, self._callback = self.model._setup_learn(1)
        self._callback.on_training_start({}, {})

    def collect(self) -> int:
        """One rollout; returns its number of transitions."""
        torch.set_num_threads(self.threads)
        model = self.model
        assert model.collect_rollouts(model.env, self._callback, model.rollout_buffer, n_rollout_steps=model.n_steps)
        return int(model.n_steps * model.n_envs)

    def rate(self, seconds: float) -> float:
        """Steps of the environments per second, over at least this many seconds."""
        steps, begin = 0, time.perf_counter()
        while True:
            steps += self.collect()
            spent = time.perf_counter() - begin
            if spent >= seconds:
                return steps / spent

    def shares(self, seconds: float) -> dict[str, float]:
        """The shares of the time that the policy and the environments' ``step_async`` and ``step_wait`` take."""
        places = {"policy": (self.model.policy, "forward")}
        places |= {name: (self.model.env, name) for name in ("step_async", "step_wait")}
        with calls_timed(places) as spent:
            begin = time.perf_counter()
            self.rate(seconds)
            total = time.perf_counter() - begin
        return {name: sum(calls) / total for name, calls in spent.items()}


def best_threads(collector: Collector, counts: Sequence[int], seconds: float) -> dict[str, float]:
    """Tries numbers of torch's threads, leaves the collector with the best, and gives each one's steps per second."""
    collector.collect()
    rates = {}
    for collector.threads in counts:
        collector.collect()
        rates[collector.threads] = collector.rate(seconds)
    collector.threads = max(rates, key=lambda count: rates[count])
    return {str(count): rate for count, rate in rates.items()}


def search(
    kind: str, sizes: Sequence[int], threads: Sequence[int], seconds: float, n_steps: int | None = None
) -> dict[str, Any]:
    """Steps per second for numbers of environments and of torch's threads, and the best.

    Args:
        kind: Of container.
        sizes: Numbers of environments.
        threads: Numbers of torch's threads.
        seconds: For each.
        n_steps: As for ``Collector``.
    """
    tried: dict[str, dict[str, float]] = {}
    best = (0.0, 0, 0)
    for size in sizes:
        venv = environments(kind, size)
        collector = Collector(venv, n_steps=n_steps)
        rates = tried[str(size)] = best_threads(collector, threads, seconds)
        best = max(best, (rates[str(collector.threads)], size, collector.threads))
        venv.close()
    rate, size, count = best
    return {"num_envs": size, "torch_threads": count, "steps_per_s": rate, "tried": tried}


def main() -> None:
    """Searches, and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of environments (default: powers of two)")
    parser.add_argument("--threads", type=int, nargs="+", default=thread_counts(), help="numbers of torch's threads")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each")
    options = parser.parse_args()
    found = {
        kind: search(kind, options.sizes or SIZES[kind], options.threads, options.seconds) for kind in options.kinds
    }
    print(json.dumps({"versions": versions(("stable-baselines3", "torch", "gymnasium")), **found}))


if __name__ == "__main__":
    main()
