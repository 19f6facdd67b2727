"""Rollouts of Stable-Baselines3's PPO with DummyVecEnv and SubprocVecEnv of Gymnasium's CartPole.

``python -m benchmarks.peers.sb3_vec`` searches for the fastest number of environments and prints a line of JSON. Needs
only stable-baselines3.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks.record import versions
from benchmarks.timing import time_methods
from gpu_envs.backend.background import available_threads

ENV = "CartPole-v1"
KINDS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}
SIZES = {"dummy": tuple(2**k for k in range(13)), "subproc": tuple(2**k for k in range(7))}
"""Numbers of environments to try; SubprocVecEnv has a process for each."""

ROLLOUT = 2048
"""Minimum number of transitions of a rollout, SB3's default."""


def environments(kind: str, num_envs: int) -> Any:
    """Make a vectorised environment of SB3 with Gymnasium's CartPole, with SB3's Monitor, as in its documentation.

    Gymnasium's environment checker is off, which makes SB3 faster.
    """
    if kind == "subproc":
        # the fork server imports these once; otherwise each worker process does
        multiprocessing.set_forkserver_preload(
            ["stable_baselines3.common.env_util", "gymnasium.envs.classic_control.cartpole"]
        )
    return make_vec_env(ENV, n_envs=num_envs, seed=0, vec_env_cls=KINDS[kind], env_kwargs={"disable_env_checker": True})


def thread_counts() -> tuple[int, ...]:
    """Return the numbers of torch threads to try."""
    cores = available_threads()
    return tuple(sorted({count for count in (1, 2, 4, cores) if count <= cores}))


def balance(model: Any) -> None:
    """Set weights of a policy that balances the pole, so that episodes last until the time limit."""
    first, second = (layer for layer in model.policy.mlp_extractor.policy_net if isinstance(layer, torch.nn.Linear))
    last = model.policy.action_net
    with torch.no_grad():
        for layer in (first, second, last):
            layer.weight.zero_()
            layer.bias.zero_()
        first.weight[0] = torch.tensor([0.05, 0.3, 1.0, 0.8])  # the lean of the pole, now and soon
        second.weight[0, 0] = 1.0
        last.weight[:, 0] = torch.tensor([-20.0, 20.0])  # push to that side


@final
class Collector:
    """A PPO model that collects rollouts, as in ``learn``, without updates.

    Attributes:
        model: The model.
        threads: The number of torch threads during a rollout.
    """

    def __init__(
        self, venv: Any, algorithm: Callable[..., Any] = PPO, n_steps: int | None = None, threads: int = 1
    ) -> None:
        """Create the model, with SB3's default policy, and reset the environments.

        Args:
            venv: An environment of SB3 or of the adapter.
            algorithm: The class of the model: PPO of SB3 or of the adapter.
            n_steps: Steps of a rollout; None: steps for ``ROLLOUT`` transitions, at least 32.
            threads: The number of torch threads during a rollout.
        """
        n_steps = n_steps or max(32, ROLLOUT // venv.num_envs)
        batch = n_steps * venv.num_envs
        self.model = algorithm("MlpPolicy", venv, n_steps=n_steps, batch_size=batch, seed=0, device="cpu", verbose=0)
        self.threads = threads
        _, self._callback = self.model._setup_learn(1)
        self._callback.on_training_start({}, {})

    def collect(self) -> int:
        """Collect one rollout; return its number of transitions."""
        torch.set_num_threads(self.threads)
        model = self.model
        assert model.collect_rollouts(model.env, self._callback, model.rollout_buffer, n_rollout_steps=model.n_steps)
        return int(model.n_steps * model.n_envs)

    def rate(self, seconds: float) -> float:
        """Return the environment steps per second, measured for at least ``seconds``."""
        steps, start = 0, time.perf_counter()
        while True:
            steps += self.collect()
            elapsed = time.perf_counter() - start
            if elapsed >= seconds:
                return steps / elapsed

    def shares(self, seconds: float) -> dict[str, float]:
        """Return the shares of the time of the policy, ``step_async`` and ``step_wait``."""
        methods = {"policy": (self.model.policy, "forward")}
        methods |= {name: (self.model.env, name) for name in ("step_async", "step_wait")}
        with time_methods(methods) as seconds_by_method:
            start = time.perf_counter()
            self.rate(seconds)
            total = time.perf_counter() - start
        return {name: sum(calls) / total for name, calls in seconds_by_method.items()}


def best_threads(collector: Collector, counts: Sequence[int], seconds: float) -> dict[str, float]:
    """Try numbers of torch threads; return the steps per second of each, and set the collector's to the fastest."""
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
    """Measure steps per second for numbers of environments and of torch threads, and find the fastest.

    Args:
        kind: The kind of vectorised environment, a key of ``KINDS``.
        sizes: Numbers of environments.
        threads: Numbers of torch threads.
        seconds: The duration of each measurement.
        n_steps: The steps of a rollout, as in ``Collector``.
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
    """Search, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of environments (default: powers of two)")
    parser.add_argument("--threads", type=int, nargs="+", default=thread_counts(), help="numbers of torch threads")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each measurement")
    options = parser.parse_args()
    results = {
        kind: search(kind, options.sizes or SIZES[kind], options.threads, options.seconds) for kind in options.kinds
    }
    print(json.dumps({"versions": versions(("stable-baselines3", "torch", "gymnasium")), **results}))


if __name__ == "__main__":
    main()
