"""A mistake in a spec is told by the environment's id and the name of the field, and what is to be done."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import gpu_envs
from gpu_envs import EnvSpec, Field, Param, Role, TeamSpec

SEEN = Box(-1, 1, (1,), np.float32)


def one(**changes: Any) -> EnvSpec:
    settings: dict[str, Any] = {
        "id": "Wrong-v0",
        "header": "cartpole.cuh",
        "state": ("x",),
        "params": {"count": Param(3, fixed=True), "speed": Param(1.0)},
        "observation": SEEN,
        "action": Discrete(2),
    }
    return EnvSpec(**settings | changes)


def team(**changes: Any) -> TeamSpec:
    settings: dict[str, Any] = {
        "id": "Wrong-v0",
        "header": "tag_grid.cuh",
        "state": {"x": Field()},
        "params": {"count": Param(3, fixed=True, positive=True), "speed": Param(1.0), "loose": Param(2)},
        "roles": (Role("dog", "count", SEEN, Discrete(2)),),
    }
    return TeamSpec(**settings | changes)


def role(**changes: Any) -> tuple[Role]:
    settings: dict[str, Any] = {"name": "dog", "count": 2, "observation": SEEN, "action": Discrete(2)}
    return (Role(**settings | changes),)


@pytest.mark.parametrize(
    ("make", "changes", "said"),
    [
        (one, {"params": {"g": 9.8}}, "Wrong-v0: params: 'g' is 9.8; give a Param, such as Param(9.8)"),
        (one, {"params": [Param(1)]}, "Wrong-v0: params is [Param("),
        (one, {"options": {"low": 1}}, "Wrong-v0: options: 'low' is 1; give a Param, such as Param(0.05)"),
        (one, {"tables": {"map": [[0, 1]]}}, "Wrong-v0: tables: 'map' is [[0, 1]]; give a Table, such as Table("),
        (one, {"state": "x"}, "Wrong-v0: state is 'x'; give names, such as ('x',), or a mapping to Field()"),
        (one, {"state": {"x": "int"}}, "Wrong-v0: state: 'x' is 'int'; give a Field, such as Field('int')"),
        (one, {"observation": 4}, "Wrong-v0: observation is 4; give a space of Gymnasium's, such as Discrete(2)"),
        (one, {"action": Discrete}, "Wrong-v0: action is <class 'gymnasium.spaces.discrete.Discrete'>; give a space"),
        (one, {"header": None}, "Wrong-v0: header is None; give a path, or gpu_envs.Rules"),
        (
            one,
            {"drawing": print},
            "Wrong-v0: drawing is <built-in function print>; give gpu_envs.pictures.Drawing(draw)",
        ),
        (one, {"max_episode_steps": 1.5}, "Wrong-v0: max_episode_steps is 1.5; give a whole number, or None"),
        (team, {"scratch": {"y": 1}}, "Wrong-v0: scratch: 'y' is 1; give a Field, such as Field('int')"),
        (team, {"roles": role(count="cuont")}, "names 'cuont', which is no parameter. Did you mean 'count'?"),
        (team, {"roles": role(count="speed")}, "the parameter 'speed', which must be a whole number and fixed"),
        (team, {"roles": role(count="loose")}, "the parameter 'loose', which must be a whole number and fixed"),
        (team, {"roles": role(count=0)}, "Wrong-v0: the role 'dog': its count is 0; a whole number from 1 up"),
        (team, {"roles": role(observation=3)}, "Wrong-v0: the role 'dog': observation is 3; give a space"),
    ],
)
def test_when_it_is_written(make: Callable[..., Any], changes: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        make(**changes)
    assert said in str(caught.value)


def asks_for_another(params: Any) -> Box:
    return Box(-1, 1, (params["cuont"],), np.float32)


def fails(params: Any) -> Box:
    del params
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            asks_for_another,
            "asks_for_another asks for the parameter 'cuont'. Did you mean 'count'? There are: count, speed",
        ),
        (fails, "fails raised ZeroDivisionError: division by zero"),
        (lambda params: params["count"], "<lambda> returned 3; expected a space of Gymnasium's"),
    ],
)
def test_when_a_space_is_derived(function: Callable[[Any], Any], said: str) -> None:
    for field in ("observation", "action"):
        with pytest.raises((TypeError, ValueError)) as caught:
            gpu_envs.VectorEnv(one(**{field: function}), device="cpu")
        assert str(caught.value) == f"Wrong-v0: {field}: {said}"
        with pytest.raises((TypeError, ValueError)) as caught:
            gpu_envs.MultiAgentEnv(team(roles=role(**{field: function})), device="cpu")
        assert str(caught.value).startswith(f"Wrong-v0: the role 'dog': {field}: {said}")


def test_what_is_no_id_and_no_place() -> None:
    with pytest.raises(TypeError, match=r"named by a string; got EnvSpec; give 'Wrong-v0', after gpu_envs\.register"):
        gpu_envs.make(one())  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(TypeError, match="register takes an EnvSpec or a TeamSpec; got 'CartPole-v1'"):
        gpu_envs.register("CartPole-v1")  # type: ignore[arg-type]  # that is the mistake


def test_a_role_of_nobody_is_refused_when_it_is_made() -> None:
    spec = team(params={"count": Param(2, fixed=True)})
    for made in (lambda: gpu_envs.MultiAgentEnv(spec, 2, count=0), lambda: spec.check_params({"count": 0}, 2)):
        with pytest.raises(
            ValueError, match=r"^Wrong-v0: the role 'dog': its count is the parameter 'count', which is 0;"
        ):
            made()
    assert spec.check_params({}, 2) == {"count": 2}
