"""The checker finds phases that depend on the order of agents, although the results are correct on a CPU."""

from pathlib import Path

import pytest
from carriers import CARRIERS
from small_envs import CHASE, chase, check_message

import gpu_envs
from gpu_envs.testing import builds
from gpu_envs.testing.phases import check_phases
from gpu_envs.testing.report import FailedError


@pytest.mark.slow
def test_correct_phases_pass(tmp_path: Path) -> None:
    """All registered environments pass, too: another test checks them completely."""
    assert check_message(builds.phases, CARRIERS) == ""
    step = """FOR_EACH_AGENT(i, AGENTS) { w.hits[i] = 0; if (i == 0) { w.least = 99; w.first = 0; } }
    FOR_EACH_AGENT(i, AGENTS) { add(w.hits[i / 2], 1); lower(w.least, i); w.first = 1; }
    gather(team, w.near, AGENTS, AGENTS, [&](int i) { return w.hits[i] > 0; }, [&](int k, int i) { w.listed[k] = i; });
    for (int round = 0; round < 2; ++round) FOR_EACH_AGENT(i, w.near) w.reward[i] = real(w.listed[i] + w.first);"""
    more = {
        "scratch": {"hits": gpu_envs.Field("int"), "listed": gpu_envs.Field("int")},
        "shared_scratch": {name: gpu_envs.Field("int") for name in ("least", "first", "near")},
    }
    assert check_message(builds.phases, chase(tmp_path, more=more, step=step)) == ""


BROKEN: dict[str, tuple[str, str]] = {
    "plain count": (
        "FOR_EACH_AGENT(i, AGENTS) { w.caught += 1; }",
        "chase.cuh:9: several iterations write 'caught' (iterations ",
    ),
    "count and write": (
        "FOR_EACH_AGENT(i, AGENTS) { if (i == 1) w.caught = 9; else add(w.caught, 1); }",
        "chase.cuh:9: iterations add to, and one writes 'caught'",
    ),
    "one element": ("FOR_EACH_AGENT(i, AGENTS) { w.x[0] = real(i); }", "chase.cuh:9: the iteration of agent "),
    "another's": (
        "FOR_EACH_AGENT(i, AGENTS) { w.x[i] = clip(w.x[(i + 1) % AGENTS] + real(0.25) * i, real(0), real(10)); }",
        "chase.cuh:9: an iteration reads what another changes, 'x'",
    ),
    "a local": (
        "int left = 0;\n    FOR_EACH_AGENT(i, AGENTS) left++;\n    FOR_EACH_AGENT(i, 1) w.caught = left;",
        "caught of replica 0 is 1 and 5 when each phase iterates over the agents in reverse order",
    ),
    "between phases": ("FOR_EACH_AGENT(i, 1) w.caught = 0;\n    w.caught += 1;", "caught of replica 0 is "),
    "break": ("FOR_EACH_AGENT(i, AGENTS) { if (i > 1) break; }", "chase.cuh:9: break in a phase"),
    "return": ("FOR_EACH_AGENT(i, AGENTS) {\n        if (i > 1) return;\n    }", "chase.cuh:10: return in a phase"),
    "a condition": (
        "if (w.elapsed > 2) {\n        FOR_EACH_AGENT(i, AGENTS) w.x[i] = 0;\n    }",
        "chase.cuh:10: a phase under if (w.elapsed > 2), which may differ",
    ),
    "a hidden condition": (
        "const auto later = [&] { FOR_EACH_AGENT(i, AGENTS) w.x[i] = 0; };\n    w.elapsed > 2 ? later() : void();",
        "step goes through 3 phases, and at other times through 4: phases must not depend",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("step", "told"), BROKEN.values(), ids=BROKEN)
def test_wrong_phases_are_reported(tmp_path: Path, step: str, told: str) -> None:
    found = check_message(builds.phases, chase(tmp_path, step=f"{step}\n    {CHASE['step']}"))
    assert found
    assert told in found


@pytest.mark.parametrize(
    "body",
    [
        "FOR_EACH_AGENT(i, n) { for (int k = 0; k < 3; ++k) { if (k == i) break; } }",
        "FOR_EACH_AGENT(i, n) while (true) break;",
        "FOR_EACH_AGENT(i, n) { switch (i) { case 0: break; } do { break; } while (i); }",
        "FOR_EACH_AGENT(i, n) { const auto f = [&](int k) -> int { return k; }; f(i); } // break",
        "if constexpr (AGENTS > 2) FOR_EACH_AGENT(i, n) { }",
        "for (int k = 0; k < ROUNDS; ++k) { FOR_EACH_AGENT(i, n) { } }",
        "if (w.elapsed > 3) { int k = 0; } FOR_EACH_AGENT(i, n) { if (w.x[i] > 3) { continue; } }",
        "FOR_EACH_AGENT(i, n) { } return;",
    ],
)
def test_allowed_statements(body: str) -> None:
    check_phases("x.cuh", f"FN void step(World& w, Team& team) {{\n{body}\n}}\n")


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("FOR_EACH_AGENT(i, n) { switch (i) { case 0: return; } }", 2),
        ("for (int k = 0; k < w.n; ++k)\n    FOR_EACH_AGENT(i, n) { }", 3),
        ("if (p.a) { }\nelse {\n FOR_EACH_AGENT_NO_WAIT(i, n) { }\n}", 4),
        ("FOR_EACH_AGENT(i, n) { FOR_EACH_AGENT(j, n) { } }", 2),
        ("FOR_EACH_AGENT(i, n) {\n for (int k = 0; k < 3; ++k) { }\n break; }", 4),
    ],
)
def test_forbidden_statements(body: str, line: int) -> None:
    with pytest.raises(FailedError, match=f"^x.cuh:{line}: "):
        check_phases("x.cuh", f"FN void step(World& w, Team& team) {{\n{body}\n}}\n")
