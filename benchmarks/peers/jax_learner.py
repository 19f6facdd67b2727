"""PPO in JAX, in the manner of PureJaxRL: environment, rollout and update are one compiled function.

As there, the time limit counts as an end (nothing is bootstrapped), advantages are normalised in each minibatch, and
values are clipped like ratios.
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
    """A run. The defaults solve cart-pole soon with many replicas; ``training.solving`` names other good ones."""

    num_envs: int = 512
    """Replicas."""
    horizon: int = 32
    """Steps of each between two updates."""
    epochs: int = 2
    """Passes over them."""
    minibatches: int = 4
    """Parts of a pass."""
    learning_rate: float = 8e-3
    """Of Adam (epsilon 1e-5)."""
    anneal: float = 0.0
    """The share of it that is lost by the last update, evenly."""
    gamma: float = 0.98
    """Discount."""
    gae_lambda: float = 0.95
    """Of the advantages."""
    clip: float = 0.2
    """Of ratios and values."""
    value_weight: float = 0.5
    """Of the value's loss."""
    entropy_weight: float = 0.01
    """Of the entropy."""
    max_grad_norm: float = 0.5
    """Gradients are shortened to it."""
    hidden: int = 64
    """The width of the two tanh layers of actor and critic each."""
    precision: str = "float32"
    """Of matrix products: float32, tf32 or bf16 (activations too)."""
    target: float = 475.0
    """Stop when the last 100 episodes have this mean return."""
    updates: int = 500
    """Stop after so many updates in any case."""


class Game(NamedTuple):
    """What is learnt. Its actors are the agents that learn, of all replicas: N of them."""

    observed: int
    """Numbers that an actor observes."""
    actions: int
    """Among which it chooses."""
    start: Callable[[Any], Any]
    """From a key to the world."""
    look: Callable[[Any], Any]
    """From the world to [N, observed] observations."""
    step: Callable[[Any, Any, Any], tuple[Any, Any, Any]]
    """From a world, [N] actions and a key to the world a step later, [N] whether that ended an episode, and a note."""
    rewards: Callable[[Any], Any]
    """From the notes of T steps to their rewards: [T, N], or one for all."""


class LearnerState(NamedTuple):
    """Everything that changes."""

    weights: Any
    moments: Any
    squares: Any
    count: Any
    """Steps of Adam."""
    world: Any
    key: Any
    update: Any


def layers(key: Any, first: int, last: int, gain: float, hidden: int) -> list[tuple[Any, Any]]:
    """Weights and biases of first -> hidden -> hidden -> last, orthogonal."""
    sizes = ((first, hidden, 2**0.5), (hidden, hidden, 2**0.5), (hidden, last, gain))
    keys = jax.random.split(key, 3)
    return [
        (jax.nn.initializers.orthogonal(scale)(k, (rows, columns), jnp.float32), jnp.zeros(columns))
        for k, (rows, columns, scale) in zip(keys, sizes, strict=True)
    ]


def forward(settings: Settings, weights: Any, observations: Any) -> Any:
    """The last layer's outputs, in float32."""
    dtype = jnp.bfloat16 if settings.precision == "bf16" else jnp.float32
    x = observations.astype(dtype)
    with jax.default_matmul_precision(MATMUL[settings.precision]):
        for depth, (weight, bias) in enumerate(weights):
            x = x @ weight.astype(dtype) + bias.astype(dtype)
            x = jnp.tanh(x) if depth < 2 else x
    return x.astype(jnp.float32)


def act(settings: Settings, weights: Any, observations: Any) -> tuple[Any, Any]:
    """[N, actions] log-probabilities, and [N] values."""
    actor, critic = weights
    logits = jax.nn.log_softmax(forward(settings, actor, observations))
    return logits, forward(settings, critic, observations)[:, 0]


def drawn(key: Any, log_probs: Any) -> Any:
    """[N] actions: one uniform number decides among all."""
    number, at_least = jax.random.uniform(key, log_probs.shape[:1]), 0.0
    actions = jnp.zeros(log_probs.shape[:1], jnp.int32)
    for action in reversed(range(1, log_probs.shape[1])):
        at_least += jnp.exp(log_probs[:, action])
        actions += number < at_least
    return actions


def chosen(log_probs: Any, actions: Any) -> Any:
    """[N] the log-probability of each action."""
    found = log_probs[:, 0]
    for action in range(1, log_probs.shape[1]):
        found = jnp.where(actions == action, log_probs[:, action], found)
    return found


def begin(settings: Settings, game: Game, key: Any) -> LearnerState:
    """New weights and new episodes."""
    actor_key, critic_key, world_key, key = jax.random.split(key, 4)
    weights = (
        layers(actor_key, game.observed, game.actions, 0.01, settings.hidden),
        layers(critic_key, game.observed, 1, 1.0, settings.hidden),
    )
    zeros = jax.tree_util.tree_map(jnp.zeros_like, weights)
    return LearnerState(weights, zeros, zeros, jnp.int32(0), game.start(world_key), key, jnp.int32(0))


def rollout(settings: Settings, game: Game, learner: LearnerState) -> tuple[Any, Any, dict[str, Any]]:
    """The world a horizon later, notes of the steps, and what was seen and done, each [T, N, ...]."""

    def one(world: Any, key: Any) -> tuple[Any, Any]:
        act_key, step_key = jax.random.split(key)
        observations = game.look(world)
        log_probs, values = act(settings, learner.weights, observations)
        actions = drawn(act_key, log_probs)
        after, done, note = game.step(world, actions, step_key)
        seen = {"observation": observations, "action": actions, "log_prob": chosen(log_probs, actions)}
        return after, (seen | {"value": values, "done": done}, note)

    world, (seen, notes) = jax.lax.scan(one, learner.world, jax.random.split(learner.key, settings.horizon))
    return world, notes, seen


def advantages(settings: Settings, seen: dict[str, Any], rewards: Any, last_value: Any) -> Any:
    """[T, N] generalised advantages."""
    values, on = seen["value"], jnp.where(seen["done"], 0.0, settings.gamma)
    surprises = rewards + on * jnp.concatenate((values[1:], last_value[None])) - values

    def back(later: Any, now: tuple[Any, Any]) -> tuple[Any, Any]:
        surprise, kept = now
        advantage = surprise + kept * later
        return advantage, advantage

    steps = surprises, on * settings.gae_lambda
    return jax.lax.scan(back, jnp.zeros_like(last_value), steps, reverse=True)[1]


def loss(settings: Settings, weights: Any, batch: dict[str, Any]) -> Any:
    """PPO's, of a minibatch."""
    log_probs, values = act(settings, weights, batch["observation"])
    gain = batch["advantage"]
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    ratio = jnp.exp(chosen(log_probs, batch["action"]) - batch["log_prob"])
    bounded = jnp.clip(ratio, 1 - settings.clip, 1 + settings.clip)
    policy = -jnp.minimum(ratio * gain, bounded * gain).mean()
    near = batch["value"] + jnp.clip(values - batch["value"], -settings.clip, settings.clip)
    aim = batch["advantage"] + batch["value"]
    value = 0.5 * jnp.maximum((values - aim) ** 2, (near - aim) ** 2).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return policy + settings.value_weight * value - settings.entropy_weight * entropy


def adam(settings: Settings, learner: LearnerState, gradients: Any) -> LearnerState:
    """A step of Adam, of gradients that are no longer than the limit."""
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


def improve(settings: Settings, game: Game, learner: LearnerState) -> tuple[LearnerState, Any]:
    """One update, a rollout and some epochs of minibatches; and the notes of its steps."""
    act_key, shuffle_key, key = jax.random.split(learner.key, 3)
    world, notes, seen = rollout(settings, game, learner._replace(key=act_key))
    last_value = act(settings, learner.weights, game.look(world))[1]
    seen["advantage"] = advantages(settings, seen, game.rewards(notes), last_value)
    samples = seen["value"].size
    flat = {k: v.reshape(samples, *v.shape[2:]) for k, v in seen.items() if k != "done"}

    def minibatch(learner: LearnerState, rows: Any) -> tuple[LearnerState, None]:
        batch = {k: v[rows] for k, v in flat.items()}
        return adam(settings, learner, jax.grad(lambda w: loss(settings, w, batch))(learner.weights)), None

    def epoch(learner: LearnerState, key: Any) -> Any:
        order = jnp.argsort(jax.random.bits(key, (samples,)))
        return jax.lax.scan(minibatch, learner, order.reshape(settings.minibatches, -1))

    learner, _ = jax.lax.scan(epoch, learner, jax.random.split(shuffle_key, settings.epochs))
    return learner._replace(world=world, key=key, update=learner.update + 1), notes
