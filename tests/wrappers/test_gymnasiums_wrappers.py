"""Gymnasium's vector wrappers around a VectorEnv with NumPy output."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import vector as wrappers
from harness import IDS, PLACES, Make, Place, assert_same_bits, is_discrete, random_actions
from registered import needs_torch

NUMPY_PLACES = [place for place in PLACES if place.output == "numpy"]

each_numpy = pytest.mark.parametrize("at", NUMPY_PLACES, ids=lambda at: f"{at.device}-{at.output}")


@each_numpy
def test_record_episode_statistics(make: Make, env_id: str, at: Place, mode: str) -> None:
    """Gymnasium's statistics are this package's, also after partial resets."""
    env = make(env_id, 5, **at._asdict(), autoreset_mode=mode, max_episode_steps=7)
    wrapped = wrappers.RecordEpisodeStatistics(env)
    wrapped.reset(seed=0)
    ends = 0
    for t, action in enumerate(random_actions(env_id, 60, 5)):
        _, _, terminations, truncations, infos = wrapped.step(action)
        over = terminations | truncations
        if over.any():
            ends += int(over.sum())
            np.testing.assert_allclose(infos["episode"]["r"][over], env.episode_return[over], rtol=1e-5)
            assert (infos["episode"]["l"][over] == env.episode_length[over]).all()
        mask = over & (mode == "Disabled") | (np.arange(5) == t % 25)
        if mask.any():
            wrapped.reset(options={"reset_mask": mask})
    assert wrapped.episode_count == ends > 20


@each_numpy
def test_normalize_observation(make: Make, env_id: str, at: Place) -> None:
    """Observations come to mean 0 and variance 1."""
    wrapped = wrappers.NormalizeObservation(make(env_id, 50, **at._asdict(), max_episode_steps=20))
    seen = [wrapped.reset(seed=0)[0]]
    seen += [wrapped.step(action)[0] for action in random_actions(env_id, 100, 50)]
    assert np.isfinite(seen).all()
    assert np.abs(np.mean(seen[50:], axis=(0, 1))).max() < 1
    assert np.std(seen[50:], axis=(0, 1)).max() < 3


@each_numpy
def test_normalize_reward(make: Make, env_id: str, at: Place, mode: str) -> None:
    """Rewards are divided by the spread of their discounted sums."""
    env = make(env_id, 5, **at._asdict(), autoreset_mode=mode)
    wrapped = wrappers.NormalizeReward(env)
    wrapped.reset(seed=0)
    for action in random_actions(env_id, 6, 5):
        rewards = wrapped.step(action)[1]
        assert rewards.shape == (5,)
        assert np.isfinite(rewards).all()
    assert np.abs(rewards).max() > 0


@each_numpy
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting to float32")  # RescaleAction's own
@pytest.mark.parametrize("env_id", [env_id for env_id in IDS if not is_discrete(env_id)])
def test_action_wrappers(make: Make, env_id: str, at: Place, mode: str) -> None:
    """ClipAction and RescaleAction put actions into the bounds."""
    plain = make(env_id, 5, **at._asdict(), autoreset_mode=mode)
    space: Any = plain.single_action_space
    low, high = space.low, space.high
    middle = ((low + high) / 2 * np.ones((5, 1))).astype(np.float32)
    for wrapper, given, effective in [
        (wrappers.ClipAction, np.full((5, 1), 100, np.float32), high * np.ones((5, 1), np.float32)),
        (lambda env: wrappers.RescaleAction(env, -7.0, 7.0), np.zeros((5, 1), np.float32), middle),
    ]:
        wrapped = wrapper(make(env_id, 5, **at._asdict(), autoreset_mode=mode))
        wrapped.reset(seed=0), plain.reset(seed=0)
        assert_same_bits([*wrapped.step(given)[:4]], [*plain.step(effective.astype(np.float32))[:4]])


@needs_torch
@each_numpy
def test_numpy_to_torch(make: Make, env_id: str, at: Place, mode: str) -> None:
    """Everything becomes tensors, infos and all."""
    import torch

    pytest.importorskip("array_api_compat", reason="what Gymnasium's wrapper needs")

    wrapped = wrappers.NumpyToTorch(make(env_id, 5, **at._asdict(), autoreset_mode=mode, max_episode_steps=2))
    observations, _ = wrapped.reset(seed=0)
    assert isinstance(observations, torch.Tensor)
    for action in random_actions(env_id, 2, 5):
        *step, infos = wrapped.step(torch.from_numpy(action))
        assert all(isinstance(part, torch.Tensor) for part in step)
    if mode == "SameStep":
        assert isinstance(infos["final_obs"], torch.Tensor)
        assert infos["_final_obs"].all()
    mask = torch.tensor([True, False, True, False, False])
    after, _ = wrapped.reset(options={"reset_mask": mask})
    assert ((after != step[0]).any(1) == mask).all() or mode == "SameStep"


@each_numpy
def test_dict_info_to_list(make: Make, env_id: str, at: Place, mode: str) -> None:
    """Infos become a list with a dict for each replica."""
    env = make(env_id, 5, **at._asdict(), autoreset_mode=mode, max_episode_steps=2, statistics=True)
    wrapped = wrappers.DictInfoToList(env)
    _, infos = wrapped.reset(seed=0)
    assert infos == [{}] * 5
    for action in random_actions(env_id, 2, 5):
        infos = wrapped.step(action)[4]
    assert [info["episode"]["l"] for info in infos] == [2] * 5
    assert all(("final_obs" in info) == (mode == "SameStep") for info in infos)


@each_numpy
def test_stacked_wrappers(env_id: str, at: Place) -> None:
    """The usual stack of wrappers for PPO works, through ``make_vec`` as well."""
    made = gymnasium.make_vec(f"gpu_envs/{env_id}", num_envs=5, device=at.device, max_episode_steps=9)
    env: Any = wrappers.NormalizeReward(wrappers.NormalizeObservation(wrappers.RecordEpisodeStatistics(made)))
    env.reset(seed=0)
    finished = 0
    for action in random_actions(env_id, 40, 5):
        *_, infos = env.step(action)
        finished += int(infos["_episode"].sum()) if infos else 0
    assert finished >= 5 * 3
    env.close()
    assert made.closed
