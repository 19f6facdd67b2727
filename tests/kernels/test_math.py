"""The elementary functions of math.cuh: how exact they are, and that every device gives the same bits."""

from typing import Any

import numpy as np
import pytest
from exactness import needs_cuda, random_bits, same_bits, wide_enough, worst
from small_kernels import Array, compiled

REALS = ("float32", "float64")
SAMPLES = 200_000
FUNCTIONS = "const SinCos<real> r = sincos(in0[i]); out0[i] = r.sin; out1[i] = r.cos; out2[i] = exp(in0[i]); "
FUNCTIONS += "out3[i] = log(in0[i]);"


def evaluate(real: str, x: Array, device: str = "cpu") -> dict[str, Array]:
    results = compiled(real, [real], [real] * 4, FUNCTIONS, device)(x)
    return dict(zip(("sin", "cos", "exp", "log"), results, strict=True))


def near_quarter_turns(real: str, limit: float) -> Array:
    """The numbers closest to multiples of pi/2: the reduced angle has the fewest good bits there."""
    most = int(limit / (np.pi / 2)) - 1
    turns = np.unique(np.concatenate([np.arange(0, min(most, 70_000)), np.geomspace(1, most, 70_000).astype(np.int64)]))
    nearest: Array = (turns * (np.longdouble(np.pi) / 2)).astype(real)
    above: Array = np.nextafter(nearest, real_of(real, np.inf))
    return np.concatenate([nearest, above, -nearest])


def extremes(real: str) -> tuple[Any, Any]:
    return np.finfo(real).max, np.finfo(real).min


def real_of(real: str, value: float) -> Any:
    return np.dtype(real).type(value)


@wide_enough
@pytest.mark.parametrize(("real", "limit"), [("float32", 1e5), ("float64", 1e9)])
def test_sin_and_cos_within_2_ulp_in_the_documented_range(real: str, limit: float) -> None:
    rng = np.random.default_rng(1)
    parts: list[Array] = [rng.uniform(-most, most, SAMPLES).astype(real) for most in (1.0, 10.0, 1e3, limit)]
    x = np.concatenate([*parts, near_quarter_turns(real, limit)])
    x = x[x != 0]  # below: zero has no sign that an angle needs
    got, exact = evaluate(real, x), x.astype(np.longdouble)
    assert worst(got["sin"], np.sin(exact), real) <= 2
    assert worst(got["cos"], np.cos(exact), real) <= 2


@wide_enough
@pytest.mark.parametrize(("real", "low", "high"), [("float32", -87.3, 88.7228), ("float64", -708.3, 709.7827)])
def test_exp_within_1_01_ulp(real: str, low: float, high: float) -> None:
    rng = np.random.default_rng(2)
    known = [-27.379135, 59.297405]  # the worst of all floats: 1.0086 and 1.0031
    parts: list[Any] = [
        rng.uniform(low, high, 4 * SAMPLES),
        rng.uniform(-1, 1, SAMPLES),
        np.geomspace(1e-30, 1, 999),
        known,
    ]
    x = np.concatenate(parts).astype(real)
    assert worst(evaluate(real, x)["exp"], np.exp(x.astype(np.longdouble)), real) <= 1.01


@wide_enough
@pytest.mark.parametrize("real", REALS)
def test_log_within_1_ulp(real: str) -> None:
    x = np.abs(random_bits(real, 2 * SAMPLES))
    x = x[np.isfinite(x) & (x >= np.finfo(real).tiny)]
    rng = np.random.default_rng(3)
    x = np.concatenate([x, rng.uniform(0.3, 3, SAMPLES).astype(real), rng.uniform(0.999, 1.001, SAMPLES).astype(real)])
    x = x[x != 1]
    assert worst(evaluate(real, x)["log"], np.log(x.astype(np.longdouble)), real) <= 1


@pytest.mark.parametrize("real", REALS)
def test_special_values(real: str) -> None:
    info = np.finfo(real)
    least, denormal, most, inf, nan = info.tiny, info.smallest_subnormal, info.max, np.inf, np.nan
    x = np.array([0.0, -0.0, inf, -inf, nan, 1.0, -1.0, denormal, -denormal, -least, most], real)
    got = evaluate(real, x)
    np.testing.assert_array_equal(got["sin"][:5], np.array([0, 0, nan, nan, nan], real))
    np.testing.assert_array_equal(got["cos"][:5], np.array([1, 1, nan, nan, nan], real))
    np.testing.assert_array_equal(got["exp"][[0, 1, 2, 3, 4]], np.array([1, 1, inf, 0, nan], real))
    np.testing.assert_array_equal(got["log"][[0, 1, 2, 3, 4, 5]], np.array([-inf, -inf, inf, nan, nan, 0], real))
    np.testing.assert_array_equal(got["exp"][[7, 8, 10]], np.array([1, 1, inf], real))
    # A denormal counts as zero; of negative numbers there is no logarithm.
    np.testing.assert_array_equal(got["log"][[6, 7, 8, 9]], np.array([nan, -inf, -inf, nan], real))
    assert got["log"][10] == np.log(most)


@pytest.mark.parametrize(("real", "most"), [("float32", 88.72283), ("float64", 709.782712893384)])
def test_exp_overflows_to_infinity_and_underflows_to_zero(real: str, most: float) -> None:
    edge = real_of(real, most)
    x = np.array([edge, np.nextafter(edge, real_of(real, 1e3)), 1e4, -1e4, *extremes(real)], real)
    got = evaluate(real, x)["exp"]
    assert np.isfinite(got[0])
    assert list(got[1:]) == [np.inf, np.inf, 0, np.inf, 0]


@pytest.mark.parametrize("real", REALS)
def test_exp_and_log_do_not_decrease(real: str) -> None:
    x = np.sort(np.random.default_rng(4).uniform(-80, 80, SAMPLES).astype(real))
    assert (np.diff(evaluate(real, x)["exp"]) >= 0).all()
    x = np.sort(np.random.default_rng(5).uniform(1e-3, 1e3, SAMPLES).astype(real))
    assert (np.diff(evaluate(real, x)["log"]) >= 0).all()


@pytest.mark.parametrize("real", REALS)
def test_sin_and_cos_of_any_finite_number_lie_in_their_range(real: str) -> None:
    x = random_bits(real, 5 * SAMPLES, seed=6)
    x = np.concatenate([x[np.isfinite(x)], np.array(extremes(real), real)])
    got = evaluate(real, x)
    for name in ("sin", "cos"):
        outside = ~((got[name] >= -1) & (got[name] <= 1))
        assert not outside.any(), f"{name}: {x[outside][:3]} give {got[name][outside][:3]}"


@pytest.mark.parametrize("real", REALS)
def test_symmetry(real: str) -> None:
    x = np.random.default_rng(7).uniform(0, 100, SAMPLES).astype(real)
    there, back = evaluate(real, x), evaluate(real, -x)
    np.testing.assert_array_equal(back["sin"], -there["sin"])
    np.testing.assert_array_equal(back["cos"], there["cos"])


@pytest.mark.parametrize("real", REALS)
def test_minimum_maximum_clip_floor(real: str) -> None:
    body = "out0[i] = minimum(in0[i], in1[i]); out1[i] = maximum(in0[i], in1[i]); "
    body += "out2[i] = clip(in0[i], real(-1), real(2)); out3[i] = round_down(in0[i]);"
    x, y = random_bits(real, SAMPLES, seed=8), random_bits(real, SAMPLES, seed=9)
    x[:6], y[:6] = [-1.5, 0.5, -0.0, np.nan, 3.0, -np.inf], [1.0, 0.5, 2.5, 1.0, np.nan, np.inf]
    ordinary = (np.abs(x) >= np.finfo(real).tiny) | (x == 0) | np.isnan(x)
    ordinary &= (np.abs(y) >= np.finfo(real).tiny) | (y == 0) | np.isnan(y)
    x, y = x[ordinary], y[ordinary]
    low, high, clipped, floor = compiled(real, [real] * 2, [real] * 4, body)(x, y)
    with np.errstate(invalid="ignore"):
        # NaN compares as neither, so the first operand stands
        np.testing.assert_array_equal(low, np.where(y < x, y, x))
        np.testing.assert_array_equal(high, np.where(x < y, y, x))
        np.testing.assert_array_equal(clipped, np.clip(x, -1, 2))
        np.testing.assert_array_equal(floor, np.floor(x))


@pytest.mark.parametrize("real", REALS)
def test_vector_and_scalar_code_agree(real: str) -> None:
    """One number at a time takes the loop's remainder, many take its vectorised body."""
    x = random_bits(real, 64, seed=10)
    together, one = evaluate(real, x), [evaluate(real, x[i : i + 1]) for i in range(len(x))]
    for name, values in together.items():
        np.testing.assert_array_equal(np.concatenate([each[name] for each in one]), values)


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("real", REALS)
def test_the_gpu_gives_the_same_bits(real: str) -> None:
    rng = np.random.default_rng(11)
    ordinary = rng.uniform(-1e3, 1e3, 2_000_000).astype(real)
    x = np.concatenate([random_bits(real, 4_000_000, seed=12), ordinary])
    here, there = evaluate(real, x), evaluate(real, x, "cuda")
    for name, values in here.items():
        same_bits(name, x, values, there[name])
