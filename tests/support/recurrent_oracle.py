"""A policy with memory in float64, unrolled step by step, and comparisons of a trainer with it."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from trainers import small_run

from gpu_envs.training import Trainer
from gpu_envs.training.engines.base import Minibatch
from gpu_envs.training.engines.torch import _log_probs_and_entropies
from gpu_envs.training.observations import join_rows

FIXED: Mapping[str, Any] = {"learning_rate": 0.0, "normalise_advantages": False}


def memory_run(device: str, **settings: Any) -> Any:
    return small_run(device, **{"memory": "gru:6", "hidden": (8,), **settings})


class Oracle:
    """A policy in float64, whose states are computed step by step by torch's cells."""

    def __init__(self, learner: Any) -> None:
        self.module, self.scale, self.head = learner.module, learner.scale, learner.policy_rows.head
        self.trunks = [trunk for trunk in (self.module.actor, self.module.critic) if trunk is not None]
        self.states = [self.initial(trunk, learner.policy_rows.rows) for trunk in self.trunks]

    @staticmethod
    def initial(trunk: Any, rows: int) -> Any:
        zeros = [torch.zeros(rows, trunk.cell.hidden_size).double() for _ in range(2)]
        return tuple(zeros) if isinstance(trunk.cell, nn.LSTMCell) else zeros[0]

    def normalisation(self) -> Any:
        """Copies of the mean and the inverse standard deviation of observations; None: they are not normalised."""
        scale = self.scale
        return None if scale is None else (scale.mean.cpu().clone(), scale.inverse.cpu().double())

    def weights(self) -> Iterator[Tensor]:
        """The parameters in float64, on the CPU, with gradients."""
        for parameter in self.module.parameters():
            yield parameter.detach().cpu().double().requires_grad_()

    def step(self, weights: Mapping[str, Tensor], rows: Tensor, states: list[Any]) -> tuple[Tensor, Tensor, list[Any]]:
        """Return outputs, values and states after a step."""
        outputs, after = [], []
        for name, trunk, state in zip(("actor", "critic"), self.trunks, states, strict=False):
            layer = next(key for key in weights if key.startswith(f"{name}.hidden")).removesuffix(".weight")
            rows = nn.functional.pad(rows, (0, weights[f"{layer}.weight"].shape[1] - rows.shape[1]))
            hidden = trunk.hidden[-1](rows @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"])
            cell = type(trunk.cell)(trunk.cell.input_size, trunk.cell.hidden_size).double()
            named = {key: weights[f"{name}.cell.{key}"] for key, _ in cell.named_parameters()}
            state = torch.func.functional_call(cell, named, (hidden, state))
            after.append(state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        if "heads.weight" in weights:
            both = outputs[0] @ weights["heads.weight"].T + weights["heads.bias"]
            means, values = both[:, : self.module.means], both[:, self.module.means, None]
        else:
            means = outputs[0] @ weights["actor_head.0.weight"].T + weights["actor_head.0.bias"]
            values = outputs[-1] @ weights["critic_head.0.weight"].T + weights["critic_head.0.bias"]
        if "log_std" in weights:
            means = torch.cat((means, weights["log_std"].expand(len(means), -1)), 1)
        return means, values[:, 0], after

    def named(self) -> dict[str, Tensor]:
        return dict(zip((name for name, _ in self.module.named_parameters()), self.weights(), strict=True))


def started(states: list[Any], starts: Tensor) -> list[Any]:
    """Return states that are zero where an episode starts."""

    def zeroed(state: Any) -> Any:
        if isinstance(state, tuple):
            return tuple(map(zeroed, state))
        return torch.where(starts.unsqueeze(1), 0.0, state)

    return [zeroed(state) for state in states]


class Tolerance(NamedTuple):
    """Allowed errors of a policy with memory."""

    outputs: float
    """Of log-probabilities and values."""
    gradients: float
    """In units of the largest gradient of the tensor."""
    by_layer: bool = False
    """Whether the unit of a bias is the largest of its layer's weights: PPO's ratios are sensitive, and sums cancel.

    With an enlarged last layer, weights that are rounded to TF32 change Pendulum's bias by up to 5 % of its own size.
    """


def check_against_oracle(trainer: Trainer, tolerance: Tolerance, *, ends: bool) -> None:
    oracles = {policy: Oracle(learner) for policy, learner in trainer.learners.items()}
    rows = {policy: learner.policy_rows.rows for policy, learner in trainer.learners.items()}
    starts = {policy: torch.ones(count, dtype=torch.bool) for policy, count in rows.items()}
    total = 0
    for _ in range(3):
        scales = {policy: oracle.normalisation() for policy, oracle in oracles.items()}
        trainer.iterate(1)
        for policy, learner in trainer.learners.items():
            found = check_policy(learner, trainer, oracles[policy], starts[policy], scales[policy], tolerance)
            starts[policy], total = found[0], total + found[1]
    assert total > 0 or not ends


def check_policy(
    learner: Any, trainer: Trainer, oracle: Oracle, starts: Tensor, scale: Any, tolerance: Tolerance
) -> tuple[Tensor, int]:
    """Compare a horizon of a policy with the oracle; return starts after it, and the number of ends of episodes."""
    atol = tolerance.outputs
    storage, rows, horizon = trainer.horizon_env.storage, learner.policy_rows, trainer.config.horizon
    taken = {
        key: rows.take({role: getattr(s, key) for role, s in storage.items()}, 1).cpu()
        for key in ("rewards", "terminations", "truncations", "episode_length", "alive", "action_mask")
        if getattr(next(iter(storage.values())), key) is not None
    }
    alive = taken.get("alive", torch.ones(horizon + 1, rows.rows, dtype=torch.bool))
    masks = taken.get("action_mask")

    def features(observed: Any, active: Tensor, scale: Any) -> Tensor:
        full = torch.nan_to_num(join_rows(observed).cpu().double())
        if scale is not None:
            full = ((full - scale[0]) * scale[1]).clamp(-10, 10)
        rows_of_active: Tensor = torch.where(active.unsqueeze(-1), full, 0.0)
        return rows_of_active

    before_steps = rows.observed({role: s.rows() for role, s in storage.items()}, 1)
    observations = features(before_steps, alive, scale)
    finals = None
    if all(s.final_obs is not None for s in storage.values()):
        last_rows = rows.observed({role: s.final_rows for role, s in storage.items()}, 1)
        finals = features(last_rows, torch.ones_like(alive[:horizon]), scale)
    weights, length = oracle.named(), learner.sequences.length
    steps, values, bootstraps, before, ends = [], [], [], [], 0
    state = oracle.states
    for t in range(horizon + 1):
        if t % length == 0:
            before.append(state)
        steps.append(starts)
        output, value, after = oracle.step(weights, observations[t], started(state, starts))
        values.append(value.detach())
        if t == horizon:
            break
        log_probs, _ = _log_probs_and_entropies(
            oracle.head, output, learner.actions[t].cpu(), None if masks is None else masks[t]
        )
        active = alive[t]
        np.testing.assert_allclose(learner.log_probs[t].cpu()[active], log_probs.detach()[active], atol=atol)
        np.testing.assert_allclose(learner.values[t].cpu()[active], value.detach()[active], atol=atol)
        state = after
        bootstraps.append(
            torch.zeros(rows.rows) if finals is None else oracle.step(weights, finals[t], state)[1].detach()
        )
        ended = (taken["episode_length"][t] > 0) | taken["terminations"][t] | taken["truncations"][t]
        ends += int(ended.sum())
        starts = ended | ~alive[t] | ~alive[t + 1]
    oracle.states = [tuple(s.detach() for s in part) if isinstance(part, tuple) else part.detach() for part in state]
    last = alive[horizon]
    np.testing.assert_allclose(learner.values[horizon].cpu()[last], values[horizon][last], atol=atol)
    check_returns(learner, taken, values, bootstraps, alive, max(1e-4, 4 * atol))
    observations = features(before_steps, alive, oracle.normalisation())  # the statistics have changed since
    check_gradient(learner, oracle, observations, masks, before, steps, alive, length, tolerance)
    return starts, ends


def check_returns(
    learner: Any,
    taken: Mapping[str, Tensor],
    values: list[Tensor],
    bootstraps: list[Tensor],
    alive: Tensor,
    tolerance: float,
) -> None:
    """Compare the returns with GAE of the oracle's values; a final observation's continues the state before it."""
    gamma, lam = learner.algorithm.gamma, learner.algorithm.gae_lambda
    advantage = torch.zeros_like(values[0])
    for t in reversed(range(learner.horizon)):
        terminated, truncated = taken["terminations"][t], taken["truncations"][t]
        following = torch.where(truncated, bootstraps[t].double(), values[t + 1])
        following = torch.where(terminated, 0.0, following)
        delta = taken["rewards"][t] + gamma * following - values[t]
        advantage = delta + gamma * lam * torch.where(terminated | truncated, 0.0, advantage)
        active = alive[t]
        np.testing.assert_allclose(
            learner.returns[t].cpu()[active], (advantage + values[t])[active], rtol=tolerance, atol=tolerance
        )


def check_gradient(
    learner: Any,
    oracle: Oracle,
    observations: Tensor,
    masks: Tensor | None,
    before: list[Any],
    steps: list[Tensor],
    alive: Tensor,
    length: int,
    tolerance: Tolerance,
) -> None:
    """Compare the gradient of all sequences, of other weights than acted, with autograd's in float64."""
    samples, algorithm = learner.samples[1], learner.algorithm
    saved = learner.optimiser.flat.clone()
    learner.optimiser.flat.add_(
        0.05 * torch.randn(saved.shape, generator=torch.Generator().manual_seed(1)).to(saved.device)
    )
    indices, recurrence = learner.sequences.minibatch(
        torch.arange(learner.sequences.count, dtype=torch.int32, device=learner.indices.device)
    )
    minibatch = Minibatch(learner.samples[0], samples, indices, algorithm, learner.scalars, recurrence)
    learner.networks.gradient(minibatch, learner.optimiser.totals)
    weights = oracle.named()
    gradient = learner.optimiser.gradient.cpu().clone()
    learner.optimiser.flat.copy_(saved)
    mean, inverse_std, entropy_weight, _ = learner.scalars.cpu().double()
    loss = torch.zeros(()).double()
    for first, state in zip(range(0, learner.horizon, length), before, strict=False):
        state = [tuple(s.detach() for s in part) if isinstance(part, tuple) else part.detach() for part in state]
        for t in range(first, first + length):
            output, value, state = oracle.step(weights, observations[t], started(state, steps[t]))
            log_probs, entropy = _log_probs_and_entropies(
                oracle.head, output, learner.actions[t].cpu(), None if masks is None else masks[t]
            )
            advantages = (learner.advantages[t].cpu().double() - mean) * inverse_std
            policy_loss = algorithm.policy_loss(log_probs, learner.log_probs[t].cpu().double(), advantages)
            value_loss = algorithm.value_loss(
                value, learner.values[t].cpu().double(), learner.returns[t].cpu().double()
            )
            losses = algorithm.loss(policy_loss, value_loss, entropy, entropy_weight)
            loss = loss + losses[alive[t]].sum()
    grads = torch.autograd.grad(loss, [*weights.values()])
    sizes = [grad.numel() for grad in grads]
    largest = {key: grad.abs().max() for key, grad in zip(weights, grads, strict=True)}
    for (key, expected), actual in zip(zip(weights, grads, strict=True), torch.split(gradient, sizes), strict=True):
        others = [key, key.replace("bias", "weight")] if tolerance.by_layer else [key]
        scale = max(largest[other] for other in others)
        assert (actual - expected.flatten()).abs().max() <= tolerance.gradients * scale + 1e-9, key
