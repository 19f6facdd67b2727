"""A policy that learns: what it keeps of a horizon, its advantages, and its update (Schulman et al. 2017)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import nn

from gpu_envs.seeds import derived_seed
from gpu_envs.training.config import Config
from gpu_envs.training.operations.advantage import Advantages
from gpu_envs.training.operations.ops import LossSettings, Samples
from gpu_envs.training.operations.optimiser import Adam, Step
from gpu_envs.training.operations.permutation import Permutation
from gpu_envs.training.policies.networks import TOTALS, Networks
from gpu_envs.training.policies.normalise import ObservationScale, RewardScale
from gpu_envs.training.policies.parts import Rows, chosen_rows, largest_of
from gpu_envs.training.process.group import Group
from gpu_envs.training.rollout.horizon_env import RoleStorage
from gpu_envs.training.rollout.policy_rows import PolicyRows
from gpu_envs.training.rollout.sample_storage import SampleStorage

FIGURES = (
    *("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "samples"),
    *("explained_variance", "gradient_norm", "learning_rate", "largest_observation"),
)
"""What a learner reports of each iteration; the first six are sums over its minibatches."""

_KL_MARGIN = 1.5
"""An update stops where the divergence exceeds the target by this factor."""


@final
class Learner:
    """One policy's storage, random numbers and update; everything on the device, nothing read back.

    Attributes:
        policy_rows: The agents it acts for.
        module: Its weights.
        networks: How that is run.
        config: The run, with the settings that are the policy's own.
        figures: What the last iteration was like: ``FIGURES``.
    """

    def __init__(
        self, policy_rows: PolicyRows, module: nn.Module, networks: Networks, optimiser: Adam,
        scale: ObservationScale | None, config: Config, device: str, limit: int | None, group: Group,
    ) -> None:  # fmt: skip
        """Allocates; episodes are truncated at step ``limit``, or never. The group's samples count as one batch."""
        self.policy_rows, self.module, self.networks = policy_rows, module, networks
        self.config, self._optimiser, self._scale, self._group = config, optimiser, scale, group
        kept = SampleStorage(config, policy_rows.rows, policy_rows.head, device)

        def made(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._actions, self._log_probs, self._values = kept.actions, kept.log_probs, kept.values
        self._advantages, self._returns, self._acted = kept.advantages, kept.returns, kept.acted
        self._sums, self._indices = kept.sums, kept.indices
        self._limit = limit
        self._advantage = Advantages(device, config.cpu_threads)
        self._rewards = RewardScale(policy_rows.rows, device, group) if config.normalise_rewards else None
        self._statistics = {"observations": self._scale, "rewards": self._rewards}
        each, minibatches = policy_rows.each, config.passes[1]  # agents that share observations stay together
        samples = config.horizon * policy_rows.rows // each
        shuffled = self._indices is not None
        self._permutation = Permutation(samples, device, config.cpu_threads) if shuffled else None
        self._groups = made(samples, dtype=torch.int32) if shuffled and each > 1 else None
        if minibatches > samples:
            of_each = f" of {each} agents each" if each > 1 else ""
            name = policy_rows.name
            raise ValueError(
                f"minibatches is {minibatches}; a horizon of the policy {name!r} has {samples} samples{of_each}"
            )
        # their sizes differ by one at most
        self._cuts = [number * samples // minibatches * each for number in range(minibatches + 1)]
        self._settings = LossSettings(
            clipped=config.algorithm == "ppo", value_clip=config.value_clip, value_weight=config.value_weight
        )
        self._streams = {
            purpose: torch.tensor([derived_seed(config.seed, purpose, policy_rows.name), 0], device=device)
            for purpose in ("actions", "minibatches")
        }
        self._scalars = torch.tensor([0.0, 1.0, 0.0, config.clip], device=device)
        self._rate = made(1)
        self._stop = made(1, dtype=torch.int32) if config.target_kl is not None else None
        self._norm = made(1)
        self._flat: tuple[Rows, Samples] | None = None
        self.figures = made(len(FIGURES))
        self._sums_of_losses = self.figures[:TOTALS]
        most_kl = math.inf if config.target_kl is None else _KL_MARGIN * config.target_kl
        self._how = Step(self._rate, config.max_grad_norm, self._norm, self._stop, most_kl, self._sums_of_losses)

    # --- the horizon ---

    def act(self, t: int, storage: Mapping[str, RoleStorage]) -> torch.Tensor:
        """Chooses actions in the horizon's step ``t``; returns the environment's, ``[rows, width]``."""
        observations = self.policy_rows.observed({name: s.rows_at(t) for name, s in storage.items()}, 0)
        masks = {name: s.action_mask[t] for name, s in storage.items() if s.action_mask is not None}
        self.policy_rows.act(
            self.networks, observations, self._actions[t], self._log_probs[t],
            self._values[t] if self.networks.acts_with_value else None, self._acted, self._streams["actions"], t,
            action_mask=self.policy_rows.take(masks, 0) if self.policy_rows.masked else None,
        )  # fmt: skip
        return self._actions[t] if self._acted is None else self._acted

    def conclude(self, storage: Mapping[str, RoleStorage]) -> None:
        """Values, advantages and returns of a horizon that is complete."""
        config = self.config
        horizon = config.horizon
        observations = self.policy_rows.observed({name: s.rows for name, s in storage.items()}, 1)
        rewards, terminations, truncations = (
            self._taken(storage, name) for name in ("rewards", "terminations", "truncations")
        )
        dead_rows = storage[self.policy_rows.parts[0].role.name].alive is not None
        alive = self._taken(storage, "alive")[:horizon] if dead_rows else None
        first = horizon if self.networks.acts_with_value else 0
        self.networks.values(observations[first:].flatten(0, 1), self._values[first:].view(-1))
        bootstrap = self._bootstrap(storage, terminations, truncations)
        if self._rewards is not None and self._sums is not None:
            self._advantage.discounted(
                rewards, terminations, truncations, alive, config.gamma, self._rewards.running, *self._sums
            )
            self._rewards.learn(*self._sums)
        self._advantage.compute(
            rewards, self._values, terminations, truncations, alive, bootstrap, config.gamma, config.gae_lambda,
            self._advantages, self._returns, self._rewards.scale if self._rewards is not None else None,
        )  # fmt: skip
        self._measure(observations, alive)
        flat = Samples(
            actions=self._actions.view(-1, self.policy_rows.head.width),
            log_probs=self._log_probs.view(-1),
            advantages=self._advantages.view(-1),
            returns=self._returns.view(-1),
            values=self._values[:horizon].view(-1),
            alive=None if alive is None else alive.reshape(-1),
            action_mask=self._taken(storage, "action_mask")[:horizon].flatten(0, 1)
            if self.policy_rows.masked
            else None,
        )
        self._flat = observations[:horizon].flatten(0, 1), flat
        self._streams["actions"][1].add_(horizon)

    def _taken(self, storage: Mapping[str, RoleStorage], name: str) -> torch.Tensor:
        return self.policy_rows.take({role: getattr(s, name) for role, s in storage.items()}, 1)

    def _bootstrap(
        self, storage: Mapping[str, RoleStorage], terminations: torch.Tensor, truncations: torch.Tensor
    ) -> torch.Tensor:
        """Values of the last observations of truncated episodes.

        Within a horizon no longer than the limit an agent's episode is truncated once at most, so that one row each is
        enough; otherwise every row of every step is valued.
        """
        horizon, rows = self._log_probs.shape
        if self._limit is None:
            return self._values[horizon]
        final = self.policy_rows.observed({name: s.last_rows for name, s in storage.items()}, 1)
        if horizon > self._limit:
            every = torch.empty_like(self._log_probs)
            self.networks.values(final.flatten(0, 1), every.view(-1))
            return every
        step = (truncations & ~terminations).to(torch.uint8).argmax(0)
        each = self.policy_rows.each  # agents of a replica are truncated together
        step = step.view(-1, each).amax(1).repeat_interleave(each)
        place = step * rows + torch.arange(rows, device=step.device)
        once = torch.empty_like(self._values[0])
        self.networks.values(chosen_rows(final.flatten(0, 1), place), once)
        return once

    def _measure(self, observations: Rows, alive: torch.Tensor | None) -> None:
        """Mean and deviation of the advantages, how much of the returns the values explain, and what was observed."""
        (variance, mean), (spread, _) = _moments([self._advantages, self._returns], alive, self._group)
        if self.config.normalise_advantages:
            self._scalars[0].copy_(mean)
            self._scalars[1].copy_(1.0 / (variance.sqrt() + 1e-8))
        self.figures[6].copy_(1.0 - variance / spread.clamp(min=1e-12))  # returns less values are the advantages
        largest = largest_of(observations[: self.config.horizon])
        self.figures[9].copy_((largest if alive is None else torch.where(alive, largest, 0.0)).max())

    # --- the update ---

    def set_scalars(self, learning_rate: torch.Tensor, entropy_weight: torch.Tensor) -> None:
        """Takes over what the schedules say, from tensors of one element on the device."""
        self._rate.copy_(learning_rate)
        self._scalars[2:3].copy_(entropy_weight)

    def update(self) -> None:
        """Goes through the horizon in epochs of random minibatches."""
        assert self._flat is not None
        observations, batch = self._flat
        epochs, minibatches = self.config.passes
        self._sums_of_losses.zero_()
        if self._stop is not None:
            self._stop.zero_()
        stream = self._streams["minibatches"]
        for epoch in range(epochs):
            if self._indices is not None and self._permutation is not None:
                self._shuffle(self._indices, self._permutation, stream, epoch)
            for number in range(minibatches):
                self._step(observations, batch, number)
        stream[1].add_(epochs)
        self.figures[7:8].copy_(self._norm)
        self.figures[8:9].copy_(self._rate)
        if self._scale is not None:
            self._scale.learn(observations, batch.alive)
        for buffer in self.module.buffers():  # which a module may change as it goes, by what it has seen
            self._group.take_first(buffer)

    def _shuffle(self, indices: torch.Tensor, permutation: Permutation, stream: torch.Tensor, epoch: int) -> None:
        """Draws the order of an epoch: of single samples, or of groups."""
        if self._groups is None:
            permutation.write(indices, stream, epoch)
            return
        permutation.write(self._groups, stream, epoch)
        each = self.policy_rows.each
        within = torch.arange(each, dtype=torch.int32, device=indices.device)
        torch.add(within, self._groups.unsqueeze(1), alpha=each, out=indices.view(-1, each))

    def _step(self, observations: Rows, batch: Samples, number: int) -> None:
        chosen = None
        if self._indices is not None:
            chosen = self._indices[self._cuts[number] : self._cuts[number + 1]]
        self.networks.learn(observations, batch, chosen, self._settings, self._scalars, self._how)

    # --- what is kept ---

    def tensors(self) -> dict[str, torch.Tensor]:
        """What may show where a NaN came from, in the order in which it would spread."""
        assert self._flat is not None
        observations = self._flat[0]
        return {
            "observations": largest_of(observations),
            "values": self._values,
            "log-probabilities": self._log_probs,
            "advantages": self._advantages,
            "the gradient": self._optimiser.gradient,
            "the parameters": self._optimiser.flat,
        }

    def state(self) -> dict[str, Any]:
        """Copies of everything that the next iterations depend on."""
        return {
            "module": {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()},
            "optimiser": self._optimiser.state(),
            "norm": self._norm.clone(),
            "streams": {name: stream.clone() for name, stream in self._streams.items()},
            **{name: kept if kept is None else kept.state() for name, kept in self._statistics.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave."""
        self.module.load_state_dict(state["module"])  # into the optimiser's flat buffer, of which they are views
        self._optimiser.load(state["optimiser"])
        self._norm.copy_(state["norm"])
        for name, stream in self._streams.items():
            stream.copy_(state["streams"][name])
        for name, kept in self._statistics.items():
            if kept is not None:
                kept.load(state[name])


def _moments(
    several: Sequence[torch.Tensor], alive: torch.Tensor | None, group: Group
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Variance and mean of each, over the samples of agents in the game of all processes (Chan et al. 1979)."""
    present = None if alive is None else alive.sum(dtype=torch.float32)
    found = []
    for values in several:
        if alive is None or present is None:
            variance, mean = torch.var_mean(values, correction=0)
        else:
            samples = present.clamp(min=1.0)
            mean = torch.where(alive, values, 0.0).sum() / samples
            variance = torch.where(alive, (values - mean).square(), 0.0).sum() / samples
        found.append((variance, mean))
    if group.size == 1:
        return found
    count = found[0][1].new_full((), several[0].numel()) if present is None else present
    own = torch.stack([part for variance, mean in found for part in (count, variance, mean)])
    return [(variance, mean) for variance, mean in group.pooled(own.view(-1, 3))]
