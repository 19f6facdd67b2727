"""Array parameters, and parameters derived from others."""

import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from harness import Place, assert_same_bits, numpy_of, to_place
from small_envs import check_message, walk

import gpu_envs
from gpu_envs import Derived, Param, VectorEnv
from gpu_envs.testing import builds

RULES = {
    "reset": "s.x = 0;\n    s.pace = p.pull(1, 2);",
    "step": "s.x += p.gain[action] + p.total;\n    return {p.twice[1] * real(p.steps[0]), false};",
    "observe": "observation[0] = float(s.x);\n    observation[1] = float(s.pace);",
}
PARAMS: dict[str, Any] = {
    "wide": Param(3, minimum=1, maximum=5, fixed=True),
    "gain": Param([1.0, 2.0], "of the two actions", minimum=0),
    "pull": Param(lambda p: np.arange(2.0 * p["wide"]).reshape(2, -1), shape=(2, "wide")),
    "steps": Param(4, shape=(2,), positive=True),
    "scale": Param(0.5),
    "total": Derived(lambda p: p["scale"] * p["gain"].sum(), "of both gains"),
    "twice": Derived(lambda p: [0.0, 2 * p["total"]], shape=(2,)),
}


@pytest.fixture
def spec(tmp_path: Path) -> Any:
    return walk(tmp_path, more={"params": PARAMS}, **RULES)


def make_env(spec: Any, place: Place, **params: Any) -> VectorEnv:
    env = VectorEnv(spec, 4, device=place.device, output=place.output, **params)
    env.reset(seed=0)
    return env


def results_of_step(env: VectorEnv, action: int = 1) -> tuple[list[float], list[float], list[float]]:
    """Positions after a step, paces and rewards."""
    env.reset(seed=0)
    seen, rewards, *_ = env.step(np.full(4, action))
    return numpy_of(seen)[:, 0].tolist(), numpy_of(seen)[:, 1].tolist(), numpy_of(rewards).tolist()


def test_defaults(spec: Any, place: Place) -> None:
    env = make_env(spec, place)
    assert results_of_step(env) == ([2 + 1.5] * 4, [5] * 4, [2 * 1.5 * 4] * 4)
    assert results_of_step(make_env(spec, place, wide=5), 0) == ([1 + 1.5] * 4, [7] * 4, [12] * 4)
    np.testing.assert_array_equal(numpy_of(env.params["pull"]), [[0, 1, 2], [3, 4, 5]])
    assert env.get_attr("steps")[3].tolist() == [4, 4]
    assert env.params["total"] == 1.5


@pytest.mark.parametrize("kind", [list, np.asarray, None])
def test_one_array_for_all_replicas(spec: Any, place: Place, kind: Any) -> None:
    gain: Any = to_place(np.array([3.0, 4.0]), place) if kind is None else kind([3.0, 4.0])
    env = make_env(spec, place, gain=gain, steps=[5, 1], pull=9.0)
    assert results_of_step(env) == ([4 + 3.5] * 4, [9] * 4, [7 * 5] * 4)


def test_one_array_for_each_replica(spec: Any, place: Place) -> None:
    gain = np.arange(8.0).reshape(4, 2)
    env = make_env(spec, place, gain=gain, pull=np.ones((2, 3)))
    total = 0.5 * gain.sum(1)
    assert results_of_step(env) == ((gain[:, 1] + total).tolist(), [1] * 4, (2 * total * 4).tolist())
    assert [value.tolist() for value in env.get_attr("gain")] == gain.tolist()
    assert env.get_attr("total") == tuple(total.tolist())
    own = make_env(spec, place, scale=[0.0, 1.0, 2.0, 3.0])
    assert results_of_step(own)[0] == [2.0, 5.0, 8.0, 11.0]


@pytest.mark.usefixtures("temporary_registry")
def test_set_later(spec: Any, place: Place) -> None:
    env = make_env(spec, place)
    env.params["gain"] = [0.0, 10.0]
    assert results_of_step(env) == ([15] * 4, [5] * 4, [40] * 4)
    env.set_attr("scale", [0.0, 1.0, 2.0, 3.0])
    assert results_of_step(env)[0] == [10, 20, 30, 40]
    env.set_attr("gain", np.ones((4, 2)))
    assert results_of_step(env)[0] == [1, 3, 5, 7]
    env.set_attr("scale", 1.0)  # fills the arrays with a value for each replica
    env.set_attr("gain", [5.0, 6.0])
    assert results_of_step(env)[0] == [17] * 4
    saved = env.get_state()
    gpu_envs.register(spec)
    again = pickle.loads(pickle.dumps(env))
    env.set_attr("gain", 0.0)
    assert results_of_step(env)[0] == [0] * 4
    env.set_state(saved)
    assert_same_bits(env.get_state(), saved)
    assert results_of_step(env)[0] == results_of_step(again)[0] == [17] * 4


@pytest.mark.parametrize("baked", [False, True])
@pytest.mark.parametrize("given", [{}, {"low": [0.5, 0.25, 0.5, 0.25]}, {"scale": [1.0, 0.5, 1.0, 0.5]}])
def test_derived_from_a_reset_option(tmp_path: Path, place: Place, given: dict[str, Any], baked: bool) -> None:
    """It is computed again for this reset in the selected replicas, and restored afterwards."""
    params = {
        "scale": Param(1.0),
        "same": Derived(lambda p: p["scale"] * p["low"], baked=baked),
        "twice": Derived(lambda p: 2 * p["same"], baked=baked),
        "both": Derived(lambda p: [p["low"], 2 * p["twice"]], shape=(2,)),
    }
    more = {"params": params, "options": {"low": Param(0.5)}, "ordered": (("low", "twice"),)}
    spec = walk(tmp_path, more=more, reset="s.x = p.twice;\n    s.pace = p.both[1];")
    env = make_env(spec, place, **given)
    usual = numpy_of(env.reset()[0])
    assert usual[0].tolist() == [1.0, 2.0]
    scale = np.array(given.get("scale", [1.0] * 4))[:, None]
    assert numpy_of(env.reset(options={"low": 0.125})[0]).tolist() == (scale * [0.25, 0.5]).tolist()
    assert_same_bits(numpy_of(env.reset()[0]), usual)
    mask = np.array([True, False, True, False])
    seen = numpy_of(env.reset(options={"low": 1.0, "reset_mask": mask})[0])
    assert_same_bits(seen, np.where(mask[:, None], (scale * [2.0, 4.0]).astype(np.float32), usual))
    with pytest.raises(ValueError, match="'low' must not exceed 'twice'"):
        env.reset(options={"low": -1.0})


def test_live_edits(spec: Any, place: Place) -> None:
    """Arrays are live; editing an input of a derived parameter in place is an error."""
    env = make_env(spec, place)
    env.params["pull"][1, 2] = 8.0
    assert results_of_step(env)[1] == [8] * 4
    env.params["steps"][0] = 0
    with pytest.raises(ValueError, match=r"'steps'\[0\] is .*0.*; allowed: an integer above 0"):
        env.check()
    env.params["steps"] = 1
    env.params["gain"][0] = 3.0
    with pytest.raises(ValueError, match=r"'total' is computed from 'gain', 'scale', and one of them was edited in"):
        env.check()
    env.params["gain"] = [1.0, 2.0]
    env.check()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"gain": [1.0, -2.0]}, "parameter 'gain'[1] is np.float64(-2.0); allowed: a finite number of at least 0"),
        ({"gain": [[1.0, 2.0]] * 3 + [[1.0, -2.0]]}, "parameter 'gain'[1] of replica 3 is np.float64(-2.0); allowed"),
        ({"gain": [1.0, 2.0, 3.0]}, "array of shape (3,); give one of shape (2,), or one for each of the 4 replicas"),
        ({"gain": "much"}, "parameter 'gain' got 'much'; allowed"),
        ({"gain": None}, "parameter 'gain' got None; allowed"),
        ({"steps": [1.5, 2.0]}, "parameter 'steps' got an array of float64; allowed: an integer above 0"),
        ({"pull": np.full((2, 3), np.nan)}, "parameter 'pull'[0][0] is np.float64(nan); allowed: a finite number"),
        ({"total": 3.0}, "parameter 'total' is computed from other parameters; set those instead"),
    ],
)
def test_invalid_values(spec: Any, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="parameter") as caught:
        VectorEnv(spec, 4, device="cpu", **params)
    assert message in str(caught.value)
    env = VectorEnv(spec, 4, device="cpu")
    for name, value in params.items():
        with pytest.raises(ValueError, match=name):
            env.set_attr(name, value)
        assert results_of_step(env)[0] == [3.5] * 4


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Param([1.0], fixed=True), ValueError, "cannot have choices, be baked or be fixed"),
        (lambda: Param(lambda _: [1.0]), ValueError, "give its shape too"),
        (lambda: Param([[1.0], [1.0, 2.0]]), ValueError, "a parameter's default got"),
        (lambda: Param(["a"]), ValueError, "give numbers"),
        (
            lambda: Param([1.0], shape=cast(Any, lambda _: (3,))),
            TypeError,
            "a parameter's shape is a function; give a tuple of sizes",
        ),
        (lambda: Param(1.0, shape=(0,)), ValueError, "a size is 0; give an integer of at least 1"),
        (lambda: Derived(3.0), TypeError, "the default of a Derived is 3.0; give a function of the parameters"),
    ],
)
def test_invalid_declarations(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"pull": Param([1.0, 2.0], shape=(3,))},
            "parameter 'pull' got an array of shape (2,); give one of shape (3,)",
        ),
        ({"pull": Param(lambda p: p["wdie"], shape=(2, 3))}, "reads the parameter 'wdie'"),
        ({"pull": Param(lambda p: p["scale"], shape=(2, 3))}, "reads 'scale', which may change"),
        ({"total": Derived(lambda p: p["gian"])}, "the parameter 'total': <lambda> reads the parameter 'gian'"),
        ({"total": Derived(lambda _: float("nan"))}, "parameter 'total' got nan; allowed: a finite number"),
    ],
)
def test_when_it_is_computed(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"parameter") as caught:
        VectorEnv(walk(tmp_path, more={"params": {**PARAMS, **changes}}, **RULES), 2, device="cpu")
    assert message in str(caught.value)


@pytest.mark.slow
def test_an_index_out_of_range(tmp_path: Path) -> None:
    rules = {**RULES, "reset": "s.x = 0;\n    s.pace = p.pull(2, 0);"}
    message = check_message(builds.undefined_values, walk(tmp_path, more={"params": PARAMS}, **rules))
    assert "index 2 of 'pull', which has 2 elements" in message


@pytest.mark.slow
def test_no_index_is_read_after_an_episode(tmp_path: Path) -> None:
    """An episode ends when its index leaves the array: rules are not called again before the next episode."""
    rules = {
        "reset": "s.x = 0;\n    s.pace = 0;",
        "step": "const real gain = p.gain[int(s.x)];\n    s.x += 1;\n    return {gain, s.x > real(1)};",
        "observe": "observation[0] = float(s.x);\n    observation[1] = float(s.pace);",
    }
    spec = walk(tmp_path, more={"params": {"gain": Param([1.0, 2.0])}}, **rules)
    assert check_message(builds.undefined_values, spec) == ""
