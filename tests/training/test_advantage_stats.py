"""Statistics of a horizon against NumPy in float64, and the number of torch operations in an iteration."""

import math
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from trainers import EPS, FIELD, small_run

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from gpu_envs.backend import resolve_device  # noqa: E402
from gpu_envs.training import Trainer  # noqa: E402
from gpu_envs.training.engines.ops import SUMS  # noqa: E402
from gpu_envs.training.horizon import METRICS, MOMENTS, Advantages, AdvantageStats  # noqa: E402
from gpu_envs.training.process.group import Group  # noqa: E402

Tensor = Any

OFF = 1e-6
"""Tolerance of moments relative to the standard deviation, for any mean: some roundings to float32."""


def measured(
    rewards: Tensor, values: Tensor, alive: Tensor | None = None, threads: int | None = None, group: Any = None
) -> tuple[AdvantageStats, Tensor, Tensor]:
    """Return statistics, advantages and returns; with discount 0, advantages are rewards minus values."""
    place, ends = str(rewards.device), torch.zeros_like(rewards, dtype=torch.bool)
    stats = AdvantageStats(rewards.new_full((MOMENTS, rewards.shape[1]), 7.0), place, threads, group or Group())
    advantages, returns = torch.empty_like(rewards), torch.empty_like(rewards)
    arrays = {"values": values, "terminations": ends, "truncations": ends, "alive": alive, "moments": stats.moments}
    written = {"advantages": advantages, "returns": returns}
    Advantages(place, threads).compute(rewards, values[-1].clone(), gamma=0.0, lam=0.0, **arrays, **written)
    return stats, advantages, returns


def written(stats: AdvantageStats) -> tuple[list[float], dict[str, float]]:
    """Return mean, inverse standard deviation and metrics, written over arbitrary values."""
    metrics = torch.full((len(METRICS),), 7.0, device=stats.moments.device)
    normaliser = torch.full((2,), 7.0, device=stats.moments.device)
    stats.write(metrics, normaliser)
    return normaliser.tolist(), dict(zip(METRICS, metrics.tolist(), strict=True))


def horizon(steps: int, rows: int, mean: float, spread: float, device: str) -> tuple[Tensor, Tensor]:
    """Rewards, and values that explain a third of them."""
    g = torch.Generator().manual_seed(steps * rows)
    rewards = mean + spread * torch.randn(steps, rows, generator=g)
    values = torch.cat([rewards, rewards[-1:]]) * 0.3 + spread * 0.3 * torch.randn(steps + 1, rows, generator=g)
    return rewards.to(resolve_device(device)), values.to(resolve_device(device))


def check(stats: AdvantageStats, advantages: Tensor, returns: Tensor, alive: Tensor | None) -> None:
    some = torch.ones_like(advantages, dtype=torch.bool) if alive is None else alive
    advantages, returns = (part[some].cpu().numpy().astype(np.float64) for part in (advantages, returns))
    (mean, inverse), metrics = written(stats)
    spread = advantages.std()
    assert mean == pytest.approx(advantages.mean(), rel=EPS, abs=OFF * spread)
    assert inverse == pytest.approx(1 / (spread + 1e-8), rel=OFF)
    share = advantages.var() / max(returns.var(), 1e-12)
    assert metrics["explained_variance"] == pytest.approx(1 - share, rel=EPS, abs=2 * OFF * share)


@pytest.mark.parametrize(("mean", "spread"), [(0, 1), (3, 1e-3), (1000, 0.03), (-1e6, 10)])
@pytest.mark.parametrize(("steps", "rows"), [(1, 2), (2, 1), (7, 3), (32, 1000), (700, 33), (5, 70_001)])
@pytest.mark.parametrize("dead", [False, True])
def test_moments(steps: int, rows: int, mean: float, spread: float, dead: bool, device: str) -> None:
    rewards, values = horizon(steps, rows, mean, spread, device)
    alive = None
    if dead:
        alive = torch.rand(steps, rows, generator=torch.Generator().manual_seed(1)) < 0.6
        alive[0, :2] = True
        alive[-1, 1:2] = True
        alive[:, rows // 2] &= rows < 4
        alive = alive.to(rewards.device)
        rewards = rewards.where(alive, math.nan)
        values[0] = values[0].where(alive[0], math.nan)
        values[1:-1] = values[1:-1].where(alive[:-1] | alive[1:], math.nan)  # inactive agents do not count
    check(*measured(rewards, values, alive), alive)


def test_moments_of_equal_values_and_without_samples(device: str) -> None:
    """Without samples the results are arbitrary, and not used."""
    rewards, values = torch.full((20, 300), 0.1, device=resolve_device(device)), torch.zeros(21, 300, device=device)
    for alive in (None, torch.zeros_like(rewards, dtype=torch.bool)):
        (mean, inverse), metrics = written(measured(rewards, values, alive)[0])
        assert mean == (np.float32(0.1) if alive is None else 0.0)
        assert inverse == np.float32(1e8)
        assert metrics["explained_variance"] == 1.0


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_moments_with_nan_are_nan(wrong: float, device: str) -> None:
    for row in (0, 299):
        rewards, values = horizon(20, 300, 0, 1, device)
        rewards[7, row] = wrong
        normaliser, metrics = written(measured(rewards, values)[0])
        assert not all(map(math.isfinite, normaliser))
        assert math.isnan(metrics["explained_variance"])


def test_statistics_are_reproducible(device: str) -> None:
    rewards, values = horizon(20, 40_000, 5, 1, device)
    found = []
    for threads in (1, 2, 2):
        stats, *_ = measured(rewards, values, threads=threads)
        found.append((stats.moments.clone(), written(stats)))
    for other in found[1:]:
        assert torch.equal(found[0][0], other[0])
        assert found[0][1] == other[1]


def test_statistics_initialise_the_metrics(device: str) -> None:
    rewards, values = horizon(4, 30, 0, 1, device)
    stats, *_ = measured(rewards, values)
    for largest in (3.5, 0.0, math.nan):
        stats.largest.fill_(largest)
        _, metrics = written(stats)
        assert [metrics[name] for name in METRICS[: len(SUMS)]] == [0.0] * len(SUMS)
        assert (metrics["gradient_norm"], metrics["learning_rate"]) == (7.0, 7.0)
        assert metrics["largest_observation"] == pytest.approx(largest, rel=0, abs=0, nan_ok=True)
        assert stats.largest.item() == 0.0
    metrics_alone = torch.zeros(len(METRICS), device=rewards.device)
    stats.write(metrics_alone, None)
    assert metrics_alone[6] == metrics["explained_variance"]


@pytest.mark.parametrize("empty", [None, 0, 1])
def test_moments_of_several_processes(empty: int | None, device: str) -> None:
    """As in one process with all rows; all agents of a process may be inactive."""
    rewards, values = horizon(16, 500, 40, 0.5, device)
    alive = torch.ones_like(rewards, dtype=torch.bool)
    spans = [slice(0, 100), slice(100, 500)]
    if empty is not None:
        alive[:, spans[empty]] = False
    told: list[Tensor] = []

    class TwoProcesses:
        size = 2

        def all_gather(self, own: Tensor) -> Tensor:
            told.append(own.clone())
            return torch.stack([told[0], told[-1]])

    found: list[Any] = []
    for span in spans:
        one, two, three = (part[:, span].contiguous() for part in (rewards, values, alive))
        stats, *both = measured(one, two, three, group=TwoProcesses())
        found.append(both)
        last = stats, written(stats)
    assert [part[0].item() for part in told] == [alive[:, span].sum().item() for span in spans]
    advantages, returns = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
    told.pop()
    check(last[0], advantages, returns, alive)


@pytest.mark.parametrize(("steps", "groups", "each"), [(1, 1, 1), (9, 130, 1), (33, 50, 3), (8, 3, 2)])
def test_final_observations_of_truncated_episodes(steps: int, groups: int, each: int, device: str) -> None:
    rng = np.random.default_rng(steps)
    rows = groups * each
    at = rng.integers(-steps, steps, groups)
    truncations = np.repeat(np.arange(steps)[:, None] == at, each, 1)
    if each > 1:  # an agent may be inactive earlier
        truncations[:, each - 1 :: each] &= rng.random(groups) < 0.7
    terminations = (rng.random((steps, rows)) < 0.3) & ~truncations
    expected = np.where(np.repeat(at, each) < 0, -1, np.repeat(at, each) * rows + np.arange(rows))
    if each == 1:  # terminated and truncated: counts as terminated
        terminations |= truncations & (np.arange(rows) % 5 == 0)
        expected = np.where(np.arange(rows) % 5 == 0, -1, expected)
    ended, cut = (torch.from_numpy(flags).to(resolve_device(device)) for flags in (terminations, truncations))
    places = torch.full((rows,), 7, dtype=torch.int64, device=cut.device)
    Advantages(device).find_final(ended, cut, places, group_size=each)
    assert places.tolist() == expected.tolist()


class OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Records torch operations, except views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.done: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if not func.is_view:
            self.done.append(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("env", ["CartPole-v1", FIELD])
def test_learning_outside_of_networks_is_little_work_for_torch(env: str, device: str) -> None:
    trainer: Any = Trainer(small_run(device, env))
    trainer.roll_out()
    for learner in trainer.learners.values():
        learner.networks = Mock(acts_with_value=False)  # does nothing in torch, like fused kernels
    trainer.learn()
    with OperationRecorder() as noted:
        trainer.learn()
    counters = ["add_"] * len(trainer.learners)  # counters of random numbers
    sums = ["new_empty"] * len(trainer.horizon_env.episodes(trainer._episode_sums))  # noqa: SLF001 - counts what is allocated
    assert noted.done == [*counters, *sums, "cat"]
