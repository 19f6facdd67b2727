"""Generated parameter values of all kinds: each is refused with the parameter's name, or used everywhere."""

import copy
import functools
import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from generated import numbers, some_value
from harness import IDS, TEAM_IDS, assert_same_bits, on_host
from registered import Variant, needs_torch

import gpu_envs

TOTAL = int(os.environ.get("GENERATED_PARAMETERS", "1620"))

COUNT = 3


def expected(param: gpu_envs.Param, value: Any) -> list[Any]:
    """The values that each replica must have, computed in Python."""
    rows = value.detach().numpy() if hasattr(value, "detach") else value
    rows = list(rows) if np.ndim(rows) else [rows] * COUNT
    kinds: dict[str, Any] = {"real": np.float32, "int": int, "bool": bool, "choice": str}
    return [kinds[param.kind](row) for row in rows]


def per_replica(param: gpu_envs.Param, value: Any) -> list[Any]:
    """A value as in ``params`` and snapshots, for each replica."""
    rows = np.asarray(value).tolist() if np.ndim(value) else [value] * COUNT
    if np.ndim(value) and param.choices:
        rows = [param.choices[row] for row in rows]
    kinds: dict[str, Any] = {"real": np.float32, "int": int, "bool": bool, "choice": str}
    return [kinds[param.kind](row) for row in rows]


def in_kernels(env: Any, name: str) -> Any:
    """The value that the next step's kernel gets; None if it is compiled in."""
    layout = env.simulation.program.layout
    if name in layout.per_replica:
        assert env.simulation.program.args["step"].params.__getattribute__(name) == env.params[name].ctypes.data
        return env.params[name]
    if name in layout.baked:
        param, number = env.env_spec.settings[name], layout.baked[name]
        return param.choices[int(number)] if param.choices else number
    return getattr(env.simulation.program.args["step"].params, name)


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS])
def test_values_are_refused_or_used(env_id: str) -> None:
    """However they are set; a refused value changes nothing."""
    seed = sum(env_id.encode())
    rng = np.random.default_rng(seed)
    variant = Variant(env_id, {})
    settings = numbers(gpu_envs.spec(env_id))
    made = functools.partial(gpu_envs.make, env_id, COUNT, device="cpu")
    shared = made(**variant.arguments)
    own = {
        name: [variant.arguments.get(name, param.default)] * COUNT
        for name, param in settings.items()
        if not param.fixed
    }
    each = made(**{**variant.arguments, **own})
    taken = 0
    for turn in range(TOTAL // len([*IDS, *TEAM_IDS])):
        name = str(rng.choice([*settings]))
        param = settings[name]
        value = some_value(rng, param, COUNT)
        several = isinstance(value, list | tuple) or np.ndim(value) > 0
        live = param.kind == "real" and not param.baked  # other kinds compile a program for each shared value
        env = shared if live and not several and rng.random() < 0.5 else each
        env.reset(seed=0)
        before = env.get_state()
        what = f"seed {seed}, turn {turn}: {name}={value!r} of {env_id}"
        state = {**before, "params": {**before["params"], name: value}}
        ways: list[Callable[[], object]] = [
            functools.partial(env.set_attr, name, value),
            functools.partial(env.params.__setitem__, name, value),
            functools.partial(env.set_state, state),
        ]
        way = rng.integers(3 if param.kind == "real" and not param.fixed else 2)  # snapshots hold numbers
        refusal = ""
        try:
            ways[way]()
        except (ValueError, TypeError) as error:
            refusal = str(error)
        if refusal:
            assert name in refusal, what
            assert_same_bits(before, env.get_state(), what)
            continue
        taken += 1
        wanted = expected(param, value)
        for each_env in (env, copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
            assert per_replica(param, each_env.params[name]) == wanted, what
            assert [type(w)(v) for w, v in zip(wanted, each_env.get_attr(name), strict=True)] == wanted, what
            assert per_replica(param, each_env.get_state()["params"][name]) == wanted, what
            assert per_replica(param, in_kernels(each_env, name)) == wanted, what
        if several or live:
            again = made(**{**variant.arguments, **(own if several else {}), name: value})
            assert per_replica(param, again.params[name]) == wanted, what
        assert_same_bits(on_host(before["state"]), on_host(env.get_state()["state"]), what)
        env.set_state(before)  # keeps parameters consistent
    assert taken > 20
