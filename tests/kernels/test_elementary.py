"""The functions of math.cuh and elementary.cuh: their errors, and the same bits on every device."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvrtc import double_arithmetic, nvrtc_missing, ptx_of
from registered import needs_cuda
from small_envs import walk
from small_kernels import Array, assert_bits_equal, compile_kernel, max_ulp_error, needs_wide_long_double, random_bits

import gpu_envs
from gpu_envs.backend.messages import check_device_functions
from gpu_envs.backend.program import Device
from gpu_envs.codegen import SimulationConfig, generate, layout_of

REALS = ("float32", "float64")
SAMPLES = 100_000
ONE = {"expm1": np.expm1, "log1p": np.log1p, "tanh": np.tanh, "atan": np.arctan, "log2": np.log2, "log10": np.log10}
TWO = {"atan2": np.arctan2, "power": np.power, "hypot": np.hypot}
FUNCTIONS: dict[str, Any] = {**ONE, **TWO}
"""The functions of elementary.cuh."""
MATH = {"sin": "sincos({}).sin", "cos": "sincos({}).cos", "exp": "exp({})", "log": "log({})"}
MANY = 200_000


def evaluate(name: str, real: str, *given: Array, device: str = "cpu") -> Array:
    inputs = ", ".join(f"in{n}[i]" for n in range(len(given)))
    body = f"out0[i] = {MATH.get(name, f'elementary::{name}({{}})').format(inputs)};"
    return compile_kernel(real, [real] * len(given), [real], body, device)(*given)[0]


def all_of_math(real: str, x: Array) -> dict[str, Array]:
    return {name: evaluate(name, real, x) for name in MATH}


def samples(name: str, real: str, seed: int) -> list[Array]:
    """Numbers of all magnitudes, and more of them in critical ranges."""
    rng, info = np.random.default_rng(seed), np.finfo(real)
    near = [rng.normal(0, size, SAMPLES).astype(real) for size in (1e-4, 0.3, 1, 10, 100)]
    first: Array = np.concatenate([random_bits(real, SAMPLES, seed), *near])
    if name not in TWO:
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
@needs_wide_long_double
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("real", REALS)
def test_within_2_ulp(real: str, name: str) -> None:
    given = samples(name, real, seed=1)
    got = evaluate(name, real, *given)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name](*(part.astype(np.longdouble) for part in given))
        normal = np.isfinite(exact.astype(real)) & (np.abs(exact) >= np.finfo(real).tiny * 1.001)
    assert normal.sum() > SAMPLES
    assert max_ulp_error(got[normal], exact[normal], real) <= 2


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


@pytest.mark.parametrize("name", [*FUNCTIONS, *MATH])
@pytest.mark.parametrize("real", REALS)
def test_single_numbers_and_batches_agree(real: str, name: str) -> None:
    """A single number runs the loop's remainder, a batch its vectorised body."""
    given = [part[:40] for part in samples(name, real, seed=3)]
    together = evaluate(name, real, *given)
    alone = np.concatenate([evaluate(name, real, *(part[k : k + 1] for part in given)) for k in range(len(together))])
    np.testing.assert_array_equal(alone, together)


@pytest.mark.parametrize(("name", "base"), [("log2", 2), ("log10", 10)])
@pytest.mark.parametrize("real", REALS)
def test_logarithms_of_powers_are_integers(real: str, name: str, base: int) -> None:
    most = int(np.finfo(real).maxexp * math.log(2, base))
    exponents = range(3 - most, most)
    powers = np.array([float(Fraction(base) ** k) for k in exponents]).astype(real)
    np.testing.assert_array_equal(evaluate(name, real, powers), exponents)


@pytest.mark.parametrize("real", REALS)
def test_powers_of_denormals_are_powers_of_zero(real: str) -> None:
    info = np.finfo(real)
    x, y = np.meshgrid(np.array([info.smallest_subnormal, info.tiny / 2], real), np.array([0.1, 3, -0.1], real))
    x, y = x.ravel().copy(), y.ravel().copy()
    np.testing.assert_array_equal(evaluate("power", real, x, y), evaluate("power", real, np.zeros_like(x), y))


def test_abs() -> None:
    x = np.array([-2.5, 0.0, -0.0, 3.0, -np.inf, np.nan], np.float32)
    got = evaluate("abs", "float32", x)
    np.testing.assert_array_equal(got, np.abs(x))
    assert not np.signbit(got[:5]).any()
    [whole] = compile_kernel("float32", ["int32"], ["int32"], "out0[i] = elementary::abs(in0[i]);")(
        np.array([-7, 0, 5], np.int32)
    )
    assert whole.tolist() == [7, 0, 5]


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("name", [*FUNCTIONS, *MATH])
@pytest.mark.parametrize("real", REALS)
def test_the_gpu_gives_the_same_bits(real: str, name: str) -> None:
    given = samples(name, real, seed=5)
    if name not in TWO:
        given = [np.concatenate([given[0], random_bits(real, 4_000_000, seed=6)])]
    assert_bits_equal(name, given[0], evaluate(name, real, *given), evaluate(name, real, *given, device="cuda"))


# --- of math.cuh ---


def near_quarter_turns(real: str, limit: float) -> Array:
    """The numbers closest to multiples of pi/2, where the reduced angle has the fewest correct bits."""
    most = int(limit / (np.pi / 2)) - 1
    turns = np.unique(np.concatenate([np.arange(0, min(most, 70_000)), np.geomspace(1, most, 70_000).astype(np.int64)]))
    nearest: Array = (turns * (np.longdouble(np.pi) / 2)).astype(real)
    above: Array = np.nextafter(nearest, real_of(real, np.inf))
    return np.concatenate([nearest, above, -nearest])


def real_of(real: str, value: float) -> Any:
    return np.dtype(real).type(value)


@needs_wide_long_double
@pytest.mark.parametrize(("real", "limit"), [("float32", 1e5), ("float64", 1e9)])
def test_sin_and_cos_within_2_ulp_in_the_documented_range(real: str, limit: float) -> None:
    rng = np.random.default_rng(1)
    parts: list[Array] = [rng.uniform(-most, most, MANY).astype(real) for most in (1.0, 10.0, 1e3, limit)]
    x = np.concatenate([*parts, near_quarter_turns(real, limit)])
    x = x[x != 0]  # the sign of zero is not tested
    got, exact = all_of_math(real, x), x.astype(np.longdouble)
    assert max_ulp_error(got["sin"], np.sin(exact), real) <= 2
    assert max_ulp_error(got["cos"], np.cos(exact), real) <= 2


@needs_wide_long_double
@pytest.mark.parametrize(("real", "low", "high"), [("float32", -87.3, 88.7228), ("float64", -708.3, 709.7827)])
def test_exp_within_1_01_ulp(real: str, low: float, high: float) -> None:
    rng = np.random.default_rng(2)
    known = [-27.379135, 59.297405]  # the worst of all floats: 1.0086 and 1.0031
    near = [rng.uniform(-1, 1, MANY), np.geomspace(1e-30, 1, 999)]
    x = np.concatenate([rng.uniform(low, high, 4 * MANY), *near, known]).astype(real)
    assert max_ulp_error(all_of_math(real, x)["exp"], np.exp(x.astype(np.longdouble)), real) <= 1.01


@needs_wide_long_double
@pytest.mark.parametrize("real", REALS)
def test_log_within_1_ulp(real: str) -> None:
    x = np.abs(random_bits(real, 2 * MANY))
    x = x[np.isfinite(x) & (x >= np.finfo(real).tiny)]
    rng = np.random.default_rng(3)
    x = np.concatenate([x, rng.uniform(0.3, 3, MANY).astype(real), rng.uniform(0.999, 1.001, MANY).astype(real)])
    x = x[x != 1]
    assert max_ulp_error(all_of_math(real, x)["log"], np.log(x.astype(np.longdouble)), real) <= 1


@pytest.mark.parametrize("real", REALS)
def test_special_values(real: str) -> None:
    info = np.finfo(real)
    least, denormal, most, inf, nan = info.tiny, info.smallest_subnormal, info.max, np.inf, np.nan
    x = np.array([0.0, -0.0, inf, -inf, nan, 1.0, -1.0, denormal, -denormal, -least, most], real)
    got = all_of_math(real, x)
    np.testing.assert_array_equal(got["sin"][:5], np.array([0, 0, nan, nan, nan], real))
    np.testing.assert_array_equal(got["cos"][:5], np.array([1, 1, nan, nan, nan], real))
    np.testing.assert_array_equal(got["exp"][[0, 1, 2, 3, 4]], np.array([1, 1, inf, 0, nan], real))
    np.testing.assert_array_equal(got["log"][[0, 1, 2, 3, 4, 5]], np.array([-inf, -inf, inf, nan, nan, 0], real))
    np.testing.assert_array_equal(got["exp"][[7, 8, 10]], np.array([1, 1, inf], real))
    # A denormal counts as zero; of negative numbers there is no logarithm.
    np.testing.assert_array_equal(got["log"][[6, 7, 8, 9]], np.array([nan, -inf, -inf, nan], real))
    assert got["log"][10] == np.log(most)
    edge = real_of(real, 88.72283 if real == "float32" else 709.782712893384)
    x = np.array([edge, np.nextafter(edge, real_of(real, 1e3)), 1e4, -1e4, most, -most], real)
    exp = all_of_math(real, x)["exp"]
    assert np.isfinite(exp[0])
    assert list(exp[1:]) == [np.inf, np.inf, 0, np.inf, 0]


@pytest.mark.parametrize("real", REALS)
def test_exp_and_log_do_not_decrease(real: str) -> None:
    x = np.sort(np.random.default_rng(4).uniform(-80, 80, MANY).astype(real))
    assert (np.diff(all_of_math(real, x)["exp"]) >= 0).all()
    x = np.sort(np.random.default_rng(5).uniform(1e-3, 1e3, MANY).astype(real))
    assert (np.diff(all_of_math(real, x)["log"]) >= 0).all()


@pytest.mark.parametrize("real", REALS)
def test_sin_and_cos_are_in_range_and_symmetric(real: str) -> None:
    angles = np.random.default_rng(7).uniform(0, 100, MANY).astype(real)
    x = random_bits(real, 5 * MANY, seed=6)
    x = np.concatenate([angles, x[np.isfinite(x)], np.array([np.finfo(real).max, np.finfo(real).min], real)])
    got, back = all_of_math(real, x), all_of_math(real, -angles)
    np.testing.assert_array_equal(back["sin"], -got["sin"][:MANY])
    np.testing.assert_array_equal(back["cos"], got["cos"][:MANY])
    for name in ("sin", "cos"):
        outside = ~((got[name] >= -1) & (got[name] <= 1))
        assert not outside.any(), f"{name}: {x[outside][:3]} give {got[name][outside][:3]}"


@pytest.mark.parametrize("real", REALS)
def test_minimum_maximum_clip_floor(real: str) -> None:
    body = "out0[i] = minimum(in0[i], in1[i]); out1[i] = maximum(in0[i], in1[i]); "
    body += "out2[i] = clip(in0[i], real(-1), real(2)); out3[i] = round_down(in0[i]);"
    x, y = random_bits(real, MANY, seed=8), random_bits(real, MANY, seed=9)
    x[:6], y[:6] = [-1.5, 0.5, -0.0, np.nan, 3.0, -np.inf], [1.0, 0.5, 2.5, 1.0, np.nan, np.inf]
    ordinary = (np.abs(x) >= np.finfo(real).tiny) | (x == 0) | np.isnan(x)
    ordinary &= (np.abs(y) >= np.finfo(real).tiny) | (y == 0) | np.isnan(y)
    x, y = x[ordinary], y[ordinary]
    low, high, clipped, floor = compile_kernel(real, [real] * 2, [real] * 4, body)(x, y)
    with np.errstate(invalid="ignore"):
        # NaN compares as neither, so the first operand stands
        np.testing.assert_array_equal(low, np.where(y < x, y, x))
        np.testing.assert_array_equal(high, np.where(x < y, y, x))
        np.testing.assert_array_equal(clipped, np.clip(x, -1, 2))
        np.testing.assert_array_equal(floor, np.floor(x))


# --- in the rules of an author's header ---

WORDS = "abs(real(-2)) + atan(y) + atan2(y, x) + expm1(x) + hypot(x, y, x) + log1p(x) + log2(x) + log10(y)"
WORDS += " + power(x, y) + tanh(x)"
OWN = """
template <class T> FN T tanh(T x) { return x * real(100); }
FN real power(real x, real y) { return x + y; }
FN real
abs(real x) { return real(7); }
"""


def stepped(folder: Path, step: str, before: str = "", **more: Any) -> float:
    """``s.x`` after a step from ``s.x`` 0.5 and ``s.pace`` 0.25."""
    spec = walk(folder, more=more, reset="s.x = real(0.5); s.pace = real(0.25);", step=f"{step} return {{0, false}};")
    header = Path(spec.header)
    header.write_text(before + header.read_text())
    env = gpu_envs.VectorEnv(spec, 1, device="cpu", precision="float64")
    env.reset(seed=0)
    env.step(np.zeros(1, np.int64))
    made = float(env.state["x"][0])
    env.close()
    return made


def test_rules_may_call_elementary_functions(tmp_path: Path) -> None:
    made = stepped(tmp_path, f"const real x = s.x, y = s.pace; s.x = {WORDS};")
    x, y = 0.5, 0.25
    expected = 2 + math.atan(y) + math.atan2(y, x) + math.expm1(x) + math.hypot(x, y, x) + math.log1p(x)
    expected += math.log2(x) + math.log10(y) + x**y + math.tanh(x)
    assert made == pytest.approx(expected, rel=1e-14)


def test_rules_may_define_functions_with_these_names(tmp_path: Path) -> None:
    made = stepped(tmp_path, "s.x = tanh(s.x) + power(s.x, s.pace) + abs(s.x) + atan(s.x);", OWN)
    assert made == pytest.approx(50 + 0.75 + 7 + math.atan(0.5), rel=1e-14)


def test_fields_and_parameters_may_have_names_of_functions(tmp_path: Path) -> None:
    more: dict[str, Any] = {"state": ("x", "pace", "tanh"), "params": {"power": gpu_envs.Param(3.0)}}
    step = "s.tanh = tanh(s.x); const real atan = power(s.x, p.power); s.x = s.tanh + atan;"
    assert stepped(tmp_path, step, **more) == pytest.approx(math.tanh(0.5) + 0.125, rel=1e-14)


@pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing() or "it is there")
def test_builtin_functions_of_nvrtc_are_refused(tmp_path: Path) -> None:
    spec = walk(tmp_path, step=f"const real x = s.x, y = s.pace; s.x = {WORDS}; return {{0, false}};")
    config = SimulationConfig(spec, 4, "SameStep", "float32", 20, {})
    layout = layout_of(config, Device(on_gpu=True))
    for name in layout.modules:
        program = generate(layout, name)
        check_device_functions(program, "NVRTC")
        assert double_arithmetic(ptx_of(program.source)) == []
