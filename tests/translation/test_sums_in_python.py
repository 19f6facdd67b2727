"""Sums, maxima and minima in Python rules, and phases over a matrix; for C++ see tests/kernels/test_sums.py."""

import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from harness import numpy_of
from refusals import TEAM_RULES, fill_template, mark_first_line, team_spec, translation_error
from translation_cases import HEADER, import_source, rules_of

import gpu_envs
from gpu_envs.codegen import PRECISIONS
from gpu_envs.translation.translate import translate_rules

SUM = "team.sum(w.x[i] for i in team.agents())"
ROWS = "for i in team.agents():\n    w.x[i] = team.sum(w.cargo[i, k] for k in range(3))"

REFUSED_REDUCTIONS = {
    f"w.left = {SUM}": "a float is assigned to w.left, which is of type int",
    f"w.x[0] = {SUM}": "must go to a field of the replica\n.*shared_scratch",
    f"total = {SUM}": "must go to a field of the replica\n.*shared_scratch",
    f"w.board[w.left] = {SUM}": "must go to a field of the replica",
    f"actions[0] = {SUM}": r"actions\[0\] is read-only",
    f"w.terminated = {SUM}": "returns a float or an int, but w.terminated stores neither",
    f"w.elapsed = {SUM}": "rules must not write elapsed",
    f"w.lfet = {SUM}": "Did you mean 'left'",
    f"w.mean = {SUM} / AGENTS": (
        r"team.sum\(...\) is a phase: assign it to a field, without other operators\n.*"
        r"Write w.total = team.sum\(w.x\[i\] for i in team.agents\(\)\), and read w.total in a later phase; "
        r"put a factor inside, team.sum\(2 \* w.x\[i\] for ...\)"
    ),
    f"w.mean += {SUM}": "assign it to a field",
    f"w.mean = w.most = {SUM}": "assign it to a field",
    f"w.mean, w.most = {SUM}, 0": "assign it to a field",
    SUM: "assign it to a field",
    f"if {SUM} > 0:  # <--\n    pass": "assign it to a field",
    "w.mean = team.summ(w.x[i] for i in team.agents())": "Did you mean 'sum'",
    "w.mean = team.sum(w.x)": r"needs a generator over team.agents\(n\) or range\(n\)",
    "w.mean = team.sum()": r"needs a generator over team.agents\(n\) or range\(n\)",
    "w.mean = team.sum([w.x[i] for i in team.agents()])": r"a generator over team.agents\(n\)",
    "w.mean = team.sum(lambda i: w.x[i])": r"a generator over team.agents\(n\)",
    "w.mean = team.sum(w.x[i] for i in w.cargo)": r"a generator over team.agents\(n\)",
    "w.mean = team.sum(w.x[i] for i in range(1, 2))": r"a generator over team.agents\(n\)",
    "w.mean = team.sum(w.x[i] for i in team.elements(1, 2))": r"a generator over team.agents\(n\)",
    "w.mean = team.sum(w.cargo[i, k] for i in range(2) for k in range(3))": r"a generator over team.agents\(n\)",
    "w.mean = team.sum(w.x[i] for i in team.agents(1, 2))": "takes a number",
    "w.mean = team.sum(w.x[i] for i in team.agents(0.5))": "must be an int",
    "w.mean = team.sum(w.x[i] for i in team.agents() if w.in_game[i])": (
        r"generator of team.sum cannot have an if\n.*Write w.x\[i\] if w.in_game\[i\] else 0 for i in"
    ),
    "w.mean = team.max(w.x[i] for i in team.agents() if w.in_game[i])": r"else -math.inf for i in",
    "w.mean = team.sum((w.x[i] for i in team.agents()), double=w.left)": "the only option is double=True",
    "w.mean = team.sum((w.x[i] for i in team.agents()), start=1)": "Remove start=",
    "w.mean = team.max((w.x[i] for i in team.agents()), double=True)": "Remove double=",
    "w.left = team.sum((w.cargo[i, 0] for i in team.agents()), double=True)": "Remove double=",
    "w.mean = team.sum(w.board for i in team.agents())": "an array",
    "w.mean = team.sum(w.x[j] for i in team.agents())": "'j' is not defined",
    "w.mean = team.sum(team.random(STEP, i, w.elapsed).uniform(0, 1) for i in team.agents())": "must only read",
    "w.mean = team.sum(moved(w, i) for i in team.agents())": "must only read",
    "w.mean = team.sum(roll(w, team) for i in team.agents())": "called inside one",
    "w.mean = team.sum(team.sum(w.x[j] for j in team.agents()) for i in team.agents())": "assign it to a field",
    f"if p.wide:  # <--\n    w.mean = {SUM}": "fixed=True",
    f"for i in team.agents():\n    w.mean = {SUM}  # <--": "'i' is already a variable of the loop around this team.sum",
    "for i in team.agents():\n    w.mean = team.sum(w.x[j] for j in team.agents())  # <--": "must go to the element",
    "for i in team.agents():\n    w.x[0] = team.sum(w.x[j] for j in team.agents())  # <--": "must go to the element",
    "for i in team.agents():\n    w.cargo[i, 0] = team.sum(w.left for j in team.agents())  # <--": (
        "must go to the element of the iteration.*\n.*for i in team.agents"
    ),
    "for i in team.agents():\n    w.x[i] = team.sum(w.x[j] for j in team.agents())  # <--": "iterations read 'x'",
    "for i in team.agents():\n    w.x[i] = team.sum(w.left for k in range(i))  # <--": (
        "the same number\n.*if k < n else 0 for k in"
    ),
    "w.mean = sum(w.x[i] for i in team.agents())": r"sum is not translated\n.*w.total = team.sum\(",
    "for i in team.agents():\n    w.x[i] = max(w.left for k in range(3))  # <--": r"cannot use generators.*team.sum\(",
    f"{ROWS}  # <--\n    w.reward[i] = w.x[i]": "only statement of a phase\n.*Write a separate phase",
    "for i in team.agents():\n    if i == 0:\n        w.x[i] = team.sum(w.left for k in range(3))  # <--": "the only",
    "for i, j in team.elements(2, 3):\n    w.x[i] = team.sum(w.left for k in range(3))  # <--": "only statement",
    "mark(w, team, 1)\nfor i in team.agents():\n    mark(w, team, i)  # <--": "called inside one",
}
"""Statements with sums, maxima or minima that are refused, and their messages."""

HELPERS = """
def moved(w: World, i: int) -> float:
    w.x[i] += 1
    return w.x[i]

def mark(w: World, team: Team, k: int) -> None:
    w.mean = team.sum(w.x[i] * k for i in team.agents())
"""

ELEMENTS = "for i, j in team.elements(AGENTS, 3):\n    "

REFUSED_ELEMENTS = {
    "for i in team.elements(2, 3):  # <--\n    pass": "has two variables",
    "for i, i in team.elements(2, 3):  # <--\n    pass": "has two variables",
    "for i, j in team.agents():  # <--\n    pass": "has one variable",
    "for i, j in team.elements(2):  # <--\n    pass": r"numbers of rows and columns\n.*elements\(rows, columns\)",
    "for i, j in team.elements:  # <--\n    pass": r"Write for i, j in team.elements\(rows, columns\)",
    "a = team.elements(2, 3)": "Write for i, j in",
    ELEMENTS + "break  # <--": "Write continue",
    ELEMENTS + "for k in team.agents():  # <--\n        pass": "inside a phase",
    ELEMENTS + "w.x[i] = j  # <--": r"\(i, j\) writes .x. where.*Write w.x\[i, j\] if it is a matrix",
    ELEMENTS + "w.board[j] = i  # <--": r"iteration of \(i, j\) writes",
    ELEMENTS + "w.left = i  # <--": r"iteration of \(i, j\) writes",
    ELEMENTS + "if i == 0:\n        w.left = i  # <--": r"iteration of \(i, j\) writes",
    ELEMENTS + "w.cargo[i, 0] = j  # <--": r"iteration of \(i, j\) writes",
    ELEMENTS + "w.cargo[j, i] = j  # <--": r"iteration of \(i, j\) writes",
    ELEMENTS + "w.cargo[i, j] = w.cargo[i, 0]  # <--": "iterations read 'cargo'",
    ELEMENTS + "w.cargo[i, j] = w.cargo[j, i]  # <--": "iterations read 'cargo'",
    ELEMENTS + "j += 1\n    w.cargo[i, j] = 1  # <--": r"iteration of \(i, j\) writes",
    "j = 1\nfor i, j in team.elements(AGENTS, 3):  # <--\n    w.cargo[i, j] = 1": "cannot share variables",
}

ALLOWED_ELEMENTS = [
    "w.cargo[i, j] = i - j",
    "w.cargo[i, j] += w.cargo[i, j] + int(w.x[i] + w.x[j])",
    "if w.x[i] > 0:\n        continue\n    w.cargo[i, j] = 1",
    "if w.x[i] > 0:\n        w.left = 1",
    "add(w.left, i + j)",
    "j_end = i_and_j = 1\n    w.cargo[i, j] = j_end + i_and_j",
]


def spec_of(header: gpu_envs.Rules) -> gpu_envs.TeamSpec:
    return team_spec(header, shared_scratch={"mean": gpu_envs.Field(), "most": gpu_envs.Field()})


@pytest.mark.parametrize("body", [*REFUSED_REDUCTIONS, *REFUSED_ELEMENTS])
def test_refused_reductions(body: str, tmp_path: Path) -> None:
    message = translation_error(HELPERS + fill_template(TEAM_RULES, mark_first_line(body)), spec_of, tmp_path)
    assert re.search({**REFUSED_REDUCTIONS, **REFUSED_ELEMENTS}[body], message, re.S), message


@pytest.mark.parametrize("body", ALLOWED_ELEMENTS)
def test_phases_over_a_matrix(body: str, tmp_path: Path) -> None:
    spec = spec_of(rules_of(import_source(HEADER + fill_template(TEAM_RULES, ELEMENTS + body), tmp_path)))
    assert "FOR_EACH_ELEMENT(i, j, AGENTS, 3)" in translate_rules(spec, spec.check_params({}, 1))
    env = gpu_envs.MultiAgentEnv(spec, 2, device="cpu", autoreset_mode="Disabled")
    env.reset(seed=0)
    env.step({"cat": np.zeros((2, 2), int)})
    env.close()


@pytest.mark.parametrize("field", ["mean", "left"])
def test_filtered_sums(field: str, tmp_path: Path) -> None:
    """The replacement in the message of a filter with if, for floats and ints."""
    value = {"mean": "w.x[i]", "left": "w.cargo[i, 0]"}[field]
    body = f"w.{field} = team.sum({value} if w.in_game[i] else 0 for i in team.agents())"
    spec = spec_of(rules_of(import_source(HEADER + fill_template(TEAM_RULES, body), tmp_path)))
    assert "sum_over" in translate_rules(spec, spec.check_params({}, 1))


MARKET = """
def reset(w: World, p: Params, team: Team) -> None:
    for i in team.agents():
        random = team.random(RESET, i)
        w.wealth[i] = random.uniform(-1, 1)
        w.age[i] = random.integer(9)
    for i, j in team.elements(AGENTS, GOODS):
        w.stock[i, j] = i * GOODS + j - 4.5
    for i in team.agents(1):
        w.asked = 3
    w.total = team.sum(w.wealth[i] for i in team.agents())
    trade(w, p, team)

def price(w: World, p: Params, j: int) -> float:
    return p.rate * (j + 1) - w.total

def tally(w: World, p: Params, team: Team, by: float) -> None:
    factor = by * 0.5
    w.weighted = team.sum((factor * w.wealth[i] for i in team.agents()), double=True)
    w.middle = team.sum(0 <= w.age[i] < 5 for i in team.agents(w.asked))

def trade(w: World, p: Params, team: Team) -> None:
    n = 3.0
    for j in team.agents(GOODS):
        w.sold[j] = team.sum(w.stock[i, j] * price(w, p, j) for i in team.agents())
    for k in range(2):
        w.ends[k] = team.max(w.wealth[first_of(DOG) * k + n] for n in team.agents(count_of(CAT)))
    w.ends[2] = team.min(w.wealth[first_of(DOG) + i] for i in range(count_of(DOG)))
    for d in team.agents(count_of(DOG)):
        w.bones[d] = team.max(w.stock[first_of(DOG) + d, j] for j in range(GOODS))
    tally(w, p, team, n)
    for i, j in team.elements(GOODS, 2):
        w.table[i, j] = w.sold[i] + j
    w.oldest = team.max(w.age[i] for i in team.agents())
    if GOODS > 2:
        w.heads = team.sum(1 for _ in team.agents())

def step(w: World, p: Params, team: Team, actions: TeamActions) -> None:
    trade(w, p, team)
    for agent in team.agents():
        if team.last_step and agent == 0:
            w.terminated = True

def measure(w: World, p: Params, team: Team, metrics: Metrics) -> None:
    metrics.poorest = team.min(w.wealth[i] for i in team.agents())
    for i in team.agents(1):
        metrics.sold = w.sold[0]

def observe(w: World, p: Params, agent: int, row: Row) -> None:
    row[0] = w.total
"""


@pytest.fixture
def market(tmp_path: Path) -> gpu_envs.TeamSpec:
    """A spec with all kinds of reductions."""
    field, box = gpu_envs.Field, gymnasium.spaces.Box(-90, 90, (1,), np.float32)
    moves = gymnasium.spaces.Discrete(2)
    return gpu_envs.TeamSpec(
        id="Market-v0",
        header=rules_of(import_source(HEADER + "from gpu_envs.rules import Metrics\n" + MARKET, tmp_path)),
        roles=(
            gpu_envs.Role("cat", 2, box, moves),
            gpu_envs.Role("dog", 3, box, moves, state={"bones": field()}),
        ),
        state={"wealth": field(), "age": field("byte"), "stock": field(shape=("goods",))},
        shared={
            **{name: field() for name in ("total", "weighted")},
            **{name: field("int") for name in ("asked", "middle", "oldest", "heads")},
            "sold": field(length=4),
            "ends": field(length=3),
            "table": field(shape=("goods", 2)),
        },
        params={"goods": gpu_envs.Param(4, fixed=True), "rate": gpu_envs.Param(0.25)},
        metrics={"poorest": gpu_envs.Metric(), "sold": gpu_envs.Metric(reduce="sum")},
        max_episode_steps=3,
    )


@pytest.mark.parametrize("precision", PRECISIONS)
def test_reductions_match_numpy(market: gpu_envs.TeamSpec, precision: str, device: str) -> None:
    env = gpu_envs.MultiAgentEnv(market, 4, device=device, precision=precision, autoreset_mode="Disabled")
    env.reset(seed=1)
    for _ in range(3):
        env.step({"cat": np.zeros((4, 2), int), "dog": np.zeros((4, 3), int)})
    s = {name: numpy_of(values) for name, values in env.state.items()}
    wealth, stock = s["wealth"], s["stock"]
    prices = 0.25 * np.arange(1, 5) - s["total"][:, None]
    tolerance = 1e-5 if precision == "float32" else 1e-13
    expected = {
        "total": wealth.sum(1),
        "sold": (stock * prices[:, None]).sum(1),
        "ends": np.stack([wealth[:, :2].max(1), wealth[:, 2:4].max(1), wealth[:, 2:].min(1)], 1),
        "bones": stock[:, 2:].max(2),
        "weighted": (1.5 * wealth.astype(np.float64)).sum(1),
        "table": s["sold"][:, :, None] + np.arange(2),
        "middle": (s["age"][:, :3] < 5).sum(1),
        "oldest": s["age"].max(1),
        "heads": [5] * 4,
    }
    for name, values in expected.items():
        np.testing.assert_allclose(s[name], values, tolerance, tolerance, err_msg=name)
    measured = {name: numpy_of(values) for name, values in env.episode_metrics.items()}
    np.testing.assert_allclose(measured["poorest"], wealth.min(1), tolerance)
    np.testing.assert_allclose(measured["sold"], 3 * s["sold"][:, 0], tolerance)
    env.close()
