"""What off-policy algorithms learn from a batch: critics, actor and temperature, and how their targets follow."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import nn

from gpu_envs.training.algorithms import SAC, OffPolicy
from gpu_envs.training.operations.ops import SUMS
from gpu_envs.training.operations.optimiser import Adam, Step, flattened
from gpu_envs.training.operations.replay import Transitions
from gpu_envs.training.policies.actor_critic import ActorCritic, learning_parameters
from gpu_envs.training.policies.actors import TorchActor
from gpu_envs.training.policies.networks import TOTALS
from gpu_envs.training.policies.torch_networks import matmul_precision
from gpu_envs.training.process.group import Group
from gpu_envs.training.run import Run

_EPSILON = 1e-8
"""Of Adam."""


class ActorCriticUpdate(ABC):
    """SAC (Haarnoja et al. 2018), TD3 (Fujimoto et al. 2018) and DDPG (Lillicrap et al. 2016).

    Attributes:
        optimisers: Of the critics, the actor and, for SAC, the temperature.
        log_temperature: ``[1]``.
        numbers: So many rows of standard normal numbers does a batch's row need.
    """

    def __init__(
        self, actor: TorchActor, config: Run, rate: torch.Tensor, device: str, group: Group, target_entropy: float
    ) -> None:
        """Moves the parameters into buffers of optimisers, and begins with targets like them."""
        self._actor, self._config, self._target_entropy = actor, config, target_entropy
        assert isinstance(config.algorithm, OffPolicy)
        self._algorithm: OffPolicy = config.algorithm
        self._module: ActorCritic = actor.module
        temperature = config.algorithm.temperature if isinstance(config.algorithm, SAC) else 1.0
        self.log_temperature = nn.Parameter(torch.full((1,), math.log(temperature), device=device))
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
        clips = [config.algorithm.max_grad_norm, config.algorithm.max_grad_norm, None]
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
            target.lerp_(own, self._algorithm.tau)
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

    def learn(self, batch: Transitions, normal: torch.Tensor, *, actor: bool) -> None:
        first, second = normal[: len(batch.observations)], normal[len(batch.observations) :]
        seen = self._actor.scaled(batch.observations)
        self._learn_critics(batch, seen, first)
        if actor:
            self._learn_actor(batch, seen, second)
            self._follow()

    def _learn_critics(self, batch: Transitions, seen: torch.Tensor, normal: torch.Tensor) -> None:
        algorithm, own, after = self._algorithm, self._actor.own, self._actor.scaled(batch.next_observations)
        with torch.no_grad(), self._actor.computing(learning=True):
            actor = self._module.actor if algorithm.stochastic else self.targets.actor
            actions, log_probs = algorithm.target_policy(actor(own(after)).float(), normal)
            next_q = self.targets.critics(own(after), actions).float()
        target = algorithm.td_target(batch.returns, batch.discounts, next_q, self._bonus(log_probs))
        with torch.enable_grad():
            with self._actor.computing(learning=True):
                q_values = self._module.critics(own(seen), batch.actions).float()
            loss = torch.where(batch.found, algorithm.critic_loss(q_values, target), 0.0).sum()
        self._step(0, batch, loss, {"value_loss": loss})

    def _learn_actor(self, batch: Transitions, seen: torch.Tensor, normal: torch.Tensor) -> None:
        algorithm, own = self._algorithm, self._actor.own
        with torch.enable_grad():
            with self._actor.computing(learning=True):
                outputs = self._module.actor(own(seen)).float()
            actions, log_probs = algorithm.policy(outputs, normal)
            with self._actor.computing(learning=True):
                q_values = self._module.critics(own(seen), actions).float()
            loss = torch.where(batch.found, algorithm.actor_loss(q_values, self._bonus(log_probs)), 0.0).sum()
        sums = {"policy_loss": loss}
        if log_probs is not None:
            log_probs = log_probs.detach()
            sums["entropy"] = -torch.where(batch.found, log_probs, 0.0).sum()
        self._step(1, batch, loss, sums)
        if isinstance(algorithm, SAC) and log_probs is not None:
            temperature = self.optimisers[2]
            by_row = algorithm.temperature_gradient(log_probs, self._target_entropy)
            torch.sum(torch.where(batch.found, by_row, 0.0), 0, keepdim=True, out=temperature.gradient)
            self._count(temperature, batch, {})
            temperature.step(self._steps[2])

    def _bonus(self, log_probs: torch.Tensor | None) -> torch.Tensor | float:
        """What the entropy of a stochastic actor adds to values."""
        if log_probs is None or not isinstance(self._algorithm, SAC):
            return 0.0
        return self._algorithm.entropy_bonus(log_probs, self.log_temperature.detach())

    def _step(self, which: int, batch: Transitions, loss: torch.Tensor, sums: Mapping[str, torch.Tensor]) -> None:
        optimiser, parameters = self.optimisers[which], self._learning[which]
        with matmul_precision(self._config.network.precision):
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
