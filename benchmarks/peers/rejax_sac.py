"""Pendulum by SAC of rejax, which is all in JAX, its environment too: ``python -m benchmarks.peers.rejax_sac``.

Prints a line of JSON. The settings are those that rejax publishes for Pendulum.
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
    """Training until the target; the same program was called before, and what it then learnt thrown away."""
    begin = time.perf_counter()
    algorithm: Any = SAC.create(**SETTINGS)

    def learn(state: Any, steps: int) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, each: algorithm.train_iteration(each), state)

    def play(state: Any, key: jax.Array) -> jax.Array:
        def act(observation: jax.Array, _: jax.Array) -> jax.Array:
            seen = algorithm.normalize_obs(state.obs_rms_state, observation)[None]
            means = algorithm.actor.apply(state.actor_ts.params, seen, method="_action_dist").mode()
            return jnp.squeeze(algorithm.actor.action_loc + algorithm.actor.action_scale * jnp.tanh(means))

        return evaluate(act, key, algorithm.env, algorithm.env_params, rule.episodes)[1].mean()

    trained, mean_return = jax.jit(learn), jax.jit(play)
    state = algorithm.init_state(jax.random.PRNGKey(seed))
    jax.block_until_ready(trained(trained(state, 1), 1))  # twice: the first state has other types than later ones
    prepared = time.perf_counter() - begin

    def train(steps: int) -> int:
        nonlocal state
        state = jax.block_until_ready(trained(state, steps))
        return int(state.global_step)

    def evaluated() -> float:
        return float(mean_return(state, jax.random.fold_in(jax.random.PRNGKey(seed + 1), state.global_step)))

    return {"seed": seed, "settings": SETTINGS, "prepare_s": prepared, **rule.race(train, evaluated)}


def main() -> None:
    """Trains, and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="JAX's name of it: cpu or cuda")
    parser.add_argument("--rule", type=Rule.read, default=Rule(), help="as JSON")
    options = parser.parse_args()
    old, new = version("rejax").startswith("0.1."), not version("gymnax").startswith("0.")
    if old and new:  # a step of whose environments returns one thing more
        sys.exit(f"rejax {version('rejax')} needs gymnax<1, here is {version('gymnax')}: pip install 'gymnax<1'")
    with jax.default_device(jax.devices(options.device)[0]):
        found = race(options.seed, options.rule)
    print(json.dumps({"versions": versions(("rejax", "gymnax", "jax")), **found}))


if __name__ == "__main__":
    main()
