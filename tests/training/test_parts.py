"""Policies that learn from split rows match policies that learn from full rows."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, numpy_of, restored_registry
from sharing import sharing
from trainers import MODULE_SETTINGS, small_run, without_times

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import gpu_envs  # noqa: E402
from gpu_envs.training import Trainer, evaluate, resume, train  # noqa: E402
from gpu_envs.training.engines.base import Minibatch, ValueRequest  # noqa: E402
from gpu_envs.training.observations import (  # noqa: E402
    ColumnSums,
    ObservationScale,
    Split,
    SplitRows,
    join_rows,
    max_magnitude,
    select_rows,
    update_max_magnitude,
    zero_inactive,
)
from gpu_envs.training.record import checkpoint  # noqa: E402
from gpu_envs.training.record.run_directory import RunDirectory  # noqa: E402
from gpu_envs.training.rollout.horizon_env import HorizonEnv, RoleTensors, make_env  # noqa: E402
from gpu_envs.training.rollout.plan import Plan, PolicyRows, RoleMembers  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

SPLIT = Split(individual=7, shared=60, offset=3)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with restored_registry():
        gpu_envs.register(sharing())
        yield


def split_rows_of(rows: int, each: int, device: str) -> SplitRows:
    numbers = torch.Generator().manual_seed(0)
    own = torch.randn(rows, SPLIT.individual, generator=numbers)
    shared = torch.randn(rows // each, SPLIT.shared, generator=numbers)
    return SplitRows(own.to(device), shared.to(device), each, SPLIT)


def test_split_rows_match_full_rows(device: str) -> None:
    parts = split_rows_of(12, 3, device)
    rows = parts.joined
    assert tuple(parts.shape) == tuple(rows.shape) == (12, 67)
    assert torch.equal(rows[:, 3:63], parts.shared.repeat_interleave(3, 0))
    assert torch.equal(torch.cat([rows[:, :3], rows[:, 63:]], 1), parts.individual)
    assert torch.equal(join_rows(parts[3:9]), rows[3:9])
    assert torch.equal(join_rows(SplitRows.of(rows, SPLIT)), rows)
    some = torch.tensor([9, 10, 11, 0, 1, 2], device=device, dtype=torch.int32)
    assert torch.equal(join_rows(select_rows(parts, some)), rows[some])
    assert torch.equal(max_magnitude(parts), rows.abs().amax(1))
    steps = SplitRows(parts.individual.view(2, 6, -1), parts.shared.view(2, 2, -1), 3, SPLIT)
    assert torch.equal(join_rows(steps[1:].flatten(0, 1)), rows[6:])
    alive = torch.tensor([1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0], device=device, dtype=torch.bool)
    parts.individual[~alive], parts.shared[3] = torch.nan, torch.nan  # all of the last three agents are inactive
    living = join_rows(zero_inactive(parts, alive))
    assert torch.equal(living[alive], rows[alive])
    assert torch.isfinite(living).all()


@pytest.mark.parametrize("some_are_out", [False, True])
@pytest.mark.parametrize(("rows", "columns", "group_size"), [(1, 1, 1), (40, 3, 1), (5000, 67, 1), (700, 300, 3)])
def test_sums_of_columns(rows: int, columns: int, group_size: int, some_are_out: bool, device: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(100, 1, (rows, columns)).astype(np.float32)
    alive = rng.random((rows, group_size)) < 0.4 if some_are_out else np.ones((rows, group_size), bool)
    agents = alive.sum(1)
    values[agents == 0] = np.nan
    summed = values[agents > 0].astype(np.float64)
    weights = agents[agents > 0, None]
    expected = [(weights * summed).sum(0), (weights * summed**2).sum(0), np.full(columns, agents.sum())]
    given = torch.tensor(alive.reshape(-1), device=device) if some_are_out else None
    found = ColumnSums(device).of(torch.tensor(values, device=device), given, group_size)
    np.testing.assert_allclose(numpy_of(found), expected, rtol=1e-13)


@pytest.mark.parametrize("some_are_out", [False, True])
def test_statistics_match_full_rows(device: str, some_are_out: bool) -> None:
    alive = (
        torch.tensor([1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0], device=device, dtype=torch.bool) if some_are_out else None
    )
    parts = split_rows_of(12, 3, device)
    one, other = (ObservationScale(67, device) for _ in range(2))
    if alive is not None:
        parts.individual[~alive], parts.shared[3] = torch.nan, torch.nan  # of observations of inactive agents
    one.learn(parts, alive)
    other.learn(parts.joined, alive)
    torch.testing.assert_close(one.mean, other.mean)
    torch.testing.assert_close(one.variance, other.variance)
    assert torch.equal(one.count, other.count)
    parts = split_rows_of(6, 3, device)
    torch.testing.assert_close(join_rows(one(parts)), one(parts.joined))


def test_the_environment_returns_split_rows(device: str) -> None:
    """If rows are wide; they equal the environment's full rows."""
    assert Plan(small_run(device, "Sharing-v0"), device, 3).world.separate_shared
    assert not Plan(small_run(device, "Sharing-v0", params={"wide": 20}), device, 3).world.separate_shared
    config = small_run(device, "Sharing-v0", params={"max_episode_steps": 5})
    env = HorizonEnv(Plan(config, device, 3), 12)
    other = RoleTensors(make_env(config.env, config, 3, device, "SameStep"))
    env.reset(5, stagger=2)
    other.by_role.env.reset(seed=5)
    there = other.observations(other.by_role.env.stagger(2))
    every = {r.name: PolicyRows(r.name, (RoleMembers(r, tuple(range(r.agents))),), 3, device) for r in env.roles}
    rng = np.random.default_rng(0)
    for storage in env.storage.values():
        storage.carry_over()
    for t in range(12):
        for rows in every.values():
            mine, theirs = (numpy_of(join_rows(rows.observed(seen, 0))) for seen in (env.observations(t), there))
            alive = theirs.any(1)  # rows of inactive agents are zero
            assert alive.any()
            np.testing.assert_array_equal(mine[alive], theirs[alive])
        actions = {r.name: torch.as_tensor(rng.integers(0, 3, (3, r.agents, 1)), device=device) for r in env.roles}
        env.step(t, actions)
        observations, *_, infos = other.by_role.env.step(other.env_actions(actions))
        there = other.observations(observations)
        ended = numpy_of(infos["_final_obs"])
        last: Any = env.storage["prey"].final_rows
        for replica in np.flatnonzero(ended):
            ends = SplitRows(last.individual[t, replica], last.shared[t, replica : replica + 1], 3, last.split)
            found, expected = numpy_of(ends.joined), numpy_of(infos["final_obs"]["prey"][replica])
            alive = expected.any(1)
            np.testing.assert_array_equal(found[alive], expected[alive])


def test_minibatches_keep_groups_together(device: str) -> None:
    trainer = Trainer(small_run(device, "Sharing-v0", num_envs=6, horizon=5, minibatches=4, epochs=1))
    learner: Any = trainer.learners["prey"]
    assert learner.policy_rows.group_size == 3
    trainer.roll_out()
    trainer.learn()
    order = numpy_of(learner.indices).reshape(-1, 3)
    assert sorted(order[:, 0].tolist()) == list(range(0, 90, 3))
    assert (order == order[:, :1] + np.arange(3)).all()
    assert learner.minibatch_bounds == [0, 21, 45, 66, 90]
    with pytest.raises(ValueError, match=r"minibatches is 31, .* 'hunter' has 30 samples of 2 agents each"):
        Trainer(small_run(device, "Sharing-v0", num_envs=6, horizon=5, minibatches=31, epochs=1))


@pytest.mark.parametrize("settings", [{}, {"shared_trunk": True}, {"normalise_observations": True}], ids=str)
def test_learning_matches_full_rows(device: str, settings: dict[str, Any]) -> None:
    """Values and the gradient of a minibatch, with the same module on split rows and on full rows."""
    trainer = Trainer(small_run(device, "Sharing-v0", num_envs=5, horizon=7, **settings))
    trainer.roll_out()
    trainer.learn()
    trainer.roll_out()
    learner: Any = trainer.learners["prey"]
    for (_, rate), value in zip(learner.schedules.values(), (1e-3, 0.01), strict=True):
        rate.fill_(value)
    learner.finish_rollout(trainer.horizon_env.storage)
    parts, batch = learner.samples
    assert isinstance(parts, SplitRows)
    chosen = torch.arange(6, 27, device=device, dtype=torch.int32)
    found = []
    for rows in (parts, parts.joined):
        values = torch.empty(parts.shape[0], device=device)
        learner.networks.values(ValueRequest(rows, values))
        totals = torch.empty_like(learner.optimiser.totals)
        minibatch = Minibatch(rows, batch, chosen, learner.algorithm, learner.scalars)
        learner.networks.gradient(minibatch, totals)
        found.append((values, learner.optimiser.gradient.clone(), totals))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_policies_of_some_agents_and_of_several_roles(device: str) -> None:
    """Groups have the size of the policy's part of a role; if sizes differ, groups have one row."""
    one = Trainer(small_run(device, "Sharing-v0", policies={"prey_0": "first", "prey_1": "others", "prey_2": "others"}))
    assert {name: learner.policy_rows.group_size for name, learner in one.learners.items()} == {
        "hunter": 2,
        "first": 1,
        "others": 2,
        "guard": 1,
    }
    one.roll_out()
    one.learn()
    others: Any = one.learners["others"]
    rows, first = others.samples[0], one.horizon_env.storage["prey"]
    assert first.shared_observations is not None
    assert torch.equal(rows.individual.view(16, 8, 2, 3), first.observations[:-1, :, 1:])
    assert torch.equal(rows.shared.view(16, 8, 71), first.shared_observations[:-1])


def test_one_policy_for_roles_with_different_splits(device: str) -> None:
    """It uses full rows."""
    trainer = Trainer(small_run(device, "Sharing-v0", policies={"hunter": "all", "prey": "all"}))
    trainer.roll_out()
    trainer.learn()
    learner: Any = trainer.learners["all"]
    rows, prey = learner.samples[0], trainer.horizon_env.storage["prey"]
    assert rows.shape == (16 * 8 * 5, 74)
    assert prey.shared_observations is not None
    last = rows.view(16, 40, 74)[:, 16:].reshape(16, 8, 3, 74)
    assert torch.equal(last[..., :3], prey.observations[:-1])
    assert torch.equal(last[..., 3:], prey.shared_observations[:-1].unsqueeze(2).expand(-1, -1, 3, -1))


def test_options_that_the_trainer_sets_are_refused(device: str) -> None:
    for env, params, message in (
        ("Sharing-v0", {"active_heads": True}, "active_heads, which the trainer sets; leave it out"),
        ("CartPole-v1", {"statistics": False}, "statistics=False, but the trainer needs episode statistics"),
        ("CartPole-v1", {"threads": 2}, "threads, which the trainer sets; give the run's setting threads"),
        ("CartPole-v1", {"output": "numpy"}, "output, which the trainer sets; leave it out"),
        ("CartPole-v1", {"precision": "float64"}, "precision='float64'; training is in float32: leave it out"),
    ):
        with pytest.raises(ValueError, match=f"params names {message}"):
            Trainer(small_run(device, env, params=params))


def test_user_modules_get_full_rows(device: str) -> None:
    seen = []

    class UserModule(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(74, 4)

        def forward(self, rows: Any) -> Any:
            seen.append(rows)
            out = self.layer(rows)
            return out[:, :3], out[:, 3]

    config = small_run(device, "Sharing-v0", num_envs=4, horizon=3, graphs=False, **MODULE_SETTINGS)
    trainer = Trainer(config, modules={"prey": UserModule().to(device)})
    trainer.roll_out()
    assert {tuple(rows.shape) for rows in seen[1:]} == {(12, 74)}
    storage: Any = trainer.horizon_env.storage["prey"]
    assert torch.equal(seen[-1][:, 3:].view(4, 3, 71), storage.shared_observations[2].unsqueeze(1).expand(-1, 3, -1))


def test_runs_resume_bit_for_bit(device: str, tmp_path: Path) -> None:
    def run(name: str, iterations: int, **more: Any) -> Any:
        return small_run(device, "Sharing-v0", total_steps=128 * iterations, run_dir=str(tmp_path / name), **more)

    train(run("one", 4), progress=False)
    train(run("two", 2), progress=False)
    resume(str(tmp_path / "two"), total_steps=128 * 4, progress=False)
    latest = [RunDirectory.open(tmp_path / name).checkpoints.latest() for name in ("one", "two")]
    one, two = (without_times(checkpoint.load(path)) for path in latest if path is not None)
    assert_same_bits(one, two)
    assert set(evaluate(str(tmp_path / "one"), episodes=4, device=device)) == {"hunter", "prey", "guard"}
    train(run("three", 1, policies={"prey": f"frozen:{tmp_path / 'one'}"}), progress=False)


def test_the_maximum_is_over_active_agents(device: str) -> None:
    """NaN counts for active agents, and not for inactive agents."""
    rows = torch.tensor([[1.0, -2.0], [math.nan, 1.0], [0.5, math.inf], [-3.0, 0.0]], device=device)
    largest = torch.zeros(1, device=device)
    steps = {(1, 0, 0, 0): 2.0, (0, 0, 0, 0): 2.0, (1, 0, 0, 1): 3.0, (1, 0, 1, 1): math.inf, (1, 1, 1, 1): math.nan}
    for alive, expected in steps.items():
        update_max_magnitude(largest, rows, torch.tensor(alive, dtype=torch.bool, device=device))
        assert largest.item() == pytest.approx(expected, nan_ok=True)
