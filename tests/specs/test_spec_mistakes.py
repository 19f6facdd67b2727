"""Messages about mistakes in a spec name the environment's id, the field and the fix."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from wrong_specs import valid_env_spec, valid_roles, valid_team_spec

import gpu_envs
from gpu_envs import Field, Metric, Param, Table
from gpu_envs.backend.arrays import NumpyArrays
from gpu_envs.backend.host import HostBackend
from gpu_envs.engine.results import check_replica_memory
from gpu_envs.registry.catalog import env_spec


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (valid_env_spec, {"params": {"g": 9.8}}, "Wrong-v0: params: 'g' is 9.8; give a Param, such as Param(9.8)"),
        (valid_env_spec, {"params": [Param(1)]}, "Wrong-v0: params is [Param("),
        (valid_env_spec, {"options": {"low": 1}}, "Wrong-v0: options: 'low' is 1; give a Param, such as Param(0.05)"),
        (
            valid_env_spec,
            {"tables": {"map": [[0, 1]]}},
            "Wrong-v0: tables: 'map' is [[0, 1]]; give a Table, such as Table(",
        ),
        (valid_env_spec, {"state": "x"}, "Wrong-v0: state is 'x'; give names, such as ('x',), or a mapping to Field()"),
        (valid_env_spec, {"state": {"x": "int"}}, "Wrong-v0: state: 'x' is 'int'; give a Field, such as Field('int')"),
        (
            valid_env_spec,
            {"observation": 4},
            "Wrong-v0: observation is 4; give a space of Gymnasium, such as Discrete(2)",
        ),
        (
            valid_env_spec,
            {"action": Discrete},
            "Wrong-v0: action is <class 'gymnasium.spaces.discrete.Discrete'>; give a space",
        ),
        (valid_env_spec, {"header": None}, "Wrong-v0: header is None; give a path, or gpu_envs.Rules"),
        (
            valid_env_spec,
            {"drawing": print},
            "Wrong-v0: drawing is <built-in function print>; give gpu_envs.pictures.Drawing(draw)",
        ),
        (
            valid_env_spec,
            {"max_episode_steps": 1.5},
            "Wrong-v0: max_episode_steps is 1.5; give an integer of at least 1, or a function",
        ),
        (
            valid_env_spec,
            {"options": {"kick": Param([1.0, 2.0])}},
            "Wrong-v0: options: 'kick' is an array or a Derived; give a scalar, such as Param(0.05)",
        ),
        (valid_team_spec, {"scratch": {"y": 1}}, "Wrong-v0: scratch: 'y' is 1; give a Field, such as Field('int')"),
        (
            valid_team_spec,
            {"roles": valid_roles(count="cuont")},
            "names 'cuont', which is not a parameter. Did you mean 'count'?",
        ),
        (
            valid_team_spec,
            {"roles": valid_roles(count="speed")},
            "the parameter 'speed', which must be an integer and fixed",
        ),
        (
            valid_team_spec,
            {"roles": valid_roles(count="loose")},
            "the parameter 'loose', which must be an integer and fixed",
        ),
        (
            valid_team_spec,
            {"roles": valid_roles(count=0)},
            "Wrong-v0: the role 'dog': its count is 0; give an integer of at least 1",
        ),
        (
            valid_team_spec,
            {"roles": valid_roles(observation=3)},
            "Wrong-v0: the role 'dog': observation is 3; give a space",
        ),
        (valid_team_spec, {"metrics": {"dog": Metric()}}, "the metric 'dog' has the name of a role"),
    ],
)
def test_mistakes_in_the_constructor(make: Callable[..., Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        make(**changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Field("float"), "a field's type is 'float'; allowed: real, int, byte"),
        (lambda: Field("int", 0), "a field's length is 0; give an integer of at least 1"),
        (lambda: Table([[1.5]], "int"), "holds numbers that int32 cannot represent"),
        (lambda: Table("text"), "give numbers, in one to three dimensions"),
        (
            lambda: valid_env_spec(state={"x": Field("agent")}),
            "the field 'x' is of type 'agent', which only a team has",
        ),
        (lambda: valid_env_spec(state={"class": Field()}), "the field 'class' must be a name in both C++ and Python"),
        (lambda: valid_env_spec(params={"x": Param(1.0)}), "['x'] occur more than once in state, params"),
    ],
)
def test_invalid_fields_of_specs(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def asks_for_another(params: Any) -> Box:
    return Box(-1, 1, (params["cuont"],), np.float32)


def fails(params: Any) -> Box:
    del params
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            asks_for_another,
            "asks_for_another reads the parameter 'cuont', which does not exist. Did you mean 'count'? "
            "There are: count, speed",
        ),
        (fails, "fails raised ZeroDivisionError: division by zero"),
        (lambda params: params["count"], "<lambda> returned 3; expected a space of Gymnasium"),
    ],
)
def test_mistakes_in_functions_for_spaces(function: Callable[[Any], Any], message: str) -> None:
    for field in ("observation", "action"):
        with pytest.raises((TypeError, ValueError)) as caught:
            gpu_envs.VectorEnv(valid_env_spec(**{field: function}), device="cpu")
        assert str(caught.value) == f"Wrong-v0: {field}: {message}"
        with pytest.raises((TypeError, ValueError)) as caught:
            gpu_envs.MultiAgentEnv(valid_team_spec(roles=valid_roles(**{field: function})), device="cpu")
        assert str(caught.value).startswith(f"Wrong-v0: the role 'dog': {field}: {message}")


MAKERS: tuple[tuple[Callable[..., Any], Any], ...] = (
    (valid_env_spec, gpu_envs.VectorEnv),
    (valid_team_spec, gpu_envs.MultiAgentEnv),
)


@pytest.mark.parametrize("length", [2.5, True, None, "3"])
def test_invalid_lengths(length: Any) -> None:
    with pytest.raises(
        TypeError, match=f"a field's length is {length!r}; give an integer of at least 1, or a function"
    ):
        Field(length=length)


def test_any_integer_is_a_length() -> None:
    whole: Any = np.int64(3)
    assert Field(length=whole) == Field(length=3)
    assert Field("int", lambda _: whole).sizes({}) == (3,)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda _: 2.5, "is 2.5; give an integer of at least 1"),
        (lambda _: True, "is True; give an integer of at least 1"),
        (lambda _: 0, "is 0; give an integer of at least 1"),
        (lambda p: p["cuont"], ": <lambda> reads the parameter 'cuont', which does not exist. Did you mean 'count'?"),
        (lambda _: 1 // 0, ": <lambda> raised ZeroDivisionError"),
        (lambda p: int(p["speed"]), ": <lambda> reads 'speed', which may change, and memory depends on it: make it"),
        (lambda p: p["still"], ": <lambda> reads 'still', which may change, and memory depends on it: make it a"),
        (lambda p: int(p.get("speed", 3)), "mark it fixed=True"),
    ],
)
def test_mistakes_in_functions_for_lengths(function: Callable[[Any], Any], message: str) -> None:
    for make, env in MAKERS:
        spec = make(state={"x": Field(), "cells": Field("int", function)}, options={"still": Param(2)})
        with pytest.raises((TypeError, ValueError)) as caught:
            env(spec, device="cpu")
        assert str(caught.value).startswith("Wrong-v0: the length of the field 'cells'")
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda p: [p["speed"]], ": <lambda> reads 'speed', which may change, and memory depends on it"),
        (lambda p: [p["cuont"]], ": <lambda> reads the parameter 'cuont', which does not exist. Did you mean 'count'?"),
        (lambda _: [], " is an array of float64 with shape (0,); give numbers, in one to three dimensions"),
        (lambda _: [0.5], " of type 'int' holds numbers that int32 cannot represent"),
    ],
)
def test_mistakes_in_functions_for_tables(function: Callable[[Any], Any], message: str) -> None:
    for make, env in MAKERS:
        with pytest.raises(ValueError, match="Wrong-v0") as caught:
            env(make(tables={"map": Table(function, "int")}), device="cpu")
        assert str(caught.value).startswith("Wrong-v0: the table 'map'")
        assert message in str(caught.value)


def test_functions_read_fixed_parameters() -> None:
    spec = valid_env_spec(state={"cells": Field("int", lambda p: dict(p)["count"] + len(p))})
    assert spec.sizes("cells", spec.typed_state["cells"], {"count": 3, "speed": 1.0}) == (4,)


def test_a_space_keeps_its_shape() -> None:
    def wide(params: Any) -> Box:
        return Box(-9, 9, (int(np.max(params["size"])),), np.float32)

    pole = env_spec("CartPole-v1")
    more = {"size": Param(4), "speed": Param(1.0)}
    spec = dataclasses.replace(pole, observation=wide, params={**pole.params, **more})
    env = gpu_envs.VectorEnv(spec, 2, device="cpu")
    env.set_attr("speed", 2.0)
    with pytest.raises(
        ValueError, match=r"observation would change from Box\(.*\(5,\).* with 'size': make another environment"
    ):
        env.set_attr("size", 5)
    assert env.get_attr("size") == (4, 4)


def test_the_memory_estimate_includes_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    pole, table = env_spec("CartPole-v1"), Table(np.zeros(20_000))
    monkeypatch.setattr(HostBackend, "memory", lambda _: 70_000)
    gpu_envs.VectorEnv(pole, 2, device="cpu")
    with pytest.raises(MemoryError, match=r"2 replicas of CartPole-v1 need .* GiB .*lower num_envs or make the tables"):
        gpu_envs.VectorEnv(dataclasses.replace(pole, tables={"map": table}), 2, device="cpu")


def test_tables_are_built_once() -> None:
    built = []

    def numbers(_: Any) -> list[float]:
        built.append(1)
        return [0.0, 1.0]

    spec = dataclasses.replace(env_spec("CartPole-v1"), tables={"map": Table(numbers)})
    env = gpu_envs.VectorEnv(spec, 2, device="cpu")
    env.set_attr("gravity", [1.0, 2.0])
    env.reset(seed=0)
    env.rollout(1)
    assert len(built) == 1
    check_replica_memory(dataclasses.replace(env.simulation.config, table_shapes={}), env.simulation.backend)
    assert len(built) == 1


def test_tables_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Any, values: Any) -> Any:
        raise RuntimeError(f"no room for {values.size}")

    monkeypatch.setattr(NumpyArrays, "from_numpy", full)
    spec = dataclasses.replace(env_spec("CartPole-v1"), tables={"map": Table([0.0, 1.0])})
    with pytest.raises(MemoryError, match=r"make the tables smaller \(no room for 2\)"):
        gpu_envs.VectorEnv(spec, 2, device="cpu")


def test_invalid_arguments_of_make_and_register() -> None:
    with pytest.raises(TypeError, match=r"id must be a string or a spec; got int"):
        gpu_envs.make(3)  # type: ignore[call-overload]  # that is the mistake
    with pytest.raises(TypeError, match="register takes an EnvSpec or a TeamSpec; got 'CartPole-v1'"):
        gpu_envs.register("CartPole-v1")  # type: ignore[arg-type]  # that is the mistake


def test_a_role_without_agents_is_refused() -> None:
    spec = valid_team_spec(params={"count": Param(2, fixed=True)})
    for made in (lambda: gpu_envs.MultiAgentEnv(spec, 2, count=0), lambda: spec.check_params({"count": 0}, 2)):
        with pytest.raises(
            ValueError, match=r"^Wrong-v0: the role 'dog': its count is the parameter 'count', which is 0;"
        ):
            made()
    assert spec.check_params({}, 2) == {"count": 2}
