"""Parameters that change in device memory have the effect of ``set_attr``, without another program."""

from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, numpy_of

import gpu_envs
from gpu_envs.engine.attributes import set_params_in_place

CASES: dict[str, tuple[str, dict[str, Any], str, Any]] = {
    "a number": ("CartPole-v1", {"gravity": [9.0, 9.5]}, "gravity", 10.0),
    "an array": ("CartPole-v1", {"gravity": [9.0, 9.5]}, "gravity", np.array([1.0, 2.0])),
    "a distribution": ("CartPole-v1", {"gravity": "uniform:9:10"}, "gravity", "uniform:2:3"),
    "an input of a derived parameter": ("RiceN-v0", {"depreciation": [0.1, 0.2]}, "depreciation", 0.3),
    "an array parameter": ("RiceN-v0", {"backstop_price": "uniform:400:600"}, "backstop_price", "uniform:300:310"),
}


@pytest.mark.parametrize("name", CASES)
def test_in_place_equals_set_attr(name: str, device: str) -> None:
    env_id, params, changed, value = CASES[name]
    envs = [gpu_envs.make(env_id, 2, device=device, **params) for _ in range(2)]
    for env in envs:
        env.reset(seed=0)
    program = envs[0].simulation.program
    set_params_in_place(envs[0].simulation, {changed: value})
    assert envs[0].simulation.program is program
    envs[1].set_attr(changed, value)
    for env in envs:
        env.reset(seed=1)
    for each in envs[1].params:
        assert_same_bits(numpy_of(envs[0].params[each]), numpy_of(envs[1].params[each]), each)
    assert envs[0].distributions == envs[1].distributions


def test_all_or_none_and_ordered_pairs() -> None:
    env = gpu_envs.make(
        "TagContinuous-v0", 2, min_turn=[-1.0, -1.0], max_turn=[1.0, 1.0], min_acceleration="uniform:0:0.1"
    )
    for wrong in (
        {"min_turn": 2.0},
        {"max_turn": [0.6, -2.0]},
        {"min_turn": 0.0, "max_turn": 0.5, "min_acceleration": 1},
    ):
        with pytest.raises(ValueError, match=r"must not exceed|can only change to another Uniform"):
            set_params_in_place(env.simulation, wrong)
        assert [numpy_of(env.params[name]).tolist() for name in ("min_turn", "max_turn")] == [[-1, -1], [1, 1]]
    set_params_in_place(env.simulation, {"min_turn": 2.0, "max_turn": 3.0})
    assert [numpy_of(env.params[name]).tolist() for name in ("min_turn", "max_turn")] == [[2, 2], [3, 3]]


def test_a_drawn_parameter_has_the_order_of_its_new_range() -> None:
    params: dict[str, Any] = {"min_acceleration": "uniform:0.2:0.3", "max_acceleration": [0.5, 0.5]}
    env = gpu_envs.make("TagContinuous-v0", 2, **params)
    set_params_in_place(env.simulation, {"min_acceleration": "uniform:-0.3:-0.2"})
    set_params_in_place(env.simulation, {"max_acceleration": -0.1})
    with pytest.raises(ValueError, match="'min_acceleration' must not exceed"):
        set_params_in_place(env.simulation, {"max_acceleration": -0.25})
