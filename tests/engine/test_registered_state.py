"""State, parameters and attributes of registered environments, and the errors of ``make`` and ``close``."""

import functools
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from generated import numbers
from harness import HAS_CUDA, SMALL_PARAMS, Make, Place, assert_all_same, assert_same_bits, numpy_of, to_place
from registered import (
    CONTINUOUS,
    GRID,
    LIMIT,
    VARIANTS,
    Variant,
    actions_of_replicas,
    assert_refused,
    draw_actions,
    each_variant,
    first_real,
    join_agents,
    make_variant,
    needs_cuda,
    numpy_by_role,
    parametrize_variants,
    place_actions,
    record,
    record_of_replicas,
    take_step,
)

import gpu_envs


def field_of(env: Any) -> str:
    """The first field of the state that rules write."""
    return next(str(name) for name in env.state if name != "in_game")


def test_state_is_live(make: Make, variant: Variant, place: Place) -> None:
    """``state`` is the simulation's memory: steps change it, and assignments write into it."""
    env = make_variant(make, variant, 4, place)
    env.reset(seed=0)
    fields, name = dict(env.state), field_of(env)
    before = {key: numpy_of(values) for key, values in fields.items()}
    env.step(place_actions(env, draw_actions(env, 1)[0], place))
    assert any((before[key] != numpy_of(values)).any() for key, values in fields.items())
    field = fields[name]
    values = (np.arange(before[name].size) % 4).reshape(before[name].shape)
    for assigned in (values, values.tolist(), to_place(values, place), values.astype(np.float64)):
        env.state[name] = 0
        assert not numpy_of(field).any()
        env.state[name] = assigned
        assert_same_bits(field, values.astype(before[name].dtype))
    field[1] = 3
    assert (numpy_of(env.state[name])[1] == 3).all()
    if "elapsed" in fields:
        env.state["elapsed"] = [1, 2, 3, 4]
        assert numpy_of(fields["elapsed"]).tolist() == [1, 2, 3, 4]


@each_variant
def test_observe(make: Make, variant: Variant, place: Place) -> None:
    """``observe`` returns the observations of an assigned state, inactive agents included, and changes nothing else."""
    env, other = (make_variant(make, variant, 8, place, autoreset_mode="Disabled") for _ in range(2))
    env.reset(seed=0)
    expected = numpy_by_role(other, other.reset(seed=9)[0])
    other.allow_frozen_steps()
    for action in draw_actions(other, 6):
        expected = numpy_by_role(other, other.step(place_actions(other, action, place))[0])
        assert_same_bits(numpy_by_role(other, other.observe()), expected)
    for name, values in other.state.items():
        env.state[name] = values
    before = env.get_state()
    observations = join_agents(env, env.observe())
    assert_same_bits(before, env.get_state())
    # an agent that has just become inactive still observes in a step, which the state does not contain
    active = numpy_of(env.state["in_game"]) if variant.has_team else np.ones((8, 1), bool)
    assert_same_bits(observations[active], join_agents(other, other.observe())[active])
    assert not observations[~active].any()


def test_invalid_state(make: Make, variant: Variant, device: str) -> None:
    """Values of another shape, and values that are not numbers, are refused with the field's name."""
    env = make_variant(make, variant, 4, Place(device, "numpy"))
    env.reset(seed=0)
    for name, values in env.state.items():
        shape = tuple(values.shape)
        for wrong in (np.zeros((3, *shape[1:])), np.zeros((*shape, 5)), "here"):
            with pytest.raises(TypeError if isinstance(wrong, str) else ValueError, match=name):
                env.state[name] = wrong
    with pytest.raises(KeyError, match="mass"):
        env.state["mass"] = 1.0


def test_get_attr(make: Make, variant: Variant, place: Place) -> None:
    """Parameters, fields and attributes have one value for each replica, as in SyncVectorEnv."""
    name = first_real(variant)
    default = make_variant(make, variant, 1).params[name]
    env = make_variant(make, variant, 3, place, **{name: default * np.array([1.0, 1.5, 2.0])})
    env.reset(seed=5)
    assert env.get_attr(name) == pytest.approx((default, 1.5 * default, 2 * default))
    assert env.get_attr("device") == (env.device,) * 3
    assert env.get_attr("elapsed") == (0, 0, 0)
    field = field_of(env)
    assert env.get_attr(field) == tuple(numpy_of(env.state[field]).tolist())
    with pytest.raises(AttributeError):
        env.get_attr("no_such_thing")
    if variant.has_team:
        assert env.get_attr("max_episode_steps") == (LIMIT,) * 3
        assert env.get_attr("num_agents") == (env.num_agents,) * 3
    else:
        assert env.get_attr("np_random_seed") == (5, 6, 7)
        assert env.call(name) == env.get_attr(name)


def test_a_tuple_as_long_as_the_batch_is_not_split(make: Make, variant: Variant, device: str) -> None:
    env = make_variant(make, variant, 2, Place(device, "numpy"))
    first, second = env.call("reset", seed=3)
    assert len(first) == 2
    assert first[1] is second[1]  # the infos of all replicas
    name = first_real(variant)
    assert env.call("get_attr", name) == env.get_attr(name)  # which already has one for each replica
    if variant.has_team:
        assert env.get_attr("roles") == (env.roles,) * 2


def test_set_attr(make: Make, variant: Variant, device: str) -> None:
    """A parameter set later, to one value or values per replica, has the same effect as one passed to ``make``."""
    place, name = Place(device, "numpy"), first_real(variant)
    default = make_variant(make, variant, 1).params[name]
    for value in (default * 1.5, default * np.array([1.0, 1.5, 2.0]), default):
        changed, new = make_variant(make, variant, 3, place), make_variant(make, variant, 3, place, **{name: value})
        changed.reset(seed=1)
        changed.set_attr(name, value)
        assert_same_bits(changed.reset(seed=1)[0], new.reset(seed=1)[0])
        assert_all_same(record(env, draw_actions(env, 20)) for env in (changed, new))
        assert changed.get_attr(name) == pytest.approx(tuple(np.broadcast_to(value, 3)))
    field = field_of(changed)
    values = (np.arange(changed.state[field].size) % 4).reshape(changed.state[field].shape)
    changed.set_attr(field, values)
    assert_same_bits(numpy_of(changed.state[field]), values.astype(numpy_of(changed.state[field]).dtype))
    for attribute, value, word in ((name, np.nan, name), (name, [1.0, 2.0], f"{name}.*shape"), (f"{name}s", 1.0, name)):
        assert_refused(changed, functools.partial(changed.set_attr, attribute, value), ValueError, word)
    assert_refused(changed, lambda: changed.set_attr("no_such_thing", 1), ValueError, "no attribute|no parameter")
    assert changed.get_attr(name) == (default,) * 3


def params_per_replica(variant: Variant, count: int) -> dict[str, np.ndarray]:
    """Values per replica for every parameter that allows them; ordered pairs stay ordered."""
    rng = np.random.default_rng(3)
    shift = 1 + rng.uniform(0, 0.1, count)
    params: dict[str, np.ndarray] = {}
    spec = gpu_envs.spec(variant.env_id)
    values = spec.check_params({**SMALL_PARAMS.get(variant.env_id, {}), **variant.params}, 1)
    for name, param in spec.params.items():
        default: Any = values[name]
        if param.fixed or isinstance(param, gpu_envs.Derived) or name == "start":  # these have one value for the batch
            continue
        if param.kind == "choice":
            params[name] = rng.choice(param.choices, count)
        elif param.kind == "bool":
            params[name] = rng.integers(0, 2, count).astype(bool)
        elif param.kind == "int":
            params[name] = rng.integers(3, 7, count)
        elif not np.any(default) and variant.has_team:
            low, high = (-0.1, 0.0) if param.maximum == 0 else (0.0, 0.1)
            params[name] = rng.uniform(low, high, (count, *np.shape(default)))
        else:
            params[name] = np.multiply.outer(shift, default)
    return params


def params_of_replica(params: Mapping[str, np.ndarray], index: int) -> dict[str, Any]:
    """The values of one replica."""
    return {name: values[index].tolist() for name, values in params.items()}


@pytest.mark.fast_cases(6)
@each_variant
def test_parameters_per_replica(make: Make, variant: Variant, device: str) -> None:
    """Replica i of a batch with values per replica equals a single environment with the i-th values."""
    count, place = 70, Place(device, "numpy")
    params = params_per_replica(variant, count)
    assert len(params) > 1
    batch = make_variant(make, variant, count, place, **params)
    first = numpy_by_role(batch, batch.reset(seed=2)[0])
    actions = draw_actions(batch, 25)
    of_batch = record(batch, actions)
    for index in (0, 65, 69):
        here = slice(index, index + 1)
        single = make_variant(make, variant, 1, place, **params_of_replica(params, index))
        assert_same_bits({r: v[here] for r, v in first.items()}, numpy_by_role(single, single.reset(seed=2 + index)[0]))
        assert_same_bits(
            record_of_replicas(of_batch, here), record(single, actions_of_replicas(actions, here)), f"replica {index}"
        )


# --- errors of make ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs is 0"),
        ({"num_envs": 2.0}, "num_envs"),
        ({"num_envs": True}, "num_envs"),
        ({"device": "gpu"}, "'gpu'.*'auto', 'cpu', 'cuda'"),
        ({"device": "cuda:x"}, "cuda:x"),
        ({"output": "tensor"}, "output.*'numpy', 'torch', 'cupy'"),
        ({"output": "pytorch"}, "Did you mean 'torch'"),
        ({"output": "cupy"}, "cupy"),
        ({"autoreset_mode": "next_step"}, "'NextStep', 'SameStep', 'Disabled'"),
        ({"autoreset_mode": "Samestep"}, "Did you mean 'SameStep'"),
        ({"precision": "float16"}, "'float32', 'float64'"),
        ({"threads": 0}, "threads"),
        ({"threads": 1.5}, "threads"),
        ({"threads": True}, "threads is True"),
        ({"threads": "2"}, "threads"),
        ({"render_mode": "ansi"}, "render_mode is 'ansi'.*'rgb_array', 'tiled', 'human'"),
        ({"copy": "no"}, "copy is 'no'; give True or False"),
        ({"copy": 1}, "copy is 1"),
        ({"statistics": "yes"}, "statistics"),
        ({"checking": "x"}, "checking is 'x'"),
        ({"checking": None}, "checking"),
        ({"block_size": 33}, "block_size is 33"),
        ({"output": None}, "output is None"),
        ({"precision": np.float32}, "precision"),
    ],
)
def test_invalid_options(variant: Variant, arguments: dict[str, Any], message: str) -> None:
    """The message says what was given and what is allowed."""
    with pytest.raises(ValueError, match=message):
        gpu_envs.make(variant.env_id, **{"num_envs": 2, "device": "cpu", **arguments})


def test_invalid_params(variant: Variant) -> None:
    """The message has the parameter's name, and says what was given and what is allowed."""
    make: Any = gpu_envs.make
    name = first_real(variant)
    for value in (np.nan, np.inf, "heavy", None, [1.0, 2.0], [[1.0], [1.0], [1.0]], [1.0, np.nan, 1.0], object()):
        with pytest.raises(ValueError, match=rf"{name}.*(allowed|give)"):
            make(variant.env_id, 3, device="cpu", **{name: value})
    with pytest.raises(ValueError, match=rf"no option or parameter '{name}x'. Did you mean '{name}'\?"):
        make(variant.env_id, 3, device="cpu", **{f"{name}x": 1.0})
    wrong: dict[str, list[Any]] = {"int": [2.5, True, "5"], "bool": ["yes", 2], "choice": ["nothing", 0]}
    for name, param in numbers(gpu_envs.spec(variant.env_id)).items():
        values = list(wrong.get(param.kind, [np.nan, "much", None]))
        values += [0] * param.positive + [[param.default] * 3] * param.fixed
        values += [param.minimum - 1] * (param.minimum > -np.inf) + [param.maximum + 1] * (param.maximum < np.inf)
        for value in values:
            with pytest.raises(ValueError, match=rf"{name}.*{'above 0' if value == 0 and param.positive else ''}"):
                gpu_envs.make(variant.env_id, 3, device="cpu", **{name: value})


@pytest.mark.parametrize(
    ("env_id", "params", "message"),
    [
        ("CartPole-v1", {"kinematics_integrator": "Euler"}, "'Euler'.*'euler', 'semi-implicit'"),
        ("CartPole-v1", {"kinematics_integrator": 0}, "'euler', 'semi-implicit'"),
        ("CartPole-v1", {"sutton_barto_reward": "yes"}, "'yes'.*True or False"),
        ("CartPole-v1", {"low": 0.1}, "'low' must not exceed 'high'"),
        ("Acrobot-v1", {"torque_noise_max": -1.0}, "torque_noise_max"),
        ("MountainCar-v0", {"min_position": 1.0}, "'min_position' must not exceed 'max_position'"),
        ("MountainCarContinuous-v0", {"min_action": [0.0, 0.0, 2.0]}, "'min_action' must not exceed 'max_action'"),
        (CONTINUOUS, {"actions": "box"}, "'discrete', 'continuous'"),
        (CONTINUOUS, {"min_turn": 3.0}, "'min_turn' must not exceed 'max_turn'"),
        (CONTINUOUS, {"max_acceleration": [0.1, -1.0, 0.1]}, "'min_acceleration' must not exceed 'max_acceleration'"),
        (CONTINUOUS, {"num_taggers": 2.5}, "num_taggers.*integer"),
        (GRID, {"num_taggers": [3, 3, 3]}, "num_taggers.*one for all"),
        (GRID, {"grid_length": -1}, "grid_length.*above 0"),
        (GRID, {"start": "centre"}, "'random', 'fixed'"),
    ],
)
def test_invalid_params_of_some_environments(env_id: str, params: dict[str, Any], message: str) -> None:
    """Messages for bools, choices and ordered pairs say what is allowed."""
    with pytest.raises(ValueError, match=message):
        gpu_envs.make(env_id, 3, device="cpu", **params)


@parametrize_variants({name: VARIANTS[name] for name in ("continuous-nearest", "grid-full")})
def test_invalid_attributes(make: Make, variant: Variant) -> None:
    """Parameters on which shapes depend, and unknown choices, cannot be set; nothing changes."""
    env = make_variant(make, variant, 3)
    env.reset(seed=0)
    wrong = {"num_taggers": 5, "use_full_observation": False, "episode_length": 5, "start": "centre"}
    for name, value in wrong.items():
        match = "'random', 'fixed'" if name == "start" else name
        assert_refused(env, functools.partial(env.set_attr, name, value), ValueError, match)


def test_unknown_environment() -> None:
    """The message has the closest id and a list of ids."""
    for unknown_id, closest in (("Cartpole-v1", "'CartPole-v1'.*Pendulum-v1"), ("tagcontinuous-v0", f"'{CONTINUOUS}'")):
        with pytest.raises(KeyError, match=f"Did you mean {closest}"):
            gpu_envs.make(unknown_id)


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "cuda:99"}, "cuda:99"),
        ({"copy": False}, "copy=False"),
        ({"block_size": 33}, "block_size"),
        ({"block_size": 2048}, "block_size"),
    ],
)
def test_invalid_options_on_cuda(variant: Variant, arguments: dict[str, Any], message: str) -> None:
    """A block has at most 1024 threads."""
    with pytest.raises(ValueError, match=message):
        gpu_envs.make(variant.env_id, **{"device": "cuda", **arguments})


@each_variant
def test_more_replicas_than_fit(make: Make, variant: Variant, place: Place) -> None:
    """The MemoryError says how much memory is needed; other environments stay usable."""
    env = make_variant(make, variant, 8, place)
    env.reset(seed=0)
    with pytest.raises(MemoryError, match=r"1,000,000,000,000 replicas.*GiB"):
        make_variant(make, variant, 10**12, place)
    if variant.has_team:
        with pytest.raises(MemoryError, match="GiB"):
            make_variant(make, variant, 10**30, place)
    else:
        with pytest.raises(MemoryError, match="steps"):
            env.rollout(2**31 - 1, per_step=True)
    take_step(env, draw_actions(env, 1)[0])


def test_close(make: Make, variant: Variant, place: Place) -> None:
    """Steps before the first reset and calls after ``close`` raise errors; closing twice is allowed."""
    env = make_variant(make, variant, 2, place)
    step = functools.partial(env.step, place_actions(env, draw_actions(env, 1)[0]))
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        step()
    env.reset(seed=0)
    calls = [step, env.observe, env.get_state, functools.partial(env.reset, seed=0)]
    calls += [functools.partial(env.set_state, env.get_state())]
    calls += [] if variant.has_team else [functools.partial(env.rollout, 2)]
    assert not env.closed
    env.close()
    env.close()
    assert env.closed
    for call in calls:
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="closed"):
            call()


def test_auto_device(make: Make, variant: Variant) -> None:
    """``auto`` is CUDA if a CUDA device is available, otherwise the CPU; the ``repr`` has all options."""
    env = make(variant.env_id)
    assert env.device.partition(":")[0] == ("cuda" if HAS_CUDA else "cpu")
    assert (env.num_envs, env.output, env.precision) == (1, "numpy", "float32")
    if variant.has_team:
        assert env.spec is gpu_envs.spec(variant.env_id)  # type: ignore[comparison-overlap]  # a team's own
    kind = "MultiAgentEnv" if variant.has_team else "VectorEnv"
    for word in (kind, variant.env_id, "num_envs=1", env.device, "'numpy'", "'NextStep'"):
        assert word in repr(env)


# --- environments of one kind only ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "params"),
    [
        ("TagContinuous-v0", {"num_taggers": 500, "num_runners": 2500, "grid_length": 60.0}),
        ("TagContinuous-v0", {"num_taggers": 100, "num_runners": 500, "use_full_observation": True}),
        ("TagGridWorld-v0", {"num_taggers": 600}),
    ],
    ids=str,
)
def test_large_teams(make: Make, place: Place, env_id: str, params: dict[str, Any]) -> None:
    env: Any = make(env_id, 2, **place._asdict(), **params, autoreset_mode="SameStep", episode_length=3)
    env.reset(seed=0)
    for action in draw_actions(env, 4):
        assert all(np.isfinite(values).all() for values in take_step(env, action, place)["observations"].values())
    assert (numpy_of(env.elapsed) == 1).all()
