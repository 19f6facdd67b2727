"""The built-in environments pass ``check_environment``."""

import pytest
from harness import DEVICES, IDS, SMALL_PARAMS, TEAM_IDS
from registered import time_limit_name

import gpu_envs
from gpu_envs.testing import builds, check_environment

SANITIZED = ("CartPole-v1", "TagGridWorld-v0")
"""Environments to run with sanitizers, which are slow to compile; the others have bounds checks."""


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS])
def test_it_passes(env_id: str) -> None:
    lines: list[str] = []
    limit = time_limit_name(gpu_envs.spec(env_id))
    params = {**SMALL_PARAMS.get(env_id, {}), **({limit: 40} if limit else {})}
    report = check_environment(
        env_id,
        devices=DEVICES,
        num_envs=7,
        steps=30,
        sanitize=env_id in SANITIZED,
        report=lines.append,
        params=params,
    )
    assert len(lines) == len(report.lines) + 1
    outcomes = [line.outcome for line in report.lines]
    assert set(outcomes) <= {"passed", "skipped"}
    assert outcomes.count("passed") > 10 * len(DEVICES)
    if env_id in SANITIZED and builds.sanitizer("asan"):
        assert [line.outcome for line in report.lines if "no undefined behaviour" in line.title] == ["passed"]
