"""The CartPole in JAX of ``jax_ppo``: arrays over all replicas, without ``vmap`` and without a key per replica."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers import child, jax_cartpole, jax_timing
from benchmarks.peers.workloads import Measurement, Workload


def measure(work: Workload, seconds: float) -> Measurement:
    """Measure the seconds per step; the constant reward is not written."""

    def start(key: Any) -> Any:
        elapsed = jnp.zeros(work.num_envs, jnp.int32)
        return jax_cartpole.CartPoles(jax_cartpole.start(key, work.num_envs), elapsed)

    def step(key: Any, world: Any, action: Any) -> tuple[Any, Any, Any]:
        world, done, _ = jax_cartpole.step(world, action, key)
        # the observation is a copy of the state, whose memory the next step reuses
        return world, world.state + 0.0, done

    def draw(key: Any) -> Any:
        return jax.random.randint(key, (work.num_envs,), 0, 2)

    return jax_timing.measure(work, start, step, draw, seconds)


if __name__ == "__main__":
    child.serve(("jax",), measure)
