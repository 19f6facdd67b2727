"""Pendulum by SAC of Stable-Baselines3 or of SBX, which is it in JAX: ``python -m benchmarks.peers.sb3_sac``.

Prints a line of JSON. The settings are the library's own, but for those that are given. It needs stable-baselines3, and
sbx-rl for the latter.
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
AT_ONCE = 64
"""Updates of a call."""

TUNED = {"learning_rate": 1e-3}
"""What RL-Zoo's settings of SAC for Pendulum change."""


def made(library: str, seed: int, **settings: Any) -> Any:
    """A model that has learnt nothing."""
    env = gymnasium.make(ENV)
    return importlib.import_module(library).SAC("MlpPolicy", env, seed=seed, **settings)


def updates(library: str, hidden: list[int], batch: int, seconds: float) -> dict[str, Any]:
    """Updates in a second, from a buffer of a few thousand steps, for about so long."""
    model = made(
        library,
        0,
        batch_size=batch,
        learning_starts=500,
        train_freq=AT_ONCE,
        gradient_steps=AT_ONCE,
        policy_kwargs={"net_arch": hidden},
    )
    begin = time.perf_counter()
    model.learn(4000)  # compiles, too
    prepared, done = time.perf_counter() - begin, 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        model.train(gradient_steps=AT_ONCE, batch_size=batch)
        done += AT_ONCE
    return {"updates_per_s": done / (time.perf_counter() - begin), "prepare_s": prepared}


def learning(library: str, seed: int, steps: list[int], episodes: int) -> dict[str, Any]:
    """What the likeliest actions return after so many steps."""
    model, found = made(library, seed), []
    begin = time.perf_counter()
    for before, after in zip([0, *steps], steps, strict=False):
        model.learn(after - before, reset_num_timesteps=before == 0)
        found.append(float(evaluate_policy(model, gymnasium.make(ENV), episodes, deterministic=True)[0]))
    return {"seed": seed, "returns": found, "seconds": time.perf_counter() - begin}


def race(library: str, seed: int, rule: Rule, device: str) -> dict[str, Any]:
    """Training until the target, with RL-Zoo's settings.

    The first steps, which are random but for a few updates, compile, and count as preparation.
    """
    begin = time.perf_counter()
    model = made(library, seed, device=device, **TUNED)
    envs = make_vec_env(ENV, rule.episodes, seed)
    model.learn(model.learning_starts + 28)
    prepared = time.perf_counter() - begin

    def train(steps: int) -> int:
        model.learn(steps, reset_num_timesteps=False)
        return int(model.num_timesteps)

    def evaluated() -> float:
        return float(evaluate_policy(model, envs, rule.episodes, deterministic=True)[0])

    return {"seed": seed, "settings": TUNED, "prepare_s": prepared, **rule.race(train, evaluated)}


def main() -> None:
    """Measures, and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("updates", "learning", "race"))
    parser.add_argument("--library", choices=tuple(PACKAGES), default="stable_baselines3")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, nargs="+", default=[5000, 10_000, 20_000])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--rule", type=Rule.read, default=Rule(), help="of race, as JSON")
    parser.add_argument("--device", default="auto", help="of race, where the library is not SBX: cpu or cuda")
    options = parser.parse_args()
    if options.what == "updates":
        found = updates(options.library, options.hidden, options.batch, options.seconds)
    elif options.what == "race":
        found = race(options.library, options.seed, options.rule, options.device)
    else:
        found = learning(options.library, options.seed, options.steps, options.episodes)
    print(json.dumps({"versions": versions((*PACKAGES[options.library], "gymnasium")), **found}))


if __name__ == "__main__":
    main()
