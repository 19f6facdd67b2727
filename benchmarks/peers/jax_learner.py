"""PPO in JAX, in the style of PureJaxRL: environment, rollout and update are one compiled function.

As in PureJaxRL, episodes end at the time limit without bootstrapping, advantages are normalised in each minibatch, and
values are clipped.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp

MATMUL = {"float32": "highest", "tf32": "tensorfloat32", "bf16": "bfloat16"}


@final
@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a run. The defaults solve CartPole quickly; ``training.solving`` has others."""

    num_envs: int = 512
    """Number of replicas."""
    horizon: int = 32
    """Steps of each replica per update."""
    epochs: int = 2
    """Passes over the rollout per update."""
    minibatches: int = 4
    """Minibatches per epoch."""
    learning_rate: float = 8e-3
    """Learning rate of Adam (epsilon 1e-5)."""
    anneal: float = 0.0
    """Linear decay of the learning rate until the last update, as a fraction."""
    gamma: float = 0.98
    """Discount factor."""
    gae_lambda: float = 0.95
    """GAE lambda."""
    clip: float = 0.2
    """Clip range of ratios and values."""
    value_weight: float = 0.5
    """Weight of the value loss."""
    entropy_weight: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """Maximum norm of the gradient."""
    hidden: int = 64
    """Width of the two tanh layers of actor and critic."""
    precision: str = "float32"
    """Precision of matrix products: float32, tf32 or bf16, which applies to activations too."""
    target: float = 475.0
    """Mean return of the last 100 episodes at which training stops."""
    updates: int = 500
    """Maximum number of updates."""


class LearningTask(NamedTuple):
    """An environment to train in. N is the number of learning agents in all replicas."""

    observation_size: int
    """Size of an observation."""
    actions: int
    """Number of discrete actions."""
    start: Callable[[Any], Any]
    """Function from a key to the state of the environment."""
    observe: Callable[[Any], Any]
    """Function from the state to observations, [N, observation_size]."""
    step: Callable[[Any, Any, Any], tuple[Any, Any, Any]]
    """Function from a state, actions [N] and a key to the next state, ends of episodes [N], and an info."""
    rewards: Callable[[Any], Any]
    """Function from the infos of T steps to their rewards, [T, N], or one reward for all."""


class LearnerState(NamedTuple):
    """The state of training."""

    weights: Any
    moments: Any
    squares: Any
    count: Any
    """Number of Adam's steps."""
    world: Any
    key: Any
    update: Any


def layers(key: Any, first: int, last: int, gain: float, hidden: int) -> list[tuple[Any, Any]]:
    """Initialize weights, orthogonal, and biases of the layers first -> hidden -> hidden -> last."""
    sizes = ((first, hidden, 2**0.5), (hidden, hidden, 2**0.5), (hidden, last, gain))
    keys = jax.random.split(key, 3)
    return [
        (jax.nn.initializers.orthogonal(scale)(k, (rows, columns), jnp.float32), jnp.zeros(columns))
        for k, (rows, columns, scale) in zip(keys, sizes, strict=True)
    ]


def forward(settings: Settings, weights: Any, observations: Any) -> Any:
    """Return the outputs of the last layer, in float32."""
    dtype = jnp.bfloat16 if settings.precision == "bf16" else jnp.float32
    x = observations.astype(dtype)
    with jax.default_matmul_precision(MATMUL[settings.precision]):
        for depth, (weight, bias) in enumerate(weights):
            x = x @ weight.astype(dtype) + bias.astype(dtype)
            x = jnp.tanh(x) if depth < 2 else x
    return x.astype(jnp.float32)


def act(settings: Settings, weights: Any, observations: Any) -> tuple[Any, Any]:
    """Return log-probabilities, [N, actions], and values, [N]."""
    actor, critic = weights
    logits = jax.nn.log_softmax(forward(settings, actor, observations))
    return logits, forward(settings, critic, observations)[:, 0]


def sample_actions(key: Any, log_probs: Any) -> Any:
    """Sample actions, [N], with one uniform number each."""
    uniform, tail = jax.random.uniform(key, log_probs.shape[:1]), 0.0
    actions = jnp.zeros(log_probs.shape[:1], jnp.int32)
    for action in reversed(range(1, log_probs.shape[1])):
        tail += jnp.exp(log_probs[:, action])
        actions += uniform < tail
    return actions


def log_prob_of(log_probs: Any, actions: Any) -> Any:
    """Return the log-probability of each action, [N]."""
    result = log_probs[:, 0]
    for action in range(1, log_probs.shape[1]):
        result = jnp.where(actions == action, log_probs[:, action], result)
    return result


def initialize(settings: Settings, task: LearningTask, key: Any) -> LearnerState:
    """Initialize weights and episodes."""
    actor_key, critic_key, world_key, key = jax.random.split(key, 4)
    weights = (
        layers(actor_key, task.observation_size, task.actions, 0.01, settings.hidden),
        layers(critic_key, task.observation_size, 1, 1.0, settings.hidden),
    )
    zeros = jax.tree_util.tree_map(jnp.zeros_like, weights)
    return LearnerState(weights, zeros, zeros, jnp.int32(0), task.start(world_key), key, jnp.int32(0))


def rollout(settings: Settings, task: LearningTask, learner: LearnerState) -> tuple[Any, Any, dict[str, Any]]:
    """Take ``horizon`` steps; return the next state, the infos, and the transitions, each [T, N, ...]."""

    def scan_step(world: Any, key: Any) -> tuple[Any, Any]:
        act_key, step_key = jax.random.split(key)
        observations = task.observe(world)
        log_probs, values = act(settings, learner.weights, observations)
        actions = sample_actions(act_key, log_probs)
        next_world, done, info = task.step(world, actions, step_key)
        transition = {"observation": observations, "action": actions, "log_prob": log_prob_of(log_probs, actions)}
        return next_world, (transition | {"value": values, "done": done}, info)

    world, (transitions, infos) = jax.lax.scan(
        scan_step, learner.world, jax.random.split(learner.key, settings.horizon)
    )
    return world, infos, transitions


def advantages(settings: Settings, transitions: dict[str, Any], rewards: Any, last_value: Any) -> Any:
    """Return the generalised advantages, [T, N]."""
    values, discounts = transitions["value"], jnp.where(transitions["done"], 0.0, settings.gamma)
    td_errors = rewards + discounts * jnp.concatenate((values[1:], last_value[None])) - values

    def scan_backward(next_advantage: Any, step: tuple[Any, Any]) -> tuple[Any, Any]:
        td_error, decay = step
        advantage = td_error + decay * next_advantage
        return advantage, advantage

    steps = td_errors, discounts * settings.gae_lambda
    return jax.lax.scan(scan_backward, jnp.zeros_like(last_value), steps, reverse=True)[1]


def loss(settings: Settings, weights: Any, batch: dict[str, Any]) -> Any:
    """Return PPO's loss of a minibatch."""
    log_probs, values = act(settings, weights, batch["observation"])
    advantage = batch["advantage"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = jnp.exp(log_prob_of(log_probs, batch["action"]) - batch["log_prob"])
    clipped_ratio = jnp.clip(ratio, 1 - settings.clip, 1 + settings.clip)
    policy = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()
    clipped_values = batch["value"] + jnp.clip(values - batch["value"], -settings.clip, settings.clip)
    returns = batch["advantage"] + batch["value"]
    value = 0.5 * jnp.maximum((values - returns) ** 2, (clipped_values - returns) ** 2).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return policy + settings.value_weight * value - settings.entropy_weight * entropy


def adam(settings: Settings, learner: LearnerState, gradients: Any) -> LearnerState:
    """Take a step of Adam with gradients of limited norm."""
    tree_map = jax.tree_util.tree_map
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree_util.tree_leaves(gradients)))
    scale = jnp.minimum(1.0, settings.max_grad_norm / (norm + 1e-6))
    count = learner.count + 1
    moments = tree_map(lambda m, g: 0.9 * m + 0.1 * scale * g, learner.moments, gradients)
    squares = tree_map(lambda v, g: 0.999 * v + 0.001 * (scale * g) ** 2, learner.squares, gradients)
    first, second = 1 - 0.9**count, 1 - 0.999**count
    rate: Any = settings.learning_rate
    if settings.anneal:
        rate *= 1 - settings.anneal * learner.update / settings.updates
    weights = tree_map(
        lambda w, m, v: w - rate * (m / first) / (jnp.sqrt(v / second) + 1e-5),
        learner.weights,
        moments,
        squares,
    )
    return learner._replace(weights=weights, moments=moments, squares=squares, count=count)


def train_iteration(settings: Settings, task: LearningTask, learner: LearnerState) -> tuple[LearnerState, Any]:
    """Take one iteration: a rollout and epochs of minibatches; return the infos of its steps, too."""
    act_key, shuffle_key, key = jax.random.split(learner.key, 3)
    world, infos, transitions = rollout(settings, task, learner._replace(key=act_key))
    last_value = act(settings, learner.weights, task.observe(world))[1]
    transitions["advantage"] = advantages(settings, transitions, task.rewards(infos), last_value)
    samples = transitions["value"].size
    flat = {k: v.reshape(samples, *v.shape[2:]) for k, v in transitions.items() if k != "done"}

    def minibatch(learner: LearnerState, rows: Any) -> tuple[LearnerState, None]:
        batch = {k: v[rows] for k, v in flat.items()}
        return adam(settings, learner, jax.grad(lambda w: loss(settings, w, batch))(learner.weights)), None

    def epoch(learner: LearnerState, key: Any) -> Any:
        order = jnp.argsort(jax.random.bits(key, (samples,)))
        return jax.lax.scan(minibatch, learner, order.reshape(settings.minibatches, -1))

    learner, _ = jax.lax.scan(epoch, learner, jax.random.split(shuffle_key, settings.epochs))
    return learner._replace(world=world, key=key, update=learner.update + 1), infos
