"""Tests of my_env: pytest runs them."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

import gpu_envs
from gpu_envs.testing import check_environment

SPEC = gpu_envs.spec(f"{Path(__file__).with_name('my_env.py')}:MY_ENV")


def test_it_keeps_what_an_environment_promises() -> None:
    """Same seeds, same bits; replicas know nothing of one another; numbers are finite, and within their spaces."""
    check_environment(SPEC)


def test_gymnasium_steps_it() -> None:
    """By its id, as any other environment."""
    env = gymnasium.make_vec(f"gpu_envs/{SPEC.id}", num_envs=8)
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(100):
        observations, rewards, *_ = env.step(env.action_space.sample())
    assert np.isfinite(observations).all()
    assert np.isfinite(rewards).all()
    env.close()


def test_it_is_learnt() -> None:
    """Some seconds of training: episodes last much longer than under random actions, which is about 50 steps."""
    pytest.importorskip("torch")
    from gpu_envs import training

    run = training.Run(env=SPEC.id, num_envs=256, total_steps=1_000_000, target_return=100.0, run_dir="")
    result = training.train(run, progress=False)
    assert result.returns["agent"] >= 100
