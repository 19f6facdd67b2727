"""PettingZoo's registries, and ``TeamVectorEnv``."""

import functools
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import TEAM_IDS, Place, address, assert_same_bits, assert_unchanged, numpy_of, to_place
from pettingzoo_tools import namespace_of, pz

import gpu_envs
from gpu_envs import ActionError, MultiAgentEnv

pettingzoo = pytest.importorskip("pettingzoo", minversion="1.27")


COUNT = 3
"""Number of replicas."""


def test_pettingzoo_make(team_id: str) -> None:
    """Every team is registered with PettingZoo for both interfaces, and accepts parameters."""
    kinds = {"parallel": pettingzoo.ParallelEnv, "aec": pettingzoo.AECEnv}
    for kind, expected in kinds.items():
        name = f"gpu_envs/{team_id}"
        assert pettingzoo.spec(kind, name).id == name
        for spelling in (name, name.rpartition("-v")[0], name.replace("-v", "_v")):
            assert isinstance(pettingzoo.make(kind, spelling), expected)
        env = pettingzoo.make(kind, name, max_cycles=5, device="cpu", precision="float64")
        assert env.unwrapped.max_cycles == 5
        assert env.unwrapped.batch.precision == "float64"


def test_namespaces(team_id: str) -> None:
    """Each team has a module with the adapter's functions for its id."""
    module = namespace_of(team_id)
    assert isinstance(module.parallel_env(), pettingzoo.ParallelEnv)
    assert isinstance(module.env(), pettingzoo.AECEnv)
    assert isinstance(module.raw_env(), pettingzoo.AECEnv)
    assert module.vector_env(4).num_envs == 4
    assert isinstance(pickle.loads(pickle.dumps(module.parallel_env))(max_cycles=2), pettingzoo.ParallelEnv)
    assert sys.modules[module.__name__] is module
    pz.publish()  # a second call changes nothing, and does not warn
    assert namespace_of(team_id) is module
    with pytest.raises(AttributeError, match="no_such_env_v0"):
        pz.no_such_env_v0  # noqa: B018


REGISTERED = f"""
import dataclasses
import gpu_envs
import pettingzoo
import gpu_envs.adapters.pettingzoo as pz
import gpu_envs.adapters.pettingzoo.tag_continuous_v0 as tag
from gpu_envs.adapters.pettingzoo import tag_grid_world_v0
from gpu_envs.adapters.pettingzoo.tag_grid_world_v0 import parallel_env

assert str(tag.env()) == "tag_continuous_v0"
assert str(parallel_env()) == str(tag_grid_world_v0.raw_env()) == "tag_grid_world_v0"

spec = dataclasses.replace(gpu_envs.spec({TEAM_IDS[0]!r}), id="MyOwn.Team-v3")
gpu_envs.register(spec)
assert pz.parallel_env("MyOwn.Team-v3").metadata["name"] == "my_own_team_v3"
pz.publish()
for kind in "aec", "parallel":
    assert str(pettingzoo.make(kind, "gpu_envs/MyOwn.Team-v3")) == "my_own_team_v3"
gpu_envs.register(dataclasses.replace(spec, id="Another-v0"))
assert str(pz.another_v0.env()) == "another_v0"
"""


def test_import_statements_and_later_registrations() -> None:
    """A team registered later is available here immediately, and in PettingZoo after ``publish``."""
    subprocess.run([sys.executable, "-W", "error", "-c", REGISTERED], check=True, timeout=120)


def make_vector(team_id: str, place: Place, **kwargs: Any) -> Any:
    return pz.vector_env(team_id, COUNT, device=place.device, output=place.output, **kwargs)


def role_actions(env: Any, place: Place, seed: int) -> dict[str, Any]:
    """Sample actions of each role, in the library of ``place``."""
    spaces = env.unwrapped.action_spaces
    for i, space in enumerate(spaces.values()):
        space.seed(seed + i)
    return {role: to_place(space.sample(), place) for role, space in spaces.items()}


def columns_of(env: Any, by_role: Mapping[str, Any]) -> dict[str, Any]:
    """Return each agent's column of the roles' arrays."""
    columns = [array[:, i] for array in by_role.values() for i in range(array.shape[1])]
    return dict(zip(env.possible_agents, columns, strict=True))


def assert_columns(env: Any, by_agent: Any, expected: Any) -> None:
    """Assert that agents have their columns of arrays by role, or arrays by replica, bit for bit.

    The columns of a role are copied to the host together, which saves a transfer for each agent.
    """
    assert list(by_agent) == env.possible_agents
    if not isinstance(expected, Mapping):
        for agent in env.possible_agents:
            assert by_agent[agent] is by_agent[env.possible_agents[0]]
        assert_same_bits(by_agent[env.possible_agents[0]], expected)
    elif set(expected) == set(env.unwrapped.roles):
        agents = iter(env.possible_agents)
        for array in expected.values():
            columns = [by_agent[next(agents)] for _ in range(array.shape[1])]
            library = sys.modules[type(columns[0]).__module__.partition(".")[0]]
            assert_same_bits(library.stack(columns, 1), array)
    else:
        assert all(set(part) == set(expected) for part in by_agent.values())
        for key, part in expected.items():
            assert_columns(env, {agent: by_agent[agent][key] for agent in env.possible_agents}, part)


@pytest.mark.fast_cases(20)
@pytest.mark.parametrize("variant", [{}, {"copy": False}, {"copy": True, "statistics": True}], ids=str)
def test_vector_env_equals_the_batch(team_id: str, place: Place, mode: str, variant: Mapping[str, Any]) -> None:
    """Results are columns of the roles' arrays, for actions by agent and by role."""
    if place == Place("cuda", "numpy") and variant.get("copy") is False:
        pytest.skip("refused")
    limit = 5
    steps = limit if mode == "Disabled" else 2 * limit + 3
    options = {"max_episode_steps": limit, "autoreset_mode": mode, **variant}
    one, other = (make_vector(team_id, place, **options) for _ in range(2))
    batch = gpu_envs.make(team_id, COUNT, device=place.device, output=place.output, **options)
    assert isinstance(batch, MultiAgentEnv)
    assert one.metadata["autoreset_mode"].value == mode
    results = one.reset(seed=0), other.reset(seed=0)
    expected: Any = batch.reset(seed=0)
    for step in range(steps + 1):
        for result in results:
            assert len(result) == len(expected)
            for part, by_role in zip(result, expected, strict=True):
                assert_columns(one, part, by_role)
        for env in (one, other):
            assert_columns(env, env.alive, expected[-1]["alive"])
            assert env.agents is env.possible_agents
        if step < steps:
            actions = role_actions(one, place, step)
            results = one.step(columns_of(one, actions)), other.step(actions)
            expected = batch.step(actions)
    for env in (one, other, batch):
        env.close()


def test_vector_env_returns_views(team_id: str, place: Place) -> None:
    """Arrays of agents share the memory of the roles' arrays, also of ``out``, and are the same objects each step."""
    kwargs = {"copy": False} if place.output == "numpy" else {}
    if place == Place("cuda", "numpy"):
        pytest.skip("NumPy cannot view a device's memory")
    env = make_vector(team_id, place, **kwargs)
    before, _ = env.reset(seed=0)
    after, *_ = env.step(role_actions(env, place, 0))
    memory = columns_of(env, env.unwrapped.observe())
    in_game = env.unwrapped.state["in_game"]
    for i, agent in enumerate(env.possible_agents):
        assert before[agent] is after[agent]
        assert address(after[agent]) == address(memory[agent])
        assert address(env.alive[agent]) == address(in_game[:, i])
        if place.output == "numpy":
            assert np.shares_memory(after[agent], memory[agent])
    spaces = env.unwrapped.observation_spaces
    out = {role: to_place(np.zeros(space.shape, np.float32), place) for role, space in spaces.items()}
    observations, *_ = env.step(role_actions(env, place, 0), out=gpu_envs.Step(observations=out))
    for agent, column in columns_of(env, out).items():
        assert address(observations[agent]) == address(column)
    assert_same_bits(observations, columns_of(env, env.unwrapped.observe()))


def test_actions_of_agents_are_stacked(team_id: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their library; NumPy arrays and lists work for any output, and actions by role are not copied."""
    env, other = make_vector(team_id, place), make_vector(team_id, place)
    for one in (env, other):
        one.reset(seed=0)
    numpy = role_actions(env, Place("cpu", "numpy"), 0)
    nested = {agent: column.tolist() for agent, column in columns_of(env, numpy).items()}
    for by_agent in (columns_of(env, numpy), nested):
        assert_same_bits(env.step(by_agent)[:4], other.step(numpy)[:4])
    actions = columns_of(env, role_actions(env, place, 0))
    stacked: list[Any] = []
    step = MultiAgentEnv.step

    def spy(self: MultiAgentEnv, actions: Mapping[str, Any], *, out: Any = None) -> Any:
        stacked.extend(actions.values())
        return step(self, actions, out=out)

    monkeypatch.setattr(MultiAgentEnv, "step", spy)
    env.step(actions)
    env.step(actions)
    assert {type(array) for array in stacked} == {type(array) for array in actions.values()}
    half = len(stacked) // 2
    if place.output == "numpy":
        assert all(one is other for one, other in zip(stacked[:half], stacked[half:], strict=True))
    monkeypatch.setattr(env, "_stack", None)
    env.step(role_actions(env, place, 0))


def test_vector_spaces(team_id: str) -> None:
    """Batched spaces contain the results of a step, and sample its actions."""
    env = pz.vector_env(team_id, COUNT, device="cpu")
    observations, _ = env.reset(seed=0)
    assert (env.num_agents, env.max_num_agents) == (len(env.possible_agents),) * 2
    assert team_id in repr(env)
    for agent in env.possible_agents:
        for space in (env.single_observation_space, env.single_action_space, env.observation_space, env.action_space):
            assert space(agent) is space(agent)
        assert env.observation_space(agent).shape == (COUNT, *env.single_observation_space(agent).shape)
        assert env.action_space(agent).shape == (COUNT, *env.single_action_space(agent).shape)
        assert observations[agent] in env.observation_space(agent)
        assert observations[agent][0] in env.single_observation_space(agent)
    env.step({agent: env.action_space(agent).sample() for agent in env.possible_agents})
    with pytest.raises(KeyError, match="no agent 'nobody_0'"):
        env.action_space("nobody_0")


def test_vector_env_errors(team_id: str, place: Place) -> None:
    """Errors of actions name the agent, and nothing changes."""
    env = make_vector(team_id, place)
    actions = role_actions(env, place, 0)
    agents = columns_of(env, actions)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(agents)
    env.reset(seed=0)
    agent = env.possible_agents[1]
    fraction = to_place(np.full(env.action_space(agent).shape, 0.5, np.float32), place)
    wrong: list[tuple[type[Exception], str, Any]] = [
        (ActionError, f"the action of '{agent}' is missing", {name: a for name, a in agents.items() if name != agent}),
        (ValueError, f"actions of '{agent}' have shape", agents | {agent: agents[agent][:-1]}),
        (ValueError, "no agent 'nobody_0'", agents | {"nobody_0": agents[agent]}),
        (ValueError, "no role", actions | {agent: agents[agent]}),
        (TypeError, "mapping", None),
        (TypeError, "mapping", [1]),
        (TypeError, r"role|cast", dict.fromkeys(agents, fraction)),
    ]
    for kind, match, invalid in wrong:
        with pytest.raises(kind, match=match):
            assert_unchanged(env.unwrapped, functools.partial(env.step, invalid))
    env.step(agents)
    env.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        env.step(agents)
    with pytest.raises(gymnasium.error.Error, match="render_mode=None"):
        env.render()


def test_vector_resets(team_id: str, place: Place) -> None:
    """Lists of seeds and masks of replicas are passed on."""
    env = make_vector(team_id, place)
    first, infos = env.reset(seed=[3, 4, 5])
    initial = {agent: numpy_of(array) for agent, array in first.items()}
    assert_same_bits(env.reset(seed=3)[0], initial)
    assert all(numpy_of(infos[agent]["alive"]).all() for agent in env.possible_agents)
    env.step(role_actions(env, place, 0))
    elapsed = numpy_of(env.state["elapsed"])
    env.reset(options={"reset_mask": np.array([True, False, False])})
    assert numpy_of(env.state["elapsed"]).tolist() == [0, *elapsed[1:].tolist()]
    with pytest.raises(ValueError, match="no reset option 'options'"):
        env.reset(options={"options": 1})
