"""The TorchRL adapter: TorchRL's checks, specs, actions, devices and closing."""

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import IDS, TEAM_IDS, assert_same_bits

pytest.importorskip("torchrl")

import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot, Unbounded
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs
from torchrl_tools import leaves, make_env, make_plain_env

import gpu_envs
from gpu_envs.adapters.torchrl import Env
from gpu_envs.adapters.torchrl.groups import Group
from gpu_envs.adapters.torchrl.specs import Choices, box_spec
from gpu_envs.engine.roles import SINGLE_ROLE, RoleInfo

ALL_IDS = [*IDS, *TEAM_IDS]

pytestmark = pytest.mark.usefixtures("one_thread")

# --- TorchRL's own checks ---


def test_torchrl_gym_env_wraps_a_single_environment(env_id: str) -> None:
    """TorchRL's ``GymEnv`` tries arguments, and leaves out arguments that raise a TypeError."""
    env = GymEnv(f"gpu_envs/{env_id}", frame_skip=2)
    check_env_specs(env)
    plain: Any = gymnasium.make(f"gpu_envs/{env_id}").unwrapped
    env.set_seed(0)
    rolled = env.rollout(3)
    plain.reset(seed=0)  # ``GymEnv`` also resets with the seed before the rollout resets
    assert_same_bits(rolled["observation"][0].numpy(), plain.reset()[0])
    for _ in range(2):
        action = rolled["action"][0]
        last = plain.step(int(action.argmax()) if rolled["action"].dtype == torch.int64 else action.numpy())[0]
    assert_same_bits(rolled["next", "observation"][0].numpy(), last)


@pytest.mark.parametrize("env_id", ALL_IDS)
@pytest.mark.parametrize("num_envs", [1, 7])
@pytest.mark.parametrize("categorical", [True, False])
def test_check_env_specs_passes(env_id: str, num_envs: int, categorical: bool, device: str) -> None:
    env = make_env(env_id, num_envs, device, categorical_actions=categorical, max_episode_steps=2)
    check_env_specs(env, break_when_any_done="both")
    check_env_specs(env, seed=3)
    check_env_specs(TransformedEnv(env, StepCounter(max_steps=2)), break_when_any_done="both")


def key_of(role: str | None, name: str) -> Any:
    return (role, name) if role else name


@pytest.mark.parametrize("env_id", ALL_IDS)
def test_specs_match_the_spaces(env_id: str, device: str) -> None:
    env = make_env(env_id, 3, device)
    raw: Any = env.env
    assert env.batch_size == (3,)
    assert str(env.device) == raw.device
    roles = raw.roles if isinstance(raw, gpu_envs.MultiAgentEnv) else [None]
    assert [(role, len(names)) for role, names in env.group_map.items()] == [(r, raw.counts[r]) for r in roles if r]
    assert [name for names in env.group_map.values() for name in names] == getattr(raw, "possible_agents", [])
    for role in roles:
        at = functools.partial(key_of, role)
        lead = (3, raw.counts[role]) if role else (3,)
        seen: Any = raw.single_observation_spaces[role] if role else raw.single_observation_space
        done: Any = raw.single_action_spaces[role] if role else raw.single_action_space
        observation = env.observation_spec[at("observation")]
        assert observation.shape == (*lead, *seen.shape)
        assert observation.dtype == torch.float32
        if isinstance(observation, Bounded):
            np.testing.assert_array_equal(observation.space.low[(0,) * len(lead)].cpu(), seen.low)
            np.testing.assert_array_equal(observation.space.high[(0,) * len(lead)].cpu(), seen.high)
        else:
            assert isinstance(observation, Unbounded)
            assert not seen.is_bounded("below")
            assert not seen.is_bounded("above")
        action = env.full_action_spec[at("action")]
        assert action.shape == (*lead, *(done.shape or ()))
        if isinstance(done, gymnasium.spaces.Discrete):
            assert isinstance(action, Categorical)
            assert action.space.n == done.n
        elif isinstance(done, gymnasium.spaces.MultiDiscrete):
            assert isinstance(action, MultiCategorical)
            assert action.nvec[(0,) * len(lead)].tolist() == done.nvec.tolist()
        else:
            assert isinstance(action, Bounded)
            np.testing.assert_array_equal(action.space.low[(0,) * len(lead)].cpu(), done.low)
        assert env.full_reward_spec[at("reward")].shape == (*lead, 1)
        for name in ("done", "terminated", "truncated"):
            assert env.full_done_spec[at(name)].shape == (*lead, 1)
            assert env.full_done_spec[name].shape == (3, 1)
        if role:
            assert env.observation_spec[at("mask")].shape == lead
            assert env.full_action_spec_unbatched[at("action")].shape == action.shape[1:]


def test_specs_ignore_the_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        check_env_specs(make_env("CartPole-v1", 2, "cpu"))
        check_env_specs(make_env("TagContinuous-v0", 2, "cpu"))
    finally:
        torch.set_default_dtype(torch.float32)
    env = make_env("Pendulum-v1", 2, "cpu", precision="float64")
    assert env.reward_spec.dtype == torch.float64
    check_env_specs(env)


# --- actions ---


@pytest.mark.parametrize("env_id", ALL_IDS)
def test_one_hot_actions_are_equivalent(env_id: str, device: str) -> None:
    env, numbers = (make_env(env_id, 3, device, seed=1, categorical_actions=one) for one in (False, True))
    spec, other = env.full_action_spec, numbers.full_action_spec
    now, then = env.reset(), numbers.reset()
    one_hot = [key for key in spec.keys(True, True) if isinstance(spec[key], OneHot | MultiOneHot)]
    torch.manual_seed(0)
    for _ in range(5):
        action = spec.rand()  # samples valid actions
        numbered = {
            key: spec[key].to_categorical(value) if key in one_hot else value for key, value in leaves(action).items()
        }
        before, now = env.step_and_maybe_reset(now.update(action))
        for key, value in numbered.items():
            assert bool(other[key].is_in(value))
            then[key] = value
        expected, then = numbers.step_and_maybe_reset(then)
        assert_same_bits(leaves(before["next"]), leaves(expected["next"]))
    assert bool(one_hot) == any(isinstance(s, Categorical | MultiCategorical) for s in other.values(True, True))


def test_choices_are_stored_once() -> None:
    """A MultiCategorical would store 2 * 300 * 110 specs, and sample them one by one."""
    env = Env("TagContinuous-v0", 300, device="cpu")
    for role, names in env.group_map.items():
        spec = env.full_action_spec[role, "action"]
        assert isinstance(spec, Choices)
        assert spec.shape == (300, len(names), 2)
        assert len(spec.space.boxes) == 2


def test_choices_behave_like_multi_categorical() -> None:
    nvec = [3, 5]
    mine, theirs = Choices(nvec).expand(6, 4, 2), MultiCategorical(nvec).expand(6, 4, 2)
    torch.manual_seed(0)
    drawn = mine.rand((100,))
    assert drawn.shape == (100, 6, 4, 2)
    assert drawn.dtype == torch.int64
    for i, n in enumerate(nvec):
        assert torch.bincount(drawn[..., i].flatten()).tolist() == pytest.approx([2400 / n] * n, rel=0.2)
    for act in (
        lambda s: s.shape,
        lambda s: s.clone().shape,
        lambda s: s == s.clone(),
        lambda s: s[1].shape,
        lambda s: s[0, 1].shape,
        lambda s: s.unbind(1)[2].shape,
        lambda s: s.unsqueeze(0).shape,
        lambda s: torch.stack([s, s]).shape,
        lambda s: s.is_in(drawn[0]),
        lambda s: s.is_in(drawn[0] + 1),
        lambda s: s.project(drawn[0] * 2).tolist(),
        lambda s: s.to_one_hot(drawn[0]).tolist(),
        lambda s: s.nvec.tolist(),
        lambda s: s.zero().tolist(),
        lambda s: int(s.cardinality()),
    ):
        assert act(mine) == act(theirs)


def group(action: gymnasium.Space[Any], *, categorical: bool = True) -> Group:
    seen = gymnasium.spaces.Box(-1.0, 1.0, (4,))
    return Group(
        RoleInfo(SINGLE_ROLE, (SINGLE_ROLE,), seen, action),
        (2,),
        "float32",
        torch.device("cpu"),
        categorical=categorical,
    )


def test_actions_start_at_zero() -> None:
    """Whatever the ``start`` of the space."""
    few = group(gymnasium.spaces.Discrete(3, start=-1))
    assert few.specs().action["action"].space.n == 3
    assert few.actions(torch.tensor([0, 2])).tolist() == [-1, 1]
    one_hot = group(gymnasium.spaces.Discrete(3, start=-1), categorical=False)
    assert one_hot.actions(torch.tensor([[1, 0, 0], [0, 0, 1]])).tolist() == [-1, 1]
    several = group(gymnasium.spaces.MultiDiscrete([3, 2], start=[0, 4]))
    assert several.actions(torch.tensor([[2, 0], [1, 1]])).tolist() == [[2, 4], [1, 5]]
    actions = torch.tensor([[2, 0], [1, 1]])
    assert group(gymnasium.spaces.MultiDiscrete([3, 2])).actions(actions) is actions


def test_unsupported_spaces_raise() -> None:
    with pytest.raises(TypeError, match=r"the observation space is Text.*Box"):
        box_spec(gymnasium.spaces.Text(3), "observation", torch.Size([2]), torch.device("cpu"))


# --- devices, closing, resets ---


def test_to_another_device_raises() -> None:
    env = make_env("CartPole-v1", 2, "cpu")
    assert env.to("cpu") is env
    assert env.to(torch.device("cpu")) is env
    for other in ("meta", "cuda", "cuda:1"):
        with pytest.raises(ValueError, match=f"on cpu cannot be moved: create an environment with device='{other}'"):
            env.to(other)


def test_closing() -> None:
    env = make_env("CartPole-v1", 2, "cpu", seed=0)
    assert not env.is_closed
    env.close()
    assert env.is_closed
    with pytest.raises(RuntimeError, match="already closed"):
        env.close()
    env.close(raise_if_closed=False)
    raw = make_plain_env("CartPole-v1", 2, "cpu", "Disabled")
    env = Env(raw)
    del env
    raw.reset(seed=0)  # is still open


def test_an_empty_reset_mask_changes_nothing(device: str) -> None:
    """For a single agent and for a team."""
    for env_id in ("CartPole-v1", "TagGridWorld-v0"):
        env = make_env(env_id, 3, device)
        first = env.rollout(4, break_when_any_done=False)[:, -1]["next"]
        nothing = TensorDict({"_reset": torch.zeros(3, 1, dtype=torch.bool)}, [3]).to(env.device)
        again = env.reset(first.clone().update(nothing))
        for key in first.keys(True, True):
            if key in again.keys(True, True) and "reward" not in key:
                assert_same_bits(again[key], first[key], str(key))


def test_stepping_an_ended_episode_raises_after_a_step_mask(device: str) -> None:
    env = make_env("CartPole-v1", 2, device, max_episode_steps=3)
    done = env.rollout(3)[:, -1]["next"].exclude("reward")
    env.step(env.rand_action(done.clone()).set("_step", torch.zeros(2, dtype=torch.bool, device=env.device)))

    def step_once_more() -> None:
        env.step(env.rand_action(done.clone()))
        env.env.check()  # on the CPU the step itself raises

    with pytest.raises(gpu_envs.ActionError, match="over"):
        step_once_more()
