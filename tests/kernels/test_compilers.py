"""Every C++ compiler makes the same of the rules, bit for bit."""

import shutil
from typing import Any

import numpy as np
import pytest
from custom import ALL, drawn
from harness import IDS, TEAM_IDS, Make, assert_all_same

COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
COUNT, STEPS, LIMIT = 130, 60, 25


@pytest.mark.skipif(len(COMPILERS) < 2, reason="there are not two compilers")
@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS, *ALL])
def test_compilers_agree(make: Make, monkeypatch: pytest.MonkeyPatch, env_id: str) -> None:
    """Also where states have arrays and bools, and where episodes end."""
    envs: list[Any] = []
    for compiler in COMPILERS:
        monkeypatch.setenv("CXX", compiler)
        envs.append(make(env_id, COUNT, device="cpu", autoreset_mode="SameStep", max_episode_steps=LIMIT))
    results = [env.reset(seed=3) for env in envs]
    assert_all_same(results, "reset")
    rng = np.random.default_rng(0)
    for t in range(STEPS):
        actions = drawn(envs[0], rng, results[0][-1])
        results = [env.step(actions) for env in envs]
        assert_all_same((result[:4] for result in results), f"step {t}")
    assert_all_same(env.get_state() for env in envs)
