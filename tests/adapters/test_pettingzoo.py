"""``TeamEnv`` passes PettingZoo's tests, and returns the results of a ``MultiAgentEnv`` with one replica."""

import copy
import functools
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from harness import SMALL_PARAMS, TEAM_IDS, assert_same_bits, assert_unchanged, numpy_of
from pettingzoo_tools import pz, spec_of
from registered import time_limit_name

import gpu_envs
from gpu_envs import ActionError, MultiAgentEnv

pettingzoo = pytest.importorskip("pettingzoo", minversion="1.27")


def variants(team_id: str) -> Iterator[dict[str, Any]]:
    """Return the defaults, and each bool or choice parameter at each of its other values."""
    base = SMALL_PARAMS.get(team_id, {})
    yield base
    for name, param in spec_of(team_id).params.items():
        values = param.choices or ((False, True) if isinstance(param.default, bool) else ())
        yield from ({**base, name: value} for value in values if value != param.default)


VARIANTS = [(team_id, variant) for team_id in TEAM_IDS for variant in variants(team_id)]

each_variant = pytest.mark.parametrize(
    ("team_id", "variant"),
    VARIANTS,
    ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values())) or "as is",
)


@pytest.fixture
def team(team_id: str, device: str) -> Iterator[Any]:
    """Return one replica before its first reset."""
    env = pz.parallel_env(team_id, device=device, **SMALL_PARAMS.get(team_id, {}))
    yield env
    env.close()


class Round(NamedTuple):
    """Actions and results of one step, by agent."""

    actions: dict[str, Any]
    observations: dict[str, np.ndarray]
    rewards: dict[str, float]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    infos: dict[str, dict[str, Any]]
    agents: list[str]


def sampled(env: Any) -> dict[str, Any]:
    return {agent: env.action_space(agent).sample() for agent in env.agents}


def seed_actions(env: Any, seed: int) -> None:
    for i, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(seed + i)


def play(env: Any, seed: int = 0, steps: int | None = None) -> list[Round]:
    """Play with random actions for ``steps``, or to the end of the episode."""
    seed_actions(env, seed)
    rounds: list[Round] = []
    while env.agents and (steps is None or len(rounds) < steps):
        actions = sampled(env)
        rounds.append(Round._make((actions, *env.step(actions), list(env.agents))))
    return rounds


def expected_warnings(env: Any) -> set[str]:
    """Return the warnings of PettingZoo's tests for valid spaces."""
    expected = set()
    for agent in env.possible_agents:
        action = env.action_space(agent)
        if isinstance(action, gymnasium.spaces.MultiDiscrete):
            expected.add(
                "Action space for each agent probably should be gymnasium.spaces.box or gymnasium.spaces.discrete"
            )
        if np.isinf(env.observation_space(agent).high).any():
            expected.add("Agent's minimum observation space value is -infinity. This is probably too low.")
            expected.add("Agent's maximum observation space value is infinity. This is probably too high")
    if not all(re.fullmatch(r"[a-z]+_\d+", agent) for agent in env.possible_agents):
        expected.add('We recommend agents to be named in the format <descriptor>_<number>, like "player_0"')
    if len({env.observation_space(agent).shape for agent in env.possible_agents}) > 1:
        expected |= {"Observations are different shapes", "Agents have different observation space sizes"}
    if len({str(env.action_space(agent)) for agent in env.possible_agents}) > 1:
        expected.add("Agents have different action space sizes")
    return expected


@pytest.mark.fast_cases(5)
@each_variant
def test_parallel_api(team_id: str, variant: Mapping[str, Any], device: str) -> None:
    from pettingzoo.test import parallel_api_test

    env = pz.parallel_env(team_id, device=device, **variant)
    parallel_api_test(env)
    env.close()


@each_variant
def test_pettingzoo_tests_pass(team_id: str, variant: Mapping[str, Any], device: str) -> None:
    from pettingzoo.test import api_test, parallel_seed_test, seed_test
    from pettingzoo.test.state_test import state_test

    parallel, aec, raw = (
        functools.partial(make, team_id, device=device, **variant) for make in (pz.parallel_env, pz.env, pz.raw_env)
    )
    parallel_seed_test(parallel)
    seed_test(aec, num_cycles=20)
    seed_test(raw, num_cycles=20)
    env = aec()
    state_test(env, parallel())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        api_test(env, num_cycles=40)
    assert {str(warning.message) for warning in caught} <= expected_warnings(env)
    env.close()


@pytest.mark.fast_cases(11)
@pytest.mark.parametrize("precision", ["float32", "float64"])
@each_variant
def test_one_replica_equals_a_batch_of_one(
    team_id: str, variant: Mapping[str, Any], device: str, precision: str
) -> None:
    """Each active agent gets its row of the batch's results."""
    env = pz.parallel_env(team_id, device=device, precision=precision, max_cycles=60, **variant)
    batch = gpu_envs.make(
        team_id, 1, device=device, precision=precision, max_episode_steps=60, autoreset_mode="Disabled", **variant
    )
    assert isinstance(batch, MultiAgentEnv)
    indices = [(role, i) for role, count in batch.counts.items() for i in range(count)]
    index_of = dict(zip(batch.possible_agents, indices, strict=True))
    for seed in (1, None):
        observations, infos = env.reset(seed=seed)
        rows, _ = batch.reset(seed=seed)
        assert env.agents == env.possible_agents == batch.possible_agents == list(observations) == list(infos)
        for agent, (role, i) in index_of.items():
            assert_same_bits(observations[agent], rows[role][0, i])
        playing = batch.possible_agents
        for played in play(env):
            results: tuple[Any, ...] = played[1:5]
            role_actions = {role: np.zeros_like(space.sample()) for role, space in batch.action_spaces.items()}
            for agent, action in played.actions.items():
                role, i = index_of[agent]
                role_actions[role][0, i] = action
            *expected, _ = batch.step(role_actions)
            for one, rows_of in zip(results, expected, strict=True):
                assert list(one) == list(played.infos) == playing
                for agent, value in one.items():
                    role, i = index_of[agent]
                    assert_same_bits(np.asarray(value, rows_of[role].dtype), rows_of[role][0, i])
            playing = [a for a in playing if not (played.terminations[a] or played.truncations[a])]
            assert played.agents == playing
        assert env.agents == []
        assert env.step({}) == ({}, {}, {}, {}, {})
    env.close()
    batch.close()


def test_python_numbers(team: Any) -> None:
    """Rewards and flags are Python numbers; later steps do not change observations."""
    before, _ = team.reset(seed=0)
    copied = copy.deepcopy(before)
    for played in play(team, steps=3):
        assert_same_bits(before, copied)
        assert {type(reward) for reward in played.rewards.values()} == {float}
        assert {type(flag) for flag in (*played.terminations.values(), *played.truncations.values())} == {bool}
        for agent, observation in played.observations.items():
            assert observation in team.observation_space(agent)
            assert not np.shares_memory(observation, before[agent])
        assert all(set(info) == {"action_mask"} & set(info) for info in played.infos.values())
        assert all(("action_mask" in info) == team.batch.env_spec.masked for info in played.infos.values())
        before, copied = played.observations, copy.deepcopy(played.observations)


def test_spaces_and_names(team: Any, team_id: str) -> None:
    """Each agent has its own space object, equal to the role's space."""
    name = team.metadata["name"]
    assert str(team) == name == name.lower() == str(pz.env(team_id))
    assert name.isidentifier()
    assert team.unwrapped is team
    assert team.render_mode is None
    assert pz.parallel_env(team_id).batch.device == "cpu"  # which is faster for one replica
    assert team.max_num_agents == len(team.possible_agents)
    roles = [role for role, count in team.batch.counts.items() for _ in range(count)]
    for agent, role in zip(team.possible_agents, roles, strict=True):
        assert team.observation_space(agent) is team.observation_space(agent)
        assert team.action_space(agent) is team.action_space(agent)
        assert team.observation_space(agent) == team.batch.single_observation_spaces[role]
        assert team.action_space(agent) == team.batch.single_action_spaces[role]
    one, other = team.possible_agents[:2]
    assert team.action_space(one) is not team.action_space(other)
    with pytest.raises(KeyError, match="no agent 'nobody_0'"):
        team.action_space("nobody_0")


def test_state_contains_all_fields(team: Any) -> None:
    """``state`` contains every field, and follows the live state."""
    team.reset(seed=0)
    play(team, steps=2)
    fields = [numpy_of(field).astype(np.float32).ravel() for field in team.batch.state.values()]
    state = team.state()
    assert_same_bits(state, np.concatenate(fields))
    assert state in team.state_space
    assert (state.shape, state.dtype) == (team.state_space.shape, team.state_space.dtype)
    assert team.state_space.sample() in team.state_space
    play(team, steps=1)
    assert (team.state() != state).any()


def wrong_actions(space: gymnasium.Space[Any]) -> list[Any]:
    if isinstance(space, gymnasium.spaces.Discrete):
        return [int(space.n), -1, 2**70, 0.5, np.float32(1), None, "a", [0], np.zeros(2, int)]
    size = (space.shape or ())[0]
    wrong: list[Any] = [None, "a", 0, [0] * (size + 1), np.zeros((size, 1), space.dtype), [[0] * size] * size]
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return [*wrong, space.nvec, [-1] * size, [0.5] * size, np.zeros(size, np.float32), [2**70] * size]
    return [*wrong, [np.nan] * size, np.full(size, np.nan, np.float32), ["a"] * size]


@each_variant
def test_wrong_actions(team_id: str, variant: Mapping[str, Any], device: str) -> None:
    """An invalid action raises an error that names the agent, and changes nothing."""
    env = pz.parallel_env(team_id, device=device, **variant)
    env.reset(seed=0)
    play(env, steps=5)
    for agent in (env.agents[0], env.agents[-1]):
        for wrong in wrong_actions(env.action_space(agent)):
            actions = sampled(env) | {agent: wrong}
            with pytest.raises(ActionError, match=agent):
                assert_unchanged(env.batch, functools.partial(env.step, actions))
        actions = {name: action for name, action in sampled(env).items() if name != agent}
        with pytest.raises(ActionError, match=f"the action of '{agent}' is missing"):
            assert_unchanged(env.batch, functools.partial(env.step, actions))
    one, other = env.agents[-2:]
    if np.ndim(env.action_space(one).sample()) == 1:  # with the right total size
        few, many = env.action_space(one).sample()[:1], np.resize(env.action_space(other).sample(), 3)
        with pytest.raises(ActionError, match=one):
            env.step(sampled(env) | {one: few, other: many})
    with pytest.raises(ActionError, match=r"the action of .* is missing"):
        env.step({})
    agents = list(env.agents)
    assert list(env.step(sampled(env))[0]) == agents
    env.close()


def test_actions_of_other_types(team: Any) -> None:
    """Lists, other dtypes and 0-d arrays are accepted."""

    def forms(action: Any) -> Iterator[Any]:
        yield np.asarray(action).tolist()
        yield np.asarray(action).astype(np.int32 if np.asarray(action).dtype.kind in "iu" else np.float64)
        if np.ndim(action) == 0:
            yield np.asarray(action)

    team.reset(seed=0)
    chosen = sampled(team)
    expected = team.step(chosen)
    for variant in zip(*map(forms, chosen.values()), strict=True):
        team.reset(seed=0)
        assert_same_bits(team.step(dict(zip(chosen, variant, strict=True)))[0], expected[0])


def test_actions_of_inactive_agents_are_ignored(team_id: str, device: str) -> None:
    """Also actions of unknown agents, whatever their value."""
    one, other = (pz.parallel_env(team_id, device=device) for _ in range(2))
    for env in (one, other):
        env.reset(seed=0)
        seed_actions(env, 0)
    while one.agents:
        actions = sampled(one)
        ignored = dict.fromkeys(one.possible_agents, "nothing") | {"nobody_0": None, "tagger_-1": np.nan}
        assert_same_bits(one.step(actions)[:2], other.step(ignored | actions)[:2])
        assert one.agents == other.agents


def test_use_before_reset_or_after_close_raises(team: Any, team_id: str) -> None:
    """Even a step without actions; closing twice is allowed."""
    assert team.agents == []
    for act in (lambda: team.step({}), team.state):
        with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
            act()
    with pytest.raises(AssertionError, match="reset"):
        pz.env(team_id).step(0)
    team.reset(seed=0)
    actions = sampled(team)
    team.close()
    team.close()
    for act in (lambda: team.step(actions), lambda: team.step({}), team.state, team.reset):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="closed"):
            act()


@each_variant
def test_wrong_actions_of_aec_agents(team_id: str, variant: Mapping[str, Any], device: str) -> None:
    """The error is raised in the agent's turn; the selected agent and the state are unchanged."""
    env, plain = (pz.env(team_id, device=device, **variant) for _ in range(2))
    for one in (env, plain):
        one.reset(seed=0)
    for agent in list(env.agents):
        for wrong in wrong_actions(env.action_space(agent)):
            with pytest.raises(ActionError, match=agent):
                env.step(wrong)
            assert env.agent_selection == agent
        action = env.action_space(agent).sample()
        env.step(action)
        plain.step(action)
    assert_same_bits(env.state(), plain.state())
    assert env.agent_selection == plain.agent_selection


def test_random_numbers_for_wrappers(team: Any, team_id: str, device: str) -> None:
    """``np_random`` is for wrappers: a reset seeds it, copies have their own, and the replica does not use it."""
    first = team.reset(seed=3)[0]
    numbers = team.np_random.integers(1000, size=5).tolist()
    following = team.reset()[0]
    assert team.np_random.integers(1000, size=5).tolist() != numbers
    assert_same_bits(team.reset(seed=3)[0], first)
    twin = copy.deepcopy(team)
    assert team.np_random.integers(1000, size=5).tolist() == numbers
    assert twin.np_random.integers(1000, size=5).tolist() == numbers
    assert_same_bits(team.reset()[0], following)
    other = pz.parallel_env(team_id, device=device)
    assert other.np_random.integers(2**40) != pz.parallel_env(team_id, device=device).np_random.integers(2**40)


def test_invalid_render_modes(team: Any, team_id: str) -> None:
    with pytest.raises(gymnasium.error.Error, match="render_mode=None"):
        team.render()
    with pytest.raises(ValueError, match="render_mode is 'ansi'"):
        pz.vector_env(team_id, render_mode="ansi")
    for maker in (pz.parallel_env, pz.env, pz.raw_env):
        for mode in ("tiled", "ansi"):
            with pytest.raises(
                ValueError, match=f"render_mode is '{mode}', but one replica of .* 'rgb_array', 'human'"
            ):
                maker(team_id, render_mode=mode)


def test_options(team: Any, team_id: str) -> None:
    """The option of PettingZoo's tests is ignored, explicit starts are passed on, and unknown options raise."""
    plain, _ = team.reset(seed=0)
    options: dict[str, Any] = {"options": 1}
    assert_same_bits(team.reset(seed=0, options=options)[0], plain)
    assert options == {"options": 1}
    for name in spec_of(team_id).start_fields:
        shape = team.batch.state[name].shape[1:]
        layout = np.arange(int(np.prod(shape))).reshape(shape) % 3
        team.reset(options={"options": 1, name: layout})
        assert_same_bits(numpy_of(team.batch.state[name])[0].astype(int), layout)
    with pytest.raises(ValueError, match="no reset option 'no_such_thing'"):
        team.reset(options={"no_such_thing": 1})


def test_limits(team_id: str) -> None:
    """``max_cycles`` is another name of ``max_episode_steps``; two different limits raise."""
    spec = spec_of(team_id)
    assert pz.parallel_env(team_id).max_cycles == spec.step_limit(spec.check_params({}, 1))
    for arguments in ({"max_cycles": 3}, {"max_episode_steps": 3}, {"max_cycles": 3, "max_episode_steps": 3}):
        env = pz.parallel_env(team_id, **arguments)
        assert env.max_cycles == 3
        env.reset(seed=0)
        assert len(play(env)) <= 3
        assert pz.vector_env(team_id, 2, **arguments).unwrapped.max_episode_steps == 3
    if spec.longest_episode is None:
        assert pz.parallel_env(team_id, max_cycles=-1).max_cycles is None
    with pytest.raises(ValueError, match="max_cycles is 3"):
        pz.parallel_env(team_id, max_cycles=3, max_episode_steps=4)
    if callable(spec.max_episode_steps):
        assert pz.parallel_env(team_id, **{time_limit_name(spec): 4}).max_cycles == 4


def test_unknown_arguments(team_id: str) -> None:
    for make in (pz.parallel_env, pz.env, pz.raw_env, pz.vector_env):
        with pytest.raises(ValueError, match="no option or parameter 'no_such_thing'"):
            make(team_id, no_such_thing=1)
        with pytest.raises(gpu_envs.UnknownEnvironmentError, match="has one agent"):
            make("CartPole-v1")
    with pytest.raises(TypeError, match="output"):
        pz.parallel_env(team_id, output="torch")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["deep", "pickle"])
def test_copies_continue(team: Any, team_id: str, copied: Any) -> None:
    """A copy continues independently from the same state, also before the first reset."""
    fresh = copied(team)
    with pytest.raises(gymnasium.error.ResetNeeded):
        fresh.step({})
    team.reset(seed=2)
    assert_same_bits(fresh.reset(seed=2), team.reset(seed=2))
    play(team, steps=7)
    twin = copied(team)
    assert twin.agents == team.agents
    assert_same_bits(twin.state(), team.state())
    expected = play(team, seed=4)
    repeated = play(twin, seed=4)
    assert_same_bits([r[1:3] for r in repeated], [r[1:3] for r in expected])
    assert [r.agents for r in repeated] == [r.agents for r in expected]
    assert_same_bits(twin.reset(), team.reset())
    turns = pz.env(team_id)
    turns.reset(seed=2)
    assert_same_bits(copied(turns).state(), turns.state())
