"""The cart-pole in JAX that our peer in training uses: all replicas in arrays, no ``vmap``, no key for each of them."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers import child, jax_cartpole, jax_timing
from benchmarks.peers.works import Measured, Work


def measure(work: Work, seconds: float) -> Measured:
    """Seconds of a step; the reward is 1, and nothing is written for it."""

    def start(key: Any) -> Any:
        elapsed = jnp.zeros(work.num_envs, jnp.int32)
        return jax_cartpole.CartPoles(jax_cartpole.start(key, work.num_envs), elapsed)

    def step(key: Any, world: Any, action: Any) -> tuple[Any, Any, Any]:
        world, done, _ = jax_cartpole.step(world, action, key)
        # the state is what is observed; as it is given up to the next step, a user gets a copy
        return world, world.state + 0.0, done

    def draw(key: Any) -> Any:
        return jax.random.randint(key, (work.num_envs,), 0, 2)

    return jax_timing.timed(work, start, step, draw, seconds)


if __name__ == "__main__":
    child.serve(("jax",), measure)
