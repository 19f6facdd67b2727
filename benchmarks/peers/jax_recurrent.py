"""PPO with a GRU in JAX, in the style of PureJaxRL: the task ``recurrent`` of ``jax_ppo``.

The environment is CartPole without speeds. A tanh layer, a GRU and two linear heads; a minibatch has full rollouts of
some replicas.
"""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers.jax_cartpole import cartpole
from benchmarks.peers.jax_learner import (
    MATMUL,
    LearnerState,
    Settings,
    adam,
    advantages,
    log_prob_of,
    sample_actions,
)

FEATURES, ACTIONS = 2, 2


def observe(world: Any) -> Any:
    """Return the positions of cart and pole, [N, 2]."""
    return world.state[:, ::2]


def initial_weights(settings: Settings, key: Any) -> dict[str, tuple[Any, Any]]:
    """Return orthogonal weights and zero biases of each layer; the GRU's have the gates reset, update, new."""
    width = settings.hidden
    sizes = {
        "first": (FEATURES, width, 2**0.5),
        "inputs": (width, 3 * width, 1.0),
        "recurrent": (width, 3 * width, 1.0),
        "actor": (width, ACTIONS, 0.01),
        "critic": (width, 1, 1.0),
    }
    keys = jax.random.split(key, len(sizes))
    return {
        name: (jax.nn.initializers.orthogonal(gain)(k, (rows, columns), jnp.float32), jnp.zeros(columns))
        for k, (name, (rows, columns, gain)) in zip(keys, sizes.items(), strict=True)
    }


def network(
    settings: Settings, weights: Any, memory: Any, observations: Any, starts: Any
) -> tuple[Any, tuple[Any, Any]]:
    """Return the memory after steps of observations, [T, N, 2], and log-probabilities and values of each step."""
    dtype = jnp.bfloat16 if settings.precision == "bf16" else jnp.float32

    def layer(name: str, rows: Any) -> Any:
        weight, bias = weights[name]
        return rows.astype(dtype) @ weight.astype(dtype) + bias.astype(dtype)

    def scan_step(memory: Any, step: tuple[Any, Any]) -> tuple[Any, Any]:
        inputs, start = step
        memory = jnp.where(start[:, None], 0.0, memory)
        reset_i, update_i, new_i = jnp.split(inputs.astype(jnp.float32), 3, -1)
        reset_h, update_h, new_h = jnp.split(layer("recurrent", memory).astype(jnp.float32), 3, -1)
        reset, update = jax.nn.sigmoid(reset_i + reset_h), jax.nn.sigmoid(update_i + update_h)
        new = jnp.tanh(new_i + reset * new_h)
        memory = new + update * (memory - new)
        return memory, memory

    with jax.default_matmul_precision(MATMUL[settings.precision]):
        inputs = layer("inputs", jnp.tanh(layer("first", observations)))
        memory, outputs = jax.lax.scan(scan_step, memory, (inputs, starts))
        logits, values = layer("actor", outputs), layer("critic", outputs)[..., 0]
    return memory, (jax.nn.log_softmax(logits.astype(jnp.float32)), values.astype(jnp.float32))


def loss(settings: Settings, weights: Any, batch: dict[str, Any]) -> Any:
    """Return PPO's loss of some replicas' rollouts."""
    _, (log_probs, values) = network(settings, weights, batch["memory"], batch["observation"], batch["start"])
    advantage = batch["advantage"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    taken = log_prob_of(log_probs.reshape(-1, ACTIONS), batch["action"].reshape(-1)).reshape(advantage.shape)
    ratio = jnp.exp(taken - batch["log_prob"])
    clipped_ratio = jnp.clip(ratio, 1 - settings.clip, 1 + settings.clip)
    policy = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()
    returns = batch["advantage"] + batch["value"]
    clipped_values = batch["value"] + jnp.clip(values - batch["value"], -settings.clip, settings.clip)
    value = 0.5 * jnp.maximum((values - returns) ** 2, (clipped_values - returns) ** 2).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return policy + settings.value_weight * value - settings.entropy_weight * entropy


def train_iteration(settings: Settings, learner: LearnerState) -> LearnerState:
    """Take one iteration; ``world`` of the state has the replicas, the memory and where episodes start."""
    task = cartpole(settings.num_envs)
    act_key, shuffle_key, key = jax.random.split(learner.key, 3)

    def scan_step(carry: Any, key: Any) -> tuple[Any, Any]:
        world, memory, start = carry
        sample_key, step_key = jax.random.split(key)
        observation = observe(world)
        memory, (log_probs, values) = network(settings, learner.weights, memory, observation[None], start[None])
        action = sample_actions(sample_key, log_probs[0])
        next_world, done, _ = task.step(world, action, step_key)
        transition = {"observation": observation, "action": action, "log_prob": log_prob_of(log_probs[0], action)}
        return (next_world, memory, done), transition | {"value": values[0], "done": done, "start": start}

    before = learner.world
    world, transitions = jax.lax.scan(scan_step, before, jax.random.split(act_key, settings.horizon))
    _, (_, values) = network(settings, learner.weights, world[1], observe(world[0])[None], world[2][None])
    transitions["advantage"] = advantages(settings, transitions, 1.0, values[0])

    def minibatch(learner: LearnerState, replicas: Any) -> tuple[LearnerState, None]:
        batch = {name: array[:, replicas] for name, array in transitions.items()} | {"memory": before[1][replicas]}
        return adam(settings, learner, jax.grad(lambda w: loss(settings, w, batch))(learner.weights)), None

    def epoch(learner: LearnerState, key: Any) -> Any:
        order = jax.random.permutation(key, settings.num_envs)
        return jax.lax.scan(minibatch, learner, order.reshape(settings.minibatches, -1))

    learner, _ = jax.lax.scan(epoch, learner, jax.random.split(shuffle_key, settings.epochs))
    return learner._replace(world=world, key=key, update=learner.update + 1)


def initialize(settings: Settings, key: Any) -> LearnerState:
    """Initialize weights, episodes and memory."""
    weights_key, world_key, key = jax.random.split(key, 3)
    weights = initial_weights(settings, weights_key)
    zeros = jax.tree_util.tree_map(jnp.zeros_like, weights)
    count = settings.num_envs
    world = cartpole(count).start(world_key), jnp.zeros((count, settings.hidden)), jnp.ones(count, bool)
    return LearnerState(weights, zeros, zeros, jnp.int32(0), world, key, jnp.int32(0))
