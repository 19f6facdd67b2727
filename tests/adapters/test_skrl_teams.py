"""The skrl wrapper for teams: results by agent, inactive agents, IPPO and MAPPO."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import pytest
from harness import assert_same_bits
from players import TEAM_CASES

pytest.importorskip("torch")
pytest.importorskip("skrl", minversion="2.1")

import skrl_ppo
import torch
from skrl.envs.wrappers.torch import MultiAgentEnvWrapper
from skrl.memories.torch import RandomMemory
from skrl.models.torch import GaussianMixin, Model, MultiCategoricalMixin
from skrl.trainers.torch import SequentialTrainer
from skrl_tools import QUIET, interact

import gpu_envs
from gpu_envs import ActionError
from gpu_envs.adapters import skrl

pytestmark = pytest.mark.usefixtures("one_thread")

Tensors = dict[str, torch.Tensor]

GAMES = {name: {"id": env_id, **params} for name, (env_id, params) in TEAM_CASES.items()}
CONTINUOUS = GAMES["continuous"]

SETTINGS_OF_PARTS = (
    "learning_rate_scheduler_kwargs",
    "observation_preprocessor_kwargs",
    "state_preprocessor_kwargs",
    "value_preprocessor_kwargs",
)


@pytest.fixture(params=GAMES)
def game(request: pytest.FixtureRequest) -> dict[str, Any]:
    return GAMES[request.param]


def wrapped(game: Mapping[str, Any], num_envs: int, **kwargs: Any) -> Any:
    return skrl.MultiAgentWrapper(game["id"], num_envs, **{name: game[name] for name in game if name != "id"}, **kwargs)


def plain_of(game: Mapping[str, Any], wrapper: Any, **kwargs: Any) -> Any:
    place = {"device": wrapper.device.type, "output": "torch", "autoreset_mode": "SameStep"}
    options = {**game, **place, **kwargs}
    return gpu_envs.make(options.pop("id"), wrapper.num_envs, **options)


def drawn(wrapper: Any, steps: int, seed: int = 0) -> list[Tensors]:
    """Sample actions in the shape of skrl's models, ``[num_envs, size]`` by agent."""
    generator = torch.Generator().manual_seed(seed)

    def one(space: Any) -> torch.Tensor:
        if isinstance(space, gymnasium.spaces.Box):
            return torch.rand(wrapper.num_envs, *space.shape, generator=generator) * 2 - 1
        sizes = [int(space.n)] if isinstance(space, gymnasium.spaces.Discrete) else space.nvec.tolist()
        return torch.cat([torch.randint(n, (wrapper.num_envs, 1), generator=generator) for n in sizes], 1)

    spaces = wrapper.action_spaces
    return [{name: one(spaces[name]).to(wrapper.device) for name in wrapper.possible_agents} for _ in range(steps)]


def by_role(env: Any, by_agent: Tensors) -> Tensors:
    """Stack arrays by agent to arrays by role, ``[num_envs, agents, ...]``."""
    return {
        role: torch.stack([array for name, array in by_agent.items() if name.rpartition("_")[0] == role], 1)
        for role in env.roles
    }


def by_agent(wrapper: Any, by_role: Tensors) -> Tensors:
    parts = (array[:, i].clone() for array in by_role.values() for i in range(array.shape[1]))
    return dict(zip(wrapper.possible_agents, parts, strict=True))


def as_actions(env: Any, by_agent: Tensors) -> Tensors:
    """Convert actions by agent to the format of ``MultiAgentEnv``."""
    shaped = by_role(env, by_agent)
    return {r: a.squeeze(2) if env.single_action_spaces[r].shape == () else a for r, a in shaped.items()}


# --- results ---


def test_contract(game: dict[str, Any], device: str) -> None:
    wrapper = wrapped(game, 3, device=device)
    assert isinstance(wrapper, MultiAgentEnvWrapper)
    plain = plain_of(game, wrapper)
    agents = list(plain.possible_agents)
    assert wrapper.possible_agents == wrapper.agents == agents
    assert wrapper.num_agents == wrapper.max_num_agents == len(agents)
    assert (wrapper.num_envs, wrapper.device.type) == (3, device)
    for name in agents:
        role = name.rpartition("_")[0]
        assert wrapper.observation_space(name) == plain.single_observation_spaces[role]
        assert wrapper.action_space(name) == plain.single_action_spaces[role]
        assert wrapper.state_space(name) is None
    assert wrapper.state_spaces == wrapper.state() == dict.fromkeys(agents)
    assert wrapper.render() is None
    observations, _ = wrapper.reset()
    for actions in drawn(wrapper, 2):
        for name in agents:
            shape = (3, *wrapper.observation_spaces[name].shape)
            assert (tuple(observations[name].shape), observations[name].dtype) == (shape, torch.float32)
        observations, rewards, terminated, truncated, infos = wrapper.step(actions)
        for part, kind in ((rewards, torch.float32), (terminated, torch.bool), (truncated, torch.bool)):
            assert {(tuple(array.shape), array.dtype) for array in part.values()} == {((3, 1), kind)}
            assert list(part) == agents
        assert sorted(infos) == ["_final_obs", "alive", "final_obs"]
    plain.close()


def test_takes_an_environment(device: str) -> None:
    """Also an environment that returns copies, with new infos every step."""
    env_id, params = TEAM_CASES["continuous"]
    options: dict[str, Any] = {"device": device, "output": "torch", "autoreset_mode": "SameStep"}
    env = gpu_envs.make(env_id, 60, copy=True, **options, **params)
    wrapper = skrl.MultiAgentWrapper(env, seed=1)
    other = wrapped(CONTINUOUS, 60, device=device, seed=1)
    assert_same_bits(wrapper.reset(), other.reset())
    out = 0
    for actions in drawn(wrapper, 15):
        *step, infos = wrapper.step(actions)
        *expected, described = other.step(actions)
        assert_same_bits(step, expected)
        over = infos["_final_obs"]
        assert_same_bits(over, described["_final_obs"])
        assert_same_bits(infos["alive"], described["alive"])
        alive = torch.stack(list(infos["alive"].values()), 1)
        assert_same_bits(alive, env.state["in_game"])
        out += int((~alive).sum())
        for name in wrapper.possible_agents:
            assert_same_bits(infos["final_obs"][name][over], described["final_obs"][name][over])
    assert out >= 100
    wrapper.close()
    assert env.closed


def test_shared_state(game: dict[str, Any], device: str) -> None:
    wrapper = wrapped(game, 4, device=device, shared_state=True)
    observations, _ = wrapper.reset()
    for actions in drawn(wrapper, 12):
        expected = torch.cat([observations[name] for name in wrapper.possible_agents], 1)
        for name in wrapper.possible_agents:
            assert_same_bits(wrapper.state()[name], expected)
            space = wrapper.state_space(name)
            assert space.shape == expected.shape[1:]
            assert all(space.contains(row) for row in expected.cpu().numpy())
        observations = wrapper.step(actions)[0]


def test_later_resets_only_affect_running_episodes(device: str) -> None:
    wrapper = wrapped(GAMES["grid"], 6, device=device, seed=0, stagger=True)
    wrapper.reset()
    assert 0 < int(wrapper.offset.count_nonzero()) <= 6
    assert wrapper.offset.max() < 9
    assert not wrapper.elapsed.any()
    wrapper.elapsed.copy_(torch.tensor([0, 0, 1, 2, 3, 4]))
    observations = by_agent(wrapper, wrapper.observe())
    after_reset, _ = wrapper.reset()
    assert wrapper.elapsed.tolist() == [0] * 6
    for name in wrapper.possible_agents:
        assert_same_bits(after_reset[name][:2], observations[name][:2])
    assert any((after_reset[name][2:] != observations[name][2:]).any() for name in wrapper.possible_agents)


# --- error messages ---


def test_invalid_actions_raise() -> None:
    wrapper = wrapped(GAMES["grid"], 2, device="cpu")
    wrapper.reset()
    actions = drawn(wrapper, 1)[0]
    with pytest.raises(ActionError, match=r"the action of 'runner_0' is missing; every agent needs one"):
        wrapper.step({name: array for name, array in actions.items() if name != "runner_0"})
    with pytest.raises(ValueError, match=r"there is no agent 'tager_0'\. Did you mean 'tagger_0'"):
        wrapper.step({**actions, "tager_0": actions["tagger_0"]})
    with pytest.raises(ValueError, match=r"role 'runner': actions have shape"):
        wrapper.step({**actions, "runner_0": torch.zeros(2, 2, dtype=torch.int64)})


# --- transitions of skrl's agents ---


class PairPolicy(MultiCategoricalMixin, Model):  # type: ignore[misc]  # skrl's types are not checked
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        MultiCategoricalMixin.__init__(self)
        self.net = skrl_ppo.network(self.num_observations, self.num_actions, 0.01)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        return self.net(inputs["observations"]), {}


class RealPolicy(GaussianMixin, Model):  # type: ignore[misc]  # skrl's types are not checked
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self)
        self.net = skrl_ppo.network(self.num_observations, self.num_actions, 0.01)
        self.log_std = torch.nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        return self.net(inputs["observations"]), {"log_std": self.log_std}


POLICIES = {
    gymnasium.spaces.Discrete: skrl_ppo.Policy,
    gymnasium.spaces.MultiDiscrete: PairPolicy,
    gymnasium.spaces.Box: RealPolicy,
}


def agent_of(algorithm: Any, wrapper: Any, steps: int, experiment: Mapping[str, Any], **cfg: Any) -> Any:
    """Create a skrl agent with small networks and a memory of ``steps``."""
    torch.manual_seed(0)
    models, memories = {}, {}
    for name in wrapper.possible_agents:
        spaces = {
            "observation_space": wrapper.observation_space(name),
            "state_space": wrapper.state_space(name),
            "action_space": wrapper.action_space(name),
            "device": wrapper.device,
        }
        policy = POLICIES[type(wrapper.action_space(name))]
        models[name] = {"policy": policy(**spaces), "value": skrl_ppo.Value(**spaces)}
        memories[name] = RandomMemory(memory_size=steps, num_envs=wrapper.num_envs, device=wrapper.device)
    return algorithm(
        possible_agents=wrapper.possible_agents,
        models=models,
        memories=memories,
        observation_spaces=wrapper.observation_spaces,
        state_spaces=wrapper.state_spaces,
        action_spaces=wrapper.action_spaces,
        device=wrapper.device,
        cfg={
            "rollouts": steps,
            "time_limit_bootstrap": True,
            "experiment": dict(experiment),
            # skrl interprets its default, an empty dict, as a dict by agent, and fails on missing agents
            **{name: {agent: {} for agent in wrapper.possible_agents} for name in SETTINGS_OF_PARTS},
            **cfg,
        },
    )


@pytest.mark.parametrize("shared_state", [False, True])
def test_agents_bootstrap_truncated_episodes(game: dict[str, Any], device: str, shared_state: bool) -> None:
    """With the value of the final observation or final state."""
    steps, gamma = 20, 0.9
    wrapper = wrapped(game, 40, device=device, seed=3, shared_state=shared_state)
    agent = agent_of(skrl.MAPPO, wrapper, steps, QUIET, discount_factor=gamma)
    interact(agent, wrapper, steps)
    memories = {
        name: {key: memory.get_tensor_by_name(key) for key in memory.get_tensor_names()}
        for name, memory in agent.memories.items()
    }
    plain = plain_of(game, wrapper)
    real = isinstance(wrapper.action_space("runner_0"), gymnasium.spaces.Box)
    kind = torch.float32 if real else torch.int64
    seen = {role: array.clone() for role, array in plain.reset(seed=3)[0].items()}
    cut_short = 0
    for t in range(steps):
        stored = {key: {name: memories[name][key][t] for name in memories} for key in memories["runner_0"]}
        assert_same_bits(by_role(plain, stored["observations"]), seen)
        role_actions = {role: array.to(kind) for role, array in as_actions(plain, stored["actions"]).items()}
        seen, rewards, terminations, truncations, infos = plain.step(role_actions)
        seen = {role: array.clone() for role, array in seen.items()}
        state = torch.cat([array.flatten(1) for array in infos["final_obs"].values()], 1)
        for name in memories:
            role, _, number = name.rpartition("_")
            truncated = truncations[role][:, int(number)] & ~terminations[role][:, int(number)]
            assert_same_bits(stored["terminated"][name].squeeze(1), terminations[role][:, int(number)])
            assert_same_bits(stored["truncated"][name].squeeze(1), truncated)
            last = state if shared_state else infos["final_obs"][role][:, int(number)]
            with torch.no_grad():
                added = gamma * agent.values[name].net(last).squeeze(1)
            paid = rewards[role][:, int(number)]
            expected = torch.where(truncated, paid + added, paid)
            torch.testing.assert_close(stored["rewards"][name].squeeze(1), expected, rtol=1e-5, atol=1e-5)
            cut_short += int(truncated.sum())
    assert cut_short >= 50
    plain.close()


@pytest.mark.parametrize("algorithm", [skrl.IPPO, skrl.MAPPO])
def test_episodes_of_replicas_are_counted(device: str, algorithm: Any, tmp_path: Any) -> None:
    """In skrl's log; the first agent becomes inactive before many episodes end."""
    wrapper = wrapped(CONTINUOUS, 1, device=device, seed=0)
    experiment = {"directory": str(tmp_path), "write_interval": 1000, "checkpoint_interval": 0}
    agent = agent_of(algorithm, wrapper, 60, experiment)
    lengths: list[int] = []
    returns: list[float] = []
    out: list[bool] = []

    def watch(infos: Any) -> None:
        if infos["_final_obs"].item():
            lengths.append(max(int(part.max()) for part in wrapper.episode_length.values()))
            returns.append(sum(float(part.sum()) for part in wrapper.episode_return.values()))
        out.append(not infos["alive"]["runner_2"].item())

    interact(agent, wrapper, 60, watch)
    agent.writer.close()
    assert len(lengths) >= 6
    assert sum(out) >= 10
    assert [int(count) for (count,) in agent._track_timesteps] == lengths  # noqa: SLF001 - skrl's counters
    assert [float(count) for (count,) in agent._track_rewards] == pytest.approx(returns, abs=1e-4)  # noqa: SLF001 - skrl's counters


@pytest.mark.parametrize("algorithm", [skrl.IPPO, skrl.MAPPO])
def test_agents_train(game: dict[str, Any], device: str, algorithm: Any) -> None:
    wrapper = wrapped(game, 16, device=device, seed=0, shared_state=algorithm is skrl.MAPPO, stagger=True)
    agent = agent_of(algorithm, wrapper, 16, QUIET, learning_epochs=2)
    before = {n: [w.clone() for w in policy.parameters()] for n, policy in agent.policies.items()}
    cfg = {"timesteps": 48, "disable_progressbar": True, "close_environment_at_exit": False}
    trainer = SequentialTrainer(env=wrapper, agents=agent, cfg=cfg)
    trainer.train()
    trainer.eval()
    for name, policy in agent.policies.items():
        weights = list(policy.parameters())
        assert all(w.isfinite().all() for w in weights)
        assert any((old != new).any() for old, new in zip(before[name], weights, strict=True))
