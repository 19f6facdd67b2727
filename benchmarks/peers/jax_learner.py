"""PPO in JAX, in the manner of PureJaxRL: environment, rollout, update and loop are one compiled function.

As there, the time limit counts as an end (nothing is bootstrapped), advantages are normalised in each minibatch, and
values are clipped like ratios. Ours alone: the loop ends by itself once the task is solved.
"""

import dataclasses
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp

from benchmarks.peers import jax_cartpole
from benchmarks.peers.jax_cartpole import TIME_LIMIT, CartPoles

LAST_EPISODES = 100
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
    """Of Adam (epsilon 1e-5), constant."""
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

    @property
    def window(self) -> int:
        """Steps to look back: whole horizons in which 100 episodes are sure to have ended, once they last."""
        steps = TIME_LIMIT + -(-LAST_EPISODES // self.num_envs) * TIME_LIMIT
        return -(-steps // self.horizon) * self.horizon


class LearnerState(NamedTuple):
    """Everything that changes."""

    weights: Any
    moments: Any
    squares: Any
    count: Any
    """Steps of Adam."""
    world: CartPoles
    key: Any
    ended: Any
    """[window, 2] float32: for each of the last steps, how many episodes ended, and the sum of their returns."""
    update: Any


def layers(key: Any, last: int, gain: float, hidden: int) -> list[tuple[Any, Any]]:
    """Weights and biases of 4 -> hidden -> hidden -> last, orthogonal."""
    sizes = ((4, hidden, 2**0.5), (hidden, hidden, 2**0.5), (hidden, last, gain))
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
    """[N, 2] log-probabilities of the actions, and [N] values."""
    actor, critic = weights
    logits = jax.nn.log_softmax(forward(settings, actor, observations))
    return logits, forward(settings, critic, observations)[:, 0]


def chosen(log_probs: Any, actions: Any) -> Any:
    """[N] the log-probability of each action."""
    return jnp.where(actions == 1, log_probs[:, 1], log_probs[:, 0])


def begin(settings: Settings, key: Any) -> LearnerState:
    """New weights and new episodes."""
    actor_key, critic_key, world_key, key = jax.random.split(key, 4)
    weights = (layers(actor_key, 2, 0.01, settings.hidden), layers(critic_key, 1, 1.0, settings.hidden))
    zeros = jax.tree_util.tree_map(jnp.zeros_like, weights)
    world = CartPoles(jax_cartpole.start(world_key, settings.num_envs), jnp.zeros(settings.num_envs, jnp.int32))
    ended = jnp.zeros((settings.window, 2))
    return LearnerState(weights, zeros, zeros, jnp.int32(0), world, key, ended, jnp.int32(0))


def rollout(settings: Settings, learner: LearnerState) -> tuple[CartPoles, Any, dict[str, Any]]:
    """The replicas a horizon later, [T, 2] the episodes ended, and what was seen and done, each [T, N, ...]."""

    def one(world: CartPoles, key: Any) -> tuple[CartPoles, Any]:
        act_key, step_key = jax.random.split(key)
        log_probs, values = act(settings, learner.weights, world.state)
        # with two choices, one uniform number decides
        actions = (jax.random.uniform(act_key, values.shape) < jnp.exp(log_probs[:, 1])).astype(jnp.int32)
        after, done, steps = jax_cartpole.step(world, actions, step_key)
        ended = jnp.stack((done.sum(), jnp.where(done, steps, 0).sum())).astype(jnp.float32)
        seen = {"observation": world.state, "action": actions, "log_prob": chosen(log_probs, actions)}
        return after, (seen | {"value": values, "done": done}, ended)

    world, (seen, ended) = jax.lax.scan(one, learner.world, jax.random.split(learner.key, settings.horizon))
    return world, ended, seen


def advantages(settings: Settings, seen: dict[str, Any], last_value: Any) -> Any:
    """[T, N] generalised advantages; the reward is 1 a step."""

    def back(carry: tuple[Any, Any], now: tuple[Any, Any]) -> tuple[tuple[Any, Any], Any]:
        later, next_value = carry
        value, done = now
        on = jnp.where(done, 0.0, settings.gamma)
        advantage = 1.0 + on * next_value - value + on * settings.gae_lambda * later
        return (advantage, value), advantage

    zeros = jnp.zeros_like(last_value)
    _, found = jax.lax.scan(back, (zeros, last_value), (seen["value"], seen["done"]), reverse=True)
    return found


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
    weights = tree_map(
        lambda w, m, v: w - settings.learning_rate * (m / first) / (jnp.sqrt(v / second) + 1e-5),
        learner.weights,
        moments,
        squares,
    )
    return learner._replace(weights=weights, moments=moments, squares=squares, count=count)


def improve(settings: Settings, learner: LearnerState) -> LearnerState:
    """One update: a rollout, and some epochs of minibatches."""
    act_key, shuffle_key, key = jax.random.split(learner.key, 3)
    world, ended, seen = rollout(settings, learner._replace(key=act_key))
    gain = advantages(settings, seen, act(settings, learner.weights, world.state)[1])
    samples = settings.horizon * settings.num_envs
    flat = {k: v.reshape(samples, *v.shape[2:]) for k, v in (seen | {"advantage": gain}).items() if k != "done"}

    def minibatch(learner: LearnerState, rows: Any) -> tuple[LearnerState, None]:
        batch = {k: v[rows] for k, v in flat.items()}
        return adam(settings, learner, jax.grad(lambda w: loss(settings, w, batch))(learner.weights)), None

    def epoch(learner: LearnerState, key: Any) -> Any:
        order = jnp.argsort(jax.random.bits(key, (samples,)))
        return jax.lax.scan(minibatch, learner, order.reshape(settings.minibatches, -1))

    learner, _ = jax.lax.scan(epoch, learner, jax.random.split(shuffle_key, settings.epochs))
    ended = jnp.concatenate((learner.ended[settings.horizon :], ended))
    return learner._replace(world=world, key=key, ended=ended, update=learner.update + 1)


def mean_of_last(ended: Any) -> Any:
    """The mean return of the most recent whole steps in which at least 100 episodes ended; minus infinity before."""
    counts, sums = jnp.cumsum(ended[::-1], 0).T
    enough = counts >= LAST_EPISODES
    at = jnp.argmax(enough)
    return jnp.where(enough[at], sums[at] / counts[at], -jnp.inf)


def train(settings: Settings, learner: LearnerState) -> Any:
    """The learner after updates until the target is reached, or there have been enough."""

    def unsolved(learner: LearnerState) -> Any:
        return (mean_of_last(learner.ended) < settings.target) & (learner.update < settings.updates)

    return jax.lax.while_loop(unsolved, lambda learner: improve(settings, learner), learner)


def evaluation(settings: Settings, weights: Any, key: Any) -> Any:
    """The mean return of 1,000 new episodes of the policy, which chooses at random as it did in training."""
    key, start_key = jax.random.split(key)
    world = CartPoles(jax_cartpole.start(start_key, 1000), jnp.zeros(1000, jnp.int32))

    def one(carry: tuple[CartPoles, Any], key: Any) -> tuple[tuple[CartPoles, Any], None]:
        world, alive = carry
        log_probs, _ = act(settings, weights, world.state)
        actions = jax.random.uniform(key, (1000,)) < jnp.exp(log_probs[:, 1])
        state, fallen = jax_cartpole.move(world.state, actions)
        return (CartPoles(state, world.elapsed + alive), alive & ~fallen), None

    alive = jnp.ones(1000, bool)
    (world, _), _ = jax.lax.scan(one, (world, alive), jax.random.split(key, TIME_LIMIT))
    return world.elapsed.mean()
