"""Distributions of the random numbers of rules, compared with SciPy's, and their bits on both devices."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from harness import assert_same_bits, numpy_of
from nvrtc import check_program, nvrtc_missing, programs
from registered import needs_cuda
from small_envs import walk

import gpu_envs
from gpu_envs import EnvSpec, Param, Rules

stats: Any = pytest.importorskip("scipy.stats")

REPLICAS = 200_000
WEIGHTS = (0.5, 0.0, 3.0, -1.0, 1.5, 0.0)


def reset(s: Any, p: Any, random: Any) -> None:
    s.waits = random.exponential(p.rate)
    s.events = random.poisson(p.mean)
    s.hits = random.binomial(int(p.trials), p.chance)
    s.chosen = random.choice(WEIGHTS)
    s.unit = random.uniform()


def step(s: Any, p: Any, action: Any, random: Any) -> Any:  # noqa: ARG001
    return 0.0, False


def observe(s: Any, p: Any, observation: Any) -> None:  # noqa: ARG001
    observation[0] = s.waits
    observation[1] = s.unit


SPEC = EnvSpec(
    id="Numbers-v0",
    header=Rules(reset=reset, step=step, observe=observe),
    state={
        "waits": gpu_envs.Field(),
        "unit": gpu_envs.Field(),
        **{name: gpu_envs.Field("int") for name in ("events", "hits", "chosen")},
    },
    params={"rate": Param(2.0), "mean": Param(4.0), "trials": Param(10.0), "chance": Param(0.25)},
    observation=Box(-np.inf, np.inf, (2,), np.float32),
    action=Discrete(2),
    max_episode_steps=10,
)


def drawn(device: str = "cpu", count: int = REPLICAS, **options: Any) -> dict[str, Any]:
    """Draws of each replica, by name."""
    env: Any = gpu_envs.VectorEnv(SPEC, count, device=device, **options)
    env.reset(seed=3)
    return {name: numpy_of(value) for name, value in env.state.items()}


def assert_follows(numbers: Any, distribution: Any) -> None:
    """Compares frequencies by chi-squared, with at least 20 expected numbers in each bin."""
    low, high = (int(distribution.ppf(tail)) for tail in (1e-7, 1 - 1e-7))
    assert numbers.min() >= distribution.support()[0]
    assert numbers.max() <= distribution.support()[1]
    counts = np.bincount(np.clip(numbers, low, high) - low, minlength=high - low + 1)
    expected = len(numbers) * distribution.pmf(np.arange(low, high + 1))
    bins = (np.cumsum(expected) // 20).astype(int)
    bins[bins == bins[-1]] = max(bins[-1] - 1, 0)  # the last bin may expect fewer
    observed, expected = (np.bincount(bins, weights=each) for each in (counts, expected))
    filled = expected > 0
    statistic = stats.chisquare(observed[filled], expected[filled] * len(numbers) / expected.sum())
    assert statistic.pvalue > 1e-4, statistic


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("mean", [0.01, 1.0, 9.99, 10.0, 40.0, 1000.0, 10_000.0])
def test_poisson(mean: float, precision: str) -> None:
    assert_follows(drawn(mean=mean, precision=precision)["events"], stats.poisson(mean))


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(
    ("trials", "chance"),
    [(1, 0.3), (10, 0.5), (20, 0.5), (40, 0.3), (1000, 0.001), (1000, 0.97), (100_000, 1e-4), (100_000, 0.4)],
)
def test_binomial(trials: int, chance: float, precision: str) -> None:
    assert_follows(drawn(trials=trials, chance=chance, precision=precision)["hits"], stats.binom(trials, chance))


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_exponential_uniform_and_choice(precision: str) -> None:
    numbers = drawn(precision=precision)
    assert stats.kstest(numbers["waits"], stats.expon(scale=0.5).cdf).pvalue > 1e-4
    assert stats.kstest(numbers["unit"], stats.uniform().cdf).pvalue > 1e-4
    counts = np.bincount(numbers["chosen"], minlength=len(WEIGHTS))
    positive = np.maximum(WEIGHTS, 0)
    assert (counts[positive == 0] == 0).all()
    expected = REPLICAS * positive / positive.sum()
    assert stats.chisquare(counts[positive > 0], expected[positive > 0]).pvalue > 1e-4


def test_parameters_outside_the_distribution_give_the_nearest_result() -> None:
    """Also a parameter that is not a number, so that no draw takes forever."""
    assert (drawn(mean=0.0, count=8)["events"] == 0).all()
    assert (drawn(mean=-3.0, count=8)["events"] == 0).all()
    for trials, chance, expected in (
        (10, 0.0, 0),
        (10, -1.0, 0),
        (10, 1.0, 10),
        (10, 7.0, 10),
        (0, 0.5, 0),
        (-2, 0.5, 0),
    ):
        assert (drawn(trials=trials, chance=chance, count=8)["hits"] == expected).all()


WILD = """s.x = real(random.poisson(infinity<real>()) + random.poisson(from_bits(~Constants<real>::Bits(0)))
               + random.binomial(5, from_bits(~Constants<real>::Bits(0))) + random.choice(0, 0, 0)
               + random.poisson(random.uniform() * 0 + 1e9f));"""


def test_draws_end_whatever_the_parameters(device: str, tmp_path: Path) -> None:
    env: Any = gpu_envs.VectorEnv(walk(tmp_path, reset=WILD + " s.pace = 0;"), 8, device=device)
    env.reset(seed=0)
    assert np.isfinite(numpy_of(env.state["x"])).all()


@pytest.mark.skipif(bool(nvrtc_missing()), reason="needs NVRTC")
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_kernels_have_no_local_memory_and_no_accidental_doubles(precision: str) -> None:
    for program in programs(SPEC, "SameStep", precision, per_replica=True):
        check_program(program, "sm_90a", precision)


@needs_cuda
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_bits_are_those_of_the_cpu(precision: str) -> None:
    count = 100_000
    varied = {
        "mean": np.geomspace(1e-3, 1e4, count),
        "trials": np.geomspace(1, 1e6, count).round(),
        "chance": np.tile(np.linspace(0.001, 0.999, 1000), count // 1000),
        "rate": np.geomspace(1e-3, 1e3, count),
    }
    on_cpu, on_gpu = (drawn(device, count, precision=precision, **varied) for device in ("cpu", "cuda"))
    for name, numbers in on_cpu.items():
        assert_same_bits(numbers, on_gpu[name])
