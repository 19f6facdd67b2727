"""Single-agent state with integers, bools and arrays."""

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from digger import CELLS, State, actions_of, advance, digger, observed
from harness import (
    Place,
    Trajectory,
    address,
    assert_all_same,
    assert_same_bits,
    numpy_of,
    on_host,
    record,
    restored_registry,
    to_place,
)

import gpu_envs
from gpu_envs import EnvSpec, VectorEnv
from gpu_envs.codegen import PRECISIONS

REPLICAS = 150
"""Two full tiles and a partial one."""


@pytest.fixture
def spec() -> EnvSpec:
    """A mine whose observation has four floats."""
    return digger("floats")


def make_env(spec: EnvSpec, place: Place, num_envs: int = REPLICAS, **kwargs: Any) -> VectorEnv:
    return VectorEnv(spec, num_envs, device=place.device, output=place.output, **kwargs)


def play(env: VectorEnv, place: Place, actions: np.ndarray) -> tuple[Trajectory, State]:
    """Results of some steps, and the state after them."""
    return record(env, (to_place(action, place) for action in actions)), on_host(env.state)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_steps_agree_with_the_oracle(spec: EnvSpec, place: Place, mode: str, precision: str) -> None:
    env = make_env(spec, place, autoreset_mode=mode, precision=precision)
    env.reset(seed=5)
    over = np.zeros(REPLICAS, bool)
    for step, action in enumerate(actions_of(REPLICAS, 60)):
        before = on_host(env.state)
        if mode == "Disabled" and over.any():
            env.reset(options={"reset_mask": to_place(over, place)})
            before = on_host(env.state)
            over[:] = False
        after, rewards, terminated = advance(before, action)
        results = [numpy_of(part) for part in env.step(to_place(action, place))[:4]]
        observations, given, terminations, truncations = results
        goes = ~over  # in NextStep, this step restarts the others
        assert_same_bits(given[goes], rewards[goes], f"rewards of step {step}")
        assert_same_bits(terminations[goes], terminated[goes], f"terminations of step {step}")
        assert not np.concatenate([given[over], terminations[over], truncations[over]]).any()
        ended = terminations | truncations
        kept = goes & ~ended if mode == "SameStep" else goes
        now = on_host(env.state)
        for name, values in after.items():
            assert_same_bits(now[name][kept], values[kept], f"{name} after step {step}")
        assert_same_bits(observations, observed("floats", now))
        over = ended if mode != "SameStep" else over
    assert (numpy_of(env.episode_length) > 0).any()


def test_assigning_writes_and_is_observed(spec: EnvSpec, place: Place) -> None:
    env = make_env(spec, place, 6)
    env.reset(seed=0)
    env.state["bag"] = np.arange(18).reshape(6, 3)
    bag = env.state["bag"]
    assert (address(bag[:, 1]) - address(bag), address(bag[1:]) - address(bag)) == (6 * 4, 4)  # structure of arrays
    env.state["dug"] = np.arange(CELLS) % 2
    env.state["lamp"] = np.array([0, 1, 2, 0, 1, 2])  # as bools
    env.state["row"] = 2
    env.state["column"] = np.arange(6) % 5
    now = on_host(env.state)
    kinds = {"row": "int32", "column": "int32", "lamp": "bool", "noise": "int32", "fuel": "float32"}
    assert {name: str(values.dtype) for name, values in now.items()} == kinds | {"dug": "uint8", "bag": "int32"}
    assert_same_bits(now["bag"], np.arange(18, dtype=np.int32).reshape(6, 3))
    assert_same_bits(now["dug"], np.tile(np.arange(CELLS) % 2, (6, 1)).astype(np.uint8))
    assert now["lamp"].view(np.uint8).tolist() == [0, 1, 1, 0, 1, 1]
    assert_same_bits(numpy_of(env.observe()), observed("floats", now))
    with pytest.raises(ValueError, match=r"'bag' got values of shape .*; expected \(6, 3\), \(3,\) for all replicas"):
        env.state["bag"] = np.zeros((6, 4))


def test_snapshots_and_pickles_continue_equally(spec: EnvSpec, place: Place, mode: str) -> None:
    with restored_registry():
        gpu_envs.register(spec)
        env = make_env(spec, place, autoreset_mode=mode)
        env.reset(seed=3)
        actions = actions_of(REPLICAS, 1 if mode == "Disabled" else 12)
        snapshot = env.get_state()
        twin = pickle.loads(pickle.dumps(env))
        other = make_env(spec, place, autoreset_mode=mode)
        other.set_state(snapshot)
        trajectories = [play(e, place, actions) for e in (env, twin, other)]
        env.set_state(snapshot)
        assert_all_same([*trajectories, play(env, place, actions)])


def test_a_reset_with_an_explicit_start(spec: EnvSpec, place: Place) -> None:
    env = make_env(spec, place, 4)
    env.reset(seed=0)
    before = on_host(env.state)
    mask = np.array([True, False, True, False])
    bag = np.array([7, 8, 9])
    options = {"reset_mask": to_place(mask, place), "bag": bag, "lamp": np.array([True, True, False, False])}
    observations, _ = env.reset(options=options)
    now = on_host(env.state)
    assert now["bag"].tolist() == [[7, 8, 9], before["bag"][1].tolist(), [7, 8, 9], before["bag"][3].tolist()]
    assert now["lamp"][[0, 2]].tolist() == [True, False]
    assert_same_bits(now["lamp"][~mask], before["lamp"][~mask])
    assert_same_bits(numpy_of(observations), observed("floats", now))
    with pytest.raises(ValueError, match=r"options\['bag'\] has shape \(4,\); expected \(3,\)"):
        env.reset(options={"bag": np.zeros(4)})


def test_arrays_of_selected_replicas(spec: EnvSpec, place: Place) -> None:
    """Fields of a single agent are structures of arrays, with replicas contiguous."""
    env, twin = (make_env(spec, place, autoreset_mode="SameStep") for _ in range(2))
    for one in (env, twin):
        one.reset(seed=2)
        play(one, place, actions_of(REPLICAS, 5))
    before = on_host(twin.state)
    kept = env.get_state([2, 0])
    found = {name: numpy_of(values) for name, values in kept["state"].items()}
    assert_same_bits({name: found[name] for name in before}, {name: values[[2, 0]] for name, values in before.items()})
    env.set_state(kept, [1, 2])
    picked = np.arange(REPLICAS)
    picked[[1, 2]] = 2, 0
    assert_same_bits(on_host(env.state), {name: values[picked] for name, values in before.items()})
    env.set_state(twin.get_state([1]))
    assert_same_bits(on_host(env.state), {name: values[[1] * REPLICAS] for name, values in before.items()})


def test_a_single_environment_has_its_state_as_a_vector(spec: EnvSpec) -> None:
    with restored_registry():
        gpu_envs.register(spec)
        env: Any = gymnasium.make(f"gpu_envs/{spec.id}").unwrapped
    env.reset(seed=1)
    state = env.state
    assert state.shape == (5 + CELLS + 3,)
    trajectory = [env.step(action)[0] for action in (0, 4, 1, 4)]
    env.state = state
    assert_same_bits(env.state, state)
    assert_same_bits([env.step(action)[0] for action in (0, 4, 1, 4)], trajectory)
    with pytest.raises(ValueError, match="the state got 3 numbers: give 28"):
        env.state = [1, 2, 3]
