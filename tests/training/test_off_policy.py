"""SAC, TD3 and DDPG: what they aim at and how they learn, beside plain torch in float64."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from harness import HAS_CUDA
from trainers import EPS, FIELD, off_policy_run

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gpu_envs.training import Trainer  # noqa: E402
from gpu_envs.training.engines import small_batch  # noqa: E402
from gpu_envs.training.engines.off_policy_kernels import FunctionActorCritic  # noqa: E402
from gpu_envs.training.engines.optimiser import Adam  # noqa: E402
from gpu_envs.training.engines.small_batch import SmallBatchActorCritic  # noqa: E402

HOPPER = HAS_CUDA and torch.cuda.get_device_capability() == (9, 0)

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS: dict[str, dict[str, Any]] = {
    "sac": {"algorithm": "sac", "initial_std": 0.5},
    "sac normalised": {"algorithm": "sac", "layer_norm": True, "normalise_observations": True, "activation": "elu"},
    "td3": {"algorithm": "td3", "policy_delay": 1, "target_noise": 0.4, "n_step": 3},
    "ddpg": {"algorithm": "ddpg", "n_step": 2},
}


class Plain:
    """One policy's networks in float64, and its losses as the papers have them."""

    def __init__(self, learner: Any) -> None:
        self.algorithm, self.learner = learner.algorithm, learner
        self.actor = copy.deepcopy(learner.module.actor).double()
        self.critics, aiming = (
            [self._critic(module.critics, number) for number in range(len(module.critics.weights[0]))]
            for module in (learner.module, learner.networks.targets)
        )
        self.targets_of = [copy.deepcopy(learner.networks.targets.actor).requires_grad_().double(), *aiming]
        self.log_temperature = torch.tensor(
            learner.networks.log_temperature.item(), dtype=torch.float64, device=learner.rate.device
        )
        self.scaled: Callable[[Any], Any] = lambda rows: rows

    def note_scale(self) -> None:
        """Keeps the statistics by which the next update normalises."""
        if self.learner.scale is not None:
            offset, inverse = self.learner.scale.offset.clone(), self.learner.scale.inverse.clone()
            self.scaled = lambda rows: ((rows - offset) * inverse).clamp(-10, 10)

    def _critic(self, critics: Any, number: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for at, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True)):
            linear = nn.Linear(weight.shape[2], weight.shape[1])
            linear.weight.data, linear.bias.data = weight[number].detach().clone(), bias[number, 0].detach().clone()
            layers.append(linear)
            if at == len(critics.weights) - 1:
                break
            if critics.gains:
                norm = nn.LayerNorm(weight.shape[1])
                norm.weight.data = critics.gains[at][number, 0].detach().clone()
                norm.bias.data = critics.shifts[at][number, 0].detach().clone()
                layers.append(norm)
            layers.append(copy.deepcopy(critics.activation))
        return nn.Sequential(*layers).double()

    def batch(self) -> tuple[Any, ...]:
        drawn = self.learner.batch
        assert bool(drawn.valid.all())
        seen, then = (self.scaled(rows).double() for rows in (drawn.observations, drawn.next_observations))
        return seen, drawn.actions.double(), drawn.returns.double(), drawn.discounts.double(), then

    def normals(self) -> tuple[Any, Any]:
        normal, rows = self.learner.normals.double(), self.algorithm.batch_size
        return normal[:rows], normal[rows:]

    def gaussian(self, outputs: Any, normal: Any) -> tuple[Any, Any]:
        """By torch's own distributions."""
        mean, log_std = outputs.chunk(2, 1)
        inner = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        before = mean + inner.stddev * normal
        log_probs = inner.log_prob(before) - torch.log1p(-torch.tanh(before).square())
        return torch.tanh(before), log_probs.sum(1)

    def aims(self) -> Any:
        _, _, returns, discounts, then = self.batch()
        algorithm, (normal, _) = self.algorithm, self.normals()
        actor, *critics = self.targets_of
        with torch.no_grad():
            if algorithm.name == "sac":
                actions, log_probs = self.gaussian(self.actor(then), normal)
            else:
                actions = torch.tanh(actor(then))
                if algorithm.name == "td3":
                    most = algorithm.target_noise_clip
                    noise = (algorithm.target_noise * normal).clamp(-most, most)
                    actions = (actions + noise).clamp(-1, 1)
            found = torch.stack([critic(torch.cat([then, actions], 1)) for critic in critics])
            worth = found.squeeze(-1).amin(0)
            if algorithm.name == "sac":
                worth = worth - self.log_temperature.exp() * log_probs
        return returns + discounts * worth

    def critics_loss(self, aims: Any) -> Any:
        seen, actions, *_ = self.batch()
        found = [critic(torch.cat([seen, actions], 1)) for critic in self.critics]
        return sum(0.5 * (each.squeeze(1) - aims).square().mean() for each in found)

    def actor_loss(self) -> tuple[Any, Any]:
        seen, *_ = self.batch()
        log_probs = torch.zeros(len(seen), dtype=torch.float64, device=seen.device)
        self.outputs = self.actor(seen)
        if self.algorithm.name == "sac":
            actions, log_probs = self.gaussian(self.outputs, self.normals()[1])
        else:
            actions = torch.tanh(self.outputs)
        found = torch.stack([critic(torch.cat([seen, actions], 1)) for critic in self.critics])
        worth = found.squeeze(-1)
        if self.algorithm.name != "sac":
            return -worth[0].mean(), log_probs
        return (self.log_temperature.exp().detach() * log_probs - worth.amin(0)).mean(), log_probs.detach()

    def of_critics(self) -> list[Any]:
        """The parameters of the critics in the order and form of ``Critics``."""
        layers = [[part for part in critic if isinstance(part, nn.Linear)] for critic in self.critics]
        norms = [[part for part in critic if isinstance(part, nn.LayerNorm)] for critic in self.critics]
        return [
            *([each.weight for each in row] for row in zip(*layers, strict=True)),
            *([each.bias for each in row] for row in zip(*layers, strict=True)),
            *([each.weight for each in row] for row in zip(*norms, strict=True)),
            *([each.bias for each in row] for row in zip(*norms, strict=True)),
        ]

    def step(self, rate: float) -> dict[str, Any]:
        """One update by plain gradient descent; returns what it found."""
        aims = self.aims()
        loss = self.critics_loss(aims)
        columns = self.of_critics()
        flat = [parameter for column in columns for parameter in column]
        gradients = torch.autograd.grad(loss, flat)
        for parameter, gradient in zip(flat, gradients, strict=True):
            parameter.data.sub_(gradient, alpha=rate)
        by_column, at = [], 0
        for column in columns:
            by_column.append(torch.stack(gradients[at : at + len(column)]))
            at += len(column)
        actor_loss, log_probs = self.actor_loss()
        by_outputs, *of_actor = torch.autograd.grad(actor_loss, [self.outputs, *self.actor.parameters()])
        for parameter, gradient in zip(self.actor.parameters(), of_actor, strict=True):
            parameter.data.sub_(gradient, alpha=rate)
        found = {"critics": by_column, "actor": of_actor, "value_loss": loss, "policy_loss": actor_loss}
        found["terms"] = {"critics": loss.item() ** 0.5, "actor": by_outputs.abs().sum().item()}
        if self.algorithm.name == "sac":
            target = -float(self.learner.policy_rows.head.width)
            found["temperature"] = -(log_probs + target).mean()
            self.log_temperature.data.sub_(found["temperature"], alpha=rate)
            found["entropy"] = -log_probs.mean()
        with torch.no_grad():
            for old, new in zip(self.targets_of, [self.actor, *self.critics], strict=True):
                for parameter, own in zip(old.parameters(), new.parameters(), strict=True):
                    parameter.lerp_(own, self.algorithm.tau)
        return found


def descent(rate: float) -> Callable[[Any, Any], None]:
    """A step of plain gradient descent in place of Adam's, which has tests of its own."""

    def step(adam: Any, how: Any) -> None:
        adam.flat.sub_(adam.gradient / adam.totals[-1], alpha=rate)
        if how.metrics is not None:
            how.metrics.add_(adam.totals)

    return step


ROUNDINGS = 2 * 9
"""Of each derivative by the actor's outputs: nine products lead there, of sums of products."""


def near(found: Any, expected: Any, terms: float = 0.0) -> None:
    """Within 1e-5 of a tensor's largest, or, where they cancel, within what rounding makes of a mean of ``terms``."""
    found, expected = found.detach().double().flatten(), expected.detach().double().flatten()
    assert (found - expected).abs().max().item() <= max(1e-5 * expected.abs().max().item(), ROUNDINGS * EPS * terms)


@pytest.mark.parametrize(
    ("kind", "kernels"), [*((kind, False) for kind in KINDS), ("sac", True), ("td3", True), ("ddpg", True)]
)
def test_ten_updates_are_those_of_plain_torch(
    kind: str, kernels: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = 0.02
    monkeypatch.setattr(Adam, "step", descent(rate))
    trainer = Trainer(off_policy_run(device, hidden=(24, 19), fused=None if kernels else False, **KINDS[kind]))
    learner: Any = trainer.learners["agent"]
    assert isinstance(learner.networks, FunctionActorCritic) == (kernels and device == "cpu")
    plain = Plain(learner)
    trainer.roll_out()
    learner.finish_rollout(trainer.horizon_env.storage)
    for _ in range(10):
        fresh = Plain(learner)  # from the same weights to the bit
        for each in (plain, fresh):
            each.note_scale()
        learner.update()
        plain.step(rate)
        expected = fresh.step(rate)
        critics, actor, *temperature = learner.optimisers
        for part, name in ((critics, "critics"), (actor, "actor")):
            sizes = [each.numel() for each in expected[name]]
            for own, gradient in zip(part.gradient.split(sizes), expected[name], strict=True):
                near(own / learner.algorithm.batch_size, gradient, expected["terms"][name])
        if temperature:
            near(temperature[0].gradient / learner.algorithm.batch_size, expected["temperature"])
        figures = dict(zip(learner.metric_names, learner.metrics.tolist(), strict=True))
        for name in ("value_loss", "policy_loss", "entropy"):
            if name in expected:
                assert figures[name] == pytest.approx(expected[name].item(), rel=1e-5, abs=1e-5)
        flat = torch.cat([parameter.flatten() for column in plain.of_critics() for parameter in column])
        near(critics.flat, flat)
        near(actor.flat, torch.cat([parameter.flatten() for parameter in plain.actor.parameters()]))


def test_what_is_learnt_from_is_of_one_episode(device: str) -> None:
    """What follows a truncation is the episode's own last observation, and after a termination nothing is expected."""
    trainer = Trainer(off_policy_run(device, FIELD, batch_size=900, buffer_size=60, horizon=30))
    trainer.iterate(1)
    for name in ("tagger", "runner"):
        learner: Any = trainer.learners[name]
        storage, drawn = trainer.horizon_env.storage[name], learner.batch
        rows = storage.observations[:-1].flatten(0, 2)
        places = torch.cdist(drawn.observations.double(), rows.double()).argmin(1)
        assert torch.equal(rows[places], drawn.observations)
        terminated, truncated = (kind.flatten()[places] for kind in (storage.terminations, storage.truncations))
        assert storage.alive is not None
        assert storage.alive[:-1].flatten()[places].all()
        assert torch.equal(drawn.returns, storage.rewards.flatten()[places])
        torch.testing.assert_close(drawn.discounts, torch.where(terminated, 0.0, 0.9))
        assert terminated.any()
        assert storage.final_obs is not None
        following = storage.observations[1:].flatten(0, 2)[places]
        after = torch.where(truncated.unsqueeze(1), storage.final_obs.flatten(0, 2)[places], following)
        assert torch.equal(after[~terminated], drawn.next_observations[~terminated])
        assert not torch.equal(after[~terminated], following[~terminated])


@pytest.mark.parametrize(
    "settings",
    [
        {"hidden": (16,), "activation": "relu", "normalise_observations": True},
        {"hidden": (33, 7, 20), "activation": "elu", "batch_size": 130},
        {"algorithm": "td3", "gradient_steps": 2, "n_step": 2, "activation": "tanh"},
    ],
)
def test_kernels_learn_as_torch_does(settings: dict[str, Any]) -> None:
    """Of several elements and agents, some out of the game; and rows that were not found count in nothing."""
    ours, theirs = (Trainer(off_policy_run("cpu", FIELD, fused=fused, **settings)) for fused in (None, False))
    for trainer in (ours, theirs):
        trainer.iterate(2)
        for learner in trainer.learners.values():
            update: Any = learner
            drawn = update.batch
            drawn.valid[::3] = False
            for tensor in (drawn.observations, drawn.actions, drawn.returns, drawn.next_observations):
                tensor[::3] = 0.0
            update.networks.learn(drawn, update.normals, actor=True)
    for name in ours.learners:
        both: tuple[Any, Any] = (ours.learners[name], theirs.learners[name])
        mine, other = both
        assert isinstance(mine.networks, FunctionActorCritic)
        assert other.fallback_reason == "fused is False"
        for one, another in zip(mine.optimisers, other.optimisers, strict=True):
            torch.testing.assert_close(one.gradient, another.gradient, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(one.totals, another.totals, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(one.flat, another.flat, rtol=1e-3, atol=1e-4)


TWO_STEPS: dict[str, Any] = {"algorithm": "td3", "gradient_steps": 2, "learning_rate": 1e-5}


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (SmallBatchActorCritic, {"batch_size": 100, "hidden": (64, 64)}),
        (SmallBatchActorCritic, {"batch_size": 256, "hidden": (256, 256), "activation": "relu"}),
        (SmallBatchActorCritic, {"batch_size": 300, "hidden": (128,), "activation": "elu", "algorithm": "ddpg"}),
        (SmallBatchActorCritic, {"batch_size": 64, "hidden": (64, 192, 128), **TWO_STEPS}),
        (FunctionActorCritic, {"batch_size": 3000, "hidden": (256, 256), "activation": "relu"}),
        (FunctionActorCritic, {"batch_size": 500, "hidden": (64, 64), "layer_norm": True}),
        (FunctionActorCritic, {"batch_size": 500, "hidden": (128, 64), "precision": "bf16", **TWO_STEPS}),
    ],
)
@pytest.mark.parametrize("env", ["Pendulum-v1", FIELD])
def test_a_gpus_kernels_learn_as_torch_does(env: str, kind: type, settings: dict[str, Any]) -> None:
    """Their products are rounded to ten bits or to seven; one step from the same weights.

    Of two steps the first is a short one: Adam's is as long for a derivative that is rounding alone.
    """
    off = 40 * (2.0**-8 if settings.get("precision") == "bf16" else 2.0**-11)
    given = {"precision": "tf32", "buffer_size": 1000, "learning_starts": 10**6, "total_steps": 10**8, **settings}
    ours, theirs = (Trainer(off_policy_run("cuda", env, fused=fused, graphs=False, **given)) for fused in (None, False))
    for trainer in (ours, theirs):
        trainer.iterate(4)  # warming up: nothing is learnt
        for learner in trainer.learners.values():
            learner.warmup_iterations = 0
            learner.update()
    for name in ours.learners:
        both: tuple[Any, Any] = (ours.learners[name], theirs.learners[name])
        mine, other = both
        assert type(mine.networks) is kind
        sizes = [each.numel() for part in ("critics", "actor") for each in getattr(mine.module, part).parameters()]
        gradients = [torch.cat([adam.gradient for adam in each.optimisers[:2]]).split(sizes) for each in (mine, other)]
        for one, another in zip(*gradients, strict=True):
            if settings.get("activation") == "relu":  # beyond its corner a slope is wrong altogether
                assert torch.linalg.norm(one - another) <= off**0.5 * torch.linalg.norm(another)
            else:
                assert (one - another).abs().max() <= off * another.abs().max()
        for one, another in zip(mine.optimisers, other.optimisers, strict=True):
            torch.testing.assert_close(one.totals, another.totals, rtol=off, atol=off)


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("settings", [{"algorithm": "sac"}, {"algorithm": "td3", "policy_delay": 1}])
def test_a_small_batchs_steps_are_adams(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Clipped, by few blocks that each take rows and weights several times, and followed by the targets."""
    given: dict[str, Any] = {
        "hidden": (64, 128),
        "precision": "tf32",
        "buffer_size": 1000,
        "learning_starts": 10**6,
        "total_steps": 10**7,
        "batch_size": 200,
        "gradient_steps": 1,
        "max_grad_norm": 1e-3,
    }
    monkeypatch.setitem(small_batch._SIZES, "blocks", "8")  # noqa: SLF001 - a cluster
    learners = []
    for _ in range(2):
        trainer = Trainer(off_policy_run("cuda", "Pendulum-v1", graphs=False, **given, **settings))
        trainer.iterate(4)  # warming up: nothing is learnt
        learner: Any = trainer.learners["agent"]
        learners.append(learner)
    within, apart = (learner.networks for learner in learners)
    assert isinstance(within, SmallBatchActorCritic)
    assert isinstance(apart, SmallBatchActorCritic)
    assert apart._takes_steps  # noqa: SLF001 - the same step by other kernels
    apart._takes_steps = False  # noqa: SLF001 - the same step by other kernels
    for kernel in (apart._update_critics, apart._update_actor):  # noqa: SLF001 - the same step by other kernels
        kernel.fill(alone=0)
    begun = within.state()["targets"]
    for learner in learners:
        learner.warmup_iterations = 0
    for _ in range(4):  # from the same weights: in TF32 another last bit of a weight can be another rounding
        apart.load(within.state())
        for mine, other in zip(within.optimisers, apart.optimisers, strict=True):
            other.flat.data.copy_(mine.flat)
        for learner in learners:
            learner.update()
        for mine, other in zip(within.optimisers, apart.optimisers, strict=True):
            torch.testing.assert_close(mine.flat, other.flat, rtol=1e-6, atol=1e-8)
            for name, kept in mine.state().items():
                torch.testing.assert_close(kept, other.state()[name], rtol=1e-5, atol=1e-12)
        for name, kept in within.state()["targets"].items():
            torch.testing.assert_close(kept, apart.state()["targets"][name], rtol=1e-6, atol=1e-8)
            assert not torch.equal(kept, begun[name]) or (name.startswith("actor") and settings["algorithm"] == "sac")
        torch.testing.assert_close(within.norm, apart.norm, rtol=1e-5, atol=0)
    assert within.norm > 10 * given["max_grad_norm"]  # so that it was clipped
