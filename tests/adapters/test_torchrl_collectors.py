"""TorchRL's collectors and PPO on the adapter, and the constant environment of the benchmark."""

from typing import Any

import pytest
from harness import assert_same_bits

pytest.importorskip("torchrl")

import torch
from torchrl.envs import Compose, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs
from torchrl_tools import COLLECTORS, make_env

from benchmarks.peers.torchrl_constant import ConstantEnv

pytestmark = pytest.mark.usefixtures("one_thread")

# --- collectors and training ---


@COLLECTORS
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "TagContinuous-v0"])
def test_collectors_collect(env_id: str, device: str) -> None:
    from torchrl.collectors import Collector

    base: Any = make_env(env_id, 4, device, seed=1, max_episode_steps=7)
    keys = base.reward_keys
    env = TransformedEnv(base, Compose(StepCounter(), RewardSum(in_keys=keys, reset_keys=["_reset"] * len(keys))))
    torch.manual_seed(0)
    collector = Collector(env, frames_per_batch=40, total_frames=120, auto_register_policy_transforms=False)
    batches = [batch.clone() for batch in collector]
    collector.shutdown()
    assert [batch.shape for batch in batches] == [(4, 10)] * 3
    data: Any = torch.cat(batches, 1)
    running = ~data["next", "done"][:, :-1]
    assert bool(running.any())
    assert not bool(running.all())
    assert int(data["next", "step_count"].max()) == 7
    for key in base.observation_keys:
        after, before = data[("next", key) if isinstance(key, str) else ("next", *key)][:, :-1], data[key][:, 1:]
        goes_on = running.reshape(4, -1, *(1,) * (after.ndim - 2)).expand_as(after)
        assert_same_bits(after[goes_on], before[goes_on], str(key))
    for key in keys:
        rewards, sums = (
            data[("next", *(key[:-1] if isinstance(key, tuple) else ()), name)] for name in ("reward", "episode_reward")
        )
        begins = data["step_count"] == 0
        fresh = begins.reshape(4, -1, *(1,) * (rewards.ndim - 2)).expand_as(rewards)
        assert bool(fresh.any())
        assert_same_bits(sums[fresh], rewards[fresh])


@pytest.mark.slow
@COLLECTORS
def test_ppo_learns_cart_pole() -> None:
    """A fifth of the example: return 22 with random actions; 276, 339 and 343 for three seeds."""
    import torchrl_ppo

    result = torchrl_ppo.train(torchrl_ppo.Args(updates=20))
    assert result.steps == 40_960
    assert float(result.returns.mean()) >= 130


@pytest.mark.parametrize("episode_length", [None, 1, 5])
def test_the_constant_environment_is_valid(episode_length: int | None, device: str) -> None:
    env = ConstantEnv(20, device, episode_length)
    check_env_specs(env, break_when_any_done="both")
    real = make_env("CartPole-v1", 20, device)
    assert {key: (spec.shape, spec.dtype) for key, spec in env.specs.items(True, True)} == {
        key: (spec.shape, spec.dtype) for key, spec in real.specs.items(True, True)
    }
    rolled = env.rollout(3, break_when_any_done=False)
    assert int(rolled["next", "done"].sum()) == (0 if episode_length is None else 3 * 20 // episode_length)
