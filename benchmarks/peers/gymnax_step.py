"""gymnax's environments, with ``jax.vmap`` over replicas."""

from typing import Any

import gymnax
import jax

from benchmarks.peers import child, jax_timing
from benchmarks.peers.workloads import Measurement, Workload


def measure(work: Workload, seconds: float) -> Measurement:
    """Measure the seconds per step; the final observations are not used."""
    env, params = gymnax.make(work.task)
    step_all = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def start(key: Any) -> Any:
        return jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(key, work.num_envs), params)[1]

    def step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any]:
        # version 1 returns terminated and truncated, earlier versions done
        observation, state, reward, *ends, _ = step_all(jax.random.split(key, work.num_envs), state, action, params)
        return state, observation, (reward, *ends)

    def draw(key: Any) -> Any:
        return jax.vmap(env.action_space(params).sample)(jax.random.split(key, work.num_envs))

    return jax_timing.measure(work, start, step, draw, seconds)


if __name__ == "__main__":
    child.serve(("gymnax", "jax"), measure)
