"""The SB3 adapter's seeds, options, error messages and staggered episodes."""

import gymnasium
import numpy as np
import pytest
from harness import assert_same_bits, numpy_of

pytest.importorskip("stable_baselines3", minversion="2.9")

from sb3_tools import make_vec

import gpu_envs
from gpu_envs.adapters import sb3

pytestmark = pytest.mark.usefixtures("one_thread")


def test_options_hold_for_one_reset(device: str) -> None:
    options = {"low": 0.01, "high": 0.02}
    venv = make_vec("CartPole-v1", 4, device=device, seed=2)
    plain = gpu_envs.make("CartPole-v1", 4, device=device)
    venv.set_options(options)
    observations = venv.reset()
    assert_same_bits(observations, plain.reset(seed=2, options=options)[0])
    assert ((observations >= 0.01) & (observations <= 0.02)).all()
    assert_same_bits(venv.reset(), plain.reset()[0])
    assert options == {"low": 0.01, "high": 0.02}
    venv.set_options(options)
    venv.set_options()
    assert_same_bits(venv.reset(), plain.reset()[0])


def test_options_may_differ(device: str) -> None:
    venv = make_vec("CartPole-v1", 4, device=device, seed=2)
    plain = gpu_envs.make("CartPole-v1", 4, device=device)
    usual = plain.reset(seed=2)[0].copy()
    low = plain.reset(seed=2, options={"low": -0.02, "high": -0.01})[0].copy()
    high = plain.reset(seed=2, options={"low": 0.01, "high": 0.02})[0].copy()
    venv.set_options([{"low": -0.02, "high": -0.01}, {}, {"low": 0.01, "high": 0.02}, {"low": -0.02, "high": -0.01}])
    assert_same_bits(venv.reset(), np.stack([low[0], usual[1], high[2], low[3]]))
    # the following steps are as after any reset with this seed
    plain.reset(seed=2)
    assert_same_bits(venv.reset(), plain.reset()[0])


def test_a_step_requires_actions_and_a_reset(device: str) -> None:
    venv = make_vec("CartPole-v1", 2, device=device)
    with pytest.raises(gymnasium.error.ResetNeeded):
        venv.step(np.zeros(2, np.int64))
    venv.reset()
    with pytest.raises(RuntimeError, match="step_async"):
        venv.step_wait()
    venv.step_async(np.zeros(2, np.int64))
    venv.reset()
    with pytest.raises(RuntimeError, match="step_async"):
        venv.step_wait()  # the reset discards the pending actions
    venv.step(np.zeros(2, np.int64))
    with pytest.raises(RuntimeError, match="step_async"):
        venv.step_wait()


def test_every_reset_is_staggered(device: str) -> None:
    venv = make_vec("Pendulum-v1", 200, device=device, max_episode_steps=20, stagger=True)
    offsets = [numpy_of(venv.env.offset) for _ in range(2) if venv.reset() is not None]
    assert (offsets[0] != offsets[1]).any()


def test_staggering_requires_a_time_limit(device: str) -> None:
    venv = make_vec("CartPole-v1", 2, device=device, max_episode_steps=-1, stagger=True)
    with pytest.raises(ValueError, match="no limit: leave it out"):
        venv.reset()


def test_options_are_compared_by_value(device: str) -> None:
    venv = sb3.VecEnv("TagGridWorld-v0", 2, role="tagger", device=device, seed=0)
    x, y = np.arange(5), np.arange(5)[::-1].copy()
    venv.set_options([{"x": x, "y": y} if i % 2 else {"y": y, "x": x.copy()} for i in range(venv.num_envs)])
    venv.reset()
    assert_same_bits(numpy_of(venv.env.state["x"]), np.stack([x, x]).astype(np.int32))


def test_seed_returns_seeds_and_invalid_options_raise(device: str) -> None:
    one, two = make_vec("CartPole-v1", 3, device=device, seed=5), make_vec("CartPole-v1", 3, device=device)
    assert one.seed(6) == two.seed(6) == [6, 7, 8]
    assert_same_bits(one.reset(), two.reset())
    assert len(one.seed()) == 3
    one.set_options([{"low": 0.0}])
    with pytest.raises(ValueError, match="a list of 1: pass one dict, or a list of 3"):
        one.reset()
