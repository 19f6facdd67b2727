"""Updates against plain torch."""

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, numpy_of
from trainers import EPS, FIELD, GRID, metrics_of, rollout_of, small_run

torch = pytest.importorskip("torch")

from gpu_envs.training import Schedule, Trainer  # noqa: E402
from gpu_envs.training.algorithms.base import LOG_STD_RANGE  # noqa: E402
from gpu_envs.training.engines import torch as networks  # noqa: E402
from gpu_envs.training.engines.base import Minibatch, ValueRequest  # noqa: E402
from gpu_envs.training.engines.ops import Ops  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


Tensor = Any


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", GRID])
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_an_update_matches_plain_torch(algorithm: str, env: str, device: str) -> None:
    """For each step: the gradient at the same weights, and Adam's weights from the same gradient.

    ``test_sampler.py`` tests the loss of each sample, and its gradient with respect to the module's outputs.
    """
    passes = {"epochs": 3, "minibatches": 2} if algorithm == "ppo" else {}
    config = small_run(
        device,
        env,
        algorithm=algorithm,
        num_envs=3,
        horizon=7,
        learning_rate=0.02,
        entropy_weight=0.03,
        hidden=(6, 5),
        fused=False,
        max_grad_norm=0.3,
        normalise_advantages=env != GRID,
        **passes,
    )
    trainer = Trainer(config)
    trainer.roll_out()
    trainer.learn()  # so that values and moments are not initial ones
    trainer.roll_out()
    name = next(iter(trainer.learners))
    learner: Any = trainer.learners[name]
    for (_, rate), value in zip(learner.schedules.values(), (0.02, 0.03), strict=True):
        rate.fill_(value)
    for other in trainer.learners.values():
        other.finish_rollout(trainer.horizon_env.storage)
    observations, batch = learner.samples
    samples = len(batch.returns)
    alive = torch.ones_like(batch.returns, dtype=torch.bool) if batch.alive is None else batch.alive.bool()
    moments = (0.0, 1.0)
    own: Any = config.algorithm
    if own.normalise_advantages:
        some = batch.advantages[alive].double()
        moments = (some.mean().item(), 1 / (some.std(correction=0).item() + 1e-8))
    clip = own.clip if algorithm == "ppo" else 0.0
    scalars = torch.tensor([*moments, 0.03, clip], device=trainer.device)

    double = copy.deepcopy(learner.module).double()
    weights = list(double.parameters())
    adam = torch.optim.Adam(weights, lr=0.02, eps=1e-5)
    kept = learner.optimiser.state()
    start = int(kept["steps"].item())
    for parameter, mean, square in zip(
        weights, pieces(kept["means"], weights), pieces(kept["squares"], weights), strict=True
    ):
        adam.state[parameter] = {
            "step": torch.tensor(float(start)),
            "exp_avg": mean.double(),
            "exp_avg_sq": square.double(),
        }
    epochs, minibatches = own.passes
    order = torch.arange(samples, dtype=torch.int32, device=trainer.device)
    stream = learner.streams["minibatches"].clone()
    totals = torch.zeros(6, dtype=torch.float64, device=trainer.device)
    steps: list[tuple[Tensor, ...]] = []
    take = learner.step

    def check_gradient(minibatch: Minibatch) -> None:
        number = len(steps) % minibatches
        if epochs * minibatches > 1 and number == 0:
            learner.permutation.write(order, stream, len(steps) // minibatches)
        cuts = [part * samples // minibatches for part in range(minibatches + 1)]
        rows = order[cuts[number] : cuts[number + 1]]
        rows = rows[alive[rows.long()]]
        copy_into(weights, learner.optimiser.flat)
        parameters, values = double(observations[rows.long()].double())
        given = [output.detach().float().contiguous() for output in (parameters, values)]
        by_outputs, sums = [torch.empty_like(output) for output in given], given[1].new_empty(6, len(rows))
        Ops(learner.policy_rows.head, device).loss(
            given[0], given[1], batch, rows, own, scalars, by_outputs[0], by_outputs[1], sums
        )
        totals.add_(sums.double().sum(1))
        loss = (parameters * by_outputs[0]).sum(1) + values * by_outputs[1]
        one_by_one = torch.eye(len(loss), dtype=torch.float64, device=trainer.device)
        each = torch.autograd.grad(loss, weights, one_by_one, is_grads_batched=True)  # per sample
        before = learner.optimiser.flat.clone()
        take(minibatch)
        for index, gradient in enumerate(pieces(learner.optimiser.gradient, weights)):
            expected = each[index]
            # A sample's gradient has roundings of the products of two layers, of the loss and of the sum: some dozens
            allowed = 64 * EPS * (expected.abs().amax() * len(rows) + EPS)
            assert (gradient.double() - expected.sum(0)).abs().max() <= allowed
        for parameter, gradient in zip(weights, pieces(learner.optimiser.gradient, weights), strict=True):
            parameter.grad = gradient.double() / len(rows)
        torch.nn.utils.clip_grad_norm_(weights, 0.3)
        adam.step()
        ours = learner.optimiser.flat
        theirs = torch.cat([p.detach().ravel() for p in weights])
        # a step is lr times a ratio of about 1, computed in a few float32 operations, and the weight is rounded
        assert (ours - theirs).abs().max() <= 0.02 * 64 * EPS + EPS * theirs.abs().max()
        steps.append((before, ours.clone()))

    learner.step = check_gradient
    learner.update()
    assert len(steps) == epochs * minibatches
    assert all(not torch.equal(before, after) for before, after in steps)
    assert learner.metrics[:6].tolist() == pytest.approx(totals.tolist(), rel=1e-4, abs=1e-4)


def pieces(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    return [p.view(q.shape).clone() for p, q in zip(flat.split([p.numel() for p in like]), like, strict=True)]


def copy_into(weights: list[Tensor], flat: Tensor) -> None:
    for parameter, values in zip(weights, pieces(flat, weights), strict=True):
        parameter.data.copy_(values)


@pytest.mark.parametrize(("env", "shared"), [("CartPole-v1", False), (FIELD, True)])
def test_gradients_of_parts_of_a_minibatch_add_up(
    env: str, shared: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And observations of inactive agents do not affect the weights."""
    trainer: Any = Trainer(small_run(device, env, fused=False, shared_trunk=shared, normalise_observations=shared))
    trainer.roll_out()
    learner: Any = next(iter(trainer.learners.values()))
    learner.finish_rollout(trainer.horizon_env.storage)
    observations, batch = learner.samples
    order = torch.arange(len(observations), dtype=torch.int32, device=trainer.device).flip(0)[:101].contiguous()
    hollow = observations
    if env == FIELD:
        dead = torch.rand(len(observations), generator=torch.Generator().manual_seed(0)).to(trainer.device) < 0.3
        batch = dataclasses.replace(batch, alive=~dead)
        hollow = torch.where(dead.unsqueeze(1), math.nan, observations)

    def gradients_of(chosen: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        totals, values = torch.zeros(6, device=trainer.device), torch.zeros(len(observations), device=trainer.device)
        minibatch = Minibatch(hollow, batch, chosen, learner.algorithm, learner.scalars)
        learner.networks.gradient(minibatch, totals)
        learner.networks.values(ValueRequest(observations, values))
        return learner.optimiser.gradient.clone(), totals, values

    for chosen in (None, order):
        whole = gradients_of(chosen)
        with monkeypatch.context() as patch:
            patch.setattr(networks, "CHUNK_BYTES", 12 * 100 * 20)
            assert learner.networks._chunk(len(observations), observations) < 100  # noqa: SLF001 - makes sure that there are several parts
            parts = gradients_of(chosen)
        assert not torch.equal(whole[0], parts[0])  # a different order of sums
        for one, other in zip(whole, parts, strict=True):
            # sums of some hundred samples of either sign, in a different order
            assert (one - other).abs().max() <= 512 * EPS * one.abs().max().clamp(min=1.0)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bound", LOG_STD_RANGE)
def test_log_std_beyond_a_bound_can_only_return(
    bound: float, shared: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It acts as if it were at the bound, with the gradient there, or zero if that points further outside."""
    trainer: Any = Trainer(small_run(device, "Pendulum-v1", shared_trunk=shared))
    trainer.roll_out()
    learner: Any = trainer.learners["agent"]
    learner.finish_rollout(trainer.horizon_env.storage)
    observations, batch = learner.samples
    flat = learner.optimiser.flat
    place = (learner.module.log_std.data_ptr() - flat.data_ptr()) // flat.element_size()

    def gradients_of(log_std: float, entropy_weight: float) -> Tensor:
        learner.module.log_std.data.fill_(log_std)
        learner.scalars[2] = entropy_weight
        totals = torch.zeros(6, device=trainer.device)
        minibatch = Minibatch(observations, batch, None, learner.algorithm, learner.scalars)
        learner.networks.gradient(minibatch, totals)
        return learner.optimiser.gradient.clone()

    beyond, lost = bound + math.copysign(1.5, bound), []
    for chunk in (networks.CHUNK_BYTES, 12 * 100 * 20):
        monkeypatch.setattr(networks, "CHUNK_BYTES", chunk)
        for entropy_weight in (-1e4, -0.3, 0.0, 0.3, 1e4):
            at, there = gradients_of(bound, entropy_weight), gradients_of(beyond, entropy_weight)
            assert at[place] != 0
            lost.append(bool(at[place] * bound < 0))  # a step against this gradient points further outside
            at[place] *= not lost[-1]
            assert_same_bits(at.abs(), there.abs())
    assert {True, False} == set(lost)


@pytest.mark.parametrize(
    ("num_envs", "horizon", "minibatches"), [(1, 5, 4), (3, 3, 8), (7, 3, 5), (1, 1, 1), (2, 2, 4)]
)
def test_minibatches_of_any_number(num_envs: int, horizon: int, minibatches: int, device: str) -> None:
    """Every sample is in one minibatch of each epoch, and none is empty."""
    trainer: Any = Trainer(small_run(device, num_envs=num_envs, horizon=horizon, minibatches=minibatches, epochs=3))
    trainer.iterate(2)
    (learner,) = trainer.learners.values()
    assert metrics_of(learner)["samples"] == 3 * num_envs * horizon
    assert learner.state()["optimiser"]["steps"].item() == 2 * 3 * minibatches
    assert np.isfinite(learner.metrics.tolist()).all()


def test_more_minibatches_than_samples_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match="minibatches is 5, but a horizon of the policy 'agent' has 4 samples"):
        Trainer(small_run(device, num_envs=2, horizon=2, minibatches=5))
    Trainer(small_run(device, num_envs=1, horizon=2, algorithm="a2c"))  # that is one epoch, whatever the default is


def test_an_update_stops_at_the_kl_limit(device: str) -> None:
    settings: dict[str, Any] = {"learning_rate": 0.05, "epochs": 4, "minibatches": 4}
    stopping: Any = Trainer(small_run(device, target_kl=0.01, **settings))
    going: Any = Trainer(small_run(device, **settings))
    for trainer in (stopping, going):
        trainer.roll_out()
        trainer.learn()
    one, other = stopping.learners["agent"], going.learners["agent"]
    steps = one.state()["optimiser"]["steps"].item()
    assert 1 <= steps < 16 == other.state()["optimiser"]["steps"].item()
    assert metrics_of(one)["samples"] == steps * 8 * 16 / 4
    assert metrics_of(one)["kl"] / metrics_of(one)["samples"] < 1.5 * 0.01

    again: Any = Trainer(small_run(device, **settings))  # exactly that many steps
    again.roll_out()
    take, done = again.learners["agent"].step, []

    def steps_before_the_stop(*given: Any) -> None:
        done.append(1)
        if len(done) <= steps:
            take(*given)

    again.learners["agent"].step = steps_before_the_stop
    again.learn()
    assert_same_bits(one.state(), again.learners["agent"].state())

    stopping.roll_out()
    stopping.learn()  # the next horizon is not affected
    assert one.state()["optimiser"]["steps"].item() > steps
    loose: Any = Trainer(small_run(device, target_kl=1e3, **settings))
    loose.iterate(1)
    assert loose.learners["agent"].state()["optimiser"]["steps"].item() == 16


def test_an_iteration_uses_the_values_of_schedules(device: str) -> None:
    rate, weight = "0:0.004,0.5:0.001,1:0", "0.2:0.5,0.8:0"
    trainer: Any = Trainer(small_run(device, learning_rate=rate, entropy_weight=weight, total_steps=8 * 16 * 10))
    assert trainer.config.iterations == 10
    learner = trainer.learners["agent"]
    for iteration in range(12):  # beyond the end the last one stays
        trainer.iterate(1)
        at = min(iteration, 9) / 10
        assert metrics_of(learner)["learning_rate"] == np.float32(Schedule.of(rate).at(at))
        assert learner.scalars[2].item() == np.float32(Schedule.of(weight).at(at))


def test_every_horizon_has_different_random_numbers(device: str) -> None:
    """Without learning: different actions for the same observations, and a different order of samples."""
    trainer: Any = Trainer(
        small_run(device, GRID, epochs=1, learning_rate=0.0, policies={"runner": "random"}, horizon=1)
    )
    learner, seen = trainer.learners["tagger"], []
    for _ in range(5):
        before = trainer.horizon_env.storage["tagger"].observations[-1].clone()
        trainer.iterate(1)
        drawn = (learner.indices, learner.actions, trainer.actions["runner"])
        seen.append([numpy_of(tensor).tobytes() for tensor in drawn])
        assert not torch.equal(before, trainer.horizon_env.storage["tagger"].observations[-1])
    for column in zip(*seen, strict=True):
        assert len(set(column)) == 5


def test_explained_variance(device: str) -> None:
    """1 - Var(returns - values) / Var(returns), over active agents."""
    for env in ("CartPole-v1", FIELD):
        trainer: Any = Trainer(small_run(device, env))
        trainer.roll_out()
        for name, learner in trainer.learners.items():
            learner.finish_rollout(trainer.horizon_env.storage)
            alive = rollout_of(trainer, name)["alive"]
            returns, values = numpy_of(learner.returns), numpy_of(learner.values)[:-1]
            expected = 1 - (returns - values)[alive].var() / returns[alive].var()
            assert metrics_of(learner)["explained_variance"] == pytest.approx(expected, rel=1e-3, abs=1e-4)
            advantages = numpy_of(learner.advantages)[alive].astype(np.float64)
            assert learner.scalars[0].item() == pytest.approx(advantages.mean(), rel=1e-4, abs=1e-6)
            assert learner.scalars[1].item() == pytest.approx(1 / advantages.std(), rel=1e-4)
            largest = max(abs(rollout_of(trainer, name)["observations"]).max(), 0)
            assert metrics_of(learner)["largest_observation"] == largest


def test_replicas_that_never_end_have_no_returns(device: str) -> None:
    trainer = Trainer(small_run(device, "Pendulum-v1", params={"max_episode_steps": -1}))
    assert trainer.horizon_env.env.max_episode_steps is None
    assert trainer.horizon_env.storage["agent"].final_obs is None
    trainer.iterate(20)
    assert math.isnan(trainer.returns["agent"])
