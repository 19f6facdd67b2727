"""Sums, maxima and minima over many turns equal a NumPy model, bit for bit, in every schedule."""

import dataclasses

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from harness import Place, numpy_of
from nvrtc import nvrtc_missing, programs, ptx_of
from small_envs import chase, check_message
from translation_cases import HEADER, import_source, rules_of

import gpu_envs
from gpu_envs import Field, Param, Role, TeamSpec
from gpu_envs.codegen import PRECISIONS
from gpu_envs.testing import builds

LANES = 32
STATE = ("x", "row_sums", "column_sums", "most")

RULES = {
    "reset": """FOR_EACH_AGENT(i, AGENTS) {
        Random random = team.random(RESET, i);
        w.x[i] = random.uniform(real(-1), real(1));
        for (int j = 0; j < WIDE; ++j) w.given(i, j) = random.uniform(real(-100), real(100));
        for (int j = 0; j < WIDE; ++j) w.doubled(i, j) = 0;
        w.row_sums[i] = w.column_sums[i] = w.most[i] = 0;
        if (i == 0) w.sum = w.precise = w.greatest = w.least = 0, w.count = 0;
    }""",
    "step": """sum_over(team, w.row_sums, AGENTS, WIDE, [&](int i, int j) { return w.given(i, j); });
    sum_over(team, w.column_sums, WIDE, AGENTS, [&](int j, int i) { return w.given(i, j); });
    maximum_over(team, w.most, AGENTS, WIDE, [&](int i, int j) { return w.given(i, j); });
    sum_over(team, w.sum, AGENTS, [&](int i) { return w.x[i] * w.row_sums[i]; });
    sum_over<double>(team, w.precise, AGENTS, [&](int i) { return w.x[i] * w.row_sums[i]; });
    maximum_over(team, w.greatest, AGENTS, [&](int i) { return w.x[i]; });
    minimum_over(team, w.least, AGENTS, [&](int i) { return w.x[i]; });
    sum_over(team, w.count, AGENTS, [&](int i) { return w.x[i] > 0 ? 1 : 0; });
    FOR_EACH_ELEMENT(i, j, AGENTS, WIDE) w.doubled(i, j) = 2 * w.given(i, j) + real(j) * w.x[i];
    FOR_EACH_AGENT(i, AGENTS) w.reward[i] = w.sum;""",
    "look": "",
    "observe": "row[0] = float(w.sum);",
}

IN_PYTHON = """
def reset(w: World, p: Params, team: Team) -> None:
    for i in team.agents():
        random = team.random(RESET, i)
        w.x[i] = random.uniform(-1, 1)
        for j in range(WIDE):
            w.given[i, j] = random.uniform(-100, 100)
        for j in range(WIDE):
            w.doubled[i, j] = 0
        w.row_sums[i] = w.column_sums[i] = w.most[i] = 0
        if i == 0:
            w.sum = w.precise = w.greatest = w.least = 0
            w.count = 0

def add_up(w: World, team: Team) -> None:
    w.sum = team.sum(w.x[i] * w.row_sums[i] for i in team.agents())
    w.precise = team.sum((w.x[i] * w.row_sums[i] for i in team.agents()), double=True)
    w.greatest = team.max(w.x[k] for k in range(AGENTS))
    w.least = team.min(w.x[k] for k in range(AGENTS))
    w.count = team.sum(w.x[i] > 0 for i in team.agents())

def step(w: World, p: Params, team: Team, actions: TeamActions) -> None:
    for i in team.agents():
        w.row_sums[i] = team.sum(w.given[i, j] for j in range(WIDE))
    for j in team.agents(WIDE):
        w.column_sums[j] = team.sum(w.given[i, j] for i in team.agents())
    for i in team.agents():
        w.most[i] = team.max(w.given[i, j] for j in range(WIDE))
    add_up(w, team)
    for i, j in team.elements(AGENTS, WIDE):
        w.doubled[i, j] = 2 * w.given[i, j] + j * w.x[i]
    for i in team.agents():
        w.reward[i] = w.sum

def observe(w: World, p: Params, agent: int, row: Row) -> None:
    row[0] = w.sum
"""


@pytest.fixture(scope="module", params=["in C++", "in Python"])
def spec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TeamSpec:
    """A team whose step only computes sums, with rules in C++ or in Python."""
    folder = tmp_path_factory.mktemp("adding")
    made: TeamSpec = chase(
        folder,
        "Adding-v0",
        more={
            "params": {"many": Param(3, minimum=1, fixed=True), "wide": Param(2, minimum=1, fixed=True)},
            "roles": (Role("one", "many", Box(-9, 9, (1,), np.float32), Discrete(2)),),
            "state": {
                **{name: Field() for name in STATE},
                "given": Field(shape=("wide",)),
                "doubled": Field(shape=("wide",)),
            },
            "shared": {**{name: Field() for name in ("sum", "precise", "greatest", "least")}, "count": Field("int")},
        },
        **RULES,
    )
    if request.param == "in Python":
        return dataclasses.replace(made, header=rules_of(import_source(HEADER + IN_PYTHON, folder)))
    return made


def added(values: np.ndarray) -> np.ndarray:
    """The sum over the last dimension, in the order of sums.cuh."""
    n = values.shape[-1]
    lanes = np.zeros((*values.shape[:-1], LANES), values.dtype)
    for k in range(n):
        lanes[..., k % LANES] += values[..., k]
    half = LANES // 2
    while half >= n and half > 0:
        half //= 2
    while half > 0:
        lanes[..., :half] += lanes[..., half : 2 * half]
        half //= 2
    return lanes[..., 0]


@pytest.mark.fast_cases(9)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("many", "wide"),
    [(1, 1), (2, 2), (3, 3), (5, 1), (16, 16), (17, 9), (31, 31), (32, 32), (33, 33), (70, 65), (300, 100), (2100, 3)],
)
def test_sums_equal_the_model(spec: TeamSpec, place: Place, precision: str, many: int, wide: int) -> None:
    """Several replicas per block, one per block, and a team over the full GPU."""
    env = gpu_envs.MultiAgentEnv(
        spec, 3, device=place.device, output=place.output, precision=precision, many=many, wide=wide
    )
    env.reset(seed=4)
    env.step({"one": np.zeros((3, many), int)})
    state = {name: numpy_of(values) for name, values in env.state.items()}
    x, given = state["x"], state["given"]
    np.testing.assert_array_equal(state["row_sums"], added(given))
    columns = added(np.swapaxes(given, 1, 2))[:, :many]
    np.testing.assert_array_equal(state["column_sums"][:, : columns.shape[1]], columns)
    np.testing.assert_array_equal(state["most"], given.max(-1))
    products = x * state["row_sums"]
    np.testing.assert_array_equal(state["sum"], added(products))
    np.testing.assert_array_equal(state["precise"], added(products.astype(np.float64)).astype(precision))
    np.testing.assert_array_equal(state["greatest"], x.max(-1))
    np.testing.assert_array_equal(state["least"], x.min(-1))
    np.testing.assert_array_equal(state["doubled"], 2 * given + np.arange(wide, dtype=precision) * x[..., None])
    np.testing.assert_array_equal(state["count"], (x > 0).sum(-1))


def test_block_sizes_change_nothing(spec: TeamSpec, device: str) -> None:
    states = []
    for size in (None, 32, 96, 256) if device != "cpu" else (None,):
        env = gpu_envs.MultiAgentEnv(spec, 3, device=device, block_size=size, many=70, wide=9)
        env.reset(seed=4)
        env.step({"one": np.zeros((3, 70), int)})
        states.append({name: numpy_of(values) for name, values in env.state.items()})
    for state in states[1:]:
        for name, values in state.items():
            np.testing.assert_array_equal(values, states[0][name])


@pytest.mark.slow
def test_the_checker_treats_sums_as_phases(spec: TeamSpec) -> None:
    assert check_message(builds.phases, spec) == ""


@pytest.mark.fast_cases(4)
@pytest.mark.skipif(bool(nvrtc_missing()), reason="NVRTC cannot compile here")
@pytest.mark.parametrize("many", [3, 100, 9000])
@pytest.mark.parametrize("checked", [False, True])
def test_nvrtc_compiles(spec: TeamSpec, many: int, checked: bool) -> None:
    for program in programs(spec, "SameStep", "float32", checked=checked, many=many):
        ptx_of(program.source)
