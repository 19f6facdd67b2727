"""Tests of my_env: run them with pytest."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

import gpu_envs
from gpu_envs.testing import check_environment

SPEC = gpu_envs.spec(f"{Path(__file__).with_name('my_env.py')}:MY_ENV")


def test_check_environment() -> None:
    """Seeds reproduce results bit for bit, replicas are independent, and numbers are finite and in their spaces."""
    check_environment(SPEC)


def test_steps_with_gymnasium() -> None:
    """Gymnasium makes the environment by its id; 100 random steps give finite observations and rewards."""
    env = gymnasium.make_vec(f"gpu_envs/{SPEC.id}", num_envs=8)
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(100):
        observations, rewards, *_ = env.step(env.action_space.sample())
    assert np.isfinite(observations).all()
    assert np.isfinite(rewards).all()
    env.close()


def test_training() -> None:
    """A few seconds of training reach episodes of 100 steps; with random actions they have about 50."""
    pytest.importorskip("torch")
    from gpu_envs import training

    run = training.Run(env=SPEC.id, num_envs=256, total_steps=1_000_000, target_return=100.0, run_dir="")
    result = training.train(run, progress=False)
    assert result.returns["agent"] >= 100
