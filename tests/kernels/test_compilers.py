"""Every C++ compiler makes the same of the rules, bit for bit, whether it optimises or not."""

import shutil
from typing import Any

import numpy as np
import pytest
from custom import ALL, drawn
from harness import UNOPTIMISED, Make, assert_all_same
from registered import Variant, draw, made, progress, record

CLANG = ["clang++"] if shutil.which("clang++") else []
COUNT, STEPS, LIMIT = 130, 60, 25


@pytest.mark.fast_cases(5)
def test_compilers_agree(make: Make, monkeypatch: pytest.MonkeyPatch, variant: Variant, mode: str) -> None:
    """Most tests do not optimise, and speak for what is shipped. Clang is asked in one mode."""
    results: list[Any] = []
    for compiler in ("", UNOPTIMISED, *(CLANG if mode == "SameStep" else [])):
        monkeypatch.setenv("CXX", compiler)
        env = made(make, variant, COUNT, autoreset_mode=mode)
        env.reset(seed=3)
        results.append((record(env, draw(env, STEPS)), progress(env)))
    assert_all_same(results)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ALL)
def test_they_agree_where_states_have_arrays_and_bools(
    make: Make, monkeypatch: pytest.MonkeyPatch, env_id: str
) -> None:
    envs: list[Any] = []
    for compiler in ("", UNOPTIMISED, *CLANG):
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
