"""The skrl wrapper for a single agent: results, stored transitions, training."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import IDS, Make, assert_same_bits, random_actions

pytest.importorskip("torch")
pytest.importorskip("skrl", minversion="2.1")

import skrl_ppo
import torch
from skrl import config
from skrl.agents.torch import ddqn, ppo
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl_tools import QUIET, interact

import gpu_envs
from gpu_envs.adapters import skrl
from gpu_envs.adapters.skrl.wrapper import ObservationRows, from_zero

pytestmark = pytest.mark.usefixtures("one_thread")

LIMIT = 13
"""A time limit that few CartPole episodes end before."""

GAMMA = 0.9


def actions_for(env_id: str, wrapper: Any, steps: int, seed: int = 0) -> list[Any]:
    """Sample actions in the shape of skrl's models, ``[num_envs, size]``."""
    block = torch.from_numpy(random_actions(env_id, steps, wrapper.num_envs, seed=seed)).to(wrapper.device)
    return list(block.reshape(steps, wrapper.num_envs, -1))


def plain_of(env_id: str, wrapper: Any, **kwargs: Any) -> Any:
    return gpu_envs.make(
        env_id, wrapper.num_envs, device=wrapper.device.type, output="torch", autoreset_mode="SameStep", **kwargs
    )


# --- results ---


@pytest.mark.parametrize("env_id", IDS)
def test_contract(env_id: str, device: str) -> None:
    from skrl.envs.wrappers.torch import Wrapper

    wrapper = skrl.Wrapper(env_id, 3, device=device)
    assert isinstance(wrapper, Wrapper)
    assert (wrapper.num_envs, wrapper.num_agents, wrapper.device.type) == (3, 1, device)
    plain = plain_of(env_id, wrapper)
    assert wrapper.observation_space == plain.single_observation_space
    assert wrapper.action_space == plain.single_action_space
    assert wrapper.state_space is None
    assert wrapper.state() is None
    assert wrapper.render() is None
    observations, _ = wrapper.reset()
    features = int(np.prod(wrapper.observation_space.shape))
    for actions in actions_for(env_id, wrapper, 2):
        assert (tuple(observations.shape), observations.dtype) == ((3, features), torch.float32)
        assert observations.device == wrapper.device
        observations, rewards, terminated, truncated, infos = wrapper.step(actions)
        kinds = {"rewards": rewards.dtype, "terminated": terminated.dtype, "truncated": truncated.dtype}
        assert kinds == {"rewards": torch.float32, "terminated": torch.bool, "truncated": torch.bool}
        assert {tuple(part.shape) for part in (rewards, terminated, truncated)} == {(3, 1)}
        assert sorted(infos) == ["_final_obs", "final_obs"]
    assert wrapper.elapsed.tolist() == [2, 2, 2]  # an attribute of the environment
    plain.close()


def test_actions_start_at_zero(device: str, make: Make) -> None:
    """As skrl's policies require; its random exploration samples from the wrapper's space."""
    env = make("CartPole-v1", 6, device=device, output="torch", autoreset_mode="SameStep")
    env.single_action_space = gymnasium.spaces.Discrete(2, start=-1)
    wrapper, plain = skrl.Wrapper(env, seed=0), skrl.Wrapper("CartPole-v1", 6, device=device, seed=0)
    assert wrapper.action_space == gymnasium.spaces.Discrete(2)
    wrapper.reset()
    plain.reset()
    right = torch.ones(6, 1, dtype=torch.int64, device=device)
    left = torch.zeros_like(right)
    # action 1 of the wrapper is 0 in the environment; -1 is clamped or refused
    assert_same_bits(wrapper.step(right)[0], plain.step(left)[0])
    space, first = from_zero(gymnasium.spaces.MultiDiscrete([3, 2], start=[0, 4]), wrapper.device)
    assert space == gymnasium.spaces.MultiDiscrete([3, 2])
    assert first is not None
    assert first.tolist() == [0, 4]
    for space in (gymnasium.spaces.Box(5, 6, (1,)), gymnasium.spaces.MultiDiscrete([3, 2])):
        assert from_zero(space, wrapper.device) == (space, None)


# --- seeds ---


def test_seeds(device: str) -> None:
    """Without a seed, skrl's seed is used."""
    before = config.torch.key
    try:
        config.torch.key = 9  # skrl.utils.set_seed sets it
        one, other = (skrl.Wrapper("CartPole-v1", 3, device=device).reset()[0].clone() for _ in range(2))
        assert_same_bits(one, other)
        config.torch.key = 10
        neighbour = skrl.Wrapper("CartPole-v1", 3, device=device).reset()[0]
        assert (neighbour[:-1] != one[1:]).any()  # consecutive seeds share no replica
        config.torch.key = 0  # not set
        one, other = (skrl.Wrapper("CartPole-v1", 3, device=device).reset()[0].clone() for _ in range(2))
        assert (one != other).any()
    finally:
        config.torch.key = before


# --- transitions of skrl's agents ---


def spaces_of(wrapper: Any) -> dict[str, Any]:
    return {
        "observation_space": wrapper.observation_space,
        "state_space": wrapper.state_space,
        "action_space": wrapper.action_space,
        "device": wrapper.device,
    }


def agent_of(algorithm: Any, wrapper: Any, steps: int, num_envs: int | None = None, **cfg: Any) -> Any:
    """Create a skrl agent with the example's networks and a memory of ``steps``."""
    spaces = spaces_of(wrapper)
    return algorithm(
        models={"policy": skrl_ppo.Policy(**spaces), "value": skrl_ppo.Value(**spaces)},
        memory=RandomMemory(memory_size=steps, num_envs=num_envs or wrapper.num_envs, device=wrapper.device),
        cfg={"rollouts": steps, "experiment": dict(QUIET), **cfg},
        **spaces,
    )


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "skrl's"])
def test_ppo_bootstraps_truncated_episodes(device: str, ours: bool) -> None:
    """The adapter's PPO uses the final observation; skrl's uses the first observation of the next episode."""
    torch.manual_seed(0)
    steps = 3 * LIMIT
    wrapper = skrl.Wrapper("CartPole-v1", 32, device=device, max_episode_steps=LIMIT, seed=6)
    settings: dict[str, Any] = {"time_limit_bootstrap": True, "discount_factor": GAMMA}
    agent = agent_of(skrl.PPO if ours else ppo.PPO, wrapper, steps, **settings)
    interact(agent, wrapper, steps)
    stored = {name: agent.memory.get_tensor_by_name(name) for name in agent.memory.get_tensor_names()}
    plain = plain_of("CartPole-v1", wrapper, max_episode_steps=LIMIT)
    seen = plain.reset(seed=6)[0].clone()
    cut_short = 0
    for t in range(steps):
        assert_same_bits(stored["observations"][t], seen, f"observations of step {t}")
        *step, infos = plain.step(stored["actions"][t].long().squeeze(1))
        seen, rewards, terminations, truncations = (part.clone() for part in step)
        truncated = truncations & ~terminations
        assert_same_bits(stored["terminated"][t].squeeze(1), terminations)
        assert_same_bits(stored["truncated"][t].squeeze(1), truncated)
        with torch.no_grad():
            added = agent.value.net(infos["final_obs"] if ours else seen).squeeze(1)
        expected = torch.where(truncated, rewards + GAMMA * added, rewards)
        torch.testing.assert_close(stored["rewards"][t].squeeze(1), expected, rtol=1e-6, atol=1e-6)
        cut_short += int(truncated.sum())
    assert cut_short >= 32
    plain.close()


def test_off_policy_agents_store_final_observations(device: str) -> None:
    class Agent(skrl.FinalObservations, ddqn.DDQN):  # type: ignore[misc]  # skrl's types are not checked
        """The mixin works with any skrl agent."""

    class Q(DeterministicMixin, Model):  # type: ignore[misc]  # as above
        def __init__(self, **spaces: Any) -> None:
            Model.__init__(self, **spaces)
            DeterministicMixin.__init__(self)
            self.net = torch.nn.Linear(self.num_observations, self.num_actions)

        def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
            return self.net(inputs["observations"]), {}

    torch.manual_seed(0)
    wrapper = skrl.Wrapper("CartPole-v1", 16, device=device, max_episode_steps=LIMIT, seed=7)
    spaces = spaces_of(wrapper)
    memory = RandomMemory(memory_size=3 * LIMIT, num_envs=16, device=wrapper.device)
    models = {name: Q(**spaces) for name in ("q_network", "target_q_network")}
    interact(Agent(models=models, memory=memory, cfg={"experiment": dict(QUIET)}, **spaces), wrapper, 3 * LIMIT)
    stored = {name: memory.get_tensor_by_name(name) for name in memory.get_tensor_names()}
    plain = plain_of("CartPole-v1", wrapper, max_episode_steps=LIMIT)
    plain.reset(seed=7)
    ended = 0
    for t in range(3 * LIMIT):
        seen, _, _, _, infos = plain.step(stored["actions"][t].squeeze(1))
        over = infos["_final_obs"]
        assert_same_bits(stored["next_observations"][t], torch.where(over.unsqueeze(1), infos["final_obs"], seen))
        ended += int(over.sum())
    assert ended >= 32
    plain.close()


def test_agents_with_scopes_raise() -> None:
    wrapper = skrl.Wrapper("CartPole-v1", 4, device="cpu")
    agents = [agent_of(skrl.PPO, wrapper, 2, 2) for _ in range(2)]
    cfg = {"timesteps": 2, "headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
    trainer = SequentialTrainer(env=wrapper, agents=agents, scopes=[2, 2], cfg=cfg)
    with pytest.raises(ValueError, match=r"shape \(2, 4\), but final_obs \(4, 4\): agents with scopes"):
        trainer.train()


def test_trainers_accept_the_wrapper(device: str) -> None:
    """Trainers call ``render`` every step by default, with one agent or several."""
    wrapper = skrl.Wrapper("CartPole-v1", 8, device=device)
    cfg = {"timesteps": 8, "disable_progressbar": True, "close_environment_at_exit": False}
    alone = agent_of(skrl.PPO, wrapper, 4)
    before = [weights.clone() for weights in alone.policy.parameters()]
    trainer = SequentialTrainer(env=wrapper, agents=alone, cfg=dict(cfg))
    trainer.train()
    trainer.eval()
    assert any((old != new).any() for old, new in zip(before, alone.policy.parameters(), strict=True))
    sharing = [agent_of(ppo.PPO, wrapper, 4, 4) for _ in range(2)]
    SequentialTrainer(env=wrapper, agents=sharing, scopes=[4, 4], cfg=dict(cfg)).train()


# --- learning ---


@pytest.mark.slow
def test_ppo_learns_cartpole() -> None:
    """A fifth of the example: return 22 with random actions; 336, 368 and 466 for three seeds."""
    args = skrl_ppo.Args(device="cpu", updates=12)
    before = config.torch.key
    try:
        agent = skrl_ppo.train(args)
    finally:
        config.torch.key = before
    assert skrl_ppo.evaluate(agent, args).mean() >= 150


def test_scalar_observations_are_rows_of_length_one() -> None:
    number = gymnasium.spaces.Box(0, 9, (), np.uint8)
    for space, features in ((number, 1), (gymnasium.spaces.Dict({"a": number, "b": number}), 2)):
        observations = ObservationRows(space, 3, torch.device("cpu"))
        memory = observations.allocate()
        for part in memory.values() if isinstance(memory, dict) else (memory,):
            part.fill_(4)
        assert observations.rows(memory).tolist() == [[4.0] * features] * 3
