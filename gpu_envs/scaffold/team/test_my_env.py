"""Tests of my_env: run them with pytest."""

from pathlib import Path

import numpy as np
import pytest

import gpu_envs
from gpu_envs.testing import check_environment

SPEC = gpu_envs.spec(f"{Path(__file__).with_name('my_env.py')}:MY_ENV")


def test_check_environment() -> None:
    """Seeds reproduce results bit for bit, replicas are independent, and numbers are finite and in their spaces."""
    check_environment(SPEC)


def test_steps() -> None:
    """100 steps of random actions, dicts by role of [num_envs, agents], give finite observations and rewards."""
    env = gpu_envs.make(SPEC.id, num_envs=8)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 3, (100, 8, env.counts["rower"]))
    for rower_actions in actions:
        observations, rewards, *_ = env.step({"rower": rower_actions})
    assert np.isfinite(observations["rower"]).all()
    assert np.isfinite(rewards["rower"]).all()
    env.close()


def test_pettingzoo_api() -> None:
    """PettingZoo's test of parallel environments."""
    pytest.importorskip("pettingzoo")
    from pettingzoo.test import parallel_api_test

    from gpu_envs.adapters.pettingzoo import parallel_env

    parallel_api_test(parallel_env(SPEC.id), num_cycles=100)


def test_training() -> None:
    """A few seconds of training reach a return of 100; random actions reach about 45."""
    pytest.importorskip("torch")
    from gpu_envs import training

    run = training.Run(env=SPEC.id, num_envs=256, total_steps=1_000_000, target_return=100.0, run_dir="")
    result = training.train(run, progress=False)
    assert result.returns["rower"] >= 100
