"""Train Pendulum with rejax's SAC, whose environment is in JAX too: ``python -m benchmarks.peers.rejax_sac``.

Prints a line of JSON. Uses the settings that rejax publishes for Pendulum.
"""

import argparse
import json
import sys
import time
from importlib.metadata import version
from typing import Any

import jax
from jax import numpy as jnp
from rejax import SAC
from rejax.evaluate import evaluate

from benchmarks.record import versions
from benchmarks.training.race import Rule

SETTINGS: dict[str, Any] = {
    "env": "Pendulum-v1",
    "agent_kwargs": {"activation": "swish"},
    "num_envs": 1,
    "buffer_size": 10_000,
    "fill_buffer": 256,
    "batch_size": 256,
    "learning_rate": 0.01,
    "num_epochs": 1,
    "gamma": 0.99,
    "polyak": 0.98,
    "normalize_observations": True,
}


def race(seed: int, rule: Rule) -> dict[str, Any]:
    """Train until the target, after a warm-up whose result is discarded."""
    start = time.perf_counter()
    algorithm: Any = SAC.create(**SETTINGS)

    def learn(state: Any, steps: int) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, state: algorithm.train_iteration(state), state)

    def play(state: Any, key: jax.Array) -> jax.Array:
        def act(observation: jax.Array, _: jax.Array) -> jax.Array:
            normalized = algorithm.normalize_obs(state.obs_rms_state, observation)[None]
            means = algorithm.actor.apply(state.actor_ts.params, normalized, method="_action_dist").mode()
            return jnp.squeeze(algorithm.actor.action_loc + algorithm.actor.action_scale * jnp.tanh(means))

        return evaluate(act, key, algorithm.env, algorithm.env_params, rule.episodes)[1].mean()

    learn_compiled, mean_return = jax.jit(learn), jax.jit(play)
    state = algorithm.init_state(jax.random.PRNGKey(seed))
    jax.block_until_ready(learn_compiled(learn_compiled(state, 1), 1))  # twice, as the types of the state change
    prepared = time.perf_counter() - start

    def train(steps: int) -> int:
        nonlocal state
        state = jax.block_until_ready(learn_compiled(state, steps))
        return int(state.global_step)

    def evaluate_policy_now() -> float:
        return float(mean_return(state, jax.random.fold_in(jax.random.PRNGKey(seed + 1), state.global_step)))

    return {"seed": seed, "settings": SETTINGS, "prepare_s": prepared, **rule.race(train, evaluate_policy_now)}


def main() -> None:
    """Train, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="the device in JAX: cpu or cuda")
    parser.add_argument("--rule", type=Rule.from_json, default=Rule(), help="the rule of the race, as JSON")
    options = parser.parse_args()
    old_rejax, new_gymnax = version("rejax").startswith("0.1."), not version("gymnax").startswith("0.")
    if old_rejax and new_gymnax:  # gymnax 1 returns one more value from a step
        sys.exit(
            f"rejax {version('rejax')} needs gymnax<1, but {version('gymnax')} is installed: pip install 'gymnax<1'"
        )
    with jax.default_device(jax.devices(options.device)[0]):
        results = race(options.seed, options.rule)
    print(json.dumps({"versions": versions(("rejax", "gymnax", "jax")), **results}))


if __name__ == "__main__":
    main()
