"""An update is that of plain torch."""

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, numpy_of
from trainers import EPS, FIELD, GRID, figures_of, small, taken

torch = pytest.importorskip("torch")

from gpu_envs.training import Schedule, Trainer  # noqa: E402
from gpu_envs.training.operations.heads import LOG_STD_RANGE  # noqa: E402
from gpu_envs.training.policies import networks  # noqa: E402
from gpu_envs.training.rollout.horizon_env import HorizonEnv  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


Tensor = Any


def losses(
    module: Any,
    batch: Mapping[str, Tensor],
    rows: Tensor,
    config: Any,
    entropy_weight: float,
    moments: tuple[float, float],
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of some samples as the papers have it, one number each, and what a log shows of it."""
    parameters, values = module(batch["observations"][rows])
    if "discrete" in config:
        distribution: Any = torch.distributions.Categorical(logits=parameters)
        log_probs = distribution.log_prob(batch["actions"][rows, 0])
        entropy = distribution.entropy()
    else:
        mean, log_std = parameters.chunk(2, -1)
        distribution = torch.distributions.Normal(mean, log_std.exp())
        log_probs = distribution.log_prob(batch["actions"][rows]).sum(-1)
        entropy = distribution.entropy().sum(-1)
    advantages = (batch["advantages"][rows] - moments[0]) * moments[1]
    ratio = (log_probs - batch["log_probs"][rows]).exp()
    if config["algorithm"] == "ppo":
        clipped = ratio.clamp(1 - config["clip"], 1 + config["clip"])
        policy = -torch.minimum(ratio * advantages, clipped * advantages)
    else:
        policy = -log_probs * advantages
    value = 0.5 * (values - batch["returns"][rows]) ** 2
    total = policy + config["value_weight"] * value - entropy_weight * entropy
    divergence = (ratio - 1) - (log_probs - batch["log_probs"][rows])
    return total, {"policy_loss": policy, "value_loss": value, "entropy": entropy, "kl": divergence}


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", GRID])
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_an_update_is_that_of_plain_torch(algorithm: str, env: str, device: str) -> None:
    """Step by step: the gradient at the same weights, and the weights that Adam makes of the same gradient."""
    passes = {"epochs": 3, "minibatches": 2} if algorithm == "ppo" else {}
    config = small(
        device, env, algorithm=algorithm, num_envs=3, horizon=7, learning_rate=0.02, entropy_weight=0.03,
        hidden=(6, 5), fused=False, max_grad_norm=0.3, normalise_advantages=env != GRID, **passes,
    )  # fmt: skip
    trainer = Trainer(config)
    trainer.roll_out()
    trainer.learn()  # so that values and moments are no beginner's
    trainer.roll_out()
    name = next(iter(trainer.learners))
    learner: Any = trainer.learners[name]
    for (_, rate), value in zip(learner.schedules, (0.02, 0.03), strict=True):
        rate.fill_(value)
    for other in trainer.learners.values():
        other.conclude(trainer.horizon_env.storage)
    observations, flat = learner.samples
    batch = {n: getattr(flat, n).double() for n in ("log_probs", "advantages", "returns")}
    batch |= {"observations": observations.double()}
    discrete = learner.policy_rows.head.kind == "discrete"
    batch["actions"] = flat.actions.long() if discrete else flat.actions.double()
    alive = torch.ones_like(batch["returns"], dtype=torch.bool) if flat.alive is None else flat.alive.bool()
    moments = (0.0, 1.0)
    if config.normalise_advantages:
        some = batch["advantages"][alive]
        moments = (some.mean().item(), 1 / (some.std(correction=0).item() + 1e-8))
    kinds: dict[str, Any] = {
        "algorithm": algorithm, "clip": config.clip, "value_weight": config.value_weight,
        **({"discrete": True} if discrete else {}),
    }  # fmt: skip

    double = copy.deepcopy(learner.module).double()
    weights = list(double.parameters())
    adam = torch.optim.Adam(weights, lr=0.02, eps=1e-5)
    kept = learner.optimiser.state()
    start = int(kept["steps"].item())
    for parameter, mean, square in zip(
        weights, pieces(kept["means"], weights), pieces(kept["squares"], weights), strict=True
    ):
        adam.state[parameter] = {
            "step": torch.tensor(float(start)), "exp_avg": mean.double(), "exp_avg_sq": square.double(),
        }  # fmt: skip
    epochs, minibatches = config.passes
    samples = len(batch["returns"])
    order = torch.arange(samples, dtype=torch.int32, device=trainer.device)
    stream = learner.streams["minibatches"].clone()
    sums = dict.fromkeys(("policy_loss", "value_loss", "entropy", "kl", "samples"), 0.0)
    steps: list[tuple[Tensor, ...]] = []
    take = learner.step

    def checked(some: Tensor, all_of_it: Any, number: int) -> None:
        if epochs * minibatches > 1 and number == 0:
            learner.permutation.write(order, stream, len(steps) // minibatches)
        cuts = [part * samples // minibatches for part in range(minibatches + 1)]
        rows = order[cuts[number] : cuts[number + 1]].long()
        rows = rows[alive[rows]]
        copy_into(weights, learner.optimiser.flat)
        total, parts = losses(double, batch, rows, kinds, 0.03, moments)
        one_by_one = torch.eye(len(total), dtype=torch.float64, device=trainer.device)
        each = torch.autograd.grad(total, weights, one_by_one, is_grads_batched=True)  # of each sample
        before = learner.optimiser.flat.clone()
        take(some, all_of_it, number)
        for part, values in parts.items():
            sums[part] += values.sum().item()
        sums["samples"] += len(rows)
        for index, found in enumerate(pieces(learner.optimiser.gradient, weights)):
            expected = each[index]
            # A sample's gradient is off by the roundings of products of two layers, the loss and the sum: some dozens
            allowed = 64 * EPS * (expected.abs().amax() * len(rows) + EPS)
            assert (found.double() - expected.sum(0)).abs().max() <= allowed
        for parameter, gradient in zip(weights, pieces(learner.optimiser.gradient, weights), strict=True):
            parameter.grad = gradient.double() / len(rows)
        torch.nn.utils.clip_grad_norm_(weights, 0.3)
        adam.step()
        ours = learner.optimiser.flat
        theirs = torch.cat([p.detach().ravel() for p in weights])
        # a step is lr times a ratio of about 1, made in a few float32 operations; the weight is rounded once more
        assert (ours - theirs).abs().max() <= 0.02 * 64 * EPS + EPS * theirs.abs().max()
        steps.append((before, ours.clone()))

    learner.step = checked
    learner.update()
    assert len(steps) == epochs * minibatches
    assert all(not torch.equal(before, after) for before, after in steps)
    found = figures_of(learner)
    for part, expected in sums.items():
        assert found[part] == pytest.approx(expected, rel=1e-4, abs=1e-4), part


def pieces(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    return [p.view(q.shape).clone() for p, q in zip(flat.split([p.numel() for p in like]), like, strict=True)]


def copy_into(weights: list[Tensor], flat: Tensor) -> None:
    for parameter, values in zip(weights, pieces(flat, weights), strict=True):
        parameter.data.copy_(values)


@pytest.mark.parametrize(("env", "shared"), [("CartPole-v1", False), (FIELD, True)])
def test_pieces_of_a_minibatch_add_up(env: str, shared: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer: Any = Trainer(small(device, env, fused=False, shared_trunk=shared))
    trainer.roll_out()
    learner: Any = next(iter(trainer.learners.values()))
    learner.conclude(trainer.horizon_env.storage)
    observations, batch = learner.samples
    order = torch.arange(len(observations), dtype=torch.int32, device=trainer.device).flip(0)[:101].contiguous()

    def found(chosen: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        totals, values = torch.zeros(6, device=trainer.device), torch.zeros(len(observations), device=trainer.device)
        learner.networks.gradient(observations, batch, chosen, learner.loss_settings, learner.scalars, totals)
        learner.networks.values(observations, values)
        return learner.optimiser.gradient.clone(), totals, values

    for chosen in (None, order):
        whole = found(chosen)
        with monkeypatch.context() as patch:
            patch.setattr(networks, "CHUNK_BYTES", 12 * 100 * 20)
            assert learner.networks._chunk(len(observations)) < 100  # noqa: SLF001 - makes sure that there are several parts
            parts = found(chosen)
        assert not torch.equal(whole[0], parts[0])  # other sums
        for one, other in zip(whole, parts, strict=True):
            # sums of some hundred samples of either sign, in another order
            assert (one - other).abs().max() <= 512 * EPS * one.abs().max().clamp(min=1.0)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bound", LOG_STD_RANGE)
def test_a_deviation_beyond_a_bound_follows_what_leads_back(
    bound: float, shared: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It acts as one at the bound; so its gradient is the one there, and nothing where that leads further out."""
    trainer: Any = Trainer(small(device, "Pendulum-v1", shared_trunk=shared))
    trainer.roll_out()
    learner: Any = trainer.learners["agent"]
    learner.conclude(trainer.horizon_env.storage)
    observations, batch = learner.samples
    flat = learner.optimiser.flat
    place = (learner.module.log_std.data_ptr() - flat.data_ptr()) // flat.element_size()

    def found(log_std: float, entropy_weight: float) -> Tensor:
        learner.module.log_std.data.fill_(log_std)
        learner.scalars[2] = entropy_weight
        totals = torch.zeros(6, device=trainer.device)
        learner.networks.gradient(observations, batch, None, learner.loss_settings, learner.scalars, totals)
        return learner.optimiser.gradient.clone()

    beyond, lost = bound + math.copysign(1.5, bound), []
    for chunk in (networks.CHUNK_BYTES, 12 * 100 * 20):
        monkeypatch.setattr(networks, "CHUNK_BYTES", chunk)
        for entropy_weight in (-1e4, -0.3, 0.0, 0.3, 1e4):
            at, there = found(bound, entropy_weight), found(beyond, entropy_weight)
            assert at[place] != 0
            lost.append(bool(at[place] * bound < 0))  # a step against such a gradient leads further out
            at[place] *= not lost[-1]
            assert_same_bits(at.abs(), there.abs())
    assert {True, False} == set(lost)


def test_a_deviation_comes_back(device: str) -> None:
    """An entropy bonus has pushed it out; then it is gone, and there is a price on what is out."""
    trainer: Any = Trainer(
        small(device, "Pendulum-v1", initial_std=7.0, learning_rate=0.05, entropy_weight="0:5,0.1:5,0.11:-5",
              total_steps=8 * 16 * 100)
    )  # fmt: skip
    log_std = trainer.learners["agent"].module.log_std
    trainer.iterate(8)
    assert log_std.item() > LOG_STD_RANGE[1]
    trainer.iterate(80)
    assert log_std.item() < LOG_STD_RANGE[1] - 1


@pytest.mark.parametrize("whole", [False, True])
def test_what_the_dead_observe_does_not_reach_the_weights(
    whole: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer: Any = Trainer(small(device, FIELD, fused=False, normalise_observations=True))
    trainer.roll_out()
    learner = trainer.learners["runner"]
    learner.conclude(trainer.horizon_env.storage)
    observations, batch = learner.samples
    order = torch.arange(len(observations), dtype=torch.int32, device=trainer.device).flip(0).contiguous()
    dead = torch.rand(len(observations), generator=torch.Generator().manual_seed(0)).to(trainer.device) < 0.3
    batch = dataclasses.replace(batch, alive=~dead)
    hollow = torch.where(dead.unsqueeze(1), math.nan, observations)

    def found(some: Tensor) -> Tensor:
        totals = torch.zeros(6, device=trainer.device)
        chosen = None if whole else order
        learner.networks.gradient(some, batch, chosen, learner.loss_settings, learner.scalars, totals)
        return learner.optimiser.gradient.clone()

    for pieces_of in (2**30, 12 * 100 * 20):
        monkeypatch.setattr(networks, "CHUNK_BYTES", pieces_of)
        assert torch.isfinite(found(hollow)).all()
        assert_same_bits(found(hollow), found(torch.where(dead.unsqueeze(1), 3.0, observations)))


@pytest.mark.parametrize(
    ("num_envs", "horizon", "minibatches"), [(1, 5, 4), (3, 3, 8), (7, 3, 5), (1, 1, 1), (2, 2, 4)]
)
def test_minibatches_of_any_number(num_envs: int, horizon: int, minibatches: int, device: str) -> None:
    """Every sample is in one minibatch of each epoch, and none is empty."""
    trainer: Any = Trainer(small(device, num_envs=num_envs, horizon=horizon, minibatches=minibatches, epochs=3))
    trainer.iterate(2)
    (learner,) = trainer.learners.values()
    assert figures_of(learner)["samples"] == 3 * num_envs * horizon
    assert learner.state()["optimiser"]["steps"].item() == 2 * 3 * minibatches
    assert np.isfinite(learner.figures.tolist()).all()


def test_more_minibatches_than_samples_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match="minibatches is 5; a horizon of the policy 'agent' has 4 samples"):
        Trainer(small(device, num_envs=2, horizon=2, minibatches=5))
    Trainer(small(device, num_envs=1, horizon=2, algorithm="a2c"))  # that is one pass, whatever the default is


def test_an_update_stops_where_the_policy_has_moved_too_far(device: str) -> None:
    settings: dict[str, Any] = {"learning_rate": 0.05, "epochs": 4, "minibatches": 4}
    stopping: Any = Trainer(small(device, target_kl=0.01, **settings))
    going: Any = Trainer(small(device, **settings))
    for trainer in (stopping, going):
        trainer.roll_out()
        trainer.learn()
    one, other = stopping.learners["agent"], going.learners["agent"]
    steps = one.state()["optimiser"]["steps"].item()
    assert 1 <= steps < 16 == other.state()["optimiser"]["steps"].item()
    assert figures_of(one)["samples"] == steps * 8 * 16 / 4
    assert figures_of(one)["kl"] / figures_of(one)["samples"] < 1.5 * 0.01

    again: Any = Trainer(small(device, **settings))  # that many steps and no more
    again.roll_out()
    take, done = again.learners["agent"].step, []

    def few(*given: Any) -> None:
        done.append(1)
        if len(done) <= steps:
            take(*given)

    again.learners["agent"].step = few
    again.learn()
    assert_same_bits(one.state(), again.learners["agent"].state())

    stopping.roll_out()
    stopping.learn()  # the next horizon begins afresh
    assert one.state()["optimiser"]["steps"].item() > steps
    loose: Any = Trainer(small(device, target_kl=1e3, **settings))
    loose.iterate(1)
    assert loose.learners["agent"].state()["optimiser"]["steps"].item() == 16


def test_an_iteration_has_what_its_schedules_say(device: str) -> None:
    rate, weight = "0:0.004,0.5:0.001,1:0", "0.2:0.5,0.8:0"
    trainer: Any = Trainer(small(device, learning_rate=rate, entropy_weight=weight, total_steps=8 * 16 * 10))
    assert trainer.config.iterations == 10
    learner = trainer.learners["agent"]
    for iteration in range(12):  # beyond the end the last one stays
        trainer.iterate(1)
        at = min(iteration, 9) / 10
        assert figures_of(learner)["learning_rate"] == np.float32(Schedule.of(rate).at(at))
        assert learner.scalars[2].item() == np.float32(Schedule.of(weight).at(at))


def test_every_horizon_has_random_numbers_of_its_own(device: str) -> None:
    """Every epoch an order of its own; and where nothing is learnt, other actions for the same observations."""
    trainer: Any = Trainer(small(device, GRID, epochs=1, learning_rate=0.0, policies={"runner": "random"}, horizon=1))
    learner, seen = trainer.learners["tagger"], []
    for _ in range(5):
        before = trainer.horizon_env.storage["tagger"].observations[-1].clone()
        trainer.iterate(1)
        drawn = (learner.indices, learner.actions, trainer.actions["runner"])
        seen.append([numpy_of(tensor).tobytes() for tensor in drawn])
        assert not torch.equal(before, trainer.horizon_env.storage["tagger"].observations[-1])
    for column in zip(*seen, strict=True):
        assert len(set(column)) == 5
    orders: Any = []
    trainer = Trainer(small(device, epochs=3))
    trainer.roll_out()
    learner = trainer.learners["agent"]
    take = learner.step

    def noting(observations: Tensor, batch: Any, number: int) -> None:
        orders.append(numpy_of(learner.indices).tobytes())
        take(observations, batch, number)

    learner.step = noting
    trainer.learn()
    assert len(set(orders)) == 3


def test_nothing_is_learnt_at_rate_zero(device: str) -> None:
    trainer: Any = Trainer(small(device, learning_rate=0.0))
    before = trainer.learners["agent"].state()["module"]
    trainer.iterate(3)
    assert_same_bits(before, trainer.learners["agent"].state()["module"])


def test_values_explain_what_they_equal(device: str) -> None:
    """Figures of a horizon: 1 - Var(returns - values) / Var(returns), over agents in the game."""
    for env in ("CartPole-v1", FIELD):
        trainer: Any = Trainer(small(device, env))
        trainer.roll_out()
        for name, learner in trainer.learners.items():
            learner.conclude(trainer.horizon_env.storage)
            alive = taken(trainer, name)["alive"]
            returns, values = numpy_of(learner.returns), numpy_of(learner.values)[:-1]
            expected = 1 - (returns - values)[alive].var() / returns[alive].var()
            assert figures_of(learner)["explained_variance"] == pytest.approx(expected, rel=1e-3, abs=1e-4)
            advantages = numpy_of(learner.advantages)[alive].astype(np.float64)
            assert learner.scalars[0].item() == pytest.approx(advantages.mean(), rel=1e-4, abs=1e-6)
            assert learner.scalars[1].item() == pytest.approx(1 / advantages.std(), rel=1e-4)
            largest = max(abs(taken(trainer, name)["observations"]).max(), 0)
            assert figures_of(learner)["largest_observation"] == largest


def test_an_arena_of_replicas_that_never_end(device: str) -> None:
    trainer: Any = Trainer(small(device, "Pendulum-v1", params={"max_episode_steps": -1}))
    horizon_env: HorizonEnv = trainer.horizon_env
    assert horizon_env.limit is None
    assert horizon_env.storage["agent"].final_obs is None
    trainer.iterate(20)
    assert math.isnan(trainer.returns["agent"])
