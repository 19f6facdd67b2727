"""Action masks of single-agent environments."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from digger import ACTIONS, actions_of, digger, possible
from gymnasium import spaces
from harness import Place, address, assert_same_bits, numpy_of, on_host, restored_registry, sentinel_array, to_place

import gpu_envs
from gpu_envs import Step, VectorEnv

REPLICAS = 150
NOTHING_POSSIBLE = 13
"""Noise level at which the rules forbid every action."""


def make_env(place: Place, num_envs: int = REPLICAS, kind: str = "floats", **kwargs: Any) -> VectorEnv:
    return VectorEnv(digger(kind, masked=True), num_envs, device=place.device, output=place.output, **kwargs)


def checked_mask(env: VectorEnv, infos: dict[str, Any]) -> np.ndarray:
    """The mask in infos, after comparing it with the environment's."""
    mask = numpy_of(infos["action_mask"])
    assert_same_bits(numpy_of(env.action_mask), mask)
    assert numpy_of(infos["_action_mask"]).tolist() == [True] * env.num_envs
    assert mask.dtype == np.int8
    return mask


@pytest.mark.parametrize("kind", ["floats", "dict"])
@pytest.mark.parametrize("copy", [True, False])
def test_masks_match_the_observed_state(place: Place, mode: str, kind: str, copy: bool) -> None:
    if place.output == "numpy" and place.device != "cpu" and not copy:
        pytest.skip("NumPy arrays are no memory of a GPU")
    env = make_env(place, kind=kind, autoreset_mode=mode, copy=copy)
    _, infos = env.reset(seed=5)
    assert_same_bits(checked_mask(env, infos), possible(on_host(env.state)))
    ended, first = np.zeros(REPLICAS, bool), infos["action_mask"]
    for step, action in enumerate(actions_of(REPLICAS, 40)):
        if mode == "Disabled" and ended.any():
            _, infos = env.reset(options={"reset_mask": to_place(ended, place)})
            assert_same_bits(checked_mask(env, infos), possible(on_host(env.state)), f"the reset before step {step}")
        _, _, terminations, truncations, infos = env.step(to_place(action, place))
        ended = numpy_of(terminations) | numpy_of(truncations)
        expected = possible(on_host(env.state))
        expected[ended & (mode != "SameStep")] = 1  # allow is not called after the end of an episode
        assert_same_bits(checked_mask(env, infos), expected, f"step {step}")
        assert (address(infos["action_mask"]) == address(first)) == (not copy)


@pytest.mark.parametrize("kind", ["floats", "dict"])
def test_a_step_writes_masks_to_out(place: Place, kind: str) -> None:
    if place.device != "cpu" and place.output == "numpy":
        pytest.skip("NumPy arrays cannot be memory of a GPU")
    env = make_env(place, kind=kind, autoreset_mode="SameStep")
    env.reset(seed=1)
    storage = sentinel_array(place, (30, REPLICAS, ACTIONS), "int8")
    for t, action in enumerate(actions_of(REPLICAS, 30)):
        infos = env.step(to_place(action, place), out=Step(action_mask=storage[t]))[4]
        assert address(infos["action_mask"]) == address(storage[t])
        assert_same_bits(numpy_of(storage[t]), possible(on_host(env.state)))
    infos = env.step(to_place(actions_of(REPLICAS), place))[4]
    assert_same_bits(checked_mask(env, infos), possible(on_host(env.state)))


def test_masks_after_assignments_to_the_state(place: Place) -> None:
    env = make_env(place, 8)
    env.reset(seed=0)
    snapshot = env.get_state()
    env.state["row"] = 2
    env.state["noise"] = np.arange(8) + 8
    env.observe()
    assert_same_bits(numpy_of(env.action_mask), possible(on_host(env.state)))
    assert not numpy_of(env.action_mask)[NOTHING_POSSIBLE - 8].any()
    env.set_state(snapshot)
    assert_same_bits(numpy_of(env.action_mask), possible(on_host(env.state)))


def test_a_pickle_has_masks(place: Place) -> None:
    with restored_registry():
        gpu_envs.register(digger("floats", masked=True))
        env = make_env(place)
        env.reset(seed=4)
        _, _, terminations, truncations, _ = env.step(to_place(actions_of(REPLICAS), place))
        twin = pickle.loads(pickle.dumps(env))
    expected = possible(on_host(env.state))
    expected[numpy_of(terminations) | numpy_of(truncations)] = 1
    assert_same_bits(numpy_of(twin.action_mask), expected)


def test_random_actions_are_possible_and_the_same_in_one_launch_and_in_many(place: Place) -> None:
    env, other = (make_env(place, autoreset_mode="SameStep") for _ in range(2))
    env.reset(seed=3)
    other.reset(seed=3)
    forced, found = 0, []
    for _ in range(60):
        mask = possible(on_host(env.state))
        drawn = numpy_of(env.rollout(1, per_step=True).actions)[0]
        allowed = mask[np.arange(REPLICAS), drawn] == 1
        assert (allowed | ~mask.any(1)).all()
        assert ((drawn >= 0) & (drawn < ACTIONS)).all()
        forced += int((~mask.any(1)).sum())
        found.append(drawn)
        assert_same_bits(numpy_of(env.action_mask), possible(on_host(env.state)))
    assert forced > 0
    assert_same_bits(numpy_of(other.rollout(60, per_step=True).actions), np.stack(found))
    assert_same_bits(on_host(other.state), on_host(env.state))


@pytest.mark.parametrize("noise", [0, NOTHING_POSSIBLE])
def test_random_actions_are_uniform_among_the_possible(place: Place, noise: int) -> None:
    replicas = 30_000
    env = make_env(place, replicas, max_episode_steps=-1)
    env.reset(seed=9)
    for name, value in {"row": 2, "column": 1, "noise": noise, "dug": 0, "fuel": 8.0}.items():
        env.state[name] = value
    mask = possible(on_host(env.state))[0]
    choices = np.flatnonzero(mask) if mask.any() else np.arange(ACTIONS)
    counts = np.bincount(numpy_of(env.rollout(1, per_step=True).actions)[0], minlength=ACTIONS)
    assert set(np.flatnonzero(counts)) == set(choices)
    expected = replicas / len(choices)
    assert (abs(counts[choices] - expected) < 5 * np.sqrt(expected)).all()


def test_a_shifted_space_has_masks_from_its_first_choice(device: str) -> None:
    spec = dataclasses.replace(digger("floats", masked=True), action=spaces.Discrete(ACTIONS, start=-2))
    env = VectorEnv(spec, REPLICAS, device=device)
    env.reset(seed=0)
    mask = possible(on_host(env.state))
    drawn = numpy_of(env.rollout(1, per_step=True).actions)[0]
    assert (drawn.min(), drawn.max()) == (-2, 3)
    assert (mask[np.arange(REPLICAS), drawn + 2].astype(bool) | ~mask.any(1)).all()


def test_boxes_have_no_masks() -> None:
    wrong = dataclasses.replace(digger("floats", masked=True), action=spaces.Box(-1, 1, (2,), np.float32))
    with pytest.raises(ValueError, match="DiggerFloatsMasked-v0: action_mask=True, but the action space is Box"):
        VectorEnv(wrong, 3, device="cpu")
