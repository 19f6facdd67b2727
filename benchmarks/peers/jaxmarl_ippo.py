"""JaxMARL's IPPO on its particle environments: ``python -m benchmarks.peers.jaxmarl_ippo``.

Prints a line of JSON. JaxMARL's learner is a script that its wheel lacks: PPO in the manner of PureJaxRL with one
network for all agents, as ``jax_learner`` is; the settings are those that JaxMARL publishes for these environments.
Its episodes last 26 steps; those that are evaluated 25, as ours.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxmarl

from benchmarks.peers import jax_learner
from benchmarks.peers.jax_learner import Game, LearnerState, Settings
from benchmarks.peers.jax_ppo import compiled, seconds_of
from benchmarks.record import versions

SETTINGS = Settings(
    num_envs=16,
    horizon=128,
    epochs=4,
    minibatches=4,
    learning_rate=2.5e-4,
    anneal=1.0,
    gamma=0.99,
    gae_lambda=0.95,
    clip=0.2,
    value_weight=0.5,
    entropy_weight=0.01,
    max_grad_norm=0.5,
    hidden=64,
    updates=10_000_000 // (16 * 128),
)

STEPS = 25
"""Of an episode that is evaluated."""


class Particles(NamedTuple):
    """All replicas."""

    state: Any
    observations: Mapping[str, Any]
    """By agent."""


class Task(NamedTuple):
    """An environment, who learns in it, and what is measured."""

    name: str
    """JaxMARL's."""
    learners: str
    """How the names of those begin who learn; all others act at random."""
    measure: Callable[[Any, Any, Any], Any]
    """From the environment, states [E] and rewards by agent: what counts in a step."""
    total: Callable[[Any], Any]
    """From what counts in each step: what does in the episode."""


def distance(env: Any, state: Any, _: Any) -> Any:
    """Sums over landmarks of how far the nearest agent is."""
    agents, landmarks = state.p_pos[:, : env.num_agents], state.p_pos[:, env.num_agents :]
    return jnp.linalg.norm(agents[:, :, None] - landmarks[:, None], axis=-1).min(1).sum(-1)


def collisions(_env: Any, _state: Any, rewards: Any) -> Any:
    """Adversaries that touch an agent: each adversary has 10 for each of them."""
    return rewards["adversary_0"] / 10


TASKS: Mapping[str, Task] = {
    "SimpleSpread-v3": Task("MPE_simple_spread_v3", "agent", distance, lambda counted: counted[-1]),
    "SimpleTag-v3": Task("MPE_simple_tag_v3", "adversary", collisions, lambda counted: counted.sum()),
}
"""By our names."""


def reset(env: Any, replicas: int, key: Any) -> Particles:
    """New episodes."""
    observations, state = jax.vmap(env.reset)(jax.random.split(key, replicas))
    return Particles(state, observations)


def at_random(env: Any, replicas: int, key: Any) -> dict[str, Any]:
    """Actions of all agents."""
    keys = dict(zip(env.agents, jax.random.split(key, env.num_agents), strict=True))
    return {agent: jax.random.randint(keys[agent], (replicas,), 0, env.action_space(agent).n) for agent in env.agents}


def moved(step: Any, replicas: int, world: Particles, actions: Any, key: Any) -> tuple[Particles, Any, Any]:
    """The replicas a step later, with rewards and ends by agent."""
    keys = jax.random.split(key, replicas)
    observations, state, rewards, dones, _ = jax.vmap(step)(keys, world.state, actions)
    return Particles(state, observations), rewards, dones


def game(env: Any, learners: list[str], replicas: int) -> Game:
    """What the learners learn, who share a network: all replicas of the first, then those of the second."""

    def of(by_agent: Mapping[str, Any]) -> Any:
        return jnp.concatenate([by_agent[agent] for agent in learners])

    def step(world: Particles, actions: Any, key: Any) -> tuple[Particles, Any, Any]:
        others, now = jax.random.split(key)
        own = dict(zip(learners, actions.reshape(-1, replicas), strict=True))
        after, rewards, dones = moved(env.step, replicas, world, at_random(env, replicas, others) | own, now)
        return after, of(dones), of(rewards)

    observed, actions = env.observation_space(learners[0]).shape[0], env.action_space(learners[0]).n
    return Game(
        observed, actions, partial(reset, env, replicas), lambda world: of(world.observations), step, lambda note: note
    )


def evaluation(env: Any, task: Task, learners: list[str], episodes: int, weights: Any, key: Any) -> Any:
    """What is measured in new episodes, with the likeliest actions of those who learn; without weights at random."""
    played, (start_key, key) = game(env, learners, episodes), jax.random.split(key)

    def one(world: Particles, key: Any) -> tuple[Particles, Any]:
        act_key, step_key = jax.random.split(key)
        actions = at_random(env, episodes, act_key)
        if weights is not None:
            best = jax_learner.act(SETTINGS, weights, played.look(world))[0].argmax(-1)
            actions |= dict(zip(learners, best.reshape(-1, episodes), strict=True))
        after, rewards, _ = moved(env.step_env, episodes, world, actions, step_key)  # which does not begin anew
        return after, task.measure(env, after.state, rewards).mean()

    return task.total(jax.lax.scan(one, reset(env, episodes, start_key), jax.random.split(key, STEPS))[1])


def train(task: Task, settings: Settings, seeds: int, episodes: int, every: int, limit_s: float) -> dict[str, Any]:
    """What random actions come to, and training after every so many updates: the seconds until then do not evaluate.

    Args:
        task: What is learnt.
        settings: How.
        seeds: At most.
        episodes: Of an evaluation.
        every: Updates between them.
        limit_s: Seconds of training after which no other seed begins.
    """
    env = jaxmarl.make(task.name)
    learners = [agent for agent in env.agents if agent.startswith(task.learners)]
    learnt = game(env, learners, settings.num_envs)

    def several(learner: LearnerState, updates: Any) -> Any:
        return jax.lax.fori_loop(0, updates, lambda _, now: jax_learner.improve(settings, learnt, now)[0], learner)

    begin, begin_s = compiled(partial(jax_learner.begin, settings, learnt), jax.random.key(0))
    fresh = begin(jax.random.key(1_000_000))
    improve, improve_s = compiled(several, fresh, jnp.int32(1))
    evaluate, _ = compiled(partial(evaluation, env, task, learners, episodes), fresh.weights, fresh.key)
    jax.block_until_ready(improve(fresh, jnp.int32(1)))  # warm: a seed that is not measured
    runs: list[dict[str, Any]] = []
    while len(runs) < seeds and sum(run["seconds"] for run in runs) < limit_s:
        seed = len(runs)
        learner, seconds, evaluated, updates = begin(jax.random.key(seed)), 0.0, [], 0
        while updates < settings.updates:
            count = min(every, settings.updates - updates)
            updates += count
            learner, spent = seconds_of(partial(improve, jax.block_until_ready(learner), jnp.int32(count)))
            seconds += spent
            value = float(evaluate(learner.weights, jax.random.fold_in(jax.random.key(seed + 1), updates)))
            evaluated.append([seconds, value])
        steps = updates * settings.horizon * settings.num_envs
        runs.append({"seed": seed, "seconds": seconds, "steps": steps, "evaluated": evaluated})
    random = jax.jit(partial(evaluation, env, task, learners, episodes, None))(jax.random.key(0))
    return {"compile_s": begin_s + improve_s, "random": float(random), "runs": runs}


def main() -> None:
    """Trains, and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-id", choices=tuple(TASKS), default="SimpleSpread-v3")
    parser.add_argument("--seeds", type=int, default=1, help="at most")
    parser.add_argument("--device", default="cpu", help="JAX's name of it: cpu or cuda")
    parser.add_argument("--updates", type=int, default=SETTINGS.updates)
    parser.add_argument("--every", type=int, default=100, help="updates between evaluations")
    parser.add_argument("--episodes", type=int, default=10_000, help="of an evaluation")
    parser.add_argument("--limit-s", type=float, default=60.0, help="of training: then no other seed begins")
    options = parser.parse_args()
    settings = dataclasses.replace(SETTINGS, updates=options.updates)
    with jax.default_device(jax.devices(options.device)[0]):
        found = train(TASKS[options.env_id], settings, options.seeds, options.episodes, options.every, options.limit_s)
    said = {name: value for name, value in dataclasses.asdict(settings).items() if name != "target"}
    print(json.dumps({"versions": versions(("jaxmarl", "jax")), "settings": said, **found}))


if __name__ == "__main__":
    main()
