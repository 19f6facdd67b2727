"""The interface: what goes in, what comes out, what is refused, and that an environment outlives a refusal."""

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import vector as wrappers
from harness import (
    HAS_CUDA,
    HAS_TORCH,
    IDS,
    PLACES,
    Array,
    Make,
    Place,
    address,
    assert_same_bits,
    assert_unchanged,
    defaults,
    empty,
    is_discrete,
    moved,
    numpy_of,
    random_actions,
    record,
)

import gpu_envs
from gpu_envs import ActionError, Step

DEVICE_PLACES = [place for place in PLACES if place.device == "cuda" and place.output != "numpy"]
RESULTS = ("observations", "rewards", "terminations", "truncations", "final_obs", "episode_return", "episode_length")
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch")


def library(array: Array) -> str:
    """The library an array belongs to."""
    return type(array).__module__.partition(".")[0]


def dtype(array: Array) -> str:
    """The name of an array's element type."""
    return str(array.dtype).rpartition(".")[2]


# --- what comes out ---


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_types_of_results(make: Make, env_id: str, place: Place, precision: str) -> None:
    """Arrays are of the library, shape, type and device promised; rewards of the precision."""
    env = make(env_id, 5, **place._asdict(), precision=precision, autoreset_mode="SameStep", max_episode_steps=2)
    first, infos = env.reset(seed=0)
    assert infos == {}
    action = moved(random_actions(env_id, 5), place)
    env.step(action)
    observations, rewards, terminations, truncations, infos = env.step(action)
    shape = env.single_observation_space.shape
    assert shape is not None
    for array, kind, expected in [
        (first, "float32", (5, *shape)),
        (observations, "float32", (5, *shape)),
        (rewards, precision, (5,)),
        (terminations, "bool", (5,)),
        (truncations, "bool", (5,)),
        (infos["final_obs"], "float32", (5, *shape)),
        (infos["_final_obs"], "bool", (5,)),
        (env.episode_return, precision, (5,)),
        (env.episode_length, "int32", (5,)),
        *((field, precision, (5,)) for field in env.state.values()),
    ]:
        assert (dtype(array), tuple(array.shape)) == (kind, expected)
        if place.output == "torch":
            assert array.device.type == place.device
    for array in (first, observations, rewards, terminations, truncations):
        assert library(array) == place.output
    assert numpy_of(first).astype(np.float32) in env.observation_space
    expected_state = "cupy" if place == ("cuda", "numpy") else place.output
    assert {library(field) for field in env.state.values()} == {expected_state}


def test_spaces_are_batched(make: Make, env_id: str, device: str) -> None:
    """Spaces are Gymnasium's batches of the single ones, and samples are accepted."""
    env = make(env_id, 3, device=device)
    assert env.observation_space == batch_space(env.single_observation_space, 3)
    assert env.action_space == batch_space(env.single_action_space, 3)
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(3):
        observations = env.step(env.action_space.sample())[0]
        assert observations in env.observation_space


@pytest.mark.parametrize("copied", [None, True, False])
def test_copy(make: Make, env_id: str, place: Place, copied: bool | None) -> None:
    """With ``copy`` results are fresh arrays; without they are the simulator's memory, the same every step."""
    if place == ("cuda", "numpy") and copied is False:
        pytest.skip("refused, as test_bad_choices tests")
    env = make(env_id, 5, **place._asdict(), copy=copied)
    fresh = place.output == "numpy" if copied is None else copied
    first = env.reset(seed=0)[0]
    steps = [env.step(moved(random_actions(env_id, 5, seed=t), place))[:4] for t in range(3)]
    columns = [[first, *(step[0] for step in steps)], *([step[i] for step in steps] for i in (1, 2, 3))]
    for column in columns:
        assert len({address(array) for array in column}) == (len(column) if fresh else 1)
    held = env._sim.buffers
    if not fresh:
        for name, column in zip(RESULTS[:4], columns, strict=True):
            assert address(column[0]) == address(held[name])
        call = env._sim._calls["step"]
        assert call.observations == address(first)  # what the kernel writes to


def test_returned_copies_are_kept(make: Make, env_id: str, place: Place) -> None:
    """Copies do not change with the next step."""
    env = make(env_id, 5, **place._asdict(), copy=True)
    env.reset(seed=0)
    kept = env.step(moved(random_actions(env_id, 5), place))
    before = [numpy_of(array) for array in kept[:4]]
    env.step(moved(random_actions(env_id, 5, seed=1), place))
    env.reset(seed=1)
    assert_same_bits(before, list(kept[:4]))


# --- step into your own memory ---


@pytest.mark.parametrize("count", [1, 3, 67])
def test_out(make: Make, env_id: str, place: Place, count: int) -> None:
    """A step writes straight into rows of the user's storage, whatever their alignment, and gives those rows back."""
    steps = 6
    arguments = {**place._asdict(), "autoreset_mode": "SameStep", "max_episode_steps": 4}
    plain, env = make(env_id, count, **arguments), make(env_id, count, **arguments)
    row = env.single_observation_space.shape or ()
    storage = {
        "observations": empty(place, (steps + 1, count, *row), "float32"),
        "rewards": empty(place, (steps + 1, count), "float32"),
        "terminations": empty(place, (steps + 1, count), "bool"),
        "truncations": empty(place, (steps + 1, count), "bool"),
    }
    if place == ("cuda", "numpy"):
        storage = {name: moved(values, Place("cuda", "cupy")) for name, values in storage.items()}
    plain.reset(seed=0), env.reset(seed=0)
    actions = random_actions(env_id, steps, count)
    expected = record(plain, actions)
    untouched = {name: numpy_of(env._sim.buffers[name]) for name in storage}
    for t, action in enumerate(actions):
        rows = {name: values[t + 1] for name, values in storage.items()}
        results = env.step(moved(action, place), out=Step(**rows))
        assert all(given is result for given, result in zip(rows.values(), results[:4], strict=True))
    for name, given in zip(storage, expected, strict=True):
        assert_same_bits(numpy_of(storage[name])[1:], given, name)
        assert_same_bits(numpy_of(storage[name])[0], numpy_of(empty(place, (1, *given.shape[1:]), dtype(given)))[0])
        assert_same_bits(untouched[name], env._sim.buffers[name], "no further copy")


@pytest.mark.parametrize("name", RESULTS)
def test_any_subset_of_out(make: Make, env_id: str, place: Place, name: str) -> None:
    """One array alone may be given; the next step without it goes where it always went."""
    if place == ("cuda", "numpy"):
        place = Place("cuda", "cupy")
    count = 5
    arguments = {**place._asdict(), "autoreset_mode": "SameStep", "max_episode_steps": 2}
    plain, env = make(env_id, count, **arguments), make(env_id, count, **arguments)
    shape, kind = env._sim.shapes[name]
    target = empty(place, shape, kind)
    plain.reset(seed=0), env.reset(seed=0)
    for t, action in enumerate(random_actions(env_id, 4, count)):
        expected = plain.step(moved(action, place))
        given = env.step(moved(action, place), out=Step(**{name: target}) if t < 2 else None)
        assert_same_bits([*expected[:4]], [*given[:4]])
        if t == 1:
            values = {**dict(zip(RESULTS, expected[:4], strict=False)), "final_obs": expected[4]["final_obs"]}
            values |= {"episode_return": plain.episode_return, "episode_length": plain.episode_length}
            assert_same_bits(target, values[name], name)
            before = numpy_of(target)
    assert_same_bits(before, target)


def test_partial_out_of_final_values(make: Make, device: str) -> None:
    """``final_obs`` and the statistics are written only where an episode ended; the rest of the rows stays."""
    place = Place(device, "numpy" if device == "cpu" else "cupy")
    env = make("CartPole-v1", 3, **place._asdict(), autoreset_mode="SameStep")
    env.reset(seed=0)
    env.state["x"] = moved(np.array([0, 3, 0], np.float32), place)
    out = Step(empty(place, (3, 4), "float32"), final_obs=empty(place, (3, 4), "float32"))
    out = dataclasses.replace(out, episode_return=empty(place, (3,), "float32"))
    env.step(moved(np.zeros(3, int), place), out=out)
    assert numpy_of(out.episode_return).tolist() == [77, 1, 77]
    final = numpy_of(out.final_obs)
    assert final[1, 0] > 2.9
    assert np.isin(final[[0, 2]], [0, 77]).all()


def bad_outs(place: Place) -> dict[str, tuple[Step, type[Exception]]]:
    """Storage that no step can write into, for five replicas of an environment with four numbers to observe."""
    fortran = moved(np.zeros((4, 5), np.float32), place).T
    return {
        "shape": (Step(rewards=empty(place, (4,), "float32")), ValueError),
        "shape of rows": (Step(observations=empty(place, (5, 3), "float32")), ValueError),
        "dimensions": (Step(observations=empty(place, (20,), "float32")), ValueError),
        "dtype": (Step(rewards=empty(place, (5,), "float64")), TypeError),
        "dtype of flags": (Step(terminations=empty(place, (5,), "uint8")), TypeError),
        "strided": (Step(rewards=empty(place, (10,), "float32")[::2]), ValueError),
        "transposed": (Step(observations=fortran), ValueError),
        "no array": (Step(rewards=[0.0] * 5), TypeError),
    }


@pytest.mark.parametrize("what", list(bad_outs(Place("cpu", "numpy"))))
def test_bad_out(make: Make, place: Place, what: str) -> None:
    """Storage of a wrong shape, type or layout is refused by name, and nothing has changed."""
    if place == ("cuda", "numpy"):
        place = Place("cuda", "cupy")
    env = make("CartPole-v1", 5, **place._asdict())
    env.reset(seed=0)
    out, error = bad_outs(place)[what]
    actions = moved(np.zeros(5, int), place)
    with pytest.raises(error, match=r"out\."):
        assert_unchanged(env, lambda: env.step(actions, out=out))
    env.step(actions)


def test_read_only_out(make: Make) -> None:
    """An array that must not be written is refused."""
    env = make("CartPole-v1", 5, device="cpu")
    env.reset(seed=0)
    rewards = np.zeros(5, np.float32)
    rewards.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        env.step(np.zeros(5, int), out=Step(rewards=rewards))


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_out_on_another_device(make: Make, device: str) -> None:
    """Storage must be where the environment is."""
    elsewhere = Place("cuda", "cupy") if device == "cpu" else Place("cpu", "numpy")
    env = make("CartPole-v1", 5, device=device)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="is on"):
        env.step(np.zeros(5, int), out=Step(rewards=empty(elsewhere, (5,), "float32")))


# --- actions ---

WHOLE = ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"]
REAL = ["float32", "float64", "float16", "int64", "int32"]


class Foreign:
    """An array of a library this package does not know: it speaks DLPack, no more."""

    def __init__(self, array: Array) -> None:
        """Wraps an array."""
        self._array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        """Hands the array out."""
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        """Where the array is."""
        return self._array.__dlpack_device__()


def small_actions(env_id: str, count: int) -> np.ndarray:
    """Actions that every element type can hold."""
    actions = np.arange(count) % 2
    return actions if is_discrete(env_id) else actions.reshape(count, 1)


@pytest.mark.parametrize("kind", [*WHOLE, *(name for name in REAL if name not in WHOLE)])
def test_action_types(make: Make, env_id: str, place: Place, kind: str) -> None:
    """Every element type that can stand for an action does, to the same effect; another is refused."""
    count = 9
    env = make(env_id, count, **place._asdict())
    env.reset(seed=0)
    expected = [numpy_of(part) for part in env.step(small_actions(env_id, count))[:4]]
    env.reset(seed=0)
    given = moved(small_actions(env_id, count).astype(kind), place)
    if kind in ("float16", "float32", "float64") if is_discrete(env_id) else kind == "bool":
        with pytest.raises(TypeError, match="dtype"):
            assert_unchanged(env, lambda: env.step(given))
        return
    assert_same_bits(expected, [*env.step(given)[:4]])


def action_forms(actions: np.ndarray, place: Place) -> dict[str, Any]:
    """The same actions in many forms."""
    forms: dict[str, Any] = {
        "list": actions.tolist(),
        "tuple": tuple(actions.tolist()),
        "strided": np.repeat(actions, 2, axis=0)[::2],
        "reversed": np.ascontiguousarray(actions[::-1])[::-1],
        "big-endian": actions.astype(actions.dtype.newbyteorder(">")),
        "read-only": np.frombuffer(actions.tobytes(), actions.dtype).reshape(actions.shape),
        "unaligned": np.frombuffer(b"x" + actions.tobytes(), np.uint8)[1:].view(actions.dtype).reshape(actions.shape),
        "host": actions,
        "foreign": Foreign(actions),
    }
    for other in PLACES:
        if other.device == place.device:
            forms[f"{other}"] = moved(actions, other)
            forms[f"strided {other}"] = moved(np.repeat(actions, 3, axis=0), other)[::3]
            forms[f"foreign {other}"] = Foreign(moved(actions, other))
    if HAS_TORCH:
        forms["torch on the host"] = moved(actions, Place("cpu", "torch"))
    return forms


@pytest.mark.parametrize("count", [1, 9])
def test_action_forms(make: Make, env_id: str, place: Place, count: int) -> None:
    """Lists, strided and foreign arrays, of the host and of the device, are all the same."""
    env = make(env_id, count, **place._asdict())
    actions = random_actions(env_id, count)
    results = {}
    for name, form in action_forms(actions, place).items():
        env.reset(seed=0)
        results[name] = [numpy_of(part) for part in env.step(form)[:4]]
    for name, result in results.items():
        assert_same_bits(results["host"], result, name)


@needs_torch
def test_actions_with_gradients(make: Make, device: str) -> None:
    """A policy's output may still require gradients."""
    import torch

    env = make("Pendulum-v1", 3, device=device, output="torch")
    env.reset(seed=0)
    actions = torch.full((3, 1), 0.5, device=device, requires_grad=True)
    assert not env.step(actions)[0].requires_grad


def wrong_actions(env_id: str, count: int) -> dict[str, tuple[Any, type[Exception], str]]:
    """What is no batch of actions, the error it deserves, and a word of its message."""
    good = random_actions(env_id, count)
    wrong: dict[str, tuple[Any, type[Exception], str]] = {
        "too few": (good[:-1], ValueError, "shape"),
        "too many": (np.concatenate([good, good]), ValueError, "shape"),
        "one dimension more": (good[..., None], ValueError, "shape"),
        "ragged": ([[0], [0, 1], *([[0]] * (count - 2))], ValueError, "shape"),
        "empty": ([], ValueError, "shape"),
        "text": (np.full(good.shape, "a"), TypeError, "dtype"),
        "complex": (good.astype(complex), TypeError, "dtype"),
        "None": (None, TypeError, "dtype"),
        "scalar": (0 if is_discrete(env_id) else 0.0, TypeError, "scalar"),
    }
    if is_discrete(env_id):
        for value in (-1, 3, 2**40, -(2**63), 2**32):
            at = good.copy()
            at[count - 2] = value
            wrong[f"{value}"] = (at, ActionError, f"replica {count - 2}")
        wrong["huge"] = (np.full(count, 2**64 - 1, np.uint64), ActionError, "range")
        wrong["float"] = (good.astype(np.float32), TypeError, "dtype")
        wrong["small type"] = (np.full(count, 200, np.uint8), ActionError, "range")
    else:
        at = good.copy()
        at[count - 2] = np.nan
        wrong["NaN"] = (at, ActionError, f"replica {count - 2}")
        wrong["NaN in float64"] = (at.astype(np.float64), ActionError, f"replica {count - 2}")
    return wrong


@pytest.mark.parametrize(("env_id", "what"), [(env_id, what) for env_id in IDS for what in wrong_actions(env_id, 70)])
def test_wrong_actions(make: Make, env_id: str, place: Place, what: str) -> None:
    """From the host, what is no action raises and changes nothing; the environment goes on as if nothing had been."""
    count = 70
    actions, error, word = wrong_actions(env_id, count)[what]
    env, plain = (make(env_id, count, **place._asdict()) for _ in range(2))
    for each in (env, plain):
        each.reset(seed=0)
    for good in random_actions(env_id, 2, count):
        with pytest.raises(error, match=word):
            assert_unchanged(env, lambda: env.step(actions))
        env.check()
        assert_same_bits([*env.step(good)[:4]], [*plain.step(good)[:4]])


def test_wrong_actions_of_a_block(make: Make, env_id: str, place: Place) -> None:
    """A block for a rollout is looked at before its first step."""
    env = make(env_id, 5, **place._asdict())
    env.reset(seed=0)
    block = random_actions(env_id, 4, 5)
    block[2, 3] = 3 if is_discrete(env_id) else np.nan
    with pytest.raises(ActionError, match="replica 3"):
        assert_unchanged(env, lambda: env.rollout(4, block))
    env.rollout(2, block[:2])


@pytest.mark.parametrize("value", [-5.0, 5.0, np.inf, -np.inf])
def test_box_actions_beyond_the_bounds(make: Make, device: str, value: float) -> None:
    """A real action outside its bounds is no error: the rules clip it."""
    env = make("Pendulum-v1", 3, device=device)
    env.reset(seed=0)
    clipped = env.step(np.full((3, 1), np.clip(value, -2, 2), np.float32))
    env.reset(seed=0)
    assert_same_bits([*clipped[:4]], [*env.step(np.full((3, 1), value, np.float32))[:4]])


def test_unclipped_action_is_priced(make: Make, device: str) -> None:
    """MountainCarContinuous charges for the action as given: -0.1 * 3 * 3."""
    env = make("MountainCarContinuous-v0", 2, device=device)
    env.reset(seed=0)
    assert env.step(np.full((2, 1), 3.0, np.float32))[1].tolist() == pytest.approx([-0.9, -0.9])


@pytest.mark.skipif(not DEVICE_PLACES, reason="needs a CUDA device")
@pytest.mark.parametrize("at", DEVICE_PLACES, ids=lambda at: at.output)
def test_wrong_actions_on_the_device(make: Make, env_id: str, at: Place) -> None:
    """On the device a wrong action counts as the nearest right one, and the first is kept for ``check``."""
    count = 70
    env, plain = (make(env_id, count, **at._asdict()) for _ in range(2))
    for each in (env, plain):
        each.reset(seed=0)
    actions = random_actions(env_id, 4, count)
    mended = actions.copy()
    space: Any = env.single_action_space
    top = int(space.n) - 1 if is_discrete(env_id) else 0
    for step, replica in ((1, 33), (1, 65), (2, 7)):
        actions[step, replica], mended[step, replica] = (99, top) if top else (np.nan, 0.0)
    for action, right in zip(actions, mended, strict=True):
        assert_same_bits([*env.step(moved(action, at))[:4]], [*plain.step(moved(right, at))[:4]])
    with pytest.raises(ActionError, match=r"replica 33, step 1 "):
        env.check()
    env.check()
    plain.check()


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
def test_wrong_device_actions_raise_with_host_output(make: Make, env_id: str) -> None:
    """With NumPy output a step reads the device anyway, so that a wrong action of the device raises at once."""
    env = make(env_id, 5, device="cuda", output="numpy")
    env.reset(seed=0)
    actions = random_actions(env_id, 5)
    actions[3] = 99 if is_discrete(env_id) else np.nan
    with pytest.raises(ActionError, match="replica 3"):
        env.step(moved(actions, Place("cuda", "cupy")))
    env.step(random_actions(env_id, 5))


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
def test_device_actions_for_the_cpu(make: Make, env_id: str) -> None:
    """Actions on a GPU are refused by an environment on the CPU."""
    env = make(env_id, 5, device="cpu")
    env.reset(seed=0)
    for place in DEVICE_PLACES:
        with pytest.raises(ValueError, match="cuda"):
            assert_unchanged(env, lambda place=place: env.step(moved(random_actions(env_id, 5), place)))  # type: ignore[misc]


# --- state ---


def test_state_is_live(make: Make, env_id: str, place: Place) -> None:
    """``state`` is the simulator's memory: it follows steps, and assignments to it are obeyed."""
    env = make(env_id, 4, **place._asdict())
    env.reset(seed=0)
    assert tuple(env.state) == gpu_envs.spec(env_id).fields
    fields = dict(env.state)
    before = {name: numpy_of(field) for name, field in fields.items()}
    env.step(moved(random_actions(env_id, 4), place))
    assert any((before[name] != numpy_of(field)).any() for name, field in fields.items())
    values = np.linspace(-0.5, 0.25, 4).astype(np.float32)
    own = fields[next(iter(fields))]
    for assigned in (values, values.tolist(), moved(values, place), values.astype(np.float64)):
        env.state[next(iter(fields))] = 0.0
        assert not numpy_of(own).any()
        env.state[next(iter(fields))] = assigned
        assert_same_bits(own, values)
    own[1] = 0.125
    assert numpy_of(env.state[next(iter(fields))])[1] == 0.125


def test_observe(make: Make, env_id: str, place: Place) -> None:
    """``observe`` shows the state as it was assigned, and changes nothing else."""
    env, other = (make(env_id, 4, **place._asdict()) for _ in range(2))
    env.reset(seed=0)
    expected = numpy_of(other.reset(seed=9)[0])
    for name, field in other.state.items():
        env.state[name] = field
    before = env.get_state()
    assert_same_bits(env.observe(), expected)
    assert_same_bits(before, env.get_state())


@pytest.mark.parametrize(
    ("values", "error"), [(np.zeros(3), ValueError), (np.zeros((4, 1)), ValueError), (["a"] * 4, TypeError)]
)
def test_bad_state(make: Make, env_id: str, device: str, values: Any, error: type[Exception]) -> None:
    """Values of another shape, or that are no numbers, are refused by the field's name."""
    env = make(env_id, 4, device=device)
    env.reset(seed=0)
    name = next(iter(env.state))
    with pytest.raises(error, match=name):
        env.state[name] = values
    with pytest.raises(KeyError, match="mass"):
        env.state["mass"] = 1.0


# --- parameters and attributes ---


def first_real(env_id: str) -> str:
    """The first parameter that is a number."""
    return next(name for name, p in gpu_envs.spec(env_id).params.items() if p.kind == "real")


def test_get_attr_and_call(make: Make, env_id: str, device: str) -> None:
    """As with SyncVectorEnv, one value for each replica."""
    env = make(env_id, 3, device=device)
    env.reset(seed=5)
    name = first_real(env_id)
    assert env.get_attr(name) == env.call(name) == (defaults(env_id)[name],) * 3
    assert env.get_attr("np_random_seed") == (5, 6, 7)
    assert env.get_attr("device") == (env.device,) * 3
    field = next(iter(env.state))
    assert env.get_attr(field) == tuple(numpy_of(env.state[field]).tolist())
    with pytest.raises(AttributeError):
        env.get_attr("no_such_thing")


def test_set_attr(make: Make, env_id: str, device: str) -> None:
    """A parameter may be changed for all or for each, at any time, as if the environment had been made with it."""
    name = first_real(env_id)
    default = defaults(env_id)[name]
    actions = random_actions(env_id, 20, 3)
    for value in (default * 1.5, default * np.array([1.0, 1.5, 2.0]), default):
        changed, made = make(env_id, 3, device=device), make(env_id, 3, device=device, **{name: value})
        changed.reset(seed=1)
        changed.set_attr(name, value)
        assert_same_bits(changed.reset(seed=1)[0], made.reset(seed=1)[0])
        assert_same_bits(record(changed, actions), record(made, actions))
        assert changed.get_attr(name) == pytest.approx(tuple(np.broadcast_to(value, 3)))
    field = next(iter(changed.state))
    changed.set_attr(field, [0.5, 0.25, 0.125])
    assert numpy_of(changed.state[field]).tolist() == [0.5, 0.25, 0.125]
    with pytest.raises(ValueError, match="no attribute"):
        changed.set_attr("no_such_thing", 1)
    with pytest.raises(ValueError, match=name):
        changed.set_attr(name, np.nan)
    assert changed.get_attr(name) == (default,) * 3


def test_bad_params(env_id: str) -> None:
    """A parameter that cannot be is refused, with its name, what was given and what is allowed."""
    name = first_real(env_id)
    for value in (np.nan, np.inf, "heavy", None, [1.0, 2.0], [[1.0], [1.0], [1.0]], [1.0, np.nan, 1.0], object()):
        with pytest.raises(ValueError, match=rf"{name}.*(allowed|give)"):
            gpu_envs.make(env_id, 3, device="cpu", **{name: value})
    with pytest.raises(ValueError, match=rf"no parameter '{name}x'. Did you mean '{name}'\?"):
        gpu_envs.make(env_id, 3, device="cpu", **{f"{name}x": 1.0})
    for name, param in gpu_envs.spec(env_id).settings.items():
        if param.positive:
            with pytest.raises(ValueError, match=f"{name}.*0.0.*above 0"):
                gpu_envs.make(env_id, 3, device="cpu", **{name: 0.0})
        if param.minimum > -np.inf:
            with pytest.raises(ValueError, match=name):
                gpu_envs.make(env_id, 3, device="cpu", **{name: param.minimum - 1})


@pytest.mark.parametrize(
    ("env_id", "params", "message"),
    [
        ("CartPole-v1", {"kinematics_integrator": "Euler"}, "'Euler'.*'euler', 'semi-implicit'"),
        ("CartPole-v1", {"kinematics_integrator": 0}, "'euler', 'semi-implicit'"),
        ("CartPole-v1", {"sutton_barto_reward": "yes"}, "'yes'.*True or False"),
        ("CartPole-v1", {"sutton_barto_reward": 2}, "True or False"),
        ("CartPole-v1", {"low": 0.1}, "'low' must not exceed 'high'"),
        ("Acrobot-v1", {"book_or_nips": "paper"}, "'book', 'nips'"),
        ("Acrobot-v1", {"torque_noise_max": -1.0}, "torque_noise_max"),
        ("MountainCar-v0", {"min_position": 1.0}, "'min_position' must not exceed 'max_position'"),
        ("MountainCarContinuous-v0", {"min_action": [0.0, 0.0, 2.0]}, "'min_action' must not exceed 'max_action'"),
    ],
)
def test_bad_choices_of_params(env_id: str, params: dict[str, Any], message: str) -> None:
    """Switches, choices and ordered pairs say what is allowed."""
    with pytest.raises(ValueError, match=message):
        gpu_envs.make(env_id, 3, device="cpu", **params)


@pytest.mark.parametrize("name", ["sutton_barto_reward", "kinematics_integrator"])
def test_choices_per_replica(make: Make, device: str, name: str) -> None:
    """Switches and choices too may be given to each replica."""
    values: dict[str, list[Any]] = {
        "sutton_barto_reward": [True, False],
        "kinematics_integrator": ["semi-implicit", "euler"],
    }
    both = make("CartPole-v1", 2, device=device, **{name: values[name]})
    both.reset(seed=[4, 4])
    together = record(both, np.ones((8, 2), int))
    for i, value in enumerate(values[name]):
        one = make("CartPole-v1", 1, device=device, **{name: value})
        one.reset(seed=4)
        alone = record(one, np.ones((8, 1), int))
        assert_same_bits([column[:, i] for column in together], [column[:, 0] for column in alone])
    assert (together.rewards[:, 0] != together.rewards[:, 1]).any() or name != "sutton_barto_reward"


# --- making and closing ---


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_envs": 0}, ValueError, "num_envs is 0"),
        ({"num_envs": -1}, ValueError, "num_envs"),
        ({"num_envs": 2.0}, ValueError, "num_envs"),
        ({"num_envs": True}, ValueError, "num_envs"),
        ({"device": "gpu"}, ValueError, "'gpu'.*'auto', 'cpu', 'cuda'"),
        ({"device": "cuda:x"}, ValueError, "cuda:x"),
        ({"output": "tensor"}, ValueError, "output.*'numpy', 'torch', 'cupy'"),
        ({"output": "pytorch"}, ValueError, "Did you mean 'torch'"),
        ({"device": "cpu", "output": "cupy"}, ValueError, "cupy"),
        ({"autoreset_mode": "next_step"}, ValueError, "'NextStep', 'SameStep', 'Disabled'"),
        ({"autoreset_mode": "Samestep"}, ValueError, "Did you mean 'SameStep'"),
        ({"precision": "float16"}, ValueError, "'float32', 'float64'"),
        ({"threads": 0}, ValueError, "threads"),
        ({"threads": 1.5}, ValueError, "threads"),
        ({"render_mode": "ansi"}, ValueError, "render_mode is 'ansi'.*'rgb_array', 'tiled', 'human'"),
    ],
)
def test_bad_choices(env_id: str, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    """What cannot be made is refused, with what was given and what is allowed."""
    with pytest.raises(error, match=message):
        gpu_envs.make(env_id, **{"device": "cpu", **arguments})


@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "cuda:99"}, "cuda:99"),
        ({"copy": False}, "copy=False"),
        ({"block_size": 33}, "block_size"),
        ({"block_size": 2048}, "block_size"),
    ],
)
def test_bad_choices_on_cuda(env_id: str, arguments: dict[str, Any], message: str) -> None:
    """So is what cannot be made on a GPU."""
    with pytest.raises(ValueError, match=message):
        gpu_envs.make(env_id, **{"device": "cuda", **arguments})


def test_unknown_environment() -> None:
    """An id that is none gets the closest, and the list."""
    with pytest.raises(KeyError, match=r"Did you mean 'CartPole-v1'.*Pendulum-v1"):
        gpu_envs.make("Cartpole-v1")


def test_more_replicas_than_fit(make: Make, env_id: str, place: Place) -> None:
    """Out of memory is a MemoryError that says how much it would take, and leaves others usable."""
    env = make(env_id, 64, **place._asdict())
    env.reset(seed=0)
    with pytest.raises(MemoryError, match=r"1,000,000,000,000 replicas.*GiB"):
        gpu_envs.make(env_id, 10**12, **place._asdict())
    with pytest.raises(MemoryError, match="steps"):
        env.rollout(2**31 - 1, per_step=True)
    env.step(random_actions(env_id, 64))


def uses(env: gpu_envs.VectorEnv, actions: np.ndarray) -> dict[str, Callable[[], object]]:
    """What needs an open environment."""
    state = env.get_state()
    return {
        "reset": lambda: env.reset(seed=0),
        "step": lambda: env.step(actions),
        "rollout": lambda: env.rollout(2),
        "observe": env.observe,
        "get_state": env.get_state,
        "set_state": lambda: env.set_state(state),
    }


def test_close(make: Make, env_id: str, place: Place) -> None:
    """Closing twice is fine; use after it says so."""
    env = make(env_id, 2, **place._asdict())
    env.reset(seed=0)
    actions = uses(env, random_actions(env_id, 2))
    assert not env.closed
    env.close()
    env.close()
    assert env.closed
    for act in actions.values():
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="closed"):
            act()


def test_step_before_reset(make: Make, env_id: str, place: Place) -> None:
    """There is nothing to step before the first reset."""
    env = make(env_id, 2, **place._asdict())
    assert env.np_random_seed is None
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(random_actions(env_id, 2))


def test_auto_device(make: Make, env_id: str) -> None:
    """``auto`` is CUDA where there is a CUDA device, else the CPU."""
    env = make(env_id)
    assert env.device.partition(":")[0] == ("cuda" if HAS_CUDA else "cpu")
    assert env.device in repr(env)
    assert env_id in repr(env)


def test_float64_is_more_precise(make: Make, env_id: str, device: str) -> None:
    """The two precisions begin and go on in nearly the same way, and are not the same."""
    results = []
    for precision in ("float32", "float64"):
        env = make(env_id, 50, device=device, precision=precision)
        first = env.reset(seed=0)[0]
        env.step(random_actions(env_id, 50))
        results.append((first, np.stack([numpy_of(f).astype(np.float64) for f in env.state.values()])))
    assert np.abs(results[0][1] - results[1][1]).max() < 1e-5
    assert (results[0][1] != results[1][1]).any()
    assert np.abs(results[0][0] - results[1][0]).max() < 1e-5


# --- Gymnasium's vector wrappers, which are for NumPy ---

NUMPY_PLACES = [place for place in PLACES if place.output == "numpy"]
each_numpy = pytest.mark.parametrize("at", NUMPY_PLACES, ids=lambda at: f"{at.device}-{at.output}")


@each_numpy
def test_record_episode_statistics(make: Make, env_id: str, at: Place, mode: str) -> None:
    """Gymnasium's statistics are this package's, also after partial resets."""
    env = make(env_id, 5, **at._asdict(), autoreset_mode=mode, max_episode_steps=7)
    wrapped = wrappers.RecordEpisodeStatistics(env)
    wrapped.reset(seed=0)
    ends = 0
    for t, action in enumerate(random_actions(env_id, 60, 5)):
        _, _, terminations, truncations, infos = wrapped.step(action)
        over = terminations | truncations
        if over.any():
            ends += int(over.sum())
            np.testing.assert_allclose(infos["episode"]["r"][over], env.episode_return[over], rtol=1e-5)
            assert (infos["episode"]["l"][over] == env.episode_length[over]).all()
        mask = over & (mode == "Disabled") | (np.arange(5) == t % 25)
        if mask.any():
            wrapped.reset(options={"reset_mask": mask})
    assert wrapped.episode_count == ends > 20


@each_numpy
def test_normalize_observation(make: Make, env_id: str, at: Place) -> None:
    """Observations come to mean 0 and variance 1."""
    wrapped = wrappers.NormalizeObservation(make(env_id, 50, **at._asdict(), max_episode_steps=20))
    seen = [wrapped.reset(seed=0)[0]]
    seen += [wrapped.step(action)[0] for action in random_actions(env_id, 100, 50)]
    assert np.isfinite(seen).all()
    assert np.abs(np.mean(seen[50:], axis=(0, 1))).max() < 1
    assert np.std(seen[50:], axis=(0, 1)).max() < 3


@each_numpy
def test_normalize_reward(make: Make, env_id: str, at: Place, mode: str) -> None:
    """Rewards are divided by the spread of their discounted sums."""
    env = make(env_id, 5, **at._asdict(), autoreset_mode=mode)
    wrapped = wrappers.NormalizeReward(env)
    wrapped.reset(seed=0)
    for action in random_actions(env_id, 6, 5):
        rewards = wrapped.step(action)[1]
        assert rewards.shape == (5,)
        assert np.isfinite(rewards).all()
    assert np.abs(rewards).max() > 0


@each_numpy
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting to float32")  # RescaleAction's own
@pytest.mark.parametrize("env_id", [env_id for env_id in IDS if not is_discrete(env_id)])
def test_action_wrappers(make: Make, env_id: str, at: Place, mode: str) -> None:
    """ClipAction and RescaleAction put actions into the bounds."""
    plain = make(env_id, 5, **at._asdict(), autoreset_mode=mode)
    space: Any = plain.single_action_space
    low, high = space.low, space.high
    middle = ((low + high) / 2 * np.ones((5, 1))).astype(np.float32)
    for wrapper, given, effective in [
        (wrappers.ClipAction, np.full((5, 1), 100, np.float32), high * np.ones((5, 1), np.float32)),
        (lambda env: wrappers.RescaleAction(env, -7.0, 7.0), np.zeros((5, 1), np.float32), middle),
    ]:
        wrapped = wrapper(make(env_id, 5, **at._asdict(), autoreset_mode=mode))
        wrapped.reset(seed=0), plain.reset(seed=0)
        assert_same_bits([*wrapped.step(given)[:4]], [*plain.step(effective.astype(np.float32))[:4]])


@needs_torch
@each_numpy
def test_numpy_to_torch(make: Make, env_id: str, at: Place, mode: str) -> None:
    """Everything becomes tensors, infos and all."""
    import torch

    pytest.importorskip("array_api_compat", reason="what Gymnasium's wrapper needs")

    wrapped = wrappers.NumpyToTorch(make(env_id, 5, **at._asdict(), autoreset_mode=mode, max_episode_steps=2))
    observations, _ = wrapped.reset(seed=0)
    assert isinstance(observations, torch.Tensor)
    for action in random_actions(env_id, 2, 5):
        *step, infos = wrapped.step(torch.from_numpy(action))
        assert all(isinstance(part, torch.Tensor) for part in step)
    if mode == "SameStep":
        assert isinstance(infos["final_obs"], torch.Tensor)
        assert infos["_final_obs"].all()
    mask = torch.tensor([True, False, True, False, False])
    after, _ = wrapped.reset(options={"reset_mask": mask})
    assert ((after != step[0]).any(1) == mask).all() or mode == "SameStep"


@each_numpy
def test_dict_info_to_list(make: Make, env_id: str, at: Place, mode: str) -> None:
    """Infos become a list with a dict for each replica."""
    env = make(env_id, 5, **at._asdict(), autoreset_mode=mode, max_episode_steps=2, statistics=True)
    wrapped = wrappers.DictInfoToList(env)
    _, infos = wrapped.reset(seed=0)
    assert infos == [{}] * 5
    for action in random_actions(env_id, 2, 5):
        infos = wrapped.step(action)[4]
    assert [info["episode"]["l"] for info in infos] == [2] * 5
    assert all(("final_obs" in info) == (mode == "SameStep") for info in infos)


@each_numpy
def test_stacked_wrappers(env_id: str, at: Place) -> None:
    """The usual stack of wrappers for PPO works, through ``make_vec`` as well."""
    made = gymnasium.make_vec(f"gpu_envs/{env_id}", num_envs=5, device=at.device, max_episode_steps=9)
    env: Any = wrappers.NormalizeReward(wrappers.NormalizeObservation(wrappers.RecordEpisodeStatistics(made)))
    env.reset(seed=0)
    finished = 0
    for action in random_actions(env_id, 40, 5):
        *_, infos = env.step(action)
        finished += int(infos["_episode"].sum()) if infos else 0
    assert finished >= 5 * 3
    env.close()
    assert made.closed
