"""Stable-Baselines3's wrappers, evaluation, callbacks and saved models around the adapter."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits

torch = pytest.importorskip("torch")
stable = pytest.importorskip("stable_baselines3", minversion="2.9")

from sb3_tools import Recorder, actions_for, make_single_envs, make_vec, parameters_of  # noqa: E402
from stable_baselines3.common import callbacks, vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402

from gpu_envs.adapters import sb3  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

LIMIT = 15


def ppo(venv: Any, **kwargs: Any) -> Any:
    settings: dict[str, Any] = {"n_steps": 16, "batch_size": 32, "n_epochs": 2, "device": "cpu", "seed": 0} | kwargs
    return sb3.PPO("MlpPolicy", venv, **settings)


# --- VecMonitor ---


def test_vec_monitor_reports_the_same_episodes(device: str, tmp_path: Path) -> None:
    """``VecMonitor`` warns that it is not needed, and reports the adapter's episodes."""
    plain = make_vec("CartPole-v1", 4, device=device, max_episode_steps=LIMIT, seed=3)
    inner = make_vec("CartPole-v1", 4, device=device, max_episode_steps=LIMIT, seed=3)
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        monitored = vec_env.VecMonitor(inner, str(tmp_path / "monitor.csv"))
    plain.reset()
    monitored.reset()
    rows: list[tuple[float, int]] = []
    for actions in actions_for(plain, 60):
        *_, dones, expected = plain.step(actions)
        *_, infos = monitored.step(actions)
        for i in np.flatnonzero(dones):
            episode = expected[i]["episode"]["r"], expected[i]["episode"]["l"]
            assert (infos[i]["episode"]["r"], infos[i]["episode"]["l"]) == episode
            assert_same_bits(infos[i]["terminal_observation"], expected[i]["terminal_observation"])
            rows.append(episode)
        assert all(infos[i] == {} for i in np.flatnonzero(~dones))
    assert monitored.episode_count == len(rows) > 15
    monitored.close()
    with (tmp_path / "monitor.csv").open(encoding="utf-8") as file:
        assert file.readline().startswith("#")
        assert [(float(row["r"]), int(row["l"])) for row in csv.DictReader(file)] == rows


# --- VecNormalize ---


def test_vec_normalize_frozen_saved_and_synchronised(device: str, tmp_path: Path) -> None:
    def make(seed: int) -> Any:
        return make_vec("Pendulum-v1", 4, device=device, max_episode_steps=LIMIT, seed=seed)

    venv = vec_env.VecNormalize(make(1))
    model = ppo(venv).learn(256)
    venv.save(str(tmp_path / "normalise.pkl"))
    venv.training, venv.norm_reward = False, False
    statistics = venv.obs_rms.mean.copy(), venv.obs_rms.var.copy(), venv.ret_rms.var.copy()
    loaded = vec_env.VecNormalize.load(str(tmp_path / "normalise.pkl"), make(2))
    loaded.training, loaded.norm_reward = False, False
    other = vec_env.VecNormalize(make(2), training=False, norm_reward=False)
    venv.seed(2)
    assert (other.reset() != loaded.reset()).any()
    vec_env.sync_envs_normalization(venv, other)
    for each in (loaded, other):
        each.seed(2)
    seen = [each.reset() for each in (venv, loaded, other)]
    for actions in actions_for(venv, 20):
        assert_same_bits(seen[1], seen[0])
        assert_same_bits(seen[2], seen[0])
        results = [each.step(actions) for each in (venv, loaded, other)]
        seen = [result[0] for result in results]
        assert_same_bits(results[1][1], results[0][1])
        assert_same_bits(results[0][1], venv.get_original_reward())
    assert_same_bits((venv.obs_rms.mean, venv.obs_rms.var, venv.ret_rms.var), statistics)
    assert_same_bits(venv.unnormalize_obs(seen[0]).shape, seen[0].shape)
    np.testing.assert_allclose(venv.unnormalize_obs(seen[0]), venv.get_original_obs(), atol=1e-4)
    mean, _ = evaluate_policy(model, other, n_eval_episodes=4)
    assert np.isfinite(mean)


# --- other wrappers ---


def test_stacked_wrappers_learn(device: str) -> None:
    inner = make_vec("CartPole-v1", 4, device=device, max_episode_steps=LIMIT)
    venv = vec_env.VecCheckNan(vec_env.VecFrameStack(vec_env.VecNormalize(inner), 2), raise_exception=True)
    model = ppo(venv).learn(256)
    assert model.num_timesteps == 256
    assert len(model.ep_info_buffer) > 10
    assert all(episode["r"] == episode["l"] for episode in model.ep_info_buffer)  # not normalised
    # no wrapper wrote to the shared empty infos
    infos = inner.step(np.zeros(4, np.int64))[3]
    assert all(set(info) in (set(), {"terminal_observation", "TimeLimit.truncated", "episode"}) for info in infos)


# --- evaluation ---


@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluation_equals_single_environments(deterministic: bool, device: str) -> None:
    """The same episodes, without a warning about a missing Monitor."""
    model = ppo(make_vec("CartPole-v1", 4, device=device), seed=5).learn(512)
    results = []
    for venv in (make_vec("CartPole-v1", 3, device=device), make_single_envs("CartPole-v1", 3)):
        venv.seed(40)
        torch.manual_seed(0)
        results.append(evaluate_policy(model, venv, 8, deterministic=deterministic, return_episode_rewards=True))
    rewards, lengths = results[0]
    assert len(rewards) == 8
    assert rewards == lengths
    assert results[0] == results[1]


# --- callbacks ---


def test_eval_callback(device: str, tmp_path: Path) -> None:
    class Count(callbacks.BaseCallback):  # type: ignore[misc]  # Stable-Baselines3's types are not checked
        times = 0

        def _on_step(self) -> bool:
            self.times += 1
            return True

    best, after = Count(), Count()
    evaluate = callbacks.EvalCallback(
        make_vec("CartPole-v1", 3, device=device, seed=1),
        callback_on_new_best=best,
        callback_after_eval=after,
        n_eval_episodes=6,
        eval_freq=32,
        log_path=str(tmp_path),
        best_model_save_path=str(tmp_path),
        verbose=0,
    )
    model = ppo(make_vec("CartPole-v1", 4, device=device)).learn(4 * 32 * 5, callback=evaluate)
    assert after.times == 5
    assert 1 <= best.times <= 5
    with np.load(tmp_path / "evaluations.npz") as file:
        assert file["timesteps"].tolist() == [128 * (i + 1) for i in range(5)]
        assert file["results"].shape == file["ep_lengths"].shape == (5, 6)
        assert (file["results"] == file["ep_lengths"]).all()
        assert file["results"].mean(1).max() == evaluate.best_mean_reward
    loaded = sb3.PPO.load(tmp_path / "best_model", device="cpu")
    assert loaded.predict(np.zeros((2, 4), np.float32))[0].shape == (2,)
    assert model.num_timesteps == 640


def test_checkpoints(device: str, tmp_path: Path) -> None:
    keep = callbacks.CheckpointCallback(32, str(tmp_path), "model", save_vecnormalize=True)
    venv = vec_env.VecNormalize(make_vec("CartPole-v1", 4, device=device))
    model = ppo(venv).learn(256, callback=keep)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *("model_128_steps.zip", "model_256_steps.zip"),
        *("model_vecnormalize_128_steps.pkl", "model_vecnormalize_256_steps.pkl"),
    }
    other = vec_env.VecNormalize.load(
        str(tmp_path / "model_vecnormalize_256_steps.pkl"), make_vec("CartPole-v1", 4, device=device)
    )
    assert_same_bits(other.obs_rms.mean, venv.obs_rms.mean)
    loaded = sb3.PPO.load(tmp_path / "model_256_steps", env=other, device="cpu")
    assert loaded.num_timesteps == 256
    loaded.learn(64, reset_num_timesteps=False)
    assert loaded.num_timesteps == 320
    assert len(parameters_of(loaded)) == len(parameters_of(model))


# --- saving, loading, continuing ---


@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN"])
def test_saved_and_loaded_models_act_alike(name: str, device: str, tmp_path: Path) -> None:
    venv = make_vec("CartPole-v1", 4, device=device)
    settings: dict[str, Any] = {"learning_starts": 40, "buffer_size": 500} if name == "DQN" else {"n_steps": 16}
    if name == "PPO":
        settings["batch_size"] = 32
    model = getattr(stable, name)("MlpPolicy", venv, device="cpu", seed=0, **settings).learn(256)
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", env=make_vec("CartPole-v1", 4, device=device), device="cpu")
    observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    expected, _ = model.predict(observations, deterministic=True)
    assert_same_bits(loaded.predict(observations, deterministic=True)[0], expected)
    assert_same_bits(parameters_of(loaded), parameters_of(model))
    loaded.learn(128, reset_num_timesteps=False)
    assert loaded.num_timesteps == 384


@pytest.mark.parametrize("algorithm", [stable.PPO, sb3.PPO, stable.DQN], ids=["stock", "ours", "DQN"])
def test_learning_continues_where_it_stopped(algorithm: Any, device: str) -> None:
    """Without a reset, in the middle of episodes."""
    venv = Recorder(make_vec("CartPole-v1", 4, device=device, max_episode_steps=100))
    settings = {"learning_starts": 32} if algorithm is stable.DQN else {"n_steps": 8, "batch_size": 32}
    model = algorithm("MlpPolicy", venv, device="cpu", seed=0, **settings)
    model.learn(32)
    lengths: list[int] = []
    for i in range(1, 6):
        model.learn(32, reset_num_timesteps=False)
        assert model.num_timesteps == 32 * (i + 1)
        assert venv.resets == 1
    lengths += [info["episode"]["l"] for infos in venv.infos for info in infos if info]
    assert max(lengths) > 8  # longer than one call of learn
    model.learn(32)
    assert venv.resets == 2
