"""JaxMARL's MPE simple tag: three adversaries, one good agent, two obstacles, discrete actions."""

from typing import Any

import jax
import jaxmarl

from benchmarks.peers import child, jax_timing
from benchmarks.peers.works import Measured, Work


def measure(work: Work, seconds: float) -> Measured:
    """Seconds of a step of all agents."""
    env = jaxmarl.make("MPE_simple_tag_v3")
    assert work.team == (env.num_adversaries, env.num_good_agents)

    def start(key: Any) -> Any:
        return jax.vmap(env.reset)(jax.random.split(key, work.num_envs))[1]

    def step(key: Any, state: Any, actions: Any) -> tuple[Any, Any, Any]:
        keys = jax.random.split(key, work.num_envs)
        observations, state, rewards, dones, _ = jax.vmap(env.step)(keys, state, actions)
        return state, observations, (rewards, dones)

    def draw(key: Any) -> Any:
        return {agent: jax.random.randint(key, (work.num_envs,), 0, env.action_space(agent).n) for agent in env.agents}

    return jax_timing.timed(work, start, step, draw, seconds)


if __name__ == "__main__":
    child.serve(("jaxmarl", "jax"), measure)
