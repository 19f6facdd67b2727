"""The checker names lines with implicit conversions: floats truncated to ints, or computed in double precision."""

from pathlib import Path

import pytest
from harness import IDS, TEAM_IDS
from small_envs import chase, check_message, walk

import gpu_envs
from gpu_envs.backend.toolchain import compiler_version, find_compiler
from gpu_envs.testing import CheckError, check_environment, numbers

FIELDS = {"state": {"x": gpu_envs.Field(), "pace": gpu_envs.Field(), "count": gpu_envs.Field("int")}}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("s.count = 0.7;", "write int(...)"),
        ("s.count = s.x;", "write int(...)"),
        ("s.count += s.x;", "write int(...)"),
        ("s.x += 0.1 * s.pace;", "write literals as real(0.5)"),
        ("s.x *= 0.7;", "write literals as real(0.5)"),
        ("if (s.x > 0.1) s.x = 0;", "write literals as real(0.5)"),
        ("s.x = 0.1;", ""),
        ("s.x = real(0.1) * s.pace;", ""),
        ("s.count = int(s.x);", ""),
        ("s.x = real(s.count);", ""),
    ],
)
def test_conversions_in_single_agent_rules(tmp_path: Path, line: str, expected: str) -> None:
    if "*=" in line and "clang" in compiler_version(find_compiler()):
        pytest.skip("clang does not check the left side of such assignments")
    spec = walk(tmp_path, more=FIELDS, step=f"{line}\n    return {{0, s.x > real(4)}};")
    messages = check_message(numbers.no_conversions, spec)
    assert bool(messages) == bool(expected)
    if expected:
        assert messages.startswith(f"{spec.header}:6: ")
        assert expected in messages
        assert messages.endswith(f"\n    {line}")


def test_conversions_in_team_rules(tmp_path: Path) -> None:
    assert check_message(numbers.no_conversions, chase(tmp_path)) == ""
    step = "FOR_EACH_AGENT(i, AGENTS) {\n if (i == 0)\n w.caught = 0.7;\n w.x[i] = w.x[i] * 0.7;\n }"
    messages = check_message(numbers.no_conversions, chase(tmp_path, step=step))
    first, cut, second, double = messages.splitlines()
    assert (cut, double) == ("    w.caught = 0.7;", "    w.x[i] = w.x[i] * 0.7;")
    assert ":11: " in first
    assert "truncates" in first
    assert ":12: " in second
    assert "double" in second


@pytest.mark.slow
def test_check_environment_reports_conversions(tmp_path: Path) -> None:
    spec = walk(tmp_path, more=FIELDS, reset="s.x = 0;\n s.pace = real(0.25);\n s.count = 0.7;")
    with pytest.raises(CheckError, match=r"- cpu: numbers keep their types: .*walk\.cuh:4: a real number is converted"):
        check_environment(spec, devices=["cpu"], sanitize=False, steps=10, report=lambda _: None)


@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS])
def test_registered_environments_have_none(env_id: str) -> None:
    assert check_message(numbers.no_conversions, gpu_envs.spec(env_id)) == ""


CLANG = """/a/b.cuh:3:15: warning: implicit conversion from 'double' to 'int' changes value from 0.7 to 0 [-Wliteral-conversion]
/a/b.cuh:4:15: warning: implicit conversion turns floating-point number into integer: 'real' (aka 'float') to 'int' [-Wfloat-conversion]
/a/b.cuh:5:15: warning: implicit conversion increases floating-point precision: 'real' (aka 'float') to 'double' [-Wdouble-promotion]
/a/c.cuh:6:15: warning: implicit conversion increases floating-point precision: 'real' (aka 'float') to 'double' [-Wdouble-promotion]
"""  # noqa: E501


def test_clang_warnings_are_parsed() -> None:
    messages = list(numbers.conversions(CLANG, "/a/b.cuh"))
    assert [line for line, _ in messages] == [3, 4, 5]
    assert ["truncates" in message for _, message in messages] == [True, True, False]
