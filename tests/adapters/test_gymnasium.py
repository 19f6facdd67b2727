"""The Gymnasium interface: registration, ``make_vec`` and the single environment."""

import copy
import dataclasses
import functools
import json
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from harness import (
    HAS_CUDA,
    IDS,
    TEAM_IDS,
    assert_same_bits,
    is_discrete,
    random_actions,
)

import gpu_envs
from gpu_envs import ActionError
from gpu_envs.registry.catalog import env_spec

IN_GYMNASIUM = [env_id for env_id in IDS if env_id in gymnasium.registry]
each_in_gymnasium = pytest.mark.parametrize("env_id", IN_GYMNASIUM)


@pytest.fixture
def single(env_id: str, device: str) -> Iterator[gymnasium.Env[Any, Any]]:
    """Return the single environment without wrappers."""
    env = gymnasium.make(f"gpu_envs/{env_id}", device=device).unwrapped
    yield env
    env.close()


def only_action(env_id: str, seed: int = 0) -> Any:
    """Return a random action of a single environment, in the type of its space."""
    action = random_actions(env_id, 1, seed=seed)[0]
    return action if is_discrete(env_id) else np.clip(action, -1, 1)


# --- registration ---


@pytest.mark.parametrize("count", [1, 3, 10])
def test_make_vec(env_id: str, count: int) -> None:
    """``make_vec`` returns a ``VectorEnv`` with the spec's time limit."""
    env = gymnasium.make_vec(f"gpu_envs/{env_id}", num_envs=count, device="cpu")
    assert isinstance(env, gpu_envs.VectorEnv)
    assert env.num_envs == count
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert env.reset(seed=0)[0].shape == env.observation_space.shape
    assert env.spec is not None
    spec = gpu_envs.spec(env_id)
    assert env.spec.max_episode_steps == spec.step_limit(spec.check_params({}, 1))
    env.close()


def test_make_vec_arguments(env_id: str, device: str, mode: str) -> None:
    """``make_vec`` accepts all options, and its spec creates an equal environment."""
    env = gymnasium.make_vec(
        f"gpu_envs/{env_id}", num_envs=3, device=device, autoreset_mode=mode, precision="float64", max_episode_steps=7
    )
    assert env.spec is not None
    again = gymnasium.make_vec(env.spec)
    assert env.spec == again.spec
    text = env.spec.to_json()
    assert json.loads(text)["kwargs"]["autoreset_mode"] == mode
    restored = gymnasium.make_vec(gymnasium.envs.registration.EnvSpec.from_json(text))
    first = env.reset(seed=1)[0]
    for other in (again, restored):
        assert isinstance(other, gpu_envs.VectorEnv)
        assert (other.num_envs, other.autoreset_mode, other.precision) == (3, AutoresetMode(mode), "float64")
        assert_same_bits(first, other.reset(seed=1)[0])
        other.set_state({**other.get_state(), "episode": {**other.get_state()["episode"], "elapsed": np.full(3, 6)}})
        assert other.step(random_actions(env_id, 3))[3].all()
        other.close()
    env.close()


def test_unknown_arguments(env_id: str) -> None:
    with pytest.raises(ValueError, match="no option or parameter 'no_such_thing'"):
        gymnasium.make_vec(f"gpu_envs/{env_id}", device="cpu", no_such_thing=1)
    # other libraries detect unsupported arguments by Python's message
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'no_such_thing'.* no option or parameter"):
        gymnasium.make(f"gpu_envs/{env_id}", device="cpu", no_such_thing=1)


@pytest.mark.parametrize("team_id", TEAM_IDS)
def test_make_refuses_teams(team_id: str) -> None:
    """The error message names the function to call instead."""
    makers: tuple[Callable[..., Any], ...] = (gymnasium.make, gymnasium.make_vec)
    for make in makers:
        with pytest.raises(gpu_envs.UnknownEnvironmentError, match=rf"team of agents.*gpu_envs\.make\('{team_id}'"):
            make(f"gpu_envs/{team_id}")


def test_registering_again() -> None:
    """Registering an equal spec again is allowed; another spec with the same id raises."""
    spec = gpu_envs.spec(IDS[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium warns about overriding an environment
        gpu_envs.register(spec)
    with pytest.raises(ValueError, match="taken"):
        gpu_envs.register(dataclasses.replace(spec, max_episode_steps=3))
    assert gpu_envs.spec(spec.id) == gpu_envs.spec(f"gpu_envs/{spec.id}") == spec


def test_import_is_light() -> None:
    """Gymnasium imports this package for an id with its name; CuPy, torch and RL libraries are not imported."""
    code = (
        "import sys, gymnasium\n"
        "env = gymnasium.make_vec('gpu_envs:gpu_envs/CartPole-v1', num_envs=2, device='cpu')\n"
        "import gpu_envs\n"
        "singles = [i for i in gpu_envs.ids() if isinstance(gpu_envs.spec(i), gpu_envs.EnvSpec)]\n"
        "assert singles and all(f'gpu_envs/{i}' in gymnasium.registry for i in singles)\n"
        "env.reset(seed=0), env.step(env.action_space.sample())\n"
        "heavy = {'cupy', 'torch', 'stable_baselines3', 'pettingzoo', 'pygame'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- comparison with Gymnasium ---


@each_in_gymnasium
def test_spaces_and_spec_match_gymnasium(env_id: str, device: str) -> None:
    """Spaces, time limit and reward threshold are equal."""
    theirs, ours = gymnasium.make(env_id), gymnasium.make(f"gpu_envs/{env_id}", device=device)
    assert theirs.spec is not None
    assert ours.spec is not None
    assert ours.spec.max_episode_steps == theirs.spec.max_episode_steps
    assert ours.spec.reward_threshold == theirs.spec.reward_threshold
    for mine, other in [
        (ours.observation_space, theirs.observation_space),
        (ours.action_space, theirs.action_space),
    ]:
        assert mine == other
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
    vector = gpu_envs.make(env_id, 2, device=device)
    assert vector.single_observation_space == theirs.observation_space
    assert vector.single_action_space == theirs.action_space
    for env in (theirs, ours, vector):
        env.close()


@each_in_gymnasium
def test_initial_states_are_distributed_as_in_gymnasium(env_id: str) -> None:
    """Initial states have the same range, mean and standard deviation."""
    theirs: Any = gymnasium.make(env_id).unwrapped
    expected = np.array([theirs.reset(seed=s) and np.array(theirs.state, np.float64) for s in range(2_000)])
    env = gpu_envs.make(env_id, 2_000, device="cpu", precision="float64")
    env.reset(seed=0)
    for i, field in enumerate(env.state.values()):
        low, high = expected[:, i].min(), expected[:, i].max()
        slack = 0.01 * (high - low) + 1e-12  # the extremes of 2,000 draws: 1 / 1000 short of the bounds
        assert abs(field.min() - low) <= slack
        assert abs(field.max() - high) <= slack
        assert abs(field.mean() - expected[:, i].mean()) <= 0.05 * (high - low) + 1e-12
        assert abs(field.std() - expected[:, i].std()) <= 0.05 * (high - low) + 1e-12


# --- the single environment ---


def test_single_returns_python_numbers(single: gymnasium.Env[Any, Any], env_id: str) -> None:
    """Reward and flags are Python numbers; the observation is a new array of its space."""
    first, infos = single.reset(seed=0)
    assert infos == {}
    observation, reward, terminated, truncated, infos = single.step(only_action(env_id))
    assert (type(reward), type(terminated), type(truncated), infos) == (float, bool, bool, {})
    assert isinstance(observation, np.ndarray)
    assert observation in single.observation_space
    assert not np.shares_memory(first, observation)


def test_single_has_no_time_limit(env_id: str, device: str) -> None:
    """Only Gymnasium's TimeLimit wrapper truncates."""
    bare = gymnasium.make(f"gpu_envs/{env_id}", device=device).unwrapped
    limited = gymnasium.make(f"gpu_envs/{env_id}", device=device, max_episode_steps=3)
    for env in (bare, limited):
        env.reset(seed=0)
        flags = [env.step(only_action(env_id))[3] for _ in range(3)]
        assert flags == [False, False, env is limited]
        env.close()


def test_single_after_the_end(device: str) -> None:
    """After termination the state stays, the reward is 0, and a warning is issued once, until a reset; copies too."""
    env: Any = gymnasium.make("gpu_envs/CartPole-v1", device=device).unwrapped
    env.reset(seed=0)
    env.state = [3.0, 0.0, 0.0, 0.0]
    last, reward, terminated, _, _ = env.step(0)
    assert (reward, terminated) == (1.0, True)
    for one in (pickled(env), deep_copied(env), env):
        with pytest.warns(UserWarning, match="reset"):
            again = one.step(1)
        assert_same_bits(again[0], last)
        assert again[1:4] == (0.0, True, False)
    assert env.step(1)[1:4] == (0.0, True, False)
    env.reset()
    assert env.step(1)[1:4] == (1.0, False, False)


def deep_copied(env: Any) -> Any:
    return copy.deepcopy(env)


def pickled(env: Any) -> Any:
    return pickle.loads(pickle.dumps(env))


each_copy = pytest.mark.parametrize("copied", [deep_copied, pickled])


def steps_of(env: gymnasium.Env[Any, Any], env_id: str, seed: int, count: int = 20) -> list[Any]:
    """Return the results of steps, with a reset after each episode."""
    results: list[Any] = []
    for i in range(count):
        results.append(env.step(only_action(env_id, seed + i))[:4])
        if results[-1][2] or results[-1][3]:
            results.append(env.reset()[0])
    return results


@each_copy
def test_single_copies_continue_independently(env_id: str, device: str, copied: Callable[[Any], Any]) -> None:
    """Copies, with wrappers, continue from the same state."""
    env = gymnasium.make(f"gpu_envs/{env_id}", device=device, max_episode_steps=15)
    fresh = copied(env)
    with pytest.raises(gymnasium.error.ResetNeeded):
        fresh.unwrapped.step(only_action(env_id))
    first = env.reset(seed=2)[0]
    assert_same_bits(fresh.reset(seed=2)[0], first)
    steps_of(env, env_id, 0, 7)
    twin, other = copied(env), copied(env)
    before = env.get_wrapper_attr("state")
    ahead = steps_of(twin, env_id, 7)
    assert_same_bits(env.get_wrapper_attr("state"), before)
    assert_same_bits(steps_of(env, env_id, 7), ahead)
    assert_same_bits(steps_of(other, env_id, 7), ahead)
    assert twin.spec == env.spec
    env.close()
    steps_of(other, env_id, 30)
    assert copied(env.unwrapped)._env.closed  # noqa: SLF001 - has no public name


def non_default_value(param: gpu_envs.Param) -> Any:
    """Return a valid value of a parameter other than its default."""
    if param.kind == "choice":
        return next(choice for choice in param.choices if choice != param.default)
    if param.kind == "bool":
        return not param.default
    assert isinstance(param.default, int | float)
    return param.default + 1 if param.kind == "int" else param.default * 1.25 or 0.125


def set_by_name(env: Any, name: str, value: Any) -> None:
    setattr(env.unwrapped, name, value)


def set_through_wrappers(env: Any, name: str, value: Any) -> None:
    env.set_wrapper_attr(name, value)


@pytest.mark.slow
@pytest.mark.parametrize("set_value", [set_by_name, set_through_wrappers])
def test_single_parameters_are_attributes(env_id: str, device: str, set_value: Callable[[Any, str, Any], None]) -> None:
    """Setting a parameter has the same effect as passing it to ``make``, in copies too."""
    spec = env_spec(env_id)
    state = [0.25 if field.type == "real" else 1 for field in spec.typed_state.values()]
    for name, param in spec.params.items():
        if param.fixed:
            continue
        # (without checker: a parameter set later does not change the observation space)
        created, changed_later = (
            gymnasium.make(f"gpu_envs/{env_id}", device=device, disable_env_checker=True, **changed)
            for changed in ({name: non_default_value(param)}, {})
        )
        assert changed_later.get_wrapper_attr(name) == getattr(changed_later.unwrapped, name) == param.default
        for env in (created, changed_later):
            env.reset(seed=1)
            env.unwrapped.state = np.array(state)  # type: ignore[attr-defined]
        set_value(changed_later, name, non_default_value(param))
        assert changed_later.get_wrapper_attr(name) == created.get_wrapper_attr(name) != param.default, name
        twin = deep_copied(changed_later)
        expected = steps_of(created, env_id, 0)
        assert_same_bits(steps_of(changed_later, env_id, 0), expected)
        assert_same_bits(steps_of(twin, env_id, 0), expected)


SAME_NAMES = [
    *(("CartPole-v1", name) for name in ("gravity", "force_mag", "tau")),
    *(("MountainCar-v0", name) for name in ("gravity", "force", "max_speed")),
    *(("Pendulum-v1", name) for name in ("g", "m", "l", "dt", "max_speed", "max_torque")),
]
"""Parameters that are attributes of Gymnasium's environments too, of environments that compute in float64."""


@pytest.mark.parametrize(("env_id", "name"), SAME_NAMES)
def test_single_attributes_match_gymnasium(env_id: str, name: str) -> None:
    """Set through Gymnasium's vector environments, they change steps in the same way."""
    states = []
    make: Any = functools.partial(gymnasium.make_vec, num_envs=2, vectorization_mode="sync")
    for envs in (make(env_id), make(f"gpu_envs/{env_id}", precision="float64", device="cpu")):
        envs.reset(seed=0)
        usual = envs.get_attr(name)[1]
        envs.set_attr(name, [usual, usual * 2])
        assert envs.get_attr(name) == (usual, usual * 2)
        for env in envs.envs:
            env.unwrapped.state = np.full(len(env.unwrapped.state), 0.03125)
        for _ in range(3):
            envs.step(np.full_like(envs.action_space.sample(), 0 if is_discrete(env_id) else 1))
        states.append([np.array(env.unwrapped.state, np.float64) for env in envs.envs])
    np.testing.assert_allclose(states[1], states[0], rtol=1e-12)
    if name not in ("max_speed", "max_torque"):  # not reached in these steps
        assert (states[1][0] != states[1][1]).any()


def test_single_unknown_attributes_raise(single: Any, env_id: str) -> None:
    """Reading or setting them raises, as do invalid values, and the environment can be stepped afterwards."""
    single.reset(seed=0)
    name, param = next((n, p) for n, p in gpu_envs.spec(env_id).params.items() if p.kind == "real")
    assert not hasattr(single, "no_such_thing")
    for act in (lambda: getattr(single, f"{name}s"), lambda: setattr(single, f"{name}s", 1.0)):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}s'.* Did you mean '{name}'"):
            act()
    with pytest.raises(ValueError, match=name):
        setattr(single, name, np.nan)
    assert getattr(single, name) == param.default
    single.step(only_action(env_id))


def test_single_state_fields_are_attributes(single: Any, env_id: str) -> None:
    single.reset(seed=0)
    for i, (name, field) in enumerate(env_spec(env_id).typed_state.items()):
        assert getattr(single, name) == single.state[i]
        value = 0.125 if field.type == "real" else 1
        setattr(single, name, value)
        assert single.state[i] == getattr(single, name) == value


def test_single_metadata(single: Any, env_id: str) -> None:
    """No autoreset mode, no tiled rendering, and the CPU as default device, which is faster for one replica."""
    assert "autoreset_mode" not in single.metadata
    assert single.metadata["render_modes"] == ["rgb_array", "human"]
    assert gymnasium.make(f"gpu_envs/{env_id}").unwrapped._env.device == "cpu"  # type: ignore[attr-defined]  # noqa: SLF001 - has no public name


def test_single_invalid_actions_raise(single: gymnasium.Env[Any, Any], env_id: str) -> None:
    """Invalid actions raise and change nothing; stepping a closed environment raises."""
    single.reset(seed=0)
    wrong: list[Any] = ["a", None, [1, 2, 3]]
    wrong += [-1, 4, 2**40, 0.5, np.float32(0.9), [0.5]] if is_discrete(env_id) else [[np.nan]]
    for action in wrong:
        with pytest.raises(ActionError):
            single.step(action)
    single.step(only_action(env_id))
    single.close()
    single.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        single.step(only_action(env_id))


@pytest.mark.parametrize("kind", ["int", "int64", "uint8", "0-d array"])
def test_single_discrete_actions(device: str, kind: str) -> None:
    """Integers of any type are accepted."""
    env = gymnasium.make("gpu_envs/CartPole-v1", device=device).unwrapped
    env.reset(seed=0)
    expected = env.step(1)
    env.reset(seed=0)
    action = {"int": 1, "int64": np.int64(1), "uint8": np.uint8(1), "0-d array": np.array(1)}[kind]
    assert_same_bits(env.step(action)[0], expected[0])


def test_single_seeds(single: gymnasium.Env[Any, Any]) -> None:
    """A seed determines the episode and the following episodes, and seeds ``np_random``."""
    first, following = single.reset(seed=7)[0], single.reset()[0]
    state = single.np_random.bit_generator.state
    assert_same_bits(first, single.reset(seed=7)[0])
    assert_same_bits(following, single.reset()[0])
    assert single.np_random.bit_generator.state == state
    assert (first != following).any()
    assert single.np_random_seed == 7


def test_invalid_reset_bounds(single: Any, env_id: str) -> None:
    """Bounds that Gymnasium refuses raise, and change nothing."""
    if not gpu_envs.spec(env_id).options:
        pytest.skip("it has no options")
    low, high = gpu_envs.spec(env_id).options
    single.reset(seed=1)
    before = single.state
    wrong: list[dict[str, Any]] = [{name: value} for name in (low, high) for value in ("abc", None, [0.1], np.nan)]
    wrong += [{low: 0.4, high: 0.2} if low == "low" else {low: -1.0}, {high: np.inf}, {high: (-0.1,) * 4}]
    for options in wrong:
        with pytest.raises(ValueError, match=f"{low}|{high}"):
            single.reset(options=options)
    with pytest.raises(ValueError, match="no reset option"):
        single.reset(options={f"{low}w": 0.1})
    assert_same_bits(before, single.state)


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
def test_devices_by_name(env_id: str) -> None:
    """A device may be torch's."""
    torch = pytest.importorskip("torch")
    env = gpu_envs.make(env_id, device=torch.device("cuda", 0), output="torch")
    assert (env.device, env.reset(seed=0)[0].device) == ("cuda:0", torch.device("cuda", 0))
