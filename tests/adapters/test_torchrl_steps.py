"""Steps and resets of the TorchRL adapter: trajectories, memory, masks, ends of episodes and seeds."""

import pytest
from harness import IDS, TEAM_IDS, assert_same_bits

pytest.importorskip("torchrl")

import torch
from tensordict import TensorDict
from torchrl.envs import EnvBase, RewardSum, TransformedEnv
from torchrl_tools import clone, leaves, make_env, make_plain_env, random_actions, step_through

ALL_IDS = [*IDS, *TEAM_IDS]

pytestmark = pytest.mark.usefixtures("one_thread")

# --- teams ---


def test_inactive_agents_are_masked(device: str) -> None:
    env = make_env("TagContinuous-v0", 6, device, seed=0, max_episode_steps=80)
    out_before_the_end = 0
    for before in step_through(env, random_actions(env, 200), env.reset()):
        following = before["next"]
        for role in env.group_map:
            assert_same_bits(following[role, "mask"], ~following[role, "done"].squeeze(-1))
            gone = ~before[role, "mask"]
            assert_same_bits(gone, before[role, "done"].squeeze(-1))
            assert not bool(following[role, "mask"][gone].any())
            out_before_the_end += int(gone.sum())
        everybody = torch.cat([following[role, "done"] for role in env.group_map], 1).all(1)
        assert_same_bits(following["done"], everybody)
        out = torch.cat([following[role, "terminated"] for role in env.group_map], 1).all(1)
        assert_same_bits(following["terminated"], out)
        assert_same_bits(following["done"], following["terminated"] | following["truncated"])
    assert out_before_the_end > 100


def test_agents_of_a_replica_are_reset_together() -> None:
    env = make_env("TagGridWorld-v0", 2, "cpu")
    now = env.reset()
    now["tagger", "_reset"] = torch.ones(2, 4, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"'tagger' has a '_reset'.*at the root"):
        env.reset(now)


# --- resets ---


@pytest.mark.parametrize("env_id", ALL_IDS)
def test_a_mask_resets_only_its_replicas(env_id: str, device: str) -> None:
    env = make_env(env_id, 5, device, seed=2)
    now = env.reset()
    for action in random_actions(env, 3):
        _, now = env.step_and_maybe_reset(now.update(action))
    before, state = now.clone(), clone(dict(env.env.state))
    mask = torch.tensor([True, False, False, True, False], device=device)
    now["_reset"] = mask.unsqueeze(-1)
    after = env.reset(now)
    assert "_reset" not in after
    for key in env.observation_keys:
        if key[-1] not in ("mask", "action_mask"):
            assert bool((after[key] == before[key])[~mask].all()), key
    assert_same_bits(env.env.elapsed == 0, mask)
    for name, values in env.env.state.items():
        assert_same_bits(values[~mask], state[name][~mask], name)


def test_rollouts_break_when_any_or_all_are_done(device: str) -> None:
    env = TransformedEnv(make_env("CartPole-v1", 8, device, seed=0), RewardSum())
    until_first = env.rollout(500, break_when_any_done=True)
    assert bool(until_first[:, -1]["next", "done"].any())
    assert not bool(until_first[:, :-1]["next", "done"].any())
    env.set_seed(0)
    torch.manual_seed(0)
    until_last = env.rollout(500, break_when_any_done=False, break_when_all_done=True)
    returns = until_last[:, -1]["next", "episode_reward"].squeeze(-1)
    lengths = 1 + (~until_last["next", "done"]).sum(1).squeeze(-1)
    assert bool(until_last[:, -1]["next", "done"].all())
    assert_same_bits(returns, lengths.float())
    assert len(set(lengths.tolist())) > 1
    env.base_env.env.check()


def test_a_step_mask_must_include_running_replicas() -> None:
    env = make_env("CartPole-v1", 2, "cpu", seed=0)
    now = env.rand_action(env.reset())
    now["_step"] = torch.tensor([True, False])
    with pytest.raises(ValueError, match="'_step' is False for a replica that is not done"):
        env.step(now)
    with pytest.raises(ValueError, match="'_step' needs 'done' in the same TensorDict"):
        env.step(now.exclude("done"))


def test_options_apply_to_one_reset(device: str) -> None:
    env = make_env("CartPole-v1", 4, device, seed=0)
    assert bool((env.reset(options={"low": 0.3, "high": 0.4})["observation"] >= 0.3).all())
    assert bool((env.reset()["observation"].abs() <= 0.05).all())
    with pytest.raises(ValueError, match="lwo"):
        env.reset(options={"lwo": 0.3})


@pytest.mark.parametrize("env_id", ALL_IDS)
def test_maybe_reset_matches_torchrl(env_id: str, device: str) -> None:
    """TorchRL's method, which waits for the device, is the reference."""
    env, other = (make_env(env_id, 9, device, seed=5, max_episode_steps=25) for _ in range(2))
    now, then = env.reset(), other.reset()
    for one, each in ((env, now), (other, then)):
        staggered = one.env.stagger(2)
        for role in one.group_map:
            each[role, "observation"] = clone(staggered[role])
        if not one.group_map:
            each["observation"] = clone(staggered)
        each["memory"] = torch.arange(9.0, device=device)
    partial = 0
    for action in random_actions(env, 30):
        now = env.step_mdp(env.step(now.update(action)))
        then = other.step_mdp(other.step(then.update(action)))
        done = now["done"].clone()
        assert env.maybe_reset(now) is now
        then = EnvBase.maybe_reset(other, then)
        if not bool(done.all()):  # if all are done, TorchRL keeps entries that the environment does not write
            assert_same_bits(leaves(now), leaves(then))
            assert bool((now["memory"][done[:, 0]] == 0).all())
        partial += int(0 < int(done.sum()) < 9)
        now["memory"] = torch.arange(9.0, device=device) + 1
        then["memory"] = now["memory"].clone()
    assert partial > 0


def test_maybe_reset_does_nothing_without_done() -> None:
    env = make_env("CartPole-v1", 2, "cpu", seed=0)
    now = env.reset()
    before = leaves(now.clone())
    assert env.maybe_reset(now) is now
    assert_same_bits(leaves(now), before)
    assert env.maybe_reset(now.select("observation")).keys() == {"observation"}


def test_non_tensor_entries_are_unchanged() -> None:
    env = make_env("CartPole-v1", 2, "cpu", seed=0, max_episode_steps=1)
    now = env.rand_action(env.reset())
    now["note"] = "kept"
    _, now = env.step_and_maybe_reset(now)
    assert now["note"] == "kept"


# --- seeds ---


def test_a_masked_reset_does_not_use_the_seed() -> None:
    env = make_env("CartPole-v1", 2, "cpu", seed=0)
    now = env.reset()
    env.set_seed(7)
    now["_reset"] = torch.tensor([[True], [False]])
    env.reset(now)
    first = env.reset()["observation"]
    assert_same_bits(first, make_plain_env("CartPole-v1", 2, "cpu", "Disabled").reset(seed=7)[0])
    assert not bool((env.reset()["observation"] == first).any())
    assert_same_bits(env.reset(seed=7)["observation"], first)


# --- CUDA ---


@pytest.mark.cuda
@pytest.mark.skipif("not torch.cuda.is_available()", reason="no CUDA device")
@pytest.mark.parametrize("env_id", ALL_IDS)
@pytest.mark.parametrize("categorical", [True, False])
def test_steps_do_not_synchronize(env_id: str, categorical: bool) -> None:
    env = make_env(env_id, 100, "cuda", seed=0, categorical_actions=categorical, max_episode_steps=3)
    actions = random_actions(env, 8)
    now = env.reset()
    for action in actions:  # compile everything first
        _, now = env.step_and_maybe_reset(now.update(action))
    ended = torch.zeros(1, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for action in actions:
            following = env._step(action)  # noqa: SLF001 - TorchRL calls it
            ended += following["done"].sum()
            again = env._reset(TensorDict({"_reset": following["done"]}, batch_size=[100], device=env.device))  # noqa: SLF001 - TorchRL calls it
        for action in actions:  # TorchRL does not synchronize without a TransformedEnv
            _, now = env.step_and_maybe_reset(now.update(action))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(ended) > 0
    assert not bool(again["done"].any())
    assert not bool(now["done"].any())
    env.env.check()
