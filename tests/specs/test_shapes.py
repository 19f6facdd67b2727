"""Fields with several dimensions, such as matrices and boards, with rules in C++ and in Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from harness import Place, assert_same_bits, numpy_of
from small_envs import chase, check_message, walk

import gpu_envs
from gpu_envs import Field, Param, Role, Rules, TeamSpec
from gpu_envs.rules import AGENTS, DAYS, Params, Row, Team, TeamActions, World
from gpu_envs.testing import builds

STEPS = 4

GIFTS = {
    "reset": """FOR_EACH_AGENT(i, AGENTS) {
        for (int j = 0; j < AGENTS; ++j) w.given(i, j) = 0;
        for (int g = 0; g < 2; ++g) for (int d = 0; d < DAYS; ++d) w.goods(i, g, d) = real(i + 10 * g) + d;
        if (i == 0) for (int c = 0; c < 2; ++c) for (int j = 0; j < AGENTS; ++j) w.board(c, j) = c * AGENTS + j;
    }""",
    "step": """FOR_EACH_AGENT(i, AGENTS) {
        for (int j = 0; j < AGENTS; ++j) w.given(i, j) += real(actions[i]) * (j + 1);
        w.goods(i, 1, DAYS - 1) -= 1;
    }
    FOR_EACH_AGENT(i, AGENTS) {
        w.reward[i] = 0;
        for (int j = 0; j < AGENTS; ++j) w.reward[i] += w.given(j, i);
        if (i == 0) w.board(1, AGENTS - 1) += 1;
    }""",
    "look": "",
    "observe": "row[0] = float(w.given(i, 0) + w.goods(i, 1, 2));\n    row[1] = float(w.board(1, i));",
}
FIELDS: dict[str, Any] = {
    "state": {"given": Field(shape=("AGENTS",)), "goods": Field(shape=(2, "days"))},
    "shared": {"board": Field("int", shape=lambda p: (2, p["AGENTS"]))},
    "params": {"num_givers": Param(3, minimum=1, fixed=True), "days": Param(3, minimum=1, fixed=True)},
    "roles": (Role("giver", "num_givers", Box(-99, 999, (2,), np.float32), Discrete(3)),),
}


def reset(w: World, p: Params, team: Team) -> None:  # noqa: ARG001
    for i in team.agents(AGENTS):
        for j in range(AGENTS):
            w.given[i, j] = 0
        for g in range(2):
            for d in range(DAYS):
                w.goods[i, g, d] = float(i + 10 * g) + d
        if i == 0:
            for c in range(2):
                for j in range(AGENTS):
                    w.board[c, j] = c * AGENTS + j


def step(w: World, p: Params, team: Team, actions: TeamActions) -> None:  # noqa: ARG001
    for i in team.agents(AGENTS):
        for j in range(AGENTS):
            w.given[i, j] += float(actions[i]) * (j + 1)
        w.goods[i, 1, DAYS - 1] -= 1
    for i in team.agents(AGENTS):
        w.reward[i] = 0
        for j in range(AGENTS):
            w.reward[i] += w.given[j, i]
        if i == 0:
            w.board[1, AGENTS - 1] += 1


def observe(w: World, p: Params, i: int, row: Row) -> None:  # noqa: ARG001
    row[0] = w.given[i, 0] + w.goods[i, 1, 2]
    row[1] = w.board[1, i]


@pytest.fixture(params=["C++", "Python"])
def gifts(request: Any, tmp_path: Path) -> TeamSpec:
    made: TeamSpec = chase(tmp_path, "Gifts-v0", more=FIELDS, **GIFTS)
    if request.param == "C++":
        return made
    return TeamSpec(
        id="Gifts-v0", header=Rules(reset=reset, step=step, observe=observe), max_episode_steps=40, **FIELDS
    )


@pytest.mark.parametrize("givers", [3, 5])
def test_arrays_of_a_team(gifts: TeamSpec, place: Place, givers: int) -> None:
    env = gpu_envs.MultiAgentEnv(gifts, 4, device=place.device, output=place.output, num_givers=givers)
    env.reset(seed=0)
    shapes = {name: tuple(env.state[name].shape) for name in ("given", "goods", "board")}
    assert shapes == {"given": (4, givers, givers), "goods": (4, givers, 2, 3), "board": (4, 2, givers)}
    actions = np.random.default_rng(1).integers(0, 3, (STEPS, 4, givers))
    rewards = [numpy_of(env.step({"giver": action})[1]["giver"]).copy() for action in actions]
    given = actions.sum(0)[:, :, None] * np.arange(1, givers + 1)
    np.testing.assert_array_equal(numpy_of(env.state["given"]), given)
    np.testing.assert_array_equal(rewards[-1], given.sum(1))
    goods = np.arange(givers)[:, None, None] + 10 * np.arange(2)[:, None] + np.arange(3.0)
    goods[:, 1, 2] -= STEPS
    np.testing.assert_array_equal(numpy_of(env.state["goods"])[0], goods)
    board = np.arange(2 * givers).reshape(2, givers)
    board[1, -1] += STEPS
    np.testing.assert_array_equal(numpy_of(env.state["board"])[3], board)
    saved = env.get_state()
    env.state["given"] = np.zeros((givers, givers))
    env.set_state(saved)
    assert_same_bits(env.get_state(), saved)


BOARD = {
    "reset": "for (int k = 0; k < 2; ++k) for (int j = 0; j < 3; ++j) s.board(k, j) = 10 * k + j;\n    s.x = 0;",
    "step": "s.board(1, 2) += 1 + action;\n    s.x += s.board(1, 2);\n    return {real(s.board(1, 0)), false};",
    "observe": "observation[0] = float(s.board(1, 2));\n    observation[1] = float(s.board[1]);",
}


def test_arrays_of_a_single_agent(tmp_path: Path, place: Place) -> None:
    spec = walk(tmp_path, more={"state": {"x": Field(), "board": Field("int", shape=(2, "wide"))}, **WIDE}, **BOARD)
    env = gpu_envs.VectorEnv(spec, 5, device=place.device, output=place.output)
    env.reset(seed=0)
    np.testing.assert_array_equal(numpy_of(env.state["board"])[4], [[0, 1, 2], [10, 11, 12]])
    seen, reward, *_ = env.step(np.arange(5) % 2)
    np.testing.assert_array_equal(numpy_of(seen)[:, 0], 13 + np.arange(5) % 2)
    assert set(numpy_of(reward).tolist()) == {10.0}


WIDE: dict[str, Any] = {"params": {"wide": Param(3, minimum=1, fixed=True)}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("w.given(i, AGENTS) = 1;", "index 3 of 'given', which has 3 elements"),
        ("w.goods(i, 2, 0) = 1;", "index 2 of 'goods', which has 2 elements"),
        ("w.board(0, -1) = 1;", "index -1 of 'board', which has 3 elements"),
    ],
)
def test_an_index_out_of_range(tmp_path: Path, rule: str, message: str) -> None:
    found = GIFTS["step"].replace("w.reward[i] = 0;", f"w.reward[i] = 0; {rule}")
    assert message in check_message(
        builds.undefined_values, chase(tmp_path, "Gifts-v0", more=FIELDS, **{**GIFTS, "step": found})
    )


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        (
            ("AGENTS", 2, 2),
            ValueError,
            "the shape of the field 'given' is (3, 2, 2); use at most 3 dimensions, including",
        ),
        (("AGENST",), ValueError, "reads the parameter 'AGENST', which does not exist. Did you mean 'AGENTS'?"),
        (("speed",), ValueError, "reads 'speed', which may change, and memory depends on it"),
        ((0,), ValueError, "a field's shape: a size is 0; give an integer of at least 1"),
        ((), TypeError, "a field's shape is (); give one to 3 sizes, such as (3, 4), or a function such as"),
        (lambda _: 3, TypeError, "the shape of the field 'given' is 3; give one to 3 sizes"),
        (lambda _: (2.5,), TypeError, "a size is 2.5; give an integer of at least 1"),
    ],
)
def test_invalid_shapes(tmp_path: Path, shape: Any, error: type[Exception], message: str) -> None:
    def make() -> None:
        params = {**FIELDS["params"], "speed": Param(2)}
        state = {**FIELDS["state"], "given": Field(shape=shape)}
        gpu_envs.MultiAgentEnv(
            chase(tmp_path, more={**FIELDS, "state": state, "params": params}, **GIFTS), device="cpu"
        )

    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value)


def test_a_length_and_a_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a field has the length 3 and the shape \(2, 2\); give one"):
        Field(length=3, shape=(2, 2))
