"""What off-policy algorithms learn from a batch: critics, actor and temperature, and how their targets follow."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import nn

from gpu_envs.training.config import Config
from gpu_envs.training.operations.ops import SUMS
from gpu_envs.training.operations.optimiser import Adam, Step, flattened
from gpu_envs.training.operations.replay import Transitions
from gpu_envs.training.policies.actor_critic import ActorCritic, learning_parameters
from gpu_envs.training.policies.actors import TorchActor, squashed
from gpu_envs.training.policies.networks import TOTALS
from gpu_envs.training.policies.torch_networks import matmul_precision
from gpu_envs.training.process.group import Group

_EPSILON = 1e-8
"""Of Adam."""

_MOST_PROJECTED = 2**25
"""So many numbers does the projection of returns work with at a time."""


class ActorCriticUpdate(ABC):
    """SAC (Haarnoja et al. 2018), TD3 (Fujimoto et al. 2018) and DDPG (Lillicrap et al. 2016).

    Attributes:
        optimisers: Of the critics, the actor and, for SAC, the temperature.
        log_temperature: ``[1]``.
        numbers: So many rows of standard normal numbers does a batch's row need.
    """

    def __init__(
        self, actor: TorchActor, config: Config, rate: torch.Tensor, device: str, group: Group, target_entropy: float
    ) -> None:
        """Moves the parameters into buffers of optimisers, and begins with targets like them."""
        self._actor, self._config, self._target_entropy = actor, config, target_entropy
        self._module: ActorCritic = actor.module
        self.log_temperature = nn.Parameter(torch.full((1,), math.log(config.temperature), device=device))
        self._learning = [*learning_parameters(self._module), *([[self.log_temperature]] if actor.stochastic else [])]
        self.optimisers = [
            Adam(each, eps=_EPSILON, device=device, threads=config.cpu_threads, group=group) for each in self._learning
        ]
        self.targets = copy.deepcopy(self._module).eval()
        targets = learning_parameters(self.targets)[: 1 if actor.stochastic else 2]
        self._follows = [(flattened(part), adam.flat) for part, adam in zip(targets, self.optimisers, strict=False)]
        self.targets.requires_grad_(False)
        self._buffers = list(zip(self.targets.buffers(), self._module.buffers(), strict=True))
        self._norms = torch.zeros(len(self.optimisers), device=device)
        self.sums = torch.zeros((2, TOTALS), device=device)
        sums = [*self.sums, None][: len(self.optimisers)]
        clips = [config.max_grad_norm, config.max_grad_norm, None]
        self._steps = [
            Step(rate, clip, norm, figures=figures)
            for clip, norm, figures in zip(clips, torch.split(self._norms, 1), sums, strict=False)
        ]
        self.numbers = 2 if actor.stochastic else 1

    @property
    def norm(self) -> torch.Tensor:
        """Of the critics' gradient, ``[1]``."""
        return self._norms[:1]

    @abstractmethod
    def learn(self, batch: Transitions, normal: torch.Tensor, *, actor: bool) -> None:
        """Takes a step of the critics and, if asked, of the actor and the temperature; then the targets follow.

        Args:
            batch: What was drawn.
            normal: Standard normal numbers, ``[numbers * B, width]``.
            actor: Whether the actor learns, too.
        """

    def _follow(self) -> None:
        """Lets the targets come nearer."""
        for target, own in self._follows:
            target.lerp_(own, self._config.tau)
        for target, own in self._buffers:
            target.copy_(own)

    # --- what is kept ---

    def state(self) -> dict[str, Any]:
        """Copies of all that is beside the module's parameters."""
        return {
            "optimisers": [optimiser.state() for optimiser in self.optimisers],
            "targets": {name: tensor.clone() for name, tensor in self.targets.state_dict().items()},
            "log_temperature": self.log_temperature.detach().clone(),
            "norms": self._norms.clone(),
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave."""
        for optimiser, kept in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load(kept)
        self.targets.load_state_dict(state["targets"])
        self.log_temperature.copy_(state["log_temperature"])
        self._norms.copy_(state["norms"])


@final
class TorchUpdate(ActorCriticUpdate):
    """Any module's, run by torch."""

    def __init__(
        self, actor: TorchActor, config: Config, rate: torch.Tensor, device: str, group: Group, target_entropy: float
    ) -> None:
        super().__init__(actor, config, rate, device, group, target_entropy)
        self._returns = None
        if config.atoms is not None:
            self._returns = torch.linspace(config.least_return, config.most_return, config.atoms, device=device)

    def learn(self, batch: Transitions, normal: torch.Tensor, *, actor: bool) -> None:
        first, second = normal[: len(batch.observations)], normal[len(batch.observations) :]
        self._step(0, batch, *self._critics_loss(batch, self.td_targets(batch, first)))
        if actor:
            loss, sums, log_probs = self._actor_loss(batch, second)
            self._step(1, batch, loss, sums)
            if log_probs is not None:
                self._step_of_temperature(batch, log_probs)
            self._follow()

    # --- what critics should say ---

    def td_targets(self, batch: Transitions, normal: torch.Tensor) -> torch.Tensor:
        """What critics should say of each row, ``[B]``, or how likely each return should be, ``[B, atoms]``."""
        config, scaled, then = self._config, self._actor.scaled, batch.next_observations
        with torch.no_grad(), self._actor.computing(learning=True):
            if self._actor.stochastic:
                actions, log_probs = squashed(self._module.actor(scaled(then)).float(), normal)
            else:
                actions = torch.tanh(self.targets.actor(scaled(then)).float())
                if config.algorithm == "td3":
                    most = config.target_noise_clip
                    actions = (actions + (config.target_noise * normal).clamp(-most, most)).clamp(-1.0, 1.0)
            expected = self.targets.critics(scaled(then), actions).float()
        if self._returns is not None:
            return self._projected(batch, expected)
        worth: torch.Tensor = expected.amin(0)
        if self._actor.stochastic:
            worth = worth - self.log_temperature.detach().exp() * log_probs
        return batch.returns + batch.discounts * worth

    def _projected(self, batch: Transitions, logits: torch.Tensor) -> torch.Tensor:
        """The probabilities of returns by the critic that expects less (Bellemare et al. 2017)."""
        assert self._returns is not None
        returns, shares = self._returns, logits.softmax(-1)
        means = shares @ returns
        chosen = means.argmin(0)
        shares = shares.gather(0, chosen.view(1, -1, 1).expand(1, -1, shares.shape[-1]))[0]
        found, apart = torch.empty_like(shares), returns[1] - returns[0]
        rows = max(1, _MOST_PROJECTED // len(returns) ** 2)
        for begin in range(0, len(shares), rows):
            piece = slice(begin, begin + rows)
            moved = batch.returns[piece, None] + batch.discounts[piece, None] * returns
            moved = moved.clamp(returns[0], returns[-1])
            near = (1.0 - (moved.unsqueeze(1) - returns.view(1, -1, 1)).abs() / apart).clamp(min=0.0)
            torch.bmm(near, shares[piece].unsqueeze(2), out=found[piece].unsqueeze(2))
        return found

    # --- losses, summed over rows, and their sums ---

    def _critics_loss(self, batch: Transitions, aims: torch.Tensor) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        with torch.enable_grad(), self._actor.computing(learning=True):
            said = self._module.critics(self._actor.scaled(batch.observations), batch.actions).float()
        with torch.enable_grad():
            each = 0.5 * (said - aims).square() if self._returns is None else -(aims * said.log_softmax(-1)).sum(-1)
            loss = torch.where(batch.found, each, 0.0).sum()
        return loss, {"value_loss": loss}

    def _actor_loss(
        self, batch: Transitions, normal: torch.Tensor
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor], torch.Tensor | None]:
        log_probs, sums, scaled = None, {}, self._actor.scaled
        with torch.enable_grad():
            with self._actor.computing(learning=True):
                outputs = self._module.actor(scaled(batch.observations)).float()
            if self._actor.stochastic:
                actions, log_probs = squashed(outputs, normal)
            else:
                actions = torch.tanh(outputs)
            with self._actor.computing(learning=True):
                said = self._module.critics(scaled(batch.observations), actions).float()
            if self._returns is not None:
                said = said.softmax(-1) @ self._returns
            each = -(said.amin(0) if self._actor.stochastic else said[0])
            if log_probs is not None:
                each = each + self.log_temperature.detach().exp() * log_probs
            loss = torch.where(batch.found, each, 0.0).sum()
        if log_probs is not None:
            log_probs = log_probs.detach()
            sums["entropy"] = -torch.where(batch.found, log_probs, 0.0).sum()
        return loss, {"policy_loss": loss, **sums}, log_probs

    def _step_of_temperature(self, batch: Transitions, log_probs: torch.Tensor) -> None:
        optimiser = self.optimisers[2]
        off = torch.where(batch.found, log_probs + self._target_entropy, 0.0)
        torch.sum(-off, 0, keepdim=True, out=optimiser.gradient)
        self._count(optimiser, batch, {})
        optimiser.step(self._steps[2])

    def _step(self, which: int, batch: Transitions, loss: torch.Tensor, sums: Mapping[str, torch.Tensor]) -> None:
        optimiser, parameters = self.optimisers[which], self._learning[which]
        with matmul_precision(self._config.precision):
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
        optimiser.gather([p.new_zeros(p.shape) if g is None else g for g, p in zip(found, parameters, strict=True)])
        self._count(optimiser, batch, sums)
        optimiser.step(self._steps[which])

    @staticmethod
    def _count(optimiser: Adam, batch: Transitions, sums: Mapping[str, torch.Tensor]) -> None:
        """Leaves with an optimiser how many rows there were, and sums over them."""
        totals = {**sums, "alive": batch.found.sum(dtype=torch.float32)}
        zero = optimiser.totals.new_zeros(())
        torch.stack([totals.get(name, zero).detach() for name in SUMS], out=optimiser.totals)
