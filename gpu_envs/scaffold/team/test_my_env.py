"""Tests of my_env: pytest runs them."""

from pathlib import Path

import numpy as np
import pytest

import gpu_envs
from gpu_envs.testing import check_environment

SPEC = gpu_envs.spec(f"{Path(__file__).with_name('my_env.py')}:MY_ENV")


def test_it_keeps_what_an_environment_promises() -> None:
    """Same seeds, same bits; replicas know nothing of one another; numbers are finite, and within their spaces."""
    check_environment(SPEC)


def test_many_replicas_step() -> None:
    """Actions, observations and rewards are by role: [num_envs, agents, ...]."""
    env = gpu_envs.make(SPEC.id, num_envs=8)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 3, (100, 8, env.counts["rower"]))
    for each in actions:
        observations, rewards, *_ = env.step({"rower": each})
    assert np.isfinite(observations["rower"]).all()
    assert np.isfinite(rewards["rower"]).all()
    env.close()


def test_pettingzoo_steps_it() -> None:
    """PettingZoo's own test of environments in which all agents act at once."""
    pytest.importorskip("pettingzoo")
    from pettingzoo.test import parallel_api_test

    from gpu_envs.adapters.pettingzoo import parallel_env

    parallel_api_test(parallel_env(SPEC.id), num_cycles=100)


def test_it_is_learnt() -> None:
    """Some seconds of training: returns are much higher than under random actions, which give about 45."""
    pytest.importorskip("torch")
    from gpu_envs import training

    run = training.Run(env=SPEC.id, num_envs=256, total_steps=1_000_000, target_return=100.0, run_dir="")
    result = training.train(run, progress=False)
    assert result.returns["rower"] >= 100
