"""A registered environment's state, parameters and attributes, and what is refused where one is made or closed."""

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
    """The first field of its state that rules write."""
    return next(str(name) for name in env.state if name != "in_game")


def test_state_is_live(make: Make, variant: Variant, place: Place) -> None:
    """``state`` is the simulator's memory: it follows steps, and assignments to it are obeyed."""
    env = make_variant(make, variant, 4, place)
    env.reset(seed=0)
    fields, name = dict(env.state), field_of(env)
    before = {field: numpy_of(values) for field, values in fields.items()}
    env.step(place_actions(env, draw_actions(env, 1)[0], place))
    assert any((before[field] != numpy_of(values)).any() for field, values in fields.items())
    own = fields[name]
    values = (np.arange(before[name].size) % 4).reshape(before[name].shape)
    for assigned in (values, values.tolist(), to_place(values, place), values.astype(np.float64)):
        env.state[name] = 0
        assert not numpy_of(own).any()
        env.state[name] = assigned
        assert_same_bits(own, values.astype(before[name].dtype))
    own[1] = 3
    assert (numpy_of(env.state[name])[1] == 3).all()
    if "elapsed" in fields:
        env.state["elapsed"] = [1, 2, 3, 4]
        assert numpy_of(fields["elapsed"]).tolist() == [1, 2, 3, 4]


@each_variant
def test_observe(make: Make, variant: Variant, place: Place) -> None:
    """``observe`` shows the state as it was assigned, who is out included, and changes nothing else."""
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
    seen = join_agents(env, env.observe())
    assert_same_bits(before, env.get_state())
    # who has just gone out would still see, but that is no part of the state
    there = numpy_of(env.state["in_game"]) if variant.has_team else np.ones((8, 1), bool)
    assert_same_bits(seen[there], join_agents(other, other.observe())[there])
    assert not seen[~there].any()


def test_bad_state(make: Make, variant: Variant, device: str) -> None:
    """Values of another shape, or that are no numbers, are refused by the field's name."""
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
    """One value for each replica, as with SyncVectorEnv: of a parameter, a field, an attribute."""
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


def test_a_result_of_as_many_parts_as_replicas_is_not_divided(make: Make, variant: Variant, device: str) -> None:
    env = make_variant(make, variant, 2, Place(device, "numpy"))
    first, second = env.call("reset", seed=3)
    assert len(first) == 2
    assert first[1] is second[1]  # the infos of all
    name = first_real(variant)
    assert env.call("get_attr", name) == env.get_attr(name)  # which is one for each already
    if variant.has_team:
        assert env.get_attr("roles") == (env.roles,) * 2


def test_set_attr(make: Make, variant: Variant, device: str) -> None:
    """A parameter may be changed for all or for each, at any time, as if the environment had been made with it."""
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
    for bad, wrong, word in ((name, np.nan, name), (name, [1.0, 2.0], f"{name}.*shape"), (f"{name}s", 1.0, name)):
        assert_refused(changed, functools.partial(changed.set_attr, bad, wrong), ValueError, word)
    assert_refused(changed, lambda: changed.set_attr("no_such_thing", 1), ValueError, "no attribute|no parameter")
    assert changed.get_attr(name) == (default,) * 3


def own_params(variant: Variant, count: int) -> dict[str, np.ndarray]:
    """Values of each replica's own for every parameter that may have them; the order of pairs is kept."""
    rng = np.random.default_rng(3)
    shift = 1 + rng.uniform(0, 0.1, count)
    found: dict[str, np.ndarray] = {}
    spec = gpu_envs.spec(variant.env_id)
    values = spec.check_params({**SMALL_PARAMS.get(variant.env_id, {}), **variant.params}, 1)
    for name, param in spec.params.items():
        default: Any = values[name]
        if param.fixed or isinstance(param, gpu_envs.Derived) or name == "start":  # a fixed one is of the whole batch
            continue
        if param.kind == "choice":
            found[name] = rng.choice(param.choices, count)
        elif param.kind == "bool":
            found[name] = rng.integers(0, 2, count).astype(bool)
        elif param.kind == "int":
            found[name] = rng.integers(3, 7, count)
        elif not np.any(default) and variant.has_team:
            low, high = (-0.1, 0.0) if param.maximum == 0 else (0.0, 0.1)
            found[name] = rng.uniform(low, high, (count, *np.shape(default)))
        else:
            found[name] = np.multiply.outer(shift, default)
    return found


def at_replica(params: Mapping[str, np.ndarray], index: int) -> dict[str, Any]:
    """One replica's values."""
    return {name: values[index].tolist() for name, values in params.items()}


@pytest.mark.fast_cases(6)
@each_variant
def test_replicas_follow_their_own_parameters(make: Make, variant: Variant, device: str) -> None:
    """Replica i with arrays of parameters is the single environment with the i-th."""
    count, place = 70, Place(device, "numpy")
    params = own_params(variant, count)
    assert len(params) > 4
    batch = make_variant(make, variant, count, place, **params)
    first = numpy_by_role(batch, batch.reset(seed=2)[0])
    actions = draw_actions(batch, 25)
    whole = record(batch, actions)
    for index in (0, 65, 69):
        here = slice(index, index + 1)
        single = make_variant(make, variant, 1, place, **at_replica(params, index))
        assert_same_bits({r: v[here] for r, v in first.items()}, numpy_by_role(single, single.reset(seed=2 + index)[0]))
        assert_same_bits(
            record_of_replicas(whole, here), record(single, actions_of_replicas(actions, here)), f"replica {index}"
        )


# --- what cannot be made ---


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
        ({"copy": "no"}, "copy is 'no'; True or False"),
        ({"copy": 1}, "copy is 1"),
        ({"statistics": "yes"}, "statistics"),
        ({"checking": "x"}, "checking is 'x'"),
        ({"checking": None}, "checking"),
        ({"block_size": 33}, "block_size is 33"),
        ({"output": None}, "output is None"),
        ({"precision": np.float32}, "precision"),
    ],
)
def test_bad_choices(variant: Variant, arguments: dict[str, Any], message: str) -> None:
    """What cannot be made is refused, with what was given and what is allowed, and not what happens to be true."""
    with pytest.raises(ValueError, match=message):
        gpu_envs.make(variant.env_id, **{"num_envs": 2, "device": "cpu", **arguments})


def test_bad_params(variant: Variant) -> None:
    """A parameter that cannot be is refused, with its name, what was given and what is allowed."""
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
def test_bad_choices_of_params(env_id: str, params: dict[str, Any], message: str) -> None:
    """Switches, choices and ordered pairs say what is allowed."""
    with pytest.raises(ValueError, match=message):
        gpu_envs.make(env_id, 3, device="cpu", **params)


@parametrize_variants({name: VARIANTS[name] for name in ("continuous-nearest", "grid-full")})
def test_bad_attributes(make: Make, variant: Variant) -> None:
    """What shapes depend on stays, as do choices that there are not; nothing changes."""
    env = make_variant(make, variant, 3)
    env.reset(seed=0)
    wrong = {"num_taggers": 5, "use_full_observation": False, "episode_length": 5, "start": "centre"}
    for name, value in wrong.items():
        match = "'random', 'fixed'" if name == "start" else name
        assert_refused(env, functools.partial(env.set_attr, name, value), ValueError, match)


def test_unknown_environment() -> None:
    """An id that is none gets the closest, and the list."""
    for given, closest in (("Cartpole-v1", "'CartPole-v1'.*Pendulum-v1"), ("tagcontinuous-v0", f"'{CONTINUOUS}'")):
        with pytest.raises(KeyError, match=f"Did you mean {closest}"):
            gpu_envs.make(given)


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
def test_bad_choices_on_cuda(variant: Variant, arguments: dict[str, Any], message: str) -> None:
    """So is what cannot be made on a GPU; a block has 1024 threads at most."""
    with pytest.raises(ValueError, match=message):
        gpu_envs.make(variant.env_id, **{"device": "cuda", **arguments})


@each_variant
def test_more_replicas_than_fit(make: Make, variant: Variant, place: Place) -> None:
    """Out of memory is a MemoryError that says how much it would take, and leaves others usable."""
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
    """There is nothing to step before the first reset; closing twice is fine; use after it says so."""
    env = make_variant(make, variant, 2, place)
    step = functools.partial(env.step, place_actions(env, draw_actions(env, 1)[0]))
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        step()
    env.reset(seed=0)
    acts = [step, env.observe, env.get_state, functools.partial(env.reset, seed=0)]
    acts += [functools.partial(env.set_state, env.get_state())]
    acts += [] if variant.has_team else [functools.partial(env.rollout, 2)]
    assert not env.closed
    env.close()
    env.close()
    assert env.closed
    for act in acts:
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="closed"):
            act()


def test_auto_device(make: Make, variant: Variant) -> None:
    """``auto`` is CUDA where there is a CUDA device, else the CPU; all that a user chooses is in the ``repr``."""
    env = make(variant.env_id)
    assert env.device.partition(":")[0] == ("cuda" if HAS_CUDA else "cpu")
    assert (env.num_envs, env.output, env.precision) == (1, "numpy", "float32")
    if variant.has_team:
        assert env.spec is gpu_envs.spec(variant.env_id)  # type: ignore[comparison-overlap]  # a team's own
    kind = "MultiAgentEnv" if variant.has_team else "VectorEnv"
    for word in (kind, variant.env_id, "num_envs=1", env.device, "'numpy'", "'NextStep'"):
        assert word in repr(env)


# --- what only one kind has ---


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
        assert all(np.isfinite(seen).all() for seen in take_step(env, action, place)["observations"].values())
    assert (numpy_of(env.elapsed) == 1).all()
