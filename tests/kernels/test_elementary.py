"""The functions of elementary.cuh: how exact they are, their ends, and that every device gives the same bits."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exactness import needs_cuda, random_bits, same_bits, wide_enough, worst
from nvrtc import double_arithmetic, nvrtc_missing, ptx_of
from small_envs import walk
from small_kernels import Array, compiled

import gpu_envs
from gpu_envs.backend.messages import check_library
from gpu_envs.backend.program import Device
from gpu_envs.codegen import SimulationConfig, generate, layout_of

REALS = ("float32", "float64")
SAMPLES = 100_000
ONE = {"expm1": np.expm1, "log1p": np.log1p, "tanh": np.tanh, "atan": np.arctan}
TWO = {"atan2": np.arctan2, "power": np.power}
FUNCTIONS: dict[str, Any] = {**ONE, **TWO}


def evaluate(name: str, real: str, *given: Array, device: str = "cpu") -> Array:
    inputs = ", ".join(f"in{n}[i]" for n in range(len(given)))
    body = f"out0[i] = elementary::{name}({inputs});"
    return compiled(real, [real] * len(given), [real], body, device)(*given)[0]


def samples(name: str, real: str, seed: int) -> list[Array]:
    """Numbers of all sizes, and more of them where the functions bend."""
    rng, info = np.random.default_rng(seed), np.finfo(real)
    near = [rng.normal(0, size, SAMPLES).astype(real) for size in (1e-4, 0.3, 1, 10, 100)]
    first: Array = np.concatenate([random_bits(real, SAMPLES, seed), *near])
    if name in ONE:
        return [first[np.abs(first) >= info.tiny]]
    second = np.concatenate([random_bits(real, SAMPLES, seed + 1), *reversed(near)])
    if name == "power":  # results of all sizes
        first = np.abs(np.concatenate([first, (1 + rng.normal(0, 1e-4, SAMPLES)).astype(real)]))
        with np.errstate(all="ignore"):
            most = rng.uniform(-1, 1, SAMPLES) * np.log(float(info.max)) / np.log(first[-SAMPLES:])
        second = np.concatenate([second, most.astype(real)])
    kept = np.isfinite(first) & np.isfinite(second) & (np.abs(first) >= info.tiny) & (np.abs(second) >= info.tiny)
    return [first[kept], second[kept]]


@pytest.mark.fast_cases(11)
@wide_enough
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("real", REALS)
def test_within_2_ulp(real: str, name: str) -> None:
    given = samples(name, real, seed=1)
    got = evaluate(name, real, *given)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name](*(part.astype(np.longdouble) for part in given))
        normal = np.isfinite(exact.astype(real)) & (np.abs(exact) >= np.finfo(real).tiny * 1.001)
    assert normal.sum() > SAMPLES
    assert worst(got[normal], exact[normal], real) <= 2


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("real", REALS)
def test_zeros_infinities_and_signs(real: str, name: str) -> None:
    ends = np.array([0, 1, 2, 3, 0.5, 2.5, 1e30, np.inf], real)
    ends = np.concatenate([ends, -ends, np.array([np.nan], real)])
    given = [ends] if name in ONE else [part.ravel().copy() for part in np.meshgrid(ends, ends)]
    got = evaluate(name, real, *given)
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[name](*given)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("real", REALS)
def test_one_by_one_as_together(real: str, name: str) -> None:
    """One number at a time takes the loop's remainder, many take its vectorised body."""
    given = [part[:40] for part in samples(name, real, seed=3)]
    together = evaluate(name, real, *given)
    alone = np.concatenate([evaluate(name, real, *(part[k : k + 1] for part in given)) for k in range(len(together))])
    np.testing.assert_array_equal(alone, together)


def test_abs() -> None:
    x = np.array([-2.5, 0.0, -0.0, 3.0, -np.inf, np.nan], np.float32)
    got = evaluate("abs", "float32", x)
    np.testing.assert_array_equal(got, np.abs(x))
    assert not np.signbit(got[:5]).any()
    whole = np.array([-7, 0, 5], np.int32)
    assert compiled("float32", ["int32"], ["int32"], "out0[i] = elementary::abs(in0[i]);")(whole)[0].tolist() == [
        7,
        0,
        5,
    ]


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("real", REALS)
def test_the_gpu_gives_the_same_bits(real: str, name: str) -> None:
    given = samples(name, real, seed=5)
    if name in ONE:
        given = [np.concatenate([given[0], random_bits(real, 1_000_000, seed=6)])]
    same_bits(name, given[0], evaluate(name, real, *given), evaluate(name, real, *given, device="cuda"))


# --- in the rules of an author's header ---

WORDS = "abs(real(-2)) + atan(y) + atan2(y, x) + expm1(x) + log1p(x) + power(x, y) + tanh(x)"
OWN = """
template <class T> FN T tanh(T x) { return x * real(100); }
FN real power(real x, real y) { return x + y; }
FN real
abs(real x) { return real(7); }
"""


def stepped(folder: Path, step: str, before: str = "", **more: Any) -> float:
    """What a step of ``s.x`` 0.5 and ``s.pace`` 0.25 leaves in ``s.x``."""
    spec = walk(folder, more=more, reset="s.x = real(0.5); s.pace = real(0.25);", step=f"{step} return {{0, false}};")
    header = Path(spec.header)
    header.write_text(before + header.read_text())
    env = gpu_envs.VectorEnv(spec, 1, device="cpu", precision="float64")
    env.reset(seed=0)
    env.step(np.zeros(1, np.int64))
    made = float(env.state["x"][0])
    env.close()
    return made


def test_headers_call_them(tmp_path: Path) -> None:
    made = stepped(tmp_path, f"const real x = s.x, y = s.pace; s.x = {WORDS};")
    x, y = 0.5, 0.25
    expected = 2 + math.atan(y) + math.atan2(y, x) + math.expm1(x) + math.log1p(x) + x**y + math.tanh(x)
    assert made == pytest.approx(expected, rel=1e-14)


@pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing() or "it is there")
def test_a_gpus_compiler_takes_ours_and_not_its_own(tmp_path: Path) -> None:
    spec = walk(tmp_path, step=f"const real x = s.x, y = s.pace; s.x = {WORDS}; return {{0, false}};")
    config = SimulationConfig(spec, 4, "SameStep", "float32", 20, {})
    layout = layout_of(config, Device(on_gpu=True))
    for name in layout.modules:
        program = generate(layout, name)
        check_library(program, "NVRTC")
        assert double_arithmetic(ptx_of(program.source)) == []


def test_a_headers_own_functions_are_its_own(tmp_path: Path) -> None:
    made = stepped(tmp_path, "s.x = tanh(s.x) + power(s.x, s.pace) + abs(s.x) + atan(s.x);", OWN)
    assert made == pytest.approx(50 + 0.75 + 7 + math.atan(0.5), rel=1e-14)


def test_a_fields_and_parameters_names_are_free(tmp_path: Path) -> None:
    more: dict[str, Any] = {"state": ("x", "pace", "tanh"), "params": {"power": gpu_envs.Param(3.0)}}
    step = "s.tanh = tanh(s.x); const real atan = power(s.x, p.power); s.x = s.tanh + atan;"
    assert stepped(tmp_path, step, **more) == pytest.approx(math.tanh(0.5) + 0.125, rel=1e-14)
