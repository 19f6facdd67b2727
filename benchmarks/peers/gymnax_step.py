"""gymnax's environments, whose replicas are stepped by ``jax.vmap``."""

from typing import Any

import gymnax
import jax

from benchmarks.peers import child, jax_timing
from benchmarks.peers.works import Measured, Work


def measure(work: Work, seconds: float) -> Measured:
    """Seconds of a step; the observation after an episode's end, which it gives too, is not asked for."""
    env, params = gymnax.make(work.task)
    each = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def start(key: Any) -> Any:
        return jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(key, work.num_envs), params)[1]

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any]:
        # from version 1 on there are terminated and truncated, before there was one done
        observation, state, reward, *ends, _ = each(jax.random.split(key, work.num_envs), state, action, params)
        return state, observation, (reward, *ends)

    def draw(key: Any) -> Any:
        return jax.vmap(env.action_space(params).sample)(jax.random.split(key, work.num_envs))

    return jax_timing.timed(work, start, step, draw, seconds)


if __name__ == "__main__":
    child.serve(("gymnax", "jax"), measure)
