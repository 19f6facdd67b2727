"""Train JaxMARL's particle environments with IPPO: ``python -m benchmarks.peers.jaxmarl_ippo``.

Prints a line of JSON. JaxMARL's wheel has no learner: its script is PPO in the style of PureJaxRL with one network for
all agents, like ``jax_learner``. Uses the settings that JaxMARL publishes for these environments. Its episodes have 26
steps; the evaluation's have 25, as in gpu_envs.
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
from benchmarks.peers.jax_learner import LearnerState, LearningTask, Settings
from benchmarks.peers.jax_ppo import compile_for, seconds_of
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
"""Length of an evaluated episode."""


class Particles(NamedTuple):
    """The state of all replicas."""

    state: Any
    observations: Mapping[str, Any]
    """Observations by agent."""


class Task(NamedTuple):
    """An environment, its learning agents, and the metric of its evaluation."""

    name: str
    """The name in JaxMARL."""
    learners: str
    """Prefix of the names of learning agents; the others act at random."""
    measure: Callable[[Any, Any, Any], Any]
    """Function from the environment, states [E] and rewards by agent to the metric of a step."""
    total: Callable[[Any], Any]
    """Function from the metric of each step to the metric of the episode."""


def distance(env: Any, state: Any, _: Any) -> Any:
    """Return the sum over landmarks of the distance of the nearest agent."""
    agents, landmarks = state.p_pos[:, : env.num_agents], state.p_pos[:, env.num_agents :]
    return jnp.linalg.norm(agents[:, :, None] - landmarks[:, None], axis=-1).min(1).sum(-1)


def collisions(_env: Any, _state: Any, rewards: Any) -> Any:
    """Return the number of collisions of adversaries with agents: each gives a reward of 10."""
    return rewards["adversary_0"] / 10


TASKS: Mapping[str, Task] = {
    "SimpleSpread-v3": Task("MPE_simple_spread_v3", "agent", distance, lambda metrics: metrics[-1]),
    "SimpleTag-v3": Task("MPE_simple_tag_v3", "adversary", collisions, lambda metrics: metrics.sum()),
}
"""Tasks by the environment's ID in gpu_envs."""


def reset(env: Any, replicas: int, key: Any) -> Particles:
    """Start new episodes."""
    observations, state = jax.vmap(env.reset)(jax.random.split(key, replicas))
    return Particles(state, observations)


def random_actions(env: Any, replicas: int, key: Any) -> dict[str, Any]:
    """Sample uniform actions of all agents."""
    keys = dict(zip(env.agents, jax.random.split(key, env.num_agents), strict=True))
    return {agent: jax.random.randint(keys[agent], (replicas,), 0, env.action_space(agent).n) for agent in env.agents}


def step_replicas(step: Any, replicas: int, world: Particles, actions: Any, key: Any) -> tuple[Particles, Any, Any]:
    """Step all replicas; return the next state, and rewards and ends by agent."""
    keys = jax.random.split(key, replicas)
    observations, state, rewards, dones, _ = jax.vmap(step)(keys, world.state, actions)
    return Particles(state, observations), rewards, dones


def learning_task(env: Any, learners: list[str], replicas: int) -> LearningTask:
    """Return the task of the learning agents, which share a network; rows are all replicas of each agent in turn."""

    def concatenate(by_agent: Mapping[str, Any]) -> Any:
        return jnp.concatenate([by_agent[agent] for agent in learners])

    def step(world: Particles, actions: Any, key: Any) -> tuple[Particles, Any, Any]:
        random_key, step_key = jax.random.split(key)
        learner_actions = dict(zip(learners, actions.reshape(-1, replicas), strict=True))
        all_actions = random_actions(env, replicas, random_key) | learner_actions
        next_world, rewards, dones = step_replicas(env.step, replicas, world, all_actions, step_key)
        return next_world, concatenate(dones), concatenate(rewards)

    observation_size, actions = env.observation_space(learners[0]).shape[0], env.action_space(learners[0]).n
    return LearningTask(
        observation_size,
        actions,
        partial(reset, env, replicas),
        lambda world: concatenate(world.observations),
        step,
        lambda info: info,
    )


def evaluation(env: Any, task: Task, learners: list[str], episodes: int, weights: Any, key: Any) -> Any:
    """Return the metric of new episodes with the learners' most likely actions; without weights with random actions."""
    evaluated_task, (start_key, key) = learning_task(env, learners, episodes), jax.random.split(key)

    def scan_step(world: Particles, key: Any) -> tuple[Particles, Any]:
        act_key, step_key = jax.random.split(key)
        actions = random_actions(env, episodes, act_key)
        if weights is not None:
            best = jax_learner.act(SETTINGS, weights, evaluated_task.observe(world))[0].argmax(-1)
            actions |= dict(zip(learners, best.reshape(-1, episodes), strict=True))
        next_world, rewards, _ = step_replicas(env.step_env, episodes, world, actions, step_key)  # without auto-reset
        return next_world, task.measure(env, next_world.state, rewards).mean()

    return task.total(jax.lax.scan(scan_step, reset(env, episodes, start_key), jax.random.split(key, STEPS))[1])


def train(task: Task, settings: Settings, seeds: int, episodes: int, every: int, limit_s: float) -> dict[str, Any]:
    """Evaluate random actions, then train and evaluate at intervals, which the seconds of training exclude.

    Args:
        task: The task.
        settings: The settings of training.
        seeds: The maximum number of seeds.
        episodes: The number of episodes of an evaluation.
        every: The number of updates between evaluations.
        limit_s: Seconds of training after which no other seed starts.
    """
    env = jaxmarl.make(task.name)
    learners = [agent for agent in env.agents if agent.startswith(task.learners)]
    environment = learning_task(env, learners, settings.num_envs)

    def several(learner: LearnerState, updates: Any) -> Any:
        return jax.lax.fori_loop(
            0, updates, lambda _, state: jax_learner.train_iteration(settings, environment, state)[0], learner
        )

    initialize, initialize_s = compile_for(partial(jax_learner.initialize, settings, environment), jax.random.key(0))
    initial = initialize(jax.random.key(1_000_000))
    train_iteration, improve_s = compile_for(several, initial, jnp.int32(1))
    evaluate, _ = compile_for(partial(evaluation, env, task, learners, episodes), initial.weights, initial.key)
    jax.block_until_ready(train_iteration(initial, jnp.int32(1)))  # warm up with another seed
    runs: list[dict[str, Any]] = []
    while len(runs) < seeds and sum(run["seconds"] for run in runs) < limit_s:
        seed = len(runs)
        learner, seconds, evaluated, updates = initialize(jax.random.key(seed)), 0.0, [], 0
        while updates < settings.updates:
            count = min(every, settings.updates - updates)
            updates += count
            learner, update_seconds = seconds_of(
                partial(train_iteration, jax.block_until_ready(learner), jnp.int32(count))
            )
            seconds += update_seconds
            value = float(evaluate(learner.weights, jax.random.fold_in(jax.random.key(seed + 1), updates)))
            evaluated.append([seconds, value])
        steps = updates * settings.horizon * settings.num_envs
        runs.append({"seed": seed, "seconds": seconds, "steps": steps, "evaluated": evaluated})
    random = jax.jit(partial(evaluation, env, task, learners, episodes, None))(jax.random.key(0))
    return {"compile_s": initialize_s + improve_s, "random": float(random), "runs": runs}


def main() -> None:
    """Train, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-id", choices=tuple(TASKS), default="SimpleSpread-v3")
    parser.add_argument("--seeds", type=int, default=1, help="maximum number of seeds")
    parser.add_argument("--device", default="cpu", help="the device in JAX: cpu or cuda")
    parser.add_argument("--updates", type=int, default=SETTINGS.updates)
    parser.add_argument("--every", type=int, default=100, help="updates between evaluations")
    parser.add_argument("--episodes", type=int, default=10_000, help="episodes of an evaluation")
    parser.add_argument(
        "--limit-s", type=float, default=60.0, help="seconds of training after which no other seed starts"
    )
    options = parser.parse_args()
    settings = dataclasses.replace(SETTINGS, updates=options.updates)
    with jax.default_device(jax.devices(options.device)[0]):
        results = train(
            TASKS[options.env_id], settings, options.seeds, options.episodes, options.every, options.limit_s
        )
    used_settings = {name: value for name, value in dataclasses.asdict(settings).items() if name != "target"}
    print(json.dumps({"versions": versions(("jaxmarl", "jax")), "settings": used_settings, **results}))


if __name__ == "__main__":
    main()
