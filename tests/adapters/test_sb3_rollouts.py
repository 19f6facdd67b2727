"""Rollout and replay buffers of Stable-Baselines3's algorithms and of this package's PPO on the adapter."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits

torch = pytest.importorskip("torch")
stable = pytest.importorskip("stable_baselines3", minversion="2.9")

from sb3_tools import Recorder, RolloutKeeper, make_clock, make_vec, parameters_of  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402

from gpu_envs.adapters import sb3  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

EPS = 2.0**-24
"""A rounding to float32."""

PPOS = [pytest.param(stable.PPO, id="stock"), pytest.param(sb3.PPO, id="ours")]


# --- on-policy ---


@pytest.mark.parametrize("algorithm", PPOS)
def test_policies_act_in_evaluation_mode(algorithm: Any, device: str) -> None:
    """Also in the second rollout, after training."""
    keeper = RolloutKeeper()
    model = algorithm(
        "MlpPolicy", make_vec("CartPole-v1", 4, device=device), n_steps=8, batch_size=32, device="cpu", seed=0
    )
    model.learn(64, callback=keeper)
    assert keeper.modes == [False] * 16
    assert model.policy.training


# --- advantages against values computed by hand ---


@pytest.mark.parametrize("algorithm", PPOS)
def test_advantages_match_values_computed_by_hand(algorithm: Any, device: str, tmp_path: Path) -> None:
    """Clocks that begin at 0 or 10 and pay what they show; a limit of three steps; a critic of 4 times the count.

    Discount 1/2 and lambda 1/2, so that an advantage is its error plus a quarter of the next advantage, unless the
    episode ends: then it is the error alone.

    The first clock shows 0, 1, 2, is cut at 3, and shows 0 again. It is paid 1, 2, 3 and 1. The cut adds half of what
    the critic says of 3: 3 + 12/2 = 9.
        errors      1 + 4/2 - 0 = 3      2 + 8/2 - 4 = 2           9 - 8 = 1       1 + 4/2 - 0 = 3
        advantages  3 + 2.25/4 = 3.5625  2 + 1/4 = 2.25            1               3
    The second breaks at 2: it shows 0, 1, 0, 1 and is paid 1, 2, 1, 2; nothing comes after what is broken.
        errors      1 + 4/2 - 0 = 3      2 - 4 = -2                3               -2
        advantages  3 - 2/4 = 2.5        -2                        2.5             -2
    The third breaks at 3, when it would be cut too: it shows what the first does, and nothing is added.
        errors      3                    2                         3 - 8 = -5      3
        advantages  3 + 0.75/4 = 3.1875  2 - 5/4 = 0.75            -5              3
    The fourth shows 10, 11, 12, 10 and is paid 11, 12, 13 + 52/2 = 39, 11.
        errors      11 + 44/2 - 40 = -7  12 + 48/2 - 44 = -8       39 - 48 = -9    -7
        advantages  -7 - 10.25/4         -8 - 9/4 = -10.25         -9              -7
    """
    broken = np.array([1000.0, 2.0, 3.0, 1000.0])
    env = make_clock(tmp_path, 4, device=device, broken=broken, first=np.array([0.0, 0.0, 0.0, 10.0]))
    settings = {"n_steps": 4, "batch_size": 16, "n_epochs": 1, "gamma": 0.5, "gae_lambda": 0.5, "device": "cpu"}
    model = algorithm("MlpPolicy", sb3.VecEnv(env), policy_kwargs={"net_arch": []}, **settings)
    with torch.no_grad():
        model.policy.value_net.weight.fill_(4.0)
        model.policy.value_net.bias.zero_()
    keeper = RolloutKeeper()
    model.learn(16, callback=keeper)
    (stored,) = keeper.rollouts
    observations = [[0, 0, 0, 10], [1, 1, 1, 11], [2, 0, 2, 12], [0, 1, 0, 10]]
    assert stored["observations"][..., 0].tolist() == observations
    assert stored["values"].tolist() == [[4 * count for count in row] for row in observations]
    assert stored["episode_starts"].tolist() == [[1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 1]]
    assert stored["rewards"].tolist() == [[1, 1, 1, 11], [2, 2, 2, 12], [9, 1, 3, 39], [1, 2, 1, 11]]
    advantages = [[3.5625, 2.5, 3.1875, -9.5625], [2.25, -2, 0.75, -10.25], [1, 2.5, -5, -9], [3, -2, 3, -7]]
    assert stored["advantages"].tolist() == advantages
    assert (stored["returns"] == stored["advantages"] + stored["values"]).all()


# --- the two PPOs ---

PAIRS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("CartPole-v1", {"max_episode_steps": 20}, {}),
    ("Pendulum-v1", {"max_episode_steps": 10}, {}),
    ("Pendulum-v1", {"max_episode_steps": 10}, {"use_sde": True, "sde_sample_freq": 4}),
    ("Pendulum-v1", {"max_episode_steps": 10}, {"use_sde": True, "policy_kwargs": {"squash_output": True}}),
    ("TagContinuous-v0", {"role": "runner", "episode_length": 12, "num_taggers": 2, "num_runners": 3}, {}),
]


def both_rollouts(
    env_id: str, params: Mapping[str, Any], settings: Mapping[str, Any], device: str
) -> tuple[list[Any], list[RolloutKeeper]]:
    """Run a rollout of each PPO from the same seeds; return the models and the records of their callbacks."""
    models, keepers = [], []
    for algorithm in (stable.PPO, sb3.PPO):
        venv = make_vec(env_id, 16, device=device, **params)
        model = algorithm("MlpPolicy", venv, n_steps=40, batch_size=160, n_epochs=1, device="cpu", seed=1, **settings)
        keepers.append(RolloutKeeper())
        models.append(model.learn(40 * venv.num_envs, callback=keepers[-1]))
    return models, keepers


@pytest.mark.parametrize(("env_id", "params", "settings"), PAIRS)
def test_both_store_the_same(env_id: str, params: Mapping[str, Any], settings: Mapping[str, Any], device: str) -> None:
    """Both PPOs store the same bits, except values of final observations: one computes a batch, one single rows.

    A product of matrices is summed in another order than that of a row and a matrix, so they may differ by some
    roundings; in rewards, and through them in advantages and returns, by as much.
    """
    models, keepers = both_rollouts(env_id, params, settings, device)
    stock, ours = (keeper.rollouts[0] for keeper in keepers)
    assert keepers[0].names <= keepers[1].names  # the local variables that callbacks read
    for name in ("observations", "actions", "episode_starts", "values", "log_probs"):
        assert_same_bits(ours[name], stock[name], name)
    for name in ("rewards", "advantages", "returns"):
        scale = max(np.abs(stock["values"]).max(), np.abs(stock[name]).max())
        np.testing.assert_allclose(ours[name], stock[name], rtol=0, atol=8 * EPS * scale, err_msg=name)
    episodes = [[(e["r"], e["l"]) for e in model.ep_info_buffer] for model in models]
    assert episodes[0] == episodes[1]
    assert len(episodes[0]) > 20
    assert models[0].num_timesteps == models[1].num_timesteps


def test_both_learn_the_same_without_truncation(device: str) -> None:
    """Bit for bit, after many updates."""
    models = []
    for algorithm in (stable.PPO, sb3.PPO):
        venv = make_vec("CartPole-v1", 8, device=device, max_episode_steps=-1)
        model = algorithm("MlpPolicy", venv, n_steps=32, batch_size=64, n_epochs=3, device="cpu", seed=2)
        models.append(model.learn(32 * 8 * 5))
    assert_same_bits(parameters_of(models[1]), parameters_of(models[0]))
    assert_same_bits(models[1]._last_obs, models[0]._last_obs)  # noqa: SLF001 - SB3's last observations


@pytest.mark.parametrize("algorithm", PPOS)
def test_a_callback_can_stop_the_rollout(algorithm: Any, device: str) -> None:
    class Stop(BaseCallback):  # type: ignore[misc]  # Stable-Baselines3's types are not checked
        def _on_step(self) -> bool:
            return bool(self.n_calls < 5)

    venv = make_vec("CartPole-v1", 4, device=device)
    model = algorithm("MlpPolicy", venv, n_steps=8, batch_size=32, device="cpu", seed=0)
    before = parameters_of(model)
    model.learn(320, callback=Stop())
    assert model.num_timesteps == 20
    assert_same_bits(parameters_of(model), before)


# --- off-policy ---


@pytest.mark.parametrize(("name", "env_id"), [("DQN", "CartPole-v1"), ("SAC", "Pendulum-v1"), ("TD3", "Pendulum-v1")])
def test_the_replay_buffer_holds_final_observations(name: str, env_id: str, device: str) -> None:
    """At the end of an episode the next observation is the final one, and truncation is recorded as a timeout."""
    count, steps, limit = 5, 60, 12
    venv = Recorder(make_vec(env_id, count, device=device, max_episode_steps=limit))
    model = getattr(stable, name)(
        "MlpPolicy", venv, buffer_size=1000, learning_starts=100, batch_size=16, device="cpu", seed=0
    )
    model.learn(steps * count)
    buffer = model.replay_buffer
    assert buffer.pos == steps
    assert_same_bits(buffer.observations[:steps], np.stack(venv.observations[:-1]))
    following = np.stack(venv.observations[1:])
    timeouts = np.zeros((steps, count), np.float32)
    ended = 0
    for t, infos in enumerate(venv.infos):
        for i, info in enumerate(infos):
            if venv.dones[t][i]:
                following[t, i] = info["terminal_observation"]
                timeouts[t, i] = info["TimeLimit.truncated"]
                ended += 1
    assert_same_bits(buffer.next_observations[:steps], following)
    assert_same_bits(buffer.rewards[:steps], np.stack(venv.rewards))
    assert_same_bits(buffer.dones[:steps], np.stack(venv.dones).astype(np.float32))
    assert_same_bits(buffer.timeouts[:steps], timeouts)
    assert ended >= 20
    assert timeouts.any()
    actions = np.stack(venv.actions)
    if env_id == "CartPole-v1":
        assert not timeouts.all(where=buffer.dones[:steps] == 1)
        assert_same_bits(buffer.actions[:steps, :, 0], actions)
    else:  # stored scaled to [-1, 1]; halves are exact
        assert_same_bits(2 * buffer.actions[:steps], actions)
