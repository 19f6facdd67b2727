"""Parameters with values per replica are live arrays; setting parameters or a state changes everything or nothing."""

import copy
import functools
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Make, Place, assert_same_bits, numpy_of
from registered import (
    COVID,
    Variant,
    assert_refused,
    draw_actions,
    first_real,
    make_variant,
    numpy_by_role,
    place_actions,
    take_step,
)

import gpu_envs


def make_per_replica(make: Make, variant: Variant, place: Place, **kwargs: Any) -> tuple[Any, str, float]:
    """An environment of three replicas with values per replica for a parameter, its name and its default."""
    name = first_real(variant)
    default = float(make_variant(make, variant, 1).params[name])
    env = make_variant(make, variant, 3, place, **{name: np.full(3, default)}, **kwargs)
    env.reset(seed=0)
    return env, name, default


def test_values_written_into_a_live_array_take_effect(make: Make, variant: Variant, place: Place) -> None:
    """They last when another parameter is set, to one value or values per replica, and the array stays the same."""
    env, name, default = make_per_replica(make, variant, place)
    other = next(n for n, p in env.env_spec.params.items() if p.kind == "real" and not p.fixed and n != name)
    live = env.params[name]
    live[1] = default * 1.5
    expected = np.array([default, default * 1.5, default], np.float32)
    for value in (env.params[other], np.full(3, env.params[other]), env.params[other]):
        env.set_attr(other, value)
        for each in (env, copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
            assert_same_bits(numpy_of(each.params[name]), expected)
            assert_same_bits(numpy_of(each.get_state()["params"][name]), expected)
            assert each.get_attr(name) == tuple(expected.tolist())
    fresh = make_variant(make, variant, 3, place, **{name: expected})
    env.reset(seed=0)
    fresh.reset(seed=0)
    for action in draw_actions(env, 5):
        assert_same_bits(take_step(env, action, place), take_step(fresh, action, place))
    env.set_attr(name, default * 1.25)
    assert env.params[name] is live
    assert_same_bits(numpy_of(live), np.full(3, default * 1.25, np.float32))


def test_invalid_values_in_a_live_array_raise(make: Make, variant: Variant, place: Place) -> None:
    """On the CPU the next call raises, on CUDA the next call that reads the array; valid values end the error."""
    env, name, default = make_per_replica(make, variant, place)
    env.params[name][1] = np.inf
    calls: list[Any] = [env.get_state, env.check, lambda: env.set_attr("nothing_else", 1.0)]
    if env.device == "cpu":
        action = place_actions(env, draw_actions(env, 1)[0], place)
        calls += [lambda: env.step(action), env.observe, lambda: env.reset(seed=0)]
        calls += [] if variant.has_team else [lambda: env.rollout(1)]
    for call in calls:
        with pytest.raises(ValueError, match=f"{name}.*replica 1|nothing_else"):
            call()
    env.set_attr(name, default)
    take_step(env, draw_actions(env, 1)[0], place)


def test_an_invalid_snapshot_changes_nothing(make: Make, variant: Variant, place: Place) -> None:
    """Whichever part of it is invalid."""
    env, name, _ = make_per_replica(make, variant, place)
    for _ in range(2):
        take_step(env, draw_actions(env, 1)[0], place)
    for part, values in env.get_state().items():
        broken = np.full(3, np.nan) if part == "params" else np.zeros((9, 9))
        for key in values if part != "params" else (name,):
            for wrong in (np.array(["a", "b", "c"]), None, broken):
                state = env.get_state()
                for array in state["state"].values():
                    array[...] = 0  # so that a partly restored snapshot would show
                state[part][key] = wrong
                assert_refused(env, functools.partial(env.set_state, state), (ValueError, TypeError), key)
    no_snapshots: tuple[Any, ...] = (None, 3, [], {})
    for value in no_snapshots:
        assert_refused(env, functools.partial(env.set_state, value), (ValueError, TypeError), "state")


def test_a_failed_compilation_changes_nothing(
    make: Make, variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment continues with its previous kernels."""
    name = first_real(variant)
    env, twin = (make_variant(make, variant, 3, max_episode_steps=7) for _ in range(2))
    for each in (env, twin):
        each.reset(seed=0)
    value = float(env.params[name]) * np.array([1.0, 1.01, 1.02])
    with monkeypatch.context() as without:
        without.setenv("GPU_ENVS_CACHE_DIR", str(tmp_path))
        without.setenv("CXX", "/bin/false")
        with pytest.raises((RuntimeError, OSError)):
            env.set_attr(name, value)
    for action in draw_actions(env, 9):
        assert_same_bits(take_step(env, action), take_step(twin, action))
    assert_same_bits(numpy_by_role(env, env.observe()), numpy_by_role(twin, twin.observe()))
    assert env.get_attr(name) == twin.get_attr(name)


def test_a_direct_step_follows_the_parameters(make: Make, env_id: str) -> None:
    """Also if they require another program."""
    name = first_real(Variant(env_id, {}))
    env, twin = (make(env_id, 1, device="cpu", autoreset_mode="Disabled") for _ in range(2))
    default = float(env.params[name])
    for each in (env, twin):
        each.reset(seed=0)
    step, (observations, *_) = env.direct_step()
    actions = np.stack([action["agent"] for action in draw_actions(env, 3)])
    for action, value in zip(actions, (default * 1.5, [default * 2], default), strict=True):
        for each in (env, twin):
            each.set_attr(name, value)
        step(*env.locate_action(action))
        twin.step(action)
        assert_same_bits(observations, twin.observe())


@pytest.mark.fast_cases(2)
def test_python_threads_can_share_an_environment(make: Make, variant: Variant) -> None:
    """Two threads that step an environment get the same steps as one thread, each complete and none lost."""
    count, steps = 1000 if variant.env_id != COVID else 100, 25
    env, alone = (make_variant(make, variant, count, autoreset_mode="SameStep", threads=1) for _ in range(2))
    for each in (env, alone):
        each.reset(seed=0)
    action = draw_actions(env, 1)[0]
    results: list[bytes] = []

    def observation_bytes(env: Any) -> bytes:
        return b"".join(
            values.tobytes() for values in numpy_by_role(env, env.step(place_actions(env, action))[0]).values()
        )

    def work() -> None:
        results.extend(observation_bytes(env) for _ in range(steps))

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert {*results} == {observation_bytes(alone) for _ in range(2 * steps)}
    assert_same_bits(env.get_state(), alone.get_state())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": b"12"}, "seed is b'12'"),
        ({"seed": bytearray(2)}, "seed"),
        ({"seed": np.array(3)}, "seed"),
        ({"options": 0}, "options are 0; give a mapping"),
        ({"options": []}, r"options are \[\]"),
        ({"options": {"reset_mask": None}}, "reset_mask'] is None; .*leave it out"),
    ],
)
def test_reset_refuses_other_types(make: Make, variant: Variant, arguments: dict[str, Any], message: str) -> None:
    env = make_variant(make, variant, 2)
    env.reset(seed=0)
    assert_refused(env, lambda: env.reset(**arguments), TypeError, message)


def test_values_out_of_the_precisions_range(make: Make, variant: Variant) -> None:
    """Values that float32 rounds to infinity, or to a forbidden 0, are refused in float32 and allowed in float64."""
    spec = gpu_envs.spec(variant.env_id)
    paired = {each for pair in spec.ordered for each in pair}
    name = next(n for n, p in spec.params.items() if p.kind == "real" and p.maximum == np.inf and n not in paired)
    values: tuple[Any, ...] = (1e39, np.full(2, 1e39), 10**39, 10**5000)
    for value in values:
        with pytest.raises(ValueError, match=name):
            make_variant(make, Variant(variant.env_id, {name: value}), 2)
    large = {"gravity": 1e39}
    with pytest.raises(ValueError, match=r"gravity.*float32 rounds it to inf"):
        make("CartPole-v1", 2, device="cpu", **large)
    assert make("CartPole-v1", 2, device="cpu", precision="float64", **large).params["gravity"] == 1e39
    small = gpu_envs.Param(1.0, positive=True)
    assert small.check("mass", 1e-50, 1) == 1e-50
    with pytest.raises(ValueError, match=r"mass.*float32 rounds it to 0"):
        small.check("mass", 1e-50, 1, "float32")
