"""JaxMARL's MPE with discrete actions: simple_tag and simple_spread."""

from typing import Any

import jax
import jaxmarl

from benchmarks.peers import child, jax_timing
from benchmarks.peers.workloads import SIMPLE_SPREAD, Measurement, Workload


def make_env(work: Workload) -> Any:
    """Make the environment, which resets by itself."""
    assert work.team is not None
    if work.task == SIMPLE_SPREAD:
        return jaxmarl.make("MPE_simple_spread_v3", num_agents=work.team[0], num_landmarks=work.team[0])
    adversaries, good = work.team
    return jaxmarl.make("MPE_simple_tag_v3", num_adversaries=adversaries, num_good_agents=good)


def measure(work: Workload, seconds: float) -> Measurement:
    """Measure the seconds per step of all agents."""
    env = make_env(work)

    def start(key: Any) -> Any:
        return jax.vmap(env.reset)(jax.random.split(key, work.num_envs))[1]

    def step(key: Any, state: Any, actions: Any) -> tuple[Any, Any, Any]:
        keys = jax.random.split(key, work.num_envs)
        observations, state, rewards, dones, _ = jax.vmap(env.step)(keys, state, actions)
        return state, observations, (rewards, dones)

    def draw(key: Any) -> Any:
        return {agent: jax.random.randint(key, (work.num_envs,), 0, env.action_space(agent).n) for agent in env.agents}

    return jax_timing.measure(work, start, step, draw, seconds)


if __name__ == "__main__":
    child.serve(("jaxmarl", "jax"), measure)
