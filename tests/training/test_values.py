"""PQN: its actions, targets and updates, against torch and NumPy."""

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import HAS_CUDA, assert_same_bits
from trainers import (
    FIELD,
    FIELD_PARAMS,
    GRID,
    MODULE_SETTINGS,
    assert_resumes_identically,
    metrics_of,
    small_run,
    without_times,
)

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gpu_envs.backend import resolve_device  # noqa: E402
from gpu_envs.training import Network, Run, Trainer, resume, train  # noqa: E402
from gpu_envs.training.algorithms import PQN  # noqa: E402
from gpu_envs.training.engines import Case  # noqa: E402
from gpu_envs.training.engines.base import TOTALS, ActRequest, Minibatch, ValueRequest  # noqa: E402
from gpu_envs.training.engines.functions import FunctionQValues  # noqa: E402
from gpu_envs.training.engines.optimiser import Adam  # noqa: E402
from gpu_envs.training.engines.torch import TorchQValues  # noqa: E402
from gpu_envs.training.heads import Head  # noqa: E402
from gpu_envs.training.process.device import warm_up_autograd  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

HOPPER = HAS_CUDA and torch.cuda.get_device_capability() == (9, 0)


def pqn(device: str, env: str = "CartPole-v1", **settings: Any) -> Run:
    return small_run(device, env, algorithm="pqn", **settings)


# --- actions ---


class Identity(nn.Module):
    """A Q network whose outputs are its observations."""

    def __init__(self) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(()))

    def forward(self, observations: Any) -> Any:
        return observations + self.zero


SIZES = (3, 1, 4)


def chosen(values: Any, device: str, epsilon: float, mask: Any = None, *, greedy: bool = False) -> tuple[Any, Any]:
    """Actions, counted from 0, and the Q values of the best actions."""
    place = resolve_device(device)
    head = Head.of(gymnasium.spaces.MultiDiscrete(list(SIZES), start=[0, 5, -2]))
    networks = TorchQValues(Case(PQN(), Network(), head, head.parameters, place, threads=1), Identity().to(place), None)
    networks.epsilon.fill_(epsilon)
    rows = len(values)
    actions = torch.zeros((rows, 3), dtype=torch.int32, device=place)
    log_probs, best = torch.zeros(rows, device=place), torch.zeros(rows, device=place)
    stream = torch.tensor([99, 7], device=place)
    request = ActRequest(values.to(place), actions, log_probs, stream, 0, best, greedy=greedy, action_mask=mask)
    networks.act(request)
    again = torch.empty_like(best)
    networks.values(ValueRequest(values.to(place), again, action_mask=mask))
    assert torch.equal(best, again)
    return actions.cpu() - torch.tensor(head.starts), best.cpu()


def test_an_element_is_the_best_choice_or_a_random_one(device: str) -> None:
    rows, epsilon = 40_000, 0.3
    values = torch.randn(1, sum(SIZES), generator=torch.Generator().manual_seed(1)).expand(rows, -1)
    actions, best = chosen(values, device, epsilon)
    first, total = 0, 0.0
    for element, size in enumerate(SIZES):
        q_values = values[0, first : first + size]
        frequencies = torch.bincount(actions[:, element].long(), minlength=size) / rows
        expected = torch.full((size,), epsilon / size)
        expected[q_values.argmax()] += 1 - epsilon
        assert (frequencies - expected).abs().max() < 4 * (0.25 / rows) ** 0.5
        total += float(q_values.max())
        first += size
    assert best[0].item() == pytest.approx(total / len(SIZES), rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_greedy_actions(epsilon: float, device: str) -> None:
    values = torch.randn(500, sum(SIZES), generator=torch.Generator().manual_seed(2))
    best = torch.stack([part.argmax(1) for part in values.split(SIZES, 1)], 1)
    assert torch.equal(chosen(values, device, epsilon, greedy=True)[0], best)
    if epsilon == 0.0:
        assert torch.equal(chosen(values, device, epsilon)[0], best)


def test_masked_choices_are_neither_taken_nor_the_best(device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(5000, sum(SIZES), generator=generator)
    mask = torch.rand(values.shape, generator=generator) < 0.5
    mask[:, [0, 3, 4]] = True  # each element has an allowed choice
    for greedy in (False, True):
        actions, best = chosen(values, device, 0.5, mask.to(torch.int8).to(resolve_device(device)), greedy=greedy)
        columns = actions + torch.tensor([0, 3, 4])
        assert mask.gather(1, columns).all()
    allowed = torch.where(mask, values, -torch.inf)
    expected = torch.stack([part.amax(1) for part in allowed.split(SIZES, 1)]).mean(0)
    assert torch.allclose(best, expected, rtol=1e-6)


# --- targets and updates ---


def lambda_returns(trainer: Trainer, name: str, best: Any, final: Any) -> np.ndarray:
    """Q(lambda) in float64, from the best Q values, [T + 1, rows], and final observations' Q values, [T, rows]."""
    storage, config = trainer.horizon_env.storage[name], trainer.config
    algorithm = config.algorithm
    assert isinstance(algorithm, PQN)
    rewards, terminated, truncated = (
        getattr(storage, key).flatten(1).cpu().numpy() for key in ("rewards", "terminations", "truncations")
    )
    returns, ahead = np.zeros(rewards.shape), best[-1]
    for t in range(config.horizon - 1, -1, -1):
        mixed = algorithm.gae_lambda * ahead + (1 - algorithm.gae_lambda) * best[t + 1]
        rest = np.where(terminated[t], 0.0, np.where(truncated[t], final[t], mixed))
        returns[t] = ahead = rewards[t] + algorithm.gamma * rest
    return returns


def test_returns_and_an_update_match_torch(device: str) -> None:
    """Truncated episodes bootstrap from their final observation."""
    config = pqn(
        device,
        params={"max_episode_steps": 9},
        num_envs=6,
        horizon=20,
        epochs=1,
        minibatches=1,
        learning_rate=0.02,
        gae_lambda=0.7,
        gamma=0.9,
        hidden=(9, 5),
        layer_norm=True,
        max_grad_norm=None,
    )
    trainer = Trainer(config)
    trainer.iterate(2)
    trainer.roll_out()
    learner: Any = trainer.learners["agent"]
    storage = trainer.horizon_env.storage["agent"]
    assert storage.truncations.any()
    module = copy.deepcopy(learner.module).double()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    with torch.no_grad():
        best = module(storage.observations.flatten(0, 2).double()).amax(1).view(21, 6).cpu().numpy()
        assert storage.final_obs is not None
        final = module(storage.final_obs.flatten(0, 2).double()).amax(1).view(20, 6).cpu().numpy()
    expected = lambda_returns(trainer, "agent", best, final)
    trainer.learn()
    returns = learner.returns.cpu().numpy()
    np.testing.assert_allclose(returns, expected, rtol=2e-5, atol=2e-5)
    values = module(storage.observations[:-1].flatten(0, 2).double())
    actions = learner.actions.flatten(0, 1).long()
    errors = values.gather(1, actions).squeeze(1) - learner.returns.flatten().double()
    loss = 0.5 * errors.square().mean()
    grads = torch.autograd.grad(loss, list(module.parameters()))
    gradients = learner.optimiser.gradient.double() / errors.numel()
    for parameter, gradient in zip(grads, gradients.split([each.numel() for each in before]), strict=True):
        assert (parameter.flatten() - gradient).abs().max() <= 1e-5 * parameter.abs().max()
    figures = metrics_of(learner)
    assert figures["value_loss"] / figures["samples"] == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("env", ["CartPole-v1", FIELD, GRID])
def test_kernels_match_torch(env: str, precision: str) -> None:
    """Values and gradients from the same weights and samples, with masks and inactive agents; tanh is smooth."""
    tolerance = 40 * {"tf32": 2.0**-11, "bf16": 2.0**-8}[precision]
    params = FIELD_PARAMS if env == FIELD else {}
    trainer = Trainer(pqn("cuda", env, params=params, hidden=(64, 128), layer_norm=True, precision=precision))
    trainer.iterate(2)
    learners: dict[str, Any] = dict(trainer.learners)
    for learner in learners.values():
        mine: Any = learner.networks
        assert isinstance(mine, FunctionQValues)
        assert mine.optimiser is not None
        module = copy.deepcopy(learner.module)
        warm_up_autograd("cuda")
        adam = Adam(list(module.parameters()), device="cuda")
        case = Case(PQN(), Network(), mine.head, learner.policy_rows.features, "cuda")
        other = TorchQValues(case, module, mine.scale, adam)
        observations, batch = learner.samples
        chosen = torch.randperm(len(observations), device="cuda")[: len(observations) // 2].int()
        for indices in (None, chosen):
            totals = torch.full((2, TOTALS), torch.nan, device="cuda")
            minibatch = Minibatch(observations, batch, indices, learner.algorithm, learner.scalars)
            for networks, sums in zip((mine, other), totals, strict=True):
                networks.gradient(minibatch, sums)
            one, another = mine.optimiser.gradient, adam.gradient
            assert torch.linalg.norm(one - another) <= tolerance * torch.linalg.norm(another)
            torch.testing.assert_close(*totals, rtol=tolerance, atol=tolerance)
        values = torch.full((2, len(observations)), torch.nan, device="cuda")
        for networks, found in zip((mine, other), values, strict=True):
            networks.values(ValueRequest(observations, found, action_mask=batch.action_mask))
        assert (values[0] - values[1]).abs().max() <= tolerance * max(1.0, float(values[1].abs().max()))


# --- runs ---


@pytest.mark.parametrize("fused", [None, False])  # None: kernels on Hopper and on a CPU
def test_epsilon_changes_from_horizon_to_horizon(fused: bool | None, device: str) -> None:
    """The first horizon has only random choices, the second only the best ones."""
    config = pqn(
        device,
        total_steps=4 * 8 * 16,
        epsilon="0:1,0.25:0",
        hidden=(64, 64),
        precision="tf32",
        fused=fused,
    )
    trainer = Trainer(config)
    learner: Any = trainer.learners["agent"]
    assert isinstance(learner.networks, FunctionQValues) == ((HOPPER or device == "cpu") and fused is None)
    # half of 128 random choices are the best ones, within 4.5 standard deviations
    for low, high in ((0.3, 0.7), (1.0, 1.0)):
        trainer.roll_out()
        best = torch.empty_like(learner.actions)
        for t, actions in enumerate(best):
            observations = trainer.horizon_env.storage["agent"].observations[t, :, 0]
            log_probs, stream = learner.log_probs[t].clone(), learner.streams["actions"]
            learner.networks.act(ActRequest(observations, actions, log_probs, stream, t, greedy=True))
        assert low <= (learner.actions == best).float().mean().item() <= high
        trainer.learn()


def test_boxes_are_refused_before_anything_is_allocated() -> None:
    with pytest.raises(ValueError, match="pqn supports discrete actions, and the policy 'agent'"):
        Trainer(pqn("cpu", "Pendulum-v1"))


def test_a_users_module(device: str) -> None:
    module = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    trainer = Trainer(pqn(device, **MODULE_SETTINGS), modules={"agent": module})
    trainer.iterate(3)
    with pytest.raises(
        ValueError, match=r"maps observations \[2, 4\] to \(2, 3\); expected the Q values of choices \(2, 2\)"
    ):
        Trainer(pqn(device, **MODULE_SETTINGS), modules={"agent": nn.Linear(4, 3)})


@pytest.mark.parametrize("env", ["CartPole-v1", GRID, FIELD])
def test_a_resumed_run_has_the_same_bits(env: str, device: str) -> None:
    switches = dict.fromkeys(("normalise_observations", "normalise_rewards", "layer_norm"), True)
    full, half, other = (Trainer(pqn(device, env, epsilon="0:0.9,1:0.1", **switches)) for _ in range(3))
    full.iterate(8)
    half.iterate(4)
    other.load(half.state())
    other.iterate(4)
    assert_same_bits(without_times(full.state()), without_times(other.state()))
    for learner in full.learners.values():
        assert np.isfinite(learner.metrics.tolist()).all()


def test_train_and_resume(tmp_path: Path, device: str) -> None:
    config = pqn(device, run_dir=str(tmp_path / "run"), total_steps=8 * 16 * 6, checkpoint_interval=3, log_interval=2)
    result = train(config, progress=False)
    assert result.steps == 8 * 16 * 6
    header = (tmp_path / "run" / "log.csv").read_text().splitlines()[0].split(",")
    assert "value_loss" in header
    assert not {"kl", "entropy", "policy_loss", "clip_fraction"} & {*header}
    assert resume(tmp_path / "run", total_steps=8 * 16 * 9, progress=False).steps == 8 * 16 * 9


def test_a_frozen_q_network_acts(tmp_path: Path, device: str) -> None:
    train(pqn(device, GRID, run_dir=str(tmp_path / "run"), total_steps=8 * 16 * 2), progress=False)
    config = small_run(device, GRID, policies={"runner": f"frozen:{tmp_path / 'run'}"})
    assert_resumes_identically(config)
