"""Generated functions of rules compute what Python computes, and the same bits with every compiler.

``GENERATED_RULES=20000`` makes so many functions; ``GENERATED_SEED=7`` begins with those of that seed.
"""

import os
import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated_rules import FIELDS, Held, Numbers, held_spec, module_of, stepped
from harness import HAS_CUDA
from small_kernels import same_bits
from translation_cases import module

import gpu_envs

FUNCTIONS = 25
"""In a module."""

INPUTS = 32

TOTAL = int(os.environ.get("GENERATED_RULES", "100"))

FIRST = int(os.environ.get("GENERATED_SEED", "1"))

SEEDS = range(FIRST, FIRST + max(1, TOTAL // FUNCTIONS))


def spec_of(seed: int, folder: Path, *, exact: bool, count: int = FUNCTIONS) -> tuple[gpu_envs.EnvSpec, Any]:
    made = module(module_of(seed, count, exact=exact), folder, f"generated{seed}{'' if exact else 'near'}")
    return held_spec(made, count), made


def inputs(seed: int, count: int = FUNCTIONS) -> dict[str, np.ndarray]:
    """For each function the same numbers: whole, round, and others."""
    rng = np.random.default_rng(seed)
    reals = [np.round(rng.normal(0, 4, INPUTS) * 8) / 8 + (rng.random(INPUTS) < 0.5) * rng.normal(0, 0.3, INPUTS)]
    reals.append(np.where(rng.random(INPUTS) < 0.2, 0.0, rng.normal(0, 4, INPUTS)))
    given = {"a": rng.integers(-20, 21, INPUTS), "b": rng.integers(-20, 21, INPUTS), "x": reals[0], "y": reals[1]}
    return {name: np.tile(values, count) for name, values in given.items()}


def assert_same(here: dict[str, np.ndarray], there: dict[str, np.ndarray]) -> None:
    for name, values in here.items():
        replica = np.repeat(np.arange(len(values)), values.size // len(values))
        same_bits(f"{name} of replicas", replica, values.ravel(), there[name].ravel())


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_python_computes_the_same(seed: int, tmp_path: Path) -> None:
    spec, python = spec_of(seed, tmp_path, exact=True)
    given = inputs(seed)
    made = stepped(spec, given, "float64")
    p = types.SimpleNamespace(n=7)
    for i in range(FUNCTIONS * INPUTS):
        s = Held(**{name: values[i] for name, values in given.items()})
        name = f"f{i // INPUTS}"
        s.out = getattr(python, name)(s, p, s.a, s.b, s.x, s.y, Numbers(5 + i, 2, 0, 0))
        for field in FIELDS:
            expected, found = np.array(getattr(s, field)), made[field][i]
            assert np.array_equal(found, expected, equal_nan=field in "rout"), (
                f"{name} of seed {seed}, replica {i}: {field} is {found} and not {expected}; a, b, x, y are "
                f"{[given[n][i] for n in 'abxy']}"
            )


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("clang++"), reason="there is no clang")
@pytest.mark.parametrize("seed", SEEDS[::4])
def test_clang_makes_the_same_bits(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few functions: clang optimises them, and takes most of a second for each."""
    spec, _ = spec_of(seed, tmp_path, exact=False, count=8)
    given = inputs(seed, 8)
    made = stepped(spec, given, "float32")
    monkeypatch.setenv("CXX", "clang++")
    assert_same(made, stepped(spec, given, "float32"))


@pytest.mark.cuda
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_gpu_makes_the_same_bits(seed: int, tmp_path: Path) -> None:
    """Of few functions, too: NVRTC takes more than a second for each."""
    spec, _ = spec_of(seed, tmp_path, exact=False, count=8)
    given = inputs(seed, 8)
    assert_same(stepped(spec, given, "float32"), stepped(spec, given, "float32", "cuda"))
