"""Checks that a benchmark's peer implements the same CartPole."""

from collections.abc import Callable
from typing import Any

import numpy as np

import gpu_envs


def assert_same_game(step: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[Any, ...]]) -> int:
    """Compares single steps from our states: the same ends, and states up to rounding. Returns the number of ends."""
    env = gpu_envs.make("CartPole-v1", 64, device="cpu", autoreset_mode="SameStep")
    before = np.array(env.reset(seed=3)[0])
    elapsed = np.zeros(64, np.int32)
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(60):
        action = rng.integers(0, 2, 64)
        after, _, terminated, truncated, _ = env.step(action)
        state, steps, over, late = (np.asarray(part) for part in step(before, elapsed, action))
        assert (over == terminated).all()
        assert (late == truncated).all()
        on = ~(over | late)
        np.testing.assert_allclose(state[on], after[on], rtol=2e-6, atol=2e-7)
        assert (abs(state[~on]) <= 0.05).all()
        elapsed = np.where(on, elapsed + 1, 0).astype(np.int32)
        assert (steps == elapsed).all()
        before = np.array(after)
        ended += int((~on).sum())
    return ended
