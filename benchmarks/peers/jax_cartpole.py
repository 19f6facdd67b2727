"""CartPole in ``jax.numpy``, with many replicas and auto-reset."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.peers.jax_learner import LearningTask

GRAVITY, CART_MASS, POLE_MASS, HALF_LENGTH, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
X_LIMIT, THETA_LIMIT = 2.4, 12 * 2 * jnp.pi / 360
TIME_LIMIT = 500
MASS = CART_MASS + POLE_MASS


class CartPoles(NamedTuple):
    """The state of all replicas."""

    state: Any
    """[N, 4] float32: x, x_dot, theta, theta_dot."""
    elapsed: Any
    """[N] int32: steps of the current episode, equal to its return."""


def start(key: Any, num_envs: int) -> Any:
    """Return initial states, [N, 4]."""
    return jax.random.uniform(key, (num_envs, 4), jnp.float32, -0.05, 0.05)


def move(state: Any, action: Any) -> tuple[Any, Any]:
    """Return the next states, [N, 4], and whether the pole has fallen or the cart has left the track."""
    x, x_dot, theta, theta_dot = jnp.moveaxis(state, -1, 0)
    force = jnp.where(action == 1, FORCE, -FORCE)
    sine, cosine = jnp.sin(theta), jnp.cos(theta)
    push = (force + POLE_MASS * HALF_LENGTH * theta_dot**2 * sine) / MASS
    theta_acc = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine**2 / MASS))
    x_acc = push - POLE_MASS * HALF_LENGTH * theta_acc * cosine / MASS
    x, x_dot = x + TAU * x_dot, x_dot + TAU * x_acc
    theta, theta_dot = theta + TAU * theta_dot, theta_dot + TAU * theta_acc
    fallen = (jnp.abs(x) > X_LIMIT) | (jnp.abs(theta) > THETA_LIMIT)
    return jnp.stack((x, x_dot, theta, theta_dot), -1), fallen


def step(world: CartPoles, action: Any, key: Any) -> tuple[CartPoles, Any, Any]:
    """Return the next replicas, whether each episode ended, [N], and its steps, [N]."""
    moved, fallen = move(world.state, action)
    elapsed = world.elapsed + 1
    done = fallen | (elapsed >= TIME_LIMIT)
    initial = start(key, moved.shape[0])
    return CartPoles(jnp.where(done[:, None], initial, moved), jnp.where(done, 0, elapsed)), done, elapsed


def cartpole(num_envs: int) -> LearningTask:
    """Return the CartPole task; the info of a step is the number of ended episodes and the sum of their returns."""

    def start_task(key: Any) -> CartPoles:
        return CartPoles(start(key, num_envs), jnp.zeros(num_envs, jnp.int32))

    def step_task(world: CartPoles, actions: Any, key: Any) -> tuple[CartPoles, Any, Any]:
        next_world, done, steps = step(world, actions, key)
        return next_world, done, jnp.stack((done.sum(), jnp.where(done, steps, 0).sum())).astype(jnp.float32)

    return LearningTask(4, 2, start_task, lambda world: world.state, step_task, lambda _: 1.0)
