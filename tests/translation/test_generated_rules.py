"""Generated functions compute the same numbers as in Python, and the same bits with every compiler.

``GENERATED_RULES`` is the number of functions, such as 20000; ``GENERATED_SEED`` is the first seed.
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
from small_kernels import assert_bits_equal
from translation_cases import import_source

import gpu_envs

FUNCTIONS = 25
"""Functions per module."""

INPUTS = 32

TOTAL = int(os.environ.get("GENERATED_RULES", "100"))

FIRST = int(os.environ.get("GENERATED_SEED", "1"))

SEEDS = range(FIRST, FIRST + max(1, TOTAL // FUNCTIONS))


def spec_of(seed: int, folder: Path, *, exact: bool, count: int = FUNCTIONS) -> tuple[gpu_envs.EnvSpec, Any]:
    python = import_source(module_of(seed, count, exact=exact), folder, f"generated{seed}{'' if exact else 'near'}")
    return held_spec(python, count), python


def inputs(seed: int, count: int = FUNCTIONS) -> dict[str, np.ndarray]:
    """Inputs, the same for each function: ints, multiples of 1/8, zeros and other floats."""
    rng = np.random.default_rng(seed)
    reals = [np.round(rng.normal(0, 4, INPUTS) * 8) / 8 + (rng.random(INPUTS) < 0.5) * rng.normal(0, 0.3, INPUTS)]
    reals.append(np.where(rng.random(INPUTS) < 0.2, 0.0, rng.normal(0, 4, INPUTS)))
    initial = {"a": rng.integers(-20, 21, INPUTS), "b": rng.integers(-20, 21, INPUTS), "x": reals[0], "y": reals[1]}
    return {name: np.tile(values, count) for name, values in initial.items()}


def assert_same(expected: dict[str, np.ndarray], actual: dict[str, np.ndarray]) -> None:
    for name, values in expected.items():
        replica = np.repeat(np.arange(len(values)), values.size // len(values))
        assert_bits_equal(f"{name} of replicas", replica, values.ravel(), actual[name].ravel())


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_python_computes_the_same(seed: int, tmp_path: Path) -> None:
    spec, python = spec_of(seed, tmp_path, exact=True)
    initial = inputs(seed)
    state = stepped(spec, initial, "float64")
    p = types.SimpleNamespace(n=7)
    for i in range(FUNCTIONS * INPUTS):
        s = Held(**{name: values[i] for name, values in initial.items()})
        name = f"f{i // INPUTS}"
        s.out = getattr(python, name)(s, p, s.a, s.b, s.x, s.y, Numbers(5 + i, 2, 0, 0))
        for field in FIELDS:
            expected, actual = np.array(getattr(s, field)), state[field][i]
            assert np.array_equal(actual, expected, equal_nan=field in "rout"), (
                f"{name} of seed {seed}, replica {i}: {field} is {actual} and not {expected}; a, b, x, y are "
                f"{[initial[n][i] for n in 'abxy']}"
            )


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("clang++"), reason="clang is not installed")
@pytest.mark.parametrize("seed", SEEDS[::4])
def test_clang_makes_the_same_bits(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only 8 functions per module: clang takes almost a second for each."""
    spec, _ = spec_of(seed, tmp_path, exact=False, count=8)
    initial = inputs(seed, 8)
    state = stepped(spec, initial, "float32")
    monkeypatch.setenv("CXX", "clang++")
    assert_same(state, stepped(spec, initial, "float32"))


@pytest.mark.cuda
@pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_gpu_makes_the_same_bits(seed: int, tmp_path: Path) -> None:
    """Only 8 functions per module: NVRTC takes more than a second for each."""
    spec, _ = spec_of(seed, tmp_path, exact=False, count=8)
    initial = inputs(seed, 8)
    assert_same(stepped(spec, initial, "float32"), stepped(spec, initial, "float32", "cuda"))
