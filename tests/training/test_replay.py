"""The replay buffer against a simple one: transitions, frequencies, ends of episodes, and the ring's wrap-around."""

import dataclasses
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gpu_envs.training.engines.off_policy import Transitions  # noqa: E402
from gpu_envs.training.rollout.replay import Replay, stride_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

LIMIT = 7


@dataclasses.dataclass
class Steps:
    """Steps of artificial episodes; an observation identifies its row and step."""

    observations: Any
    actions: Any
    rewards: Any
    terminations: Any
    truncations: Any
    alive: Any
    final_obs: Any

    def between(self, first: int, last: int) -> dict[str, Any]:
        found = {name: array[first:last] for name, array in vars(self).items() if name != "observations"}
        return {"observations": self.observations[first : last + 1], **found}


def artificial_steps(steps: int, rows: int, features: int, width: int, *, seed: int = 0, alive: float = 1.0) -> Steps:
    """Episodes are truncated at step ``LIMIT`` and sometimes terminated earlier; rows start at different steps."""
    rng = np.random.default_rng(seed)
    observations = np.zeros((steps + 1, rows, features), np.float32)
    observations[..., 0] = np.arange(rows) + 100 * np.arange(steps + 1)[:, None]
    observations[..., 1:] = rng.normal(size=(steps + 1, rows, features - 1))
    terminations = rng.random((steps, rows)) < 0.08
    age, truncations = rng.integers(0, LIMIT, rows), np.zeros((steps, rows), bool)
    for t in range(steps):
        age += 1
        truncations[t] = age >= LIMIT
        age[truncations[t] | terminations[t]] = 0
    final = rng.normal(size=(steps, rows, features)).astype(np.float32) - 1000
    return Steps(
        observations,
        rng.normal(size=(steps, rows, width)).astype(np.float32),
        rng.normal(size=(steps, rows)).astype(np.float32),
        terminations,
        truncations,
        rng.random((steps, rows)) < alive,
        final,
    )


def expected(steps: Steps, row: int, step: int, n: int, gamma: float) -> tuple[float, float, Any]:
    """Compute an n-step return, the discount of the bootstrap, and the bootstrap's observation."""
    sum_, factor = 0.0, 1.0
    for t in range(step, step + n):
        sum_ += factor * float(steps.rewards[t, row])
        factor *= gamma
        if steps.terminations[t, row]:
            return sum_, 0.0, None
        if steps.truncations[t, row]:
            return sum_, factor, steps.final_obs[t, row]
    return sum_, factor, steps.observations[step + n, row]


def filled(steps: Steps, slots: int, device: str, horizons: list[int]) -> Replay:
    rows, features, width = int(steps.rewards.shape[1]), steps.observations.shape[2], steps.actions.shape[2]
    replay = Replay(rows, slots, features, width, device, 1, LIMIT)
    first = 0
    for horizon in horizons:
        given = steps.between(first, first + horizon).items()
        replay.insert(horizon, **{name: torch.tensor(array, device=replay.ring.device) for name, array in given})
        first += horizon
    assert replay.position.item() == first
    return replay


def drawn(
    replay: Replay, count: int, turn: int = 0, *, n_step: int = 1, gamma: float = 0.9, first: int = 0
) -> Transitions:
    features, width = replay.lasts.shape[2], replay.width
    into = Transitions.zeros(count, features, width, str(replay.ring.device))
    stream = torch.tensor([12345, 6], device=replay.ring.device)
    replay.draw(into, stream, turn, n_step=n_step, gamma=gamma, first=first)
    return Transitions(**{name: tensor.cpu() for name, tensor in vars(into).items()})


@pytest.mark.fast_cases(13)
@pytest.mark.parametrize("n_step", [1, 2, 5])
@pytest.mark.parametrize(("features", "width"), [(1, 1), (3, 1), (6, 4), (71, 2)])
@pytest.mark.parametrize("horizons", [[4], [9, 9, 9, 9], [1] * 31, [10, 3, 15, 7]])
def test_drawn_transitions_match_inserted_steps(
    horizons: list[int], features: int, width: int, n_step: int, device: str
) -> None:
    slots, rows, count = 16, 5, 3000
    total = sum(horizons)
    if total <= n_step:
        return
    steps = artificial_steps(total, rows, features, width, alive=0.8)
    found = drawn(filled(steps, slots, device, horizons), count, n_step=n_step)
    assert found.valid.all()
    seen = set()
    for b in range(count):
        step, row = divmod(round(float(found.observations[b, 0])), 100)
        seen.add((row, step))
        assert max(0, total - (slots - 1)) <= step <= total - n_step
        assert steps.alive[step, row]
        np.testing.assert_array_equal(found.observations[b], steps.observations[step, row])
        np.testing.assert_array_equal(found.actions[b], steps.actions[step, row])
        wanted, discount, after = expected(steps, row, step, n_step, 0.9)
        assert float(found.returns[b]) == pytest.approx(wanted, rel=1e-5, abs=1e-5)
        assert float(found.discounts[b]) == pytest.approx(discount, rel=1e-6)
        if after is not None:
            np.testing.assert_array_equal(found.next_observations[b], after)
    every = {
        (row, step)
        for row in range(rows)
        for step in range(max(0, total - (slots - 1)), total - n_step + 1)
        if steps.alive[step, row]
    }
    assert seen == every


def test_transitions_are_drawn_uniformly(device: str) -> None:
    """Pearson's statistic over all valid transitions; a third have inactive agents."""
    rows, slots, count = 6, 33, 200_000
    steps = artificial_steps(50, rows, 2, 1, alive=0.66)
    found = drawn(filled(steps, slots, device, [25, 25]), count)
    places = found.observations[:, 0].round().long()
    counts = torch.bincount(places, minlength=100 * 51).reshape(-1, 100)[18:50, :rows].numpy()
    valid = steps.alive[18:50]
    assert counts[~valid].sum() == 0
    average = count / valid.sum()
    chi = ((counts[valid] - average) ** 2 / average).sum()
    freedom = valid.sum() - 1
    assert abs(chi - freedom) < 4 * (2 * freedom) ** 0.5


def test_draws_depend_on_the_turn_and_are_reproducible(device: str) -> None:
    """Samples are numbered: several processes together draw the same samples as one."""
    replay = filled(artificial_steps(20, 4, 3, 1), 32, device, [20])
    one, again, other = (drawn(replay, 500, turn) for turn in (0, 0, 1))
    second = drawn(replay, 200, first=300)
    for name, tensor in vars(one).items():
        assert torch.equal(tensor, getattr(again, name))
        assert torch.equal(tensor[300:], getattr(second, name))
    assert not torch.equal(one.observations, other.observations)


def test_a_refused_draw_changes_nothing(device: str) -> None:
    replay = filled(artificial_steps(12, 5, 3, 1), 16, device, [12])
    place, stream = str(replay.ring.device), torch.tensor([12345, 6], device=replay.ring.device)
    into, other = (Transitions.zeros(50, 3, 1, place) for _ in range(2))
    replay.draw(into, stream, 0, n_step=1, gamma=0.9)
    for wrong in ({"valid": into.returns}, {"next_observations": into.actions}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            replay.draw(dataclasses.replace(other, **wrong), stream, 1, n_step=1, gamma=0.9)
    replay.draw(into, stream, 2, n_step=1, gamma=0.9)
    again = drawn(replay, 50, 2)
    assert all(torch.equal(tensor.cpu(), vars(again)[name]) for name, tensor in vars(into).items())
    assert not any(tensor.any() for tensor in vars(other).values())


def test_an_empty_buffer_has_no_transitions(device: str) -> None:
    replay = Replay(3, 8, 2, 1, device, 1, None)
    assert not drawn(replay, 10).valid.any()
    steps = artificial_steps(3, 3, 2, 1, alive=0.0)
    assert not drawn(filled(steps, 8, device, [3]), 10).valid.any()
    steps = artificial_steps(3, 3, 2, 1)
    short = drawn(filled(steps, 8, device, [3]), 10, n_step=4)
    assert not short.valid.any()
    assert not short.observations.any()
    assert not short.returns.any()


def test_both_devices_draw_the_same(device: str) -> None:
    steps = artificial_steps(40, 5, 9, 3, alive=0.7)
    here, there = (drawn(filled(steps, 32, place, [20, 20]), 4000, n_step=3) for place in ("cpu", device))
    for name, tensor in vars(here).items():
        assert torch.equal(tensor, getattr(there, name))


def test_what_does_not_fit_is_refused() -> None:
    for rows, slots in ((0, 4), (3, 1), (2**32, 4)):
        with pytest.raises(ValueError, match=f"the buffer has {rows} rows of {slots} slots; "):
            Replay(rows, slots, 2, 1, "cpu")
    replay = Replay(2, 4, 2, 1, "cpu")
    steps = artificial_steps(4, 2, 2, 1)
    with pytest.raises(ValueError, match="there are 4 steps to insert into 4 slots; give fewer"):
        replay.insert(4, **{name: torch.tensor(array) for name, array in vars(steps).items()})


def test_slots_are_multiples_of_four_words() -> None:
    assert [stride_of(3, 1), stride_of(4, 2), stride_of(7, 1)] == [8, 8, 12]
