"""The SB3 adapter's seeds, options, mistakes and staggered episodes, and SB3's own checker."""

import warnings

import gymnasium
import numpy as np
import pytest
from harness import IDS, assert_same_bits, numpy_of

pytest.importorskip("stable_baselines3", minversion="2.9")

from sb3_tools import actions_for, vec
from stable_baselines3.common.env_checker import check_env

import gpu_envs
from gpu_envs.adapters import sb3

pytestmark = pytest.mark.usefixtures("one_thread")


def test_seed_overrules_the_constructors(device: str) -> None:
    one, two = vec("CartPole-v1", 3, device=device, seed=5), vec("CartPole-v1", 3, device=device)
    assert one.seed(6) == [6, 7, 8]
    two.seed(6)
    assert_same_bits(one.reset(), two.reset())
    assert_same_bits(one.reset(), two.reset())


def test_without_a_seed_runs_differ(device: str) -> None:
    one, two = (vec("CartPole-v1", 3, device=device, seed=None) for _ in range(2))
    assert (one.reset() != two.reset()).any()
    seeds = one.seed()
    assert len(seeds) == 3
    assert (one.reset() != two.reset()).any()


def test_options_hold_for_one_reset(device: str) -> None:
    options = {"low": 0.01, "high": 0.02}
    venv = vec("CartPole-v1", 4, device=device, seed=2)
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
    venv = vec("CartPole-v1", 4, device=device, seed=2)
    plain = gpu_envs.make("CartPole-v1", 4, device=device)
    usual = plain.reset(seed=2)[0].copy()
    low = plain.reset(seed=2, options={"low": -0.02, "high": -0.01})[0].copy()
    high = plain.reset(seed=2, options={"low": 0.01, "high": 0.02})[0].copy()
    venv.set_options([{"low": -0.02, "high": -0.01}, {}, {"low": 0.01, "high": 0.02}, {"low": -0.02, "high": -0.01}])
    assert_same_bits(venv.reset(), np.stack([low[0], usual[1], high[2], low[3]]))
    # then all goes on as after any reset with that seed
    plain.reset(seed=2)
    assert_same_bits(venv.reset(), plain.reset()[0])


def test_wrong_options_are_refused(device: str) -> None:
    venv = vec("CartPole-v1", 4, device=device)
    venv.set_options([{"low": 0.0}])
    with pytest.raises(ValueError, match="1 options; expected 4"):
        venv.reset()
    venv.set_options({"lo": 0.0})
    with pytest.raises(ValueError, match="Did you mean 'low'"):
        venv.reset()


def test_steps_need_actions_and_a_reset(device: str) -> None:
    venv = vec("CartPole-v1", 2, device=device)
    with pytest.raises(gymnasium.error.ResetNeeded):
        venv.step(np.zeros(2, np.int64))
    venv.reset()
    with pytest.raises(RuntimeError, match="step_async"):
        venv.step_wait()
    venv.step_async(np.zeros(2, np.int64))
    venv.reset()
    with pytest.raises(RuntimeError, match="step_async"):
        venv.step_wait()  # as the reset cancels what was begun
    venv.step(np.zeros(2, np.int64))
    with pytest.raises(RuntimeError, match="step_async"):
        venv.step_wait()


def test_staggered_replicas_end_apart(device: str) -> None:
    venv = vec("Pendulum-v1", 200, device=device, max_episode_steps=20, stagger=True, seed=9)
    together = vec("Pendulum-v1", 200, device=device, max_episode_steps=20, seed=9)
    assert_same_bits(venv.reset(), together.reset())  # Pendulum shows no time
    actions = actions_for(venv, 45)
    ends = np.zeros(200, int)
    reported = np.zeros(200, int)
    first = np.full(200, -1)
    for step in range(45):
        _, _, dones, infos = venv.step(actions[step])
        for i in np.flatnonzero(dones):
            assert infos[i]["TimeLimit.truncated"] is True
            if ends[i] == 0:  # not a whole episode
                assert "episode" not in infos[i]
                first[i] = step
            else:
                assert infos[i]["episode"]["l"] == 20
                reported[i] += 1
            ends[i] += 1
    assert set(first) == set(range(20))
    assert (reported == ends - 1).all()
    assert ends.min() >= 2
    before = [np.array(numpy_of(venv.env.offset)) for _ in range(2) if venv.reset() is not None]
    assert (before[0] != before[1]).any()  # each reset is staggered anew


def test_staggering_needs_a_limit(device: str) -> None:
    venv = vec("CartPole-v1", 2, device=device, max_episode_steps=-1, stagger=True)
    with pytest.raises(ValueError, match="none; leave it out"):
        venv.reset()


@pytest.mark.parametrize("env_id", IDS)
def test_the_checker_of_single_environments(env_id: str) -> None:
    env = gymnasium.make(f"gpu_envs/{env_id}", device="cpu")
    with warnings.catch_warnings():
        # of Pendulum and others: that actions are best between -1 and 1
        warnings.filterwarnings("ignore", "We recommend you to use a symmetric and normalized Box action space")
        check_env(env, skip_render_check=True)
    env.close()


def test_attributes_that_are_arrays_are_given_by_environment(device: str) -> None:
    venv = sb3.VecEnv("CartPole-v1", 3, device=device, seed=0)
    venv.reset()
    venv.step(np.zeros(3, int))
    assert venv.get_attr("elapsed") == [1, 1, 1]
    assert [row.shape for row in venv.env_method("observe", indices=[0, 2])] == [(4,), (4,)]


def test_equal_options_in_other_objects_are_equal(device: str) -> None:
    venv = sb3.VecEnv("TagGridWorld-v0", 2, role="tagger", device=device, seed=0)
    x, y = np.arange(5), np.arange(5)[::-1].copy()
    venv.set_options([{"x": x, "y": y} if i % 2 else {"y": y, "x": x.copy()} for i in range(venv.num_envs)])
    venv.reset()
    assert_same_bits(numpy_of(venv.env.state["x"]), np.stack([x, x]).astype(np.int32))
