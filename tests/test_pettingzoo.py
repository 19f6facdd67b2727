"""PettingZoo's side: its own tests, one replica as its two kinds of environment, and many replicas agent by agent."""

import copy
import functools
import importlib
import pickle
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from harness import MODES, PLACES, TEAM_IDS, Place, address, assert_same_bits, assert_unchanged, moved, numpy_of

import gpu_envs
from gpu_envs import ActionError, MultiAgentEnv, TeamSpec

pettingzoo = pytest.importorskip("pettingzoo", minversion="1.27")
pz: Any = importlib.import_module("gpu_envs.adapters.pettingzoo")

COUNT = 3
"""Replicas of a batch."""


def spec_of(team_id: str) -> TeamSpec:
    spec = gpu_envs.spec(team_id)
    assert isinstance(spec, TeamSpec)
    return spec


def namespace_of(team_id: str) -> Any:
    """The module that stands for an environment in the adapter."""
    return getattr(pz, pz.parallel_env(team_id, device="cpu").metadata["name"])


def variants(team_id: str) -> Iterator[dict[str, Any]]:
    """The defaults, and each switch and choice at every other of its values."""
    yield {}
    for name, param in spec_of(team_id).params.items():
        values = param.choices or ((False, True) if isinstance(param.default, bool) else ())
        yield from ({name: value} for value in values if value != param.default)


VARIANTS = [(team_id, variant) for team_id in TEAM_IDS for variant in variants(team_id)]
each_variant = pytest.mark.parametrize(
    ("team_id", "variant"),
    VARIANTS,
    ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values())) or "as is",
)


@pytest.fixture(params=TEAM_IDS)
def team_id(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def team(team_id: str, device: str) -> Iterator[Any]:
    """One replica, not reset."""
    env = pz.parallel_env(team_id, device=device)
    yield env
    env.close()


class Round(NamedTuple):
    """What one step was given and gave, by agent."""

    actions: dict[str, Any]
    observations: dict[str, np.ndarray]
    rewards: dict[str, float]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    infos: dict[str, dict[str, Any]]
    agents: list[str]


def sampled(env: Any) -> dict[str, Any]:
    """An action for each agent in the game."""
    return {agent: env.action_space(agent).sample() for agent in env.agents}


def seed_actions(env: Any, seed: int) -> None:
    for i, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(seed + i)


def play(env: Any, seed: int = 0, steps: int | None = None) -> list[Round]:
    """Plays on at random, to the end or for so many steps."""
    seed_actions(env, seed)
    rounds: list[Round] = []
    while env.agents and (steps is None or len(rounds) < steps):
        actions = sampled(env)
        rounds.append(Round._make((actions, *env.step(actions), list(env.agents))))
    return rounds


# --- PettingZoo's own tests ---


def expected_warnings(env: Any) -> set[str]:
    """What PettingZoo's tests say of spaces that are as they should be."""
    expected = set()
    for agent in env.possible_agents:
        action = env.action_space(agent)
        if isinstance(action, gymnasium.spaces.MultiDiscrete):
            expected.add(
                "Action space for each agent probably should be gymnasium.spaces.box or gymnasium.spaces.discrete"
            )
    return expected


@each_variant
def test_parallel_api(team_id: str, variant: Mapping[str, Any], device: str) -> None:
    from pettingzoo.test import parallel_api_test

    env = pz.parallel_env(team_id, device=device, **variant)
    parallel_api_test(env)
    env.close()


@each_variant
def test_aec_api(team_id: str, variant: Mapping[str, Any], device: str) -> None:
    from pettingzoo.test import api_test

    env = pz.env(team_id, device=device, **variant)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        api_test(env, num_cycles=40)
    assert {str(warning.message) for warning in caught} <= expected_warnings(env)
    env.close()


@each_variant
def test_seeds(team_id: str, variant: Mapping[str, Any], device: str) -> None:
    from pettingzoo.test import parallel_seed_test, seed_test

    parallel_seed_test(functools.partial(pz.parallel_env, team_id, device=device, **variant))
    seed_test(functools.partial(pz.env, team_id, device=device, **variant), num_cycles=20)
    seed_test(functools.partial(pz.raw_env, team_id, device=device, **variant), num_cycles=20)


def test_max_cycles(team_id: str) -> None:
    """An episode ends at ``max_cycles``, which this test of PettingZoo's gives to the makers of a module."""
    from pettingzoo.test.max_cycles_test import max_cycles_test

    module = namespace_of(team_id)
    # it plays unseeded; from a fixed start nobody can end the game so soon
    fixed = {"start": "fixed"} if "start" in spec_of(team_id).params else {}
    makers = {name: functools.partial(getattr(module, name), **fixed) for name in ("parallel_env", "env")}
    max_cycles_test(types.SimpleNamespace(**makers))


@each_variant
def test_state(team_id: str, variant: Mapping[str, Any], device: str) -> None:
    from pettingzoo.test.state_test import state_test

    given = {"device": device, **variant}
    state_test(pz.env(team_id, **given), pz.parallel_env(team_id, **given))


# --- one replica ---


@each_variant
def test_same_seed_same_episodes(team_id: str, variant: Mapping[str, Any], device: str) -> None:
    """Whole episodes agree in every bit; another seed begins another; without a seed the next follows."""
    one, other = (pz.parallel_env(team_id, device=device, **variant) for _ in range(2))
    for seed in (5, None):
        assert_same_bits(one.reset(seed=seed), other.reset(seed=seed))
        rounds = play(one), play(other)
        assert [r.agents for r in rounds[0]] == [r.agents for r in rounds[1]]
        for mine, theirs in zip(*rounds, strict=True):
            assert_same_bits(mine[:3], theirs[:3])
            assert mine[3:] == theirs[3:]
    first, following = one.reset(seed=5)[0], one.reset()[0]
    assert_same_bits(first, other.reset(seed=5)[0])
    assert_same_bits(following, other.reset()[0])
    if variant.get("start") != "fixed":
        starts = [one.batch.state["x"].copy() for seed in (5, 6) if one.reset(seed=seed)]
        assert (starts[0] != starts[1]).any()


@pytest.mark.parametrize("precision", ["float32", "float64"])
@each_variant
def test_it_is_the_batch(team_id: str, variant: Mapping[str, Any], device: str, precision: str) -> None:
    """One replica goes the way of a batch of one: what each agent gets is its row, as long as it is in the game."""
    env = pz.parallel_env(team_id, device=device, precision=precision, max_cycles=60, **variant)
    made = gpu_envs.make(
        team_id, 1, device=device, precision=precision, max_episode_steps=60, autoreset_mode="Disabled", **variant
    )
    assert isinstance(made, MultiAgentEnv)
    places = [(role, i) for role, count in made.counts.items() for i in range(count)]
    place_of = dict(zip(made.possible_agents, places, strict=True))
    for seed in (1, None):
        observations, infos = env.reset(seed=seed)
        rows, _ = made.reset(seed=seed)
        assert env.agents == env.possible_agents == made.possible_agents == list(observations) == list(infos)
        for agent, (role, i) in place_of.items():
            assert_same_bits(observations[agent], rows[role][0, i])
        playing = made.possible_agents
        for played in play(env):
            results: tuple[Any, ...] = played[1:5]
            given = {role: np.zeros_like(space.sample()) for role, space in made.action_spaces.items()}
            for agent, action in played.actions.items():
                role, i = place_of[agent]
                given[role][0, i] = action
            *expected, _ = made.step(given)
            for one, rows_of in zip(results, expected, strict=True):
                assert list(one) == list(played.infos) == playing
                for agent, value in one.items():
                    role, i = place_of[agent]
                    assert_same_bits(np.asarray(value, rows_of[role].dtype), rows_of[role][0, i])
            playing = [a for a in playing if not (played.terminations[a] or played.truncations[a])]
            assert played.agents == playing
        assert env.agents == []
        assert env.step({}) == ({}, {}, {}, {}, {})
    env.close()
    made.close()


def test_agents_leave_in_the_middle() -> None:
    """Somewhere among the environments an agent goes out while others play on, or the tests here are about nothing."""
    left = {}
    for team_id in TEAM_IDS:
        env = pz.parallel_env(team_id, device="cpu")
        env.reset(seed=0)
        left[team_id] = sum(0 < len(r.agents) < len(r.rewards) for r in play(env))
    assert any(left.values()), left


def test_who_is_out_is_out(team: Any) -> None:
    """Who goes out gets a last observation, is in no dict afterwards, and comes back with a reset only."""
    team.reset(seed=0)
    seed_actions(team, 0)
    out: set[str] = set()
    while team.agents:
        before = set(team.agents)
        observations, rewards, terminations, truncations, infos = team.step(sampled(team))
        for part in (observations, rewards, terminations, truncations, infos):
            assert part.keys() == before
        over = {agent for agent in before if terminations[agent] or truncations[agent]}
        assert set(team.agents) == before - over
        assert not before & out
        assert all(observations[agent].any() for agent in over)
        out |= over
    assert out == set(team.possible_agents)
    team.reset()
    assert team.agents == team.possible_agents


def test_python_numbers(team: Any) -> None:
    """Rewards and flags are Python's; observations are arrays of their spaces, which no later step changes."""
    before, _ = team.reset(seed=0)
    kept = copy.deepcopy(before)
    for played in play(team, steps=3):
        assert_same_bits(before, kept)
        assert {type(reward) for reward in played.rewards.values()} == {float}
        assert {type(flag) for flag in (*played.terminations.values(), *played.truncations.values())} == {bool}
        for agent, observation in played.observations.items():
            assert observation in team.observation_space(agent)
            assert not np.shares_memory(observation, before[agent])
        assert played.infos == {agent: {} for agent in played.actions}
        before, kept = played.observations, copy.deepcopy(played.observations)


def test_rewards_add_up(team: Any) -> None:
    """What an agent got until its end is the return that the simulator kept."""
    team.reset(seed=3)
    sums = dict.fromkeys(team.possible_agents, 0.0)
    lengths = dict.fromkeys(team.possible_agents, 0)
    for played in play(team):
        for agent, reward in played.rewards.items():
            sums[agent] += reward
            lengths[agent] += 1
    batch = team.batch
    returns = [value for role in batch.roles for value in numpy_of(batch.episode_return[role])[0].tolist()]
    steps = [value for role in batch.roles for value in numpy_of(batch.episode_length[role])[0].tolist()]
    assert list(lengths.values()) == steps
    np.testing.assert_allclose(list(sums.values()), returns, rtol=1e-5, atol=1e-5)


def test_spaces(team: Any) -> None:
    """A space is the same object each time, of the role's, and seeded apart from the other agents'."""
    assert team.max_num_agents == len(team.possible_agents)
    for agent in team.possible_agents:
        role = agent.partition("_")[0]
        assert team.observation_space(agent) is team.observation_space(agent)
        assert team.action_space(agent) is team.action_space(agent)
        assert team.observation_space(agent) == team.batch.single_observation_spaces[role]
        assert team.action_space(agent) == team.batch.single_action_spaces[role]
    one, other = team.possible_agents[:2]
    assert team.action_space(one) is not team.action_space(other)
    with pytest.raises(KeyError, match="no agent 'nobody_0'"):
        team.action_space("nobody_0")


def test_state_is_the_state(team: Any) -> None:
    """``state`` holds every field, and follows the live state."""
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


def test_names(team: Any, team_id: str) -> None:
    name = team.metadata["name"]
    assert str(team) == name == str(pz.env(team_id))
    assert name.isidentifier()
    assert name == name.lower()
    assert team.unwrapped is team
    assert team.render_mode is None


# --- one replica: what is given to it ---


def wrong_actions(space: gymnasium.Space[Any]) -> list[Any]:
    """Actions that are not of a space."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return [int(space.n), -1, 2**70, 0.5, np.float32(1), None, "a", [0], np.zeros(2, int)]
    size = (space.shape or ())[0]
    wrong: list[Any] = [None, "a", 0, [0] * (size + 1), np.zeros((size, 1), space.dtype), [[0] * size] * size]
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return [*wrong, space.nvec, [-1] * size, [0.5] * size, np.zeros(size, np.float32), [2**70] * size]
    return [*wrong, [np.nan] * size, np.full(size, np.nan, np.float32), ["a"] * size]


@each_variant
def test_wrong_actions(team_id: str, variant: Mapping[str, Any], device: str) -> None:
    """An action of no use raises, names its agent, and changes nothing."""
    env = pz.parallel_env(team_id, device=device, **variant)
    env.reset(seed=0)
    play(env, steps=5)
    for agent in (env.agents[0], env.agents[-1]):
        for wrong in wrong_actions(env.action_space(agent)):
            actions = sampled(env) | {agent: wrong}
            with pytest.raises(ActionError, match=agent):
                assert_unchanged(env.batch, functools.partial(env.step, actions))
        actions = {name: action for name, action in sampled(env).items() if name != agent}
        with pytest.raises(ActionError, match=f"no action for '{agent}'"):
            assert_unchanged(env.batch, functools.partial(env.step, actions))
    one, other = env.agents[-2:]
    if np.ndim(env.action_space(one).sample()) == 1:  # too few numbers and too many would be right together
        few, many = env.action_space(one).sample()[:1], np.resize(env.action_space(other).sample(), 3)
        with pytest.raises(ActionError, match=one):
            env.step(sampled(env) | {one: few, other: many})
    with pytest.raises(ActionError, match="no action for"):
        env.step({})
    agents = list(env.agents)
    assert list(env.step(sampled(env))[0]) == agents
    env.close()


def test_actions_in_other_forms(team: Any) -> None:
    """Lists, other integers and other libraries' numbers do as well."""

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


def test_actions_of_others_are_ignored(team_id: str, device: str) -> None:
    """Whatever stands for an agent that is out, or that there never was, does no harm."""
    one, other = (pz.parallel_env(team_id, device=device) for _ in range(2))
    for env in (one, other):
        env.reset(seed=0)
        seed_actions(env, 0)
    while one.agents:
        actions = sampled(one)
        others = dict.fromkeys(one.possible_agents, "nothing") | {"nobody_0": None, "tagger_-1": np.nan}
        assert_same_bits(one.step(actions)[:2], other.step(others | actions)[:2])
        assert one.agents == other.agents


def test_needs_a_reset(team: Any, team_id: str) -> None:
    assert team.agents == []
    for act in (lambda: team.step({}), team.state):
        with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
            act()
    with pytest.raises(AssertionError, match="reset"):
        pz.env(team_id).step(0)


def test_closed(team: Any) -> None:
    """Closing twice is fine; use after it is not, even where nobody is left to act."""
    team.reset(seed=0)
    actions = sampled(team)
    team.close()
    team.close()
    for act in (lambda: team.step(actions), lambda: team.step({}), team.state, team.reset):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="closed"):
            act()


def test_no_picture_was_asked_for(team: Any, team_id: str) -> None:
    with pytest.raises(gymnasium.error.Error, match="render_mode=None"):
        team.render()
    for maker in (pz.parallel_env, pz.env, pz.vector_env):
        with pytest.raises(ValueError, match="render_mode is 'ansi'"):
            maker(team_id, render_mode="ansi")


def test_options(team: Any, team_id: str) -> None:
    """What PettingZoo's tests give is ignored; layouts are passed on; a mistake is one."""
    plain, _ = team.reset(seed=0)
    given: dict[str, Any] = {"options": 1}
    assert_same_bits(team.reset(seed=0, options=given)[0], plain)
    assert given == {"options": 1}
    for name in spec_of(team_id).layouts:
        layout = np.arange(len(team.possible_agents)) % 7
        team.reset(options={"options": 1, name: layout})
        assert numpy_of(team.batch.state[name])[0].tolist() == layout.tolist()
    with pytest.raises(ValueError, match="no reset option 'no_such_thing'"):
        team.reset(options={"no_such_thing": 1})


def test_limits(team_id: str) -> None:
    """``max_cycles`` is another name for ``max_episode_steps``; two different limits are a mistake."""
    spec = spec_of(team_id)
    assert pz.parallel_env(team_id).max_cycles == spec.max_episode_steps
    for given in ({"max_cycles": 3}, {"max_episode_steps": 3}, {"max_cycles": 3, "max_episode_steps": 3}):
        env = pz.parallel_env(team_id, **given)
        assert env.max_cycles == 3
        env.reset(seed=0)
        assert len(play(env)) <= 3
        assert pz.vector_env(team_id, 2, **given).unwrapped.max_episode_steps == 3
    assert pz.parallel_env(team_id, max_cycles=-1).max_cycles is None
    with pytest.raises(ValueError, match="max_cycles is 3"):
        pz.parallel_env(team_id, max_cycles=3, max_episode_steps=4)
    if spec.limit is not None:
        with pytest.raises(ValueError, match=spec.limit):
            pz.parallel_env(team_id, max_cycles=3, **{spec.limit: 4})
        assert pz.parallel_env(team_id, **{spec.limit: 4}).max_cycles == 4


def test_unknown_arguments(team_id: str) -> None:
    for make in (pz.parallel_env, pz.env, pz.raw_env, pz.vector_env):
        with pytest.raises(ValueError, match="no parameter 'no_such_thing'"):
            make(team_id, no_such_thing=1)
        with pytest.raises(gpu_envs.UnknownEnvironmentError, match="has one agent"):
            make("CartPole-v1")
    with pytest.raises(TypeError, match="output"):
        pz.parallel_env(team_id, output="torch")


def test_is_on_the_cpu(team_id: str) -> None:
    """One replica is quicker on the CPU, so that is where it is."""
    assert pz.parallel_env(team_id).batch.device == "cpu"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["deep", "pickle"])
def test_copies_go_on(team: Any, team_id: str, copied: Any) -> None:
    """A copy goes on where the other was, whoever is out, and by itself; so does one that was never reset."""
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
    given = play(twin, seed=4)
    assert_same_bits([r[1:3] for r in given], [r[1:3] for r in expected])
    assert [r.agents for r in given] == [r.agents for r in expected]
    assert_same_bits(twin.reset(), team.reset())
    turns = pz.env(team_id)
    turns.reset(seed=2)
    assert_same_bits(copied(turns).state(), turns.state())


# --- registries ---


def test_pettingzoo_makes_them(team_id: str) -> None:
    """PettingZoo's registry knows every team, by either interface, with parameters of any kind."""
    kinds = {"parallel": pettingzoo.ParallelEnv, "aec": pettingzoo.AECEnv}
    for kind, expected in kinds.items():
        name = f"gpu_envs/{team_id}"
        assert pettingzoo.spec(kind, name).id == name
        for given in (name, name.rpartition("-v")[0], name.replace("-v", "_v")):
            assert isinstance(pettingzoo.make(kind, given), expected)
        env = pettingzoo.make(kind, name, max_cycles=5, device="cpu", precision="float64")
        assert env.unwrapped.max_cycles == 5
        assert env.unwrapped.batch.precision == "float64"
        limit = spec_of(team_id).limit
        if limit is not None:
            assert pettingzoo.make(kind, name, **{limit: 6}).unwrapped.max_cycles == 6


def test_namespaces(team_id: str) -> None:
    """Each has its module, whose makers are those of the adapter with the id filled in."""
    module = namespace_of(team_id)
    assert isinstance(module.parallel_env(), pettingzoo.ParallelEnv)
    assert isinstance(module.env(), pettingzoo.AECEnv)
    assert isinstance(module.raw_env(), pettingzoo.AECEnv)
    assert module.vector_env(4).num_envs == 4
    assert isinstance(pickle.loads(pickle.dumps(module.parallel_env))(max_cycles=2), pettingzoo.ParallelEnv)
    assert sys.modules[module.__name__] is module
    pz.publish()  # again: nothing to override, nothing to warn of
    assert namespace_of(team_id) is module
    with pytest.raises(AttributeError, match="no_such_env_v0"):
        pz.no_such_env_v0  # noqa: B018


def run_elsewhere(code: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def test_import_statements() -> None:
    run_elsewhere(
        "import gpu_envs.adapters.pettingzoo.tag_continuous_v0 as tag\n"
        "from gpu_envs.adapters.pettingzoo import tag_grid_world_v0\n"
        "from gpu_envs.adapters.pettingzoo.tag_grid_world_v0 import parallel_env\n"
        "assert str(tag.env()) == 'tag_continuous_v0'\n"
        "assert str(parallel_env()) == str(tag_grid_world_v0.raw_env()) == 'tag_grid_world_v0'\n"
    )


def test_registered_later() -> None:
    """An environment of the user's is found here as soon as it is asked for, and by PettingZoo once published."""
    run_elsewhere(
        "import dataclasses, gpu_envs, pettingzoo\n"
        "import gpu_envs.adapters.pettingzoo as pz\n"
        f"spec = dataclasses.replace(gpu_envs.spec({TEAM_IDS[0]!r}), id='MyOwn.Team-v3')\n"
        "gpu_envs.register(spec)\n"
        "assert pz.parallel_env('MyOwn.Team-v3').metadata['name'] == 'my_own_team_v3'\n"
        "pz.publish()\n"
        "for kind in 'aec', 'parallel':\n"
        "    assert str(pettingzoo.make(kind, 'gpu_envs/MyOwn.Team-v3')) == 'my_own_team_v3'\n"
        "gpu_envs.register(dataclasses.replace(spec, id='Another-v0'))\n"
        "assert str(pz.another_v0.env()) == 'another_v0'\n"
    )


def test_without_pettingzoo() -> None:
    """The error says how to install it; everything else works."""
    run_elsewhere(
        "import sys\n"
        "sys.modules['pettingzoo'] = None\n"
        "import gpu_envs\n"
        "try:\n"
        "    import gpu_envs.adapters.pettingzoo\n"
        "except ImportError as error:\n"
        "    assert \"pip install 'gpu_envs[pettingzoo]'\" in str(error), error\n"
        "else:\n"
        "    raise AssertionError\n"
    )


# --- many replicas ---


def make_vector(team_id: str, place: Place, **kwargs: Any) -> Any:
    return pz.vector_env(team_id, COUNT, device=place.device, output=place.output, **kwargs)


def role_actions(env: Any, place: Place, seed: int) -> dict[str, Any]:
    """Random actions of each role, in the library of a place."""
    spaces = env.unwrapped.action_spaces
    for i, space in enumerate(spaces.values()):
        space.seed(seed + i)
    return {role: moved(space.sample(), place) for role, space in spaces.items()}


def agent_actions(env: Any, by_role: Mapping[str, Any]) -> dict[str, Any]:
    """The same, agent by agent."""
    columns = [array[:, i] for array in by_role.values() for i in range(array.shape[1])]
    return dict(zip(env.possible_agents, columns, strict=True))


def columns_of(env: Any, value: Any) -> dict[str, Any]:
    """What each agent should get of something that is given by role, or by replica."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(env.possible_agents, value)
    if set(value) == set(env.unwrapped.roles):
        return agent_actions(env, value)
    parts = {key: columns_of(env, part) for key, part in value.items()}
    return {agent: {key: part[agent] for key, part in parts.items()} for agent in env.possible_agents}


@pytest.mark.parametrize("variant", [{}, {"copy": False}, {"copy": True, "statistics": True}], ids=str)
def test_vector_is_the_batch(team_id: str, place: Place, mode: str, variant: Mapping[str, Any]) -> None:
    """Agents get columns of the roles' arrays, whether actions come by agent or by role."""
    if place == Place("cuda", "numpy") and variant.get("copy") is False:
        pytest.skip("refused")
    steps = 12 if mode == "Disabled" else 30
    given = {"max_episode_steps": 12, "autoreset_mode": mode, **variant}
    one, other = (make_vector(team_id, place, **given) for _ in range(2))
    batch = gpu_envs.make(team_id, COUNT, device=place.device, output=place.output, **given)
    assert isinstance(batch, MultiAgentEnv)
    results = one.reset(seed=0), other.reset(seed=0)
    expected: Any = batch.reset(seed=0)
    for step in range(steps + 1):
        for result in results:
            assert len(result) == len(expected)
            for part, by_role in zip(result, expected, strict=True):
                assert list(part) == one.possible_agents
                assert_same_bits(part, columns_of(one, by_role))
        for env in (one, other):
            assert_same_bits(env.alive, columns_of(env, expected[-1]["alive"]))
            assert env.agents is env.possible_agents
        if step < steps:
            actions = role_actions(one, place, step)
            results = one.step(agent_actions(one, actions)), other.step(actions)
            expected = batch.step(actions)
    for env in (one, other, batch):
        env.close()


def test_infos_of_an_end(team_id: str, place: Place) -> None:
    """Where an episode ends each agent finds its last observation, return and length, with the masks of replicas."""
    env = make_vector(team_id, place, max_cycles=2, autoreset_mode="SameStep", statistics=True)
    env.reset(seed=0)
    for step in range(2):
        infos = env.step(role_actions(env, place, step))[4]
    for agent in env.possible_agents:
        assert set(infos[agent]) == {"alive", "final_obs", "_final_obs", "episode", "_episode"}
        assert numpy_of(infos[agent]["_final_obs"]).all()
        assert infos[agent]["final_obs"].shape == env.observation_space(agent).shape
        assert set(infos[agent]["episode"]) == {"r", "l"}
        assert infos[agent]["episode"]["l"].shape == (COUNT,)


def test_vector_is_views(team_id: str, place: Place) -> None:
    """The arrays of agents are the memory of the roles' arrays, and the same objects each step."""
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


def test_vector_copies(team_id: str) -> None:
    """By default NumPy's arrays are fresh each step."""
    env = pz.vector_env(team_id, COUNT, device="cpu")
    before, _ = env.reset(seed=0)
    kept = copy.deepcopy(before)
    env.step(role_actions(env, Place("cpu", "numpy"), 0))
    assert_same_bits(before, kept)


def test_vector_writes_where_it_is_told(team_id: str, place: Place) -> None:
    """``out`` passes through: results are views of it."""
    env = make_vector(team_id, place)
    env.reset(seed=0)
    kind = Place("cpu", "numpy") if place.output == "numpy" else place
    if place == Place("cuda", "numpy"):
        pytest.skip("out is on the device")
    out = {
        role: moved(np.zeros(space.shape, np.float32), kind) for role, space in env.unwrapped.observation_spaces.items()
    }
    observations, *_ = env.step(role_actions(env, place, 0), out=gpu_envs.Step(observations=out))
    for agent, column in columns_of(env, out).items():
        assert address(observations[agent]) == address(column)
    assert_same_bits(observations, columns_of(env, env.unwrapped.observe()))


def test_role_actions_are_not_copied(team_id: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_vector(team_id, place)
    env.reset(seed=0)
    actions = role_actions(env, place, 0)
    monkeypatch.setattr(env, "_stack", None)
    env.step(actions)


def test_stacking_stays_on_the_device(team_id: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents' actions are put together in their own library."""
    env = make_vector(team_id, place)
    env.reset(seed=0)
    actions = agent_actions(env, role_actions(env, place, 0))
    given: list[Any] = []
    step = MultiAgentEnv.step

    def spy(self: MultiAgentEnv, actions: Mapping[str, Any], *, out: Any = None) -> Any:
        given.extend(actions.values())
        return step(self, actions, out=out)

    monkeypatch.setattr(MultiAgentEnv, "step", spy)
    env.step(actions)
    env.step(actions)
    assert {type(array) for array in given} == {type(array) for array in actions.values()}
    half = len(given) // 2
    if place.output == "numpy":
        assert all(one is other for one, other in zip(given[:half], given[half:], strict=True))


def test_actions_of_another_library(team_id: str, place: Place) -> None:
    """NumPy's actions do for any output."""
    numpy = Place("cpu", "numpy")
    one, other = make_vector(team_id, place), make_vector(team_id, place)
    for env in (one, other):
        env.reset(seed=0)
    actions = role_actions(one, numpy, 0)
    assert_same_bits(one.step(agent_actions(one, actions))[:4], other.step(actions)[:4])
    nested = {agent: column.tolist() for agent, column in agent_actions(one, actions).items()}
    assert_same_bits(one.step(nested)[:4], other.step(actions)[:4])


def test_vector_spaces(team_id: str) -> None:
    """Batched spaces are those of all replicas; what they sample is a step's actions, what they hold its results."""
    env = pz.vector_env(team_id, COUNT, device="cpu")
    observations, _ = env.reset(seed=0)
    assert (env.num_agents, env.max_num_agents) == (len(env.possible_agents),) * 2
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


def test_vector_refuses(team_id: str, place: Place) -> None:
    """What is wrong with actions is said of the agent, and nothing changes."""
    env = make_vector(team_id, place)
    actions = role_actions(env, place, 0)
    agents = agent_actions(env, actions)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(agents)
    env.reset(seed=0)
    agent = env.possible_agents[1]
    fraction = moved(np.full(env.action_space(agent).shape, 0.5, np.float32), place)
    wrong: list[tuple[type[Exception], str, Any]] = [
        (ActionError, f"no action for '{agent}'", {name: a for name, a in agents.items() if name != agent}),
        (ValueError, f"actions of '{agent}' have shape", agents | {agent: agents[agent][:-1]}),
        (ValueError, "no agent 'nobody_0'", agents | {"nobody_0": agents[agent]}),
        (ValueError, "no role", actions | {agent: agents[agent]}),
        (TypeError, "mapping", None),
        (TypeError, "mapping", [1]),
        (TypeError, r"role|cast", dict.fromkeys(agents, fraction)),
    ]
    for kind, match, given in wrong:
        with pytest.raises(kind, match=match):
            assert_unchanged(env.unwrapped, functools.partial(env.step, given))
    env.step(agents)
    env.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        env.step(agents)
    with pytest.raises(gymnasium.error.Error, match="render_mode=None"):
        env.render()


def test_vector_resets(team_id: str, place: Place) -> None:
    """Seeds and options pass through: a list of seeds, a mask of replicas."""
    env = make_vector(team_id, place)
    first, infos = env.reset(seed=[3, 4, 5])
    kept = {agent: numpy_of(array) for agent, array in first.items()}
    assert_same_bits(env.reset(seed=3)[0], kept)
    assert all(numpy_of(infos[agent]["alive"]).all() for agent in env.possible_agents)
    env.step(role_actions(env, place, 0))
    elapsed = numpy_of(env.state["elapsed"])
    env.reset(options={"reset_mask": np.array([True, False, False])})
    assert numpy_of(env.state["elapsed"]).tolist() == [0, *elapsed[1:].tolist()]
    with pytest.raises(ValueError, match="no reset option 'options'"):
        env.reset(options={"options": 1})


def test_vector_pickles(team_id: str, place: Place) -> None:
    """A copy goes on where the other was, and knows who is in the game."""
    env = make_vector(team_id, place, autoreset_mode="SameStep")
    env.reset(seed=0)
    for step in range(5):
        env.step(role_actions(env, place, step))
    twin = pickle.loads(pickle.dumps(env))
    assert_same_bits(twin.alive, env.alive)
    for step in range(5):
        actions = role_actions(env, place, step)
        assert_same_bits(twin.step(actions)[:4], env.step(agent_actions(env, actions))[:4])
    assert repr(twin) == repr(env)
    assert team_id in repr(env)


def test_modes_are_those_of_the_batch(team_id: str) -> None:
    for mode in MODES:
        env = pz.vector_env(team_id, 2, device="cpu", autoreset_mode=mode)
        assert env.metadata["autoreset_mode"].value == mode
    assert {place.output for place in PLACES} >= {"numpy"}
