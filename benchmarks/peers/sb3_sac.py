"""Train Pendulum with SAC of Stable-Baselines3 or SBX (SB3 in JAX): ``python -m benchmarks.peers.sb3_sac``.

Prints a line of JSON. Uses the library's default settings, except where an option sets one. Needs
stable-baselines3, and sbx-rl for SBX.
"""

import argparse
import importlib
import json
import time
from typing import Any

import gymnasium
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks.record import versions
from benchmarks.training.race import Rule

ENV = "Pendulum-v1"
PACKAGES = {"stable_baselines3": ("stable-baselines3", "torch"), "sbx": ("sbx-rl", "jax")}
UPDATES_PER_CALL = 64
"""Gradient steps per call of ``train``."""

TUNED = {"learning_rate": 1e-3}
"""Settings of SAC for Pendulum in RL-Zoo that differ from the defaults."""


def make_model(library: str, seed: int, **settings: Any) -> Any:
    """Create an untrained model."""
    env = gymnasium.make(ENV)
    return importlib.import_module(library).SAC("MlpPolicy", env, seed=seed, **settings)


def updates(library: str, hidden: list[int], batch: int, seconds: float) -> dict[str, Any]:
    """Measure updates per second from a buffer of a few thousand steps, for about ``seconds``."""
    model = make_model(
        library,
        0,
        batch_size=batch,
        learning_starts=500,
        train_freq=UPDATES_PER_CALL,
        gradient_steps=UPDATES_PER_CALL,
        policy_kwargs={"net_arch": hidden},
    )
    start = time.perf_counter()
    model.learn(4000)  # compiles, too
    prepared, done = time.perf_counter() - start, 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        model.train(gradient_steps=UPDATES_PER_CALL, batch_size=batch)
        done += UPDATES_PER_CALL
    return {"updates_per_s": done / (time.perf_counter() - start), "prepare_s": prepared}


def learning(library: str, seed: int, steps: list[int], episodes: int) -> dict[str, Any]:
    """Return the mean return of the most likely actions after different numbers of steps."""
    model, returns = make_model(library, seed), []
    start = time.perf_counter()
    for before, after in zip([0, *steps], steps, strict=False):
        model.learn(after - before, reset_num_timesteps=before == 0)
        returns.append(float(evaluate_policy(model, gymnasium.make(ENV), episodes, deterministic=True)[0]))
    return {"seed": seed, "returns": returns, "seconds": time.perf_counter() - start}


def race(library: str, seed: int, rule: Rule, device: str) -> dict[str, Any]:
    """Train until the target, with RL-Zoo's settings.

    The preparation has the random steps and a few updates, which compile.
    """
    start = time.perf_counter()
    model = make_model(library, seed, device=device, **TUNED)
    envs = make_vec_env(ENV, rule.episodes, seed)
    model.learn(model.learning_starts + 28)
    prepared = time.perf_counter() - start

    def train(steps: int) -> int:
        model.learn(steps, reset_num_timesteps=False)
        return int(model.num_timesteps)

    def evaluate_policy_now() -> float:
        return float(evaluate_policy(model, envs, rule.episodes, deterministic=True)[0])

    return {"seed": seed, "settings": TUNED, "prepare_s": prepared, **rule.race(train, evaluate_policy_now)}


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("updates", "learning", "race"))
    parser.add_argument("--library", choices=tuple(PACKAGES), default="stable_baselines3")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, nargs="+", default=[5000, 10_000, 20_000])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--rule", type=Rule.from_json, default=Rule(), help="the rule of race, as JSON")
    parser.add_argument("--device", default="auto", help="device of race, without SBX: cpu or cuda")
    options = parser.parse_args()
    if options.task == "updates":
        results = updates(options.library, options.hidden, options.batch, options.seconds)
    elif options.task == "race":
        results = race(options.library, options.seed, options.rule, options.device)
    else:
        results = learning(options.library, options.seed, options.steps, options.episodes)
    print(json.dumps({"versions": versions((*PACKAGES[options.library], "gymnasium")), **results}))


if __name__ == "__main__":
    main()
