"""Random numbers: the published known answers, and the distributions."""

import numpy as np
import pytest
from small_kernels import Array, compile_kernel, philox

RESET, STEP = 1, 2

PHILOX = """
    const Words w = philox(u64(in0[6 * i + 5]) << 32 | in0[6 * i + 4],
                           {in0[6 * i], in0[6 * i + 1], in0[6 * i + 2], in0[6 * i + 3]});
    out0[4 * i] = w.x; out0[4 * i + 1] = w.y; out0[4 * i + 2] = w.z; out0[4 * i + 3] = w.w;
"""

# Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, answer.
KNOWN_ANSWERS = """
00000000 00000000 00000000 00000000  00000000 00000000  6627e8d5 e169c58d bc57ac4c 9b00dbd8
ffffffff ffffffff ffffffff ffffffff  ffffffff ffffffff  408f276d 41c83b0e a20bc7c6 6d5451fd
243f6a88 85a308d3 13198a2e 03707344  a4093822 299f31d0  d16cfe09 94fdcceb 5001e420 24126ea1
"""


def draws(real: str, expression: str, count: int, stream: int = STEP, per_replica: int = 10) -> Array:
    """`[count, per_replica]` results of an expression of `random`, for replicas whose seeds are 0 to count - 1."""
    body = f"""
        const u64 seed = in0[i]; const u32 episode = 7;
        Random random(&seed, &episode, Stream({stream}), 3, 5);
        for (int j = 0; j < {per_replica}; ++j) out0[{per_replica} * i + j] = {expression};
    """
    kind = "uint32" if "bits" in expression else "int32" if "integer" in expression else real
    function = compile_kernel(real, ["uint64"], [kind], body)
    return function(np.arange(count), out_shape=(count, per_replica))[0]


def test_published_answers() -> None:
    """Other counters agree with the algorithm in NumPy, which other tests use as an oracle."""
    rows = np.array([[int(word, 16) for word in line.split()] for line in KNOWN_ANSWERS.split("\n") if line], np.uint32)
    apply = compile_kernel("float32", ["uint32"], ["uint32"], PHILOX)
    np.testing.assert_array_equal(apply(rows[:, :6], out_shape=(len(rows), 4))[0], rows[:, 6:])
    for row in rows:
        np.testing.assert_array_equal(philox(row[None, :4], (int(row[4]), int(row[5])))[0], row[6:])
    given = np.random.default_rng(0).integers(0, 2**32, (5000, 6), dtype=np.uint32)
    given[:, 4:] = given[0, 4:]
    expected = philox(given[:, :4], (int(given[0, 4]), int(given[0, 5])))
    np.testing.assert_array_equal(apply(given, out_shape=(5000, 4))[0], expected)


def test_draws_come_in_the_counter_s_order() -> None:
    """Four words of block 0, then of block 1, and so on; the counter is (block, step, episode, stream and agent)."""
    got = draws("float32", "random.bits()", 3)
    counters = np.array([[block, 5, 7, STEP << 24 | 3] for block in range(3)], np.uint32)
    for seed in range(3):
        np.testing.assert_array_equal(got[seed], philox(counters, (seed, 0)).ravel()[:10])


def test_every_part_of_the_counter_and_of_the_seed_counts() -> None:
    body = """
        const u32 bit = u32(in0[i]);
        const u64 seed = bit < 64 ? 1ull << bit : 0;
        const u32 b = bit - 64;
        const Words w = random_words(seed, Stream(b < 8 ? b : 0), b == 8 ? 1 : 0, b == 9 ? 1 : 0, b == 10 ? 1 : 0,
                                     b == 11 ? 1 : 0);
        out0[i] = u64(w.x) << 32 | w.y;
    """
    got = compile_kernel("float32", ["uint32"], ["uint64"], body)(np.arange(77)[np.arange(77) != 64])[0]
    assert len(set(got.tolist())) == 76


@pytest.mark.parametrize(("real", "step"), [("float32", 2.0**-24), ("float64", 2.0**-32)])
def test_unit_numbers_are_in_0_to_1_without_1(real: str, step: float) -> None:
    words = np.array([0, 1, 0xFF, 0x100, 0x7FFFFFFF, 0x80000000, 0xFFFFFF00, 0xFFFFFFFF], np.uint32)
    unit = compile_kernel(real, ["uint32"], [real], "to_unit(in0[i], out0[i]);")(words)[0]
    assert unit[0] == 0
    assert unit[-1] == 1 - step
    np.testing.assert_array_equal(unit, np.floor(words * 2.0**-32 / step) * step)


@pytest.mark.parametrize("real", ["float32", "float64"])
def test_uniform(real: str) -> None:
    got = draws(real, "random.uniform(real(-2), real(3))", 40_000).astype(float)
    assert got.min() >= -2
    assert got.max() < 3
    # 400,000 draws: the mean's deviation is 5 / sqrt(12 n) = 0.0023, the variance's about 0.003; five of each
    assert abs(got.mean() - 0.5) < 0.012
    assert abs(got.var() - 25 / 12) < 0.015
    assert abs(np.corrcoef(got[:, 0], got[:, 1])[0, 1]) < 0.025
    assert abs(np.corrcoef(got[:-1, 0], got[1:, 0])[0, 1]) < 0.025  # neighbouring seeds


def test_integer_is_uniform_below_n() -> None:
    got = draws("float32", "random.integer(7)", 70_000, per_replica=1)
    counts = np.bincount(got.ravel(), minlength=7)
    assert len(counts) == 7
    # 10,000 expected of each, deviation 93
    assert np.abs(counts - 10_000).max() < 470
    assert (draws("float32", "random.integer(1)", 100) == 0).all()
    assert draws("float32", "random.integer(2147483647)", 1000).min() >= 0


@pytest.mark.parametrize("real", ["float32", "float64"])
def test_normal_has_the_moments_of_one(real: str) -> None:
    got = (draws(real, "random.normal(real(1), real(2))", 40_000).astype(float) - 1) / 2
    assert np.isfinite(got).all()
    # 400,000 draws: deviations of mean 0.0016, variance 0.0022, third moment 0.0061, fourth 0.0155; five of each
    assert abs(got.mean()) < 0.008
    assert abs(got.var() - 1) < 0.011
    assert abs((got**3).mean()) < 0.031
    assert abs((got**4).mean() - 3) < 0.078
    assert abs(np.corrcoef(got[:, 0], got[:, 1])[0, 1]) < 0.025
