"""Observations other than short float rows: images, integers, long rows and Dicts."""

import dataclasses
import pickle
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from digger import SPACES, actions_of, advance, digger, observed
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from harness import Place, address, assert_same_bits, numpy_of, on_host, restored_registry, sentinel_array, to_place
from nvrtc import nvrtc_missing, programs, ptx_of

import gpu_envs
from gpu_envs import Step, VectorEnv

REPLICAS = 150
KINDS = ("image", "long", "dict")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of observation that kernels write directly to the result."""
    return str(request.param)


def make_env(kind: str, place: Place, num_envs: int = REPLICAS, **kwargs: Any) -> VectorEnv:
    return VectorEnv(digger(kind), num_envs, device=place.device, output=place.output, **kwargs)


def rows(observations: Any, which: Any) -> Any:
    """Some replicas of the observations."""
    if isinstance(observations, Mapping):
        return {key: array[which] for key, array in observations.items()}
    return observations[which]


def arrays(observations: Any) -> list[Any]:
    return list(observations.values()) if isinstance(observations, Mapping) else [observations]


@pytest.mark.parametrize("copy", [True, False])
def test_steps_agree_with_the_oracle(kind: str, place: Place, mode: str, copy: bool) -> None:
    if place.output == "numpy" and place.device != "cpu" and not copy:
        pytest.skip("NumPy arrays are no memory of a GPU")
    env = make_env(kind, place, autoreset_mode=mode, copy=copy)
    first, _ = env.reset(seed=5)
    assert_same_bits(on_host(first), observed(kind, on_host(env.state)))
    assert type(first) is dict if kind == "dict" else not isinstance(first, Mapping)
    ended, before = np.zeros(REPLICAS, bool), [address(array) for array in arrays(first)]
    for step, action in enumerate(actions_of(REPLICAS, 40)):
        if mode == "Disabled" and ended.any():
            env.reset(options={"reset_mask": to_place(ended, place)})
        after, _, _ = advance(on_host(env.state), action)
        observations, _, terminations, truncations, infos = env.step(to_place(action, place))
        ended = numpy_of(terminations) | numpy_of(truncations)
        assert_same_bits(on_host(observations), observed(kind, on_host(env.state)), f"step {step}")
        assert ([address(array) for array in arrays(observations)] == before) == (not copy)
        if mode != "SameStep" or not ended.any():
            continue
        final = on_host(infos["final_obs"])
        assert_same_bits(numpy_of(infos["_final_obs"]), ended)
        assert_same_bits(rows(final, ended), rows(observed(kind, after), ended), f"what ended with step {step}")
        if place.output == "numpy":
            assert not any(array[~ended].any() for array in arrays(final))


def test_a_step_writes_to_out(kind: str, place: Place) -> None:
    if place.device != "cpu" and place.output == "numpy":
        pytest.skip("NumPy arrays cannot be memory of a GPU")
    one, other = (make_env(kind, place, autoreset_mode="SameStep") for _ in range(2))
    one.reset(seed=1)
    other.reset(seed=1)
    space = SPACES[kind][1]
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
    storage = {k: sentinel_array(place, (40, REPLICAS, *(s.shape or ())), str(s.dtype)) for k, s in parts.items()}
    ends = {k: sentinel_array(place, (REPLICAS, *(s.shape or ())), str(s.dtype)) for k, s in parts.items()}
    marks = {k: numpy_of(array) for k, array in ends.items()}
    written = np.zeros(REPLICAS, bool)
    for t, action in enumerate(actions_of(REPLICAS, 40)):
        seen = {k: array[t] for k, array in storage.items()}
        out = Step(observations=seen if kind == "dict" else seen[""], final_obs=ends if kind == "dict" else ends[""])
        results = one.step(to_place(action, place), out=out)
        expected = other.step(to_place(action, place))
        assert [address(a) for a in arrays(results[0])] == [address(a) for a in seen.values()]
        assert_same_bits(on_host(results[0]), on_host(expected[0]))
        ended = numpy_of(results[2]) | numpy_of(results[3])
        written |= ended
        if ended.any():
            final = rows(on_host(expected[4]["final_obs"]), ended)
            assert_same_bits(rows(on_host(results[4]["final_obs"]), ended), final)
    assert written.any()
    for k, array in ends.items():
        assert_same_bits(numpy_of(array)[~written], marks[k][~written])


def test_out_with_some_keys(place: Place) -> None:
    if place.device != "cpu" and place.output == "numpy":
        pytest.skip("NumPy arrays cannot be memory of a GPU")
    env = make_env("dict", place)
    env.reset(seed=1)
    image = sentinel_array(place, (REPLICAS, *SPACES["image"][1].shape), "uint8")  # type: ignore[misc]  # a Box has a shape
    observations = env.step(to_place(actions_of(REPLICAS), place), out=Step(observations={"image": image}))[0]
    assert observations["image"] is image
    assert_same_bits(on_host(observations), observed("dict", on_host(env.state)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"imag": 0}, r"out.observations has no key 'imag'. Did you mean 'image'\?"),
        ({"bag": np.zeros((REPLICAS, 3), np.float32)}, r"out.observations\['bag'\] has dtype float32; expected int32"),
        (np.zeros((REPLICAS, 3)), "out.observations is ndarray; give a mapping from keys to arrays"),
    ],
)
def test_invalid_outputs(given: Any, message: str) -> None:
    env = VectorEnv(digger("dict"), REPLICAS, device="cpu")
    env.reset(seed=0)
    with pytest.raises((TypeError, ValueError), match=message):
        env.step(actions_of(REPLICAS), out=Step(observations=given))


@pytest.mark.parametrize(("per_step", "mode"), [(True, "SameStep"), (False, "SameStep"), (True, "Disabled")])
def test_a_rollout_is_as_many_steps(kind: str, place: Place, per_step: bool, mode: str) -> None:
    actions = actions_of(REPLICAS, 30)
    one, other = (make_env(kind, place, autoreset_mode=mode, copy=True) for _ in range(2))
    for env in (one, other):
        env.reset(seed=2)
        env.allow_frozen_steps()
    steps = [on_host(one.step(to_place(action, place))[0]) for action in actions]
    given = on_host(other.rollout(30, to_place(actions, place), per_step=per_step).observations)
    assert_same_bits(on_host(other.state), on_host(one.state))
    last = given if not per_step else rows(given, -1)
    assert_same_bits(last, steps[-1])
    if per_step:
        for t, expected in enumerate(steps):
            assert_same_bits(rows(given, t), expected, f"step {t}")


def test_assigned_values_are_observed_in_float64(kind: str, place: Place) -> None:
    env = make_env(kind, place, 5, precision="float64")
    env.reset(seed=0)
    assert_same_bits(on_host(env.step(to_place(actions_of(5), place))[0]), observed(kind, on_host(env.state)))
    env.state["noise"] = np.arange(5)
    env.state["fuel"] = 3.0
    assert_same_bits(on_host(env.observe()), observed(kind, on_host(env.state)))
    assert_same_bits(on_host(env.stagger(seed=1)), observed(kind, on_host(env.state)))


@pytest.mark.parametrize("masked", [False, True])
def test_gymnasium_checks_pass(kind: str, masked: bool) -> None:
    spec = digger(kind, masked=masked)
    with restored_registry():
        gpu_envs.register(spec)
        env = gymnasium.make(f"gpu_envs/{spec.id}")
        check_env(env.unwrapped, skip_render_check=True)
        many = gymnasium.make_vec(f"gpu_envs/{spec.id}", num_envs=3)
        observations, _ = many.reset(seed=0)
        assert observations in many.observation_space
        (one, _), two = env.reset(seed=0), many.reset(seed=0)[0]
        assert_same_bits(one, rows(two, 0))
        kept = pickle.loads(pickle.dumps(one))
        later = env.step(0)[0]
        assert_same_bits(one, kept)  # a step does not overwrite returned arrays
        assert_same_bits(later, rows(many.step(np.zeros(3, int))[0], 0))
        env.close()


def box(*shape: int, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(0, 1, shape, dtype)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            spaces.Discrete(3),
            r"the observation space is Discrete\(3\); give a non-empty Box of float32, uint8 or int32",
        ),
        (box(2, dtype=np.float64), "the observation space is .*float64.*; give a non-empty Box of float32"),
        (spaces.Dict({"a": box(2), "b": spaces.Discrete(2)}), r"the observation space's part 'b' is Discrete\(2\)"),
        (spaces.Dict({"a": box(2), "b": box(2, dtype=np.int64)}), "the observation space's part 'b' is .*int64"),
        (spaces.Dict({"a b": box(2)}), "the observation's part 'a b' must be a name"),
        (spaces.Dict({}), "the observation space is an empty Dict"),
        (spaces.Tuple((box(1), box(1))), "the observation space is Tuple"),
    ],
)
def test_other_spaces_are_refused(space: gymnasium.Space[Any], message: str) -> None:
    wrong = dataclasses.replace(digger("floats"), observation=space)
    with pytest.raises(ValueError, match=f"DiggerFloats-v0: {message}"):
        VectorEnv(wrong, 3, device="cpu")


def test_wrappers_refuse_unsupported_spaces() -> None:
    pytest.importorskip("torch")
    from gpu_envs import wrappers

    def torch_env(kind: str) -> VectorEnv:
        return VectorEnv(digger(kind), 4, device="cpu", output="torch", autoreset_mode="SameStep")

    plain = torch_env("dict")
    wrapped = wrappers.NormalizeReward(wrappers.RecordEpisodeStatistics(torch_env("dict")))
    assert_same_bits(on_host(wrapped.reset(seed=1)[0]), on_host(plain.reset(seed=1)[0]))
    for action in actions_of(4, 30):
        assert_same_bits(on_host(wrapped.step(action)[0]), on_host(plain.step(action)[0]))
    image, flat = torch_env("image"), wrappers.FlattenObservation(torch_env("image"))
    assert_same_bits(on_host(flat.reset(seed=1)[0]), on_host(image.reset(seed=1)[0]).reshape(4, -1))
    for action in actions_of(4, 30):
        (seen, *_, infos), (flattened, *_, own) = image.step(action), flat.step(action)
        assert_same_bits(on_host(flattened), on_host(seen).reshape(4, -1))
        assert_same_bits(on_host(own["final_obs"]), on_host(infos["final_obs"]).reshape(4, -1))
    assert on_host(flattened) in flat.observation_space


@pytest.mark.fast_cases(5)
@pytest.mark.skipif(bool(nvrtc_missing()), reason="NVRTC cannot compile here")
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize(
    ("mode", "precision", "checked", "masked"),
    [("SameStep", "float32", False, True), ("NextStep", "float64", False, False), ("Disabled", "float32", True, True)],
)
def test_nvrtc_compiles(kind: str, mode: str, precision: str, checked: bool, masked: bool) -> None:
    for program in programs(digger(kind, masked=masked), mode, precision, checked=checked):
        ptx_of(program.source)
