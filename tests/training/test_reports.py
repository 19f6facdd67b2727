"""Reports on the host: metrics of iterations, and the mean return of the last hundred episodes."""

import math
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits

torch = pytest.importorskip("torch")

from gpu_envs.backend import resolve_device  # noqa: E402
from gpu_envs.training.heads import Head  # noqa: E402
from gpu_envs.training.horizon import EpisodeSums  # noqa: E402
from gpu_envs.training.record.reports import (  # noqa: E402
    WINDOW,
    EpisodeMeans,
    EpisodeWindow,
    IterationReport,
    ReportQueue,
    log_entry,
    mean_metrics,
)
from gpu_envs.training.rollout.horizon_env import RoleStorage  # noqa: E402
from gpu_envs.training.rollout.plan import PolicyRole  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def steps_of(*counts: int, seed: int = 0) -> np.ndarray:
    """Steps with these numbers of episodes, with integer returns and lengths."""
    rng = np.random.default_rng(seed)
    rows = [(c, rng.integers(0, 50, c).sum(), rng.integers(1, 99, c).sum()) for c in counts]
    return np.array(rows, np.float64).T


@pytest.mark.parametrize("most", [3, 40, 300])
def test_the_window_has_the_last_steps_with_enough_episodes(most: int) -> None:
    rng = np.random.default_rng(most)
    window, seen = EpisodeWindow(), np.zeros((3, 0))
    assert all(map(math.isnan, window.means()))
    for _ in range(200):
        episodes = steps_of(*rng.integers(0, most, 4) * (rng.random(4) < 0.5), seed=int(rng.integers(1 << 30)))
        window.add(episodes)
        seen = np.concatenate((seen, episodes), 1)
        counts = seen[0][::-1].cumsum()  # of the last step, the last two steps, ...
        enough = int(np.searchsorted(counts, WINDOW)) + 1
        last = seen[:, -enough:].sum(1)
        assert window.full == (counts[-1] >= WINDOW)
        if last[0]:
            assert window.means() == [last[1] / last[0], last[2] / last[0]]


def test_reports_arrive_complete_and_in_order(device: str) -> None:
    place = resolve_device(device)
    roles, learners, horizon, depth = ("a", "b"), {"x": ("loss", None), "y": ("norm",)}, 4, 2
    queue = ReportQueue(roles, learners, horizon, place, depth, ("far", "wide"))
    metrics = torch.zeros(queue.size, device=place)
    received = []
    for iteration in range(1, 10):
        started, rolled_out, _ = queue.next_events()
        started.record()
        metrics.copy_(torch.arange(queue.size) + 100 * iteration)
        rolled_out.record()
        queue.send(iteration, metrics)
        received += queue.receive()
        assert iteration - len(received) < depth  # no more are pending
    received += queue.receive(wait_for_all=True)
    assert queue.receive(wait_for_all=True) == []
    assert [report.iteration for report in received] == list(range(1, 10))
    for report in received:
        first = 100.0 * report.iteration
        values = first + np.arange(queue.size)
        assert_same_bits(report.episodes["a"], values[:12].reshape(3, 4))
        assert_same_bits(report.episodes["b"], values[12:24].reshape(3, 4))
        counts, far, wide = values[24:36].reshape(3, 4)
        assert_same_bits(
            dict(report.episode_metrics), {"far": np.stack([counts, far]), "wide": np.stack([counts, wide])}
        )
        assert report.learner_metrics == {"x": {"loss": first + 36}, "y": {"norm": first + 38}}
        assert report.rollout_seconds >= 0
        assert report.update_seconds >= 0


def test_means_are_of_samples() -> None:
    sums = {"policy_loss": -6.0, "value_loss": 3.0, "entropy": 9.0, "kl": 1.5, "clip_fraction": 0.75}
    others = {"explained_variance": 0.5, "gradient_norm": 2.0}
    assert mean_metrics(sums | {"samples": 3.0} | others) == {
        "policy_loss": -2.0,
        "value_loss": 1.0,
        "entropy": 3.0,
        "kl": 0.5,
        "clip_fraction": 0.25,
        **others,
    }


def test_metrics_of_iterations_without_learning_are_missing() -> None:
    """They are not part of means; metrics that do not depend on learning are."""
    reports = [
        IterationReport(1, {}, {"a": {"kl": kl, "gradient_norm": 2.0, "samples": samples, "learning_rate": rate}}, 0, 0)
        for kl, samples, rate in ((0.0, 0.0, 0.5), (6.0, 3.0, 0.25), (4.0, 1.0, 0.0))
    ]
    entries = [log_entry(some, EpisodeMeans({}, {})) for some in (reports[:1], reports)]
    assert math.isnan(entries[0]["kl"])
    assert math.isnan(entries[0]["gradient_norm"])
    assert [entry["learning_rate"] for entry in entries] == [0.5, 0.25]
    assert (entries[1]["kl"], entries[1]["gradient_norm"]) == (3.0, 2.0)


def test_episodes_of_a_horizon(device: str) -> None:
    place: Any = resolve_device(device)
    head = Head("discrete", (2,), (0,), (), (), scalar=True)
    role = PolicyRole("agent", 2, 3, head, ("agent_0", "agent_1"))
    storage = RoleStorage(role, 3, 2, place, single_agent=False, may_truncate=True)
    storage.episode_return.fill_(float("nan"))  # arbitrary values where no episode ended
    storage.episode_length[1, 0] = torch.tensor([5, 7], dtype=torch.int32)
    storage.episode_return[1, 0] = torch.tensor([2.0, -3.0])
    storage.episode_length[2, :, 0] = torch.tensor([1, 2], dtype=torch.int32)
    storage.episode_return[2, :, 0] = torch.tensor([0.5, 0.25])
    sums = EpisodeSums(place)
    assert storage.episodes(sums).tolist() == [[0.0, 2.0, 2.0], [0.0, -1.0, 0.75], [0.0, 12.0, 3.0]]
    storage.carry_over()
    assert storage.episodes(sums).abs().sum() == 0


@pytest.mark.parametrize(
    ("steps", "rows", "each", "width"), [(1, 1, 1, 1), (3, 700, 1, 2), (5, 9, 3, 4), (2, 9000, 2, 1)]
)
def test_sums_over_episodes(steps: int, rows: int, each: int, width: int, device: str) -> None:
    g = torch.Generator().manual_seed(rows)
    ended = torch.rand(steps, rows, generator=g) < 0.3
    lengths = torch.where(ended, torch.randint(1, 1000, (steps, rows), generator=g), 0).int()
    values = torch.randn(steps, rows, width, generator=g) + 5
    given = torch.where(ended.unsqueeze(2), values, torch.nan).to(resolve_device(device))
    of_each = lengths.unsqueeze(2).repeat(1, 1, each).to(given.device)
    found = EpisodeSums(device).of(of_each, given, add_lengths=True).cpu().double()
    assert torch.equal(found[0], ended.sum(1).double())
    assert torch.equal(found[-1], lengths.sum(1).double())
    torch.testing.assert_close(
        found[1:-1], torch.where(ended.unsqueeze(2), values, 0.0).double().sum(1).T, rtol=1e-7, atol=0
    )
    assert torch.equal(EpisodeSums(device).of(of_each, given, add_lengths=False).cpu(), found[:-1].float())
