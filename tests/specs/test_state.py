"""State of one agent that is more than real numbers: whole ones, bools, arrays."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from digger import CELLS, DIGGER, State, actions_of, advance, digger, observed, state_of
from harness import Place, Recorded, address, assert_all_same, assert_same_bits, forgotten, moved, numpy_of, record
from nvrtc import nvrtc_missing, programs, ptx_of

import gpu_envs
from gpu_envs import EnvSpec, Field, VectorEnv
from gpu_envs.codegen import PRECISIONS

REPLICAS = 150
"""Two whole tiles and a part of one."""


@pytest.fixture
def spec() -> EnvSpec:
    """A mine that is seen as four floats."""
    return digger("floats")


def made(spec: EnvSpec, place: Place, num_envs: int = REPLICAS, **kwargs: Any) -> VectorEnv:
    return VectorEnv(spec, num_envs, device=place.device, output=place.output, **kwargs)


def played(env: VectorEnv, place: Place, actions: np.ndarray) -> tuple[Recorded, State]:
    """Some steps' results, and the state after them."""
    return record(env, (moved(action, place) for action in actions)), state_of(env)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_steps_agree_with_the_oracle(spec: EnvSpec, place: Place, mode: str, precision: str) -> None:
    env = made(spec, place, autoreset_mode=mode, precision=precision)
    env.reset(seed=5)
    over = np.zeros(REPLICAS, bool)
    for step, action in enumerate(actions_of(REPLICAS, 60)):
        before = state_of(env)
        if mode == "Disabled" and over.any():
            env.reset(options={"reset_mask": moved(over, place)})
            before = state_of(env)
            over[:] = False
        after, rewards, terminated = advance(before, action)
        results = [numpy_of(part) for part in env.step(moved(action, place))[:4]]
        observations, given, terminations, truncations = results
        goes = ~over  # the others are restarted by this step, which is none of an episode's (NextStep)
        assert_same_bits(given[goes], rewards[goes], f"rewards of step {step}")
        assert_same_bits(terminations[goes], terminated[goes], f"terminations of step {step}")
        assert not np.concatenate([given[over], terminations[over], truncations[over]]).any()
        ended = terminations | truncations
        kept = goes & ~ended if mode == "SameStep" else goes
        now = state_of(env)
        for name, values in after.items():
            assert_same_bits(now[name][kept], values[kept], f"{name} after step {step}")
        assert_same_bits(observations, observed("floats", now))
        over = ended if mode != "SameStep" else over
    assert (numpy_of(env.episode_length) > 0).any()


def test_users_see_types_and_shapes(spec: EnvSpec, place: Place) -> None:
    env = made(spec, place, 7)
    env.reset(seed=0)
    found = {name: (tuple(values.shape), str(values.dtype).rpartition(".")[2]) for name, values in env.state.items()}
    assert found == {
        "row": ((7,), "int32"),
        "column": ((7,), "int32"),
        "lamp": ((7,), "bool"),
        "noise": ((7,), "int32"),
        "fuel": ((7,), "float32"),
        "dug": ((7, CELLS), "uint8"),
        "bag": ((7, 3), "int32"),
    }


def test_an_array_lies_element_by_element(spec: EnvSpec, place: Place) -> None:
    env = made(spec, place, 7)
    env.reset(seed=0)
    bag = env.state["bag"]
    assert address(bag[:, 1]) - address(bag) == 7 * 4
    assert address(bag[1:]) - address(bag) == 4


def test_assigning_writes_and_is_observed(spec: EnvSpec, place: Place) -> None:
    env = made(spec, place, 6)
    env.reset(seed=0)
    env.state["bag"] = np.arange(18).reshape(6, 3)
    env.state["dug"] = np.arange(CELLS) % 2
    env.state["lamp"] = np.array([0, 1, 2, 0, 1, 2])  # as bools
    env.state["row"] = 2
    env.state["column"] = np.arange(6) % 5
    now = state_of(env)
    assert_same_bits(now["bag"], np.arange(18, dtype=np.int32).reshape(6, 3))
    assert_same_bits(now["dug"], np.tile(np.arange(CELLS) % 2, (6, 1)).astype(np.uint8))
    assert now["lamp"].view(np.uint8).tolist() == [0, 1, 1, 0, 1, 1]
    assert_same_bits(numpy_of(env.observe()), observed("floats", now))


@pytest.mark.parametrize("values", [np.zeros((3, 6)), np.zeros(6), np.zeros((6, 4))])
def test_values_of_another_shape_are_refused(spec: EnvSpec, values: np.ndarray) -> None:
    env = VectorEnv(spec, 6, device="cpu")
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"'bag' got values of shape .*; expected \(6, 3\), \(3,\) for all replicas"):
        env.state["bag"] = values


def test_a_snapshot_and_a_pickle_go_on_alike(spec: EnvSpec, place: Place, mode: str) -> None:
    with forgotten():
        gpu_envs.register(spec)
        env = made(spec, place, autoreset_mode=mode)
        env.reset(seed=3)
        actions = actions_of(REPLICAS, 1 if mode == "Disabled" else 12)
        snapshot = env.get_state()
        twin = pickle.loads(pickle.dumps(env))
        other = made(spec, place, autoreset_mode=mode)
        other.set_state(snapshot)
        trajectories = [played(e, place, actions) for e in (env, twin, other)]
        env.set_state(snapshot)
        assert_all_same([*trajectories, played(env, place, actions)])


def test_a_snapshot_of_another_shape_is_refused(spec: EnvSpec) -> None:
    env = VectorEnv(spec, 6, device="cpu")
    env.reset(seed=0)
    snapshot = env.get_state()
    snapshot["state"]["bag"] = snapshot["state"]["bag"].T
    with pytest.raises(ValueError, match=r"the state's 'bag' has shape \(3, 6\); this environment needs \(6, 3\)"):
        env.set_state(snapshot)


def test_attributes_are_read_and_set_by_replica(spec: EnvSpec, place: Place) -> None:
    env = made(spec, place, 4)
    env.reset(seed=0)
    env.set_attr("bag", np.arange(12).reshape(4, 3))
    env.set_attr("lamp", [True, False, True, False])
    assert env.get_attr("bag") == ([0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11])
    assert env.get_attr("lamp") == (True, False, True, False)


def test_a_reset_begins_with_the_layout_it_is_given(spec: EnvSpec, place: Place) -> None:
    env = made(spec, place, 4)
    env.reset(seed=0)
    before = state_of(env)
    mask = np.array([True, False, True, False])
    bag = np.array([7, 8, 9])
    options = {"reset_mask": moved(mask, place), "bag": bag, "lamp": np.array([True, True, False, False])}
    observations, _ = env.reset(options=options)
    now = state_of(env)
    assert now["bag"].tolist() == [[7, 8, 9], before["bag"][1].tolist(), [7, 8, 9], before["bag"][3].tolist()]
    assert now["lamp"][[0, 2]].tolist() == [True, False]
    assert_same_bits(now["lamp"][~mask], before["lamp"][~mask])
    assert_same_bits(numpy_of(observations), observed("floats", now))
    with pytest.raises(ValueError, match=r"options\['bag'\] has shape \(4,\); expected \(3,\)"):
        env.reset(options={"bag": np.zeros(4)})


def test_a_replica_is_the_same_in_any_batch(spec: EnvSpec, place: Place) -> None:
    actions = actions_of(REPLICAS, 30)
    many = made(spec, place, autoreset_mode="SameStep")
    many.reset(seed=11)
    steps, state = played(many, place, actions)
    for replica in (0, 63, 64, REPLICAS - 1):
        one = made(spec, place, 1, autoreset_mode="SameStep")
        one.reset(seed=11 + replica)
        own_steps, own_state = played(one, place, actions[:, replica : replica + 1])
        assert_same_bits([part[:, 0] for part in own_steps], [part[:, replica] for part in steps])
        assert_same_bits({n: v[0] for n, v in own_state.items()}, {n: v[replica] for n, v in state.items()})


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_a_rollout_is_as_many_steps(spec: EnvSpec, place: Place, mode: str) -> None:
    actions = actions_of(REPLICAS, 40)
    one, other = (made(spec, place, autoreset_mode=mode) for _ in range(2))
    for env in (one, other):
        env.reset(seed=2)
        env.allow_frozen_steps()
    steps, state = played(one, place, actions)
    given = other.rollout(40, moved(actions, place), per_step=True)
    assert_same_bits(Recorded(*given[:4]), steps)
    assert_same_bits(state_of(other), state)


def test_arrays_go_along_with_some_replicas(spec: EnvSpec, place: Place) -> None:
    """Those of one agent lie element by element, with replicas side by side."""
    env, twin = (made(spec, place, autoreset_mode="SameStep") for _ in range(2))
    for one in (env, twin):
        one.reset(seed=2)
        played(one, place, actions_of(REPLICAS, 5))
    before = state_of(twin)
    kept = env.get_state([2, 0])
    found = {name: numpy_of(values) for name, values in kept["state"].items()}
    assert_same_bits({name: found[name] for name in before}, {name: values[[2, 0]] for name, values in before.items()})
    env.set_state(kept, [1, 2])
    picked = np.arange(REPLICAS)
    picked[[1, 2]] = 2, 0
    assert_same_bits(state_of(env), {name: values[picked] for name, values in before.items()})
    env.set_state(twin.get_state([1]))
    assert_same_bits(state_of(env), {name: values[[1] * REPLICAS] for name, values in before.items()})


def test_a_single_environment_has_its_state_as_a_vector(spec: EnvSpec) -> None:
    with forgotten():
        gpu_envs.register(spec)
        env: Any = gymnasium.make(f"gpu_envs/{spec.id}").unwrapped
    env.reset(seed=1)
    state = env.state
    assert state.shape == (5 + CELLS + 3,)
    trajectory = [env.step(action)[0] for action in (0, 4, 1, 4)]
    env.state = state
    assert_same_bits(env.state, state)
    assert_same_bits([env.step(action)[0] for action in (0, 4, 1, 4)], trajectory)
    with pytest.raises(ValueError, match="the state got 3 numbers; it has 28"):
        env.state = [1, 2, 3]


def test_names_that_mean_something_to_the_driver_are_free(tmp_path: Path, device: str) -> None:
    names = ("k", "i", "s", "j", "count", "to", "get", "set", "load", "store")
    header = tmp_path / "names.cuh"
    rules = {n: f"s.{n} = s.{n} + real(1);" for n in names}
    header.write_text(
        f"FN void reset(State& s, const Params&, Random&) {{ {' '.join(f's.{n} = 0;' for n in names)} s.at[0] = 0; }}\n"
        "FN Outcome step(State& s, const Params&, const Action&, Random&) {\n"
        f"    {' '.join(rules.values())} s.at[0] = s.at[0] + 2;\n    return {{0, false}};\n}}\n"
        "FN void observe(const State& s, const Params&, Observation& o) { o[0] = float(s.k + s.at[0]); }\n"
    )
    spec = EnvSpec(
        id="Names-v0",
        header=header,
        state={**{name: Field() for name in names}, "at": Field("int", lambda _: 1)},
        params={},
        observation=gymnasium.spaces.Box(-9, 9, (1,), np.float32),
        action=gymnasium.spaces.Discrete(2),
    )
    env = VectorEnv(spec, 3, device=device)
    env.reset(seed=0)
    env.step(np.zeros(3, int))
    assert env.step(np.zeros(3, int))[0].tolist() == [[6.0]] * 3


def test_an_impossible_length_is_refused(spec: EnvSpec) -> None:
    wrong = dataclasses.replace(spec, state={**DIGGER.typed_state, "bag": Field("int", lambda _: 0)})
    with pytest.raises(ValueError, match="DiggerFloats-v0: the length of the field 'bag' is 0; at least 1"):
        VectorEnv(wrong, 3, device="cpu")


@pytest.mark.skipif(bool(nvrtc_missing()), reason="NVRTC cannot compile here")
@pytest.mark.parametrize(("mode", "precision"), [("SameStep", "float64"), ("NextStep", "float32")])
def test_nvrtc_compiles(spec: EnvSpec, mode: str, precision: str) -> None:
    for program in programs(spec, mode, precision):
        ptx_of(program.source)
