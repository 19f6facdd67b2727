"""Actors and critics of off-policy algorithms in torch: any module, with the losses of the algorithm's file."""

import copy
import dataclasses
import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from gpu_envs.training.algorithms import SAC, OffPolicy
from gpu_envs.training.engines.base import STEP_KERNELS, TOTALS, ActRequest, Engine
from gpu_envs.training.engines.ops import SUMS
from gpu_envs.training.engines.optimiser import Adam, Step, flattened
from gpu_envs.training.engines.torch import SAMPLER, TorchNetworks, matmul_precision
from gpu_envs.training.networks import ActorCritic, Case, learning_parameters
from gpu_envs.training.observations import Rows, Scale, join_rows
from gpu_envs.training.process.device import warm_up_autograd
from gpu_envs.training.process.group import Group

_EPSILON = 1e-8
"""Adam's epsilon."""

ACTING = ("acting", f"torch, and {SAMPLER}")
BUFFER = ("buffer", "kernel_insert and kernel_draw of common/replay.cuh")


@final
@dataclasses.dataclass(frozen=True)
class Transitions:
    """A batch drawn from a replay buffer."""

    observations: Tensor
    """[B, F]."""
    actions: Tensor
    """[B, W], scaled so that the bounds are -1 and 1."""
    returns: Tensor
    """[B]: discounted sum of the rewards of n steps, or of fewer where the episode ends before."""
    discounts: Tensor
    """[B]: discount of the value of ``next_observations``; zero after a termination."""
    next_observations: Tensor
    """[B, F]: observations after those steps; after a truncation the episode's last ones."""
    valid: Tensor
    """bool [B]: False where the buffer had no transition to draw, as with an agent that is hardly ever active."""

    @classmethod
    def zeros(cls, count: int, features: int, width: int, device: str) -> "Transitions":
        """Allocates a batch of ``count`` transitions, all zero."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros((count, *shape), device=device)

        return cls(zeros(features), zeros(width), zeros(), zeros(), zeros(features), zeros().bool())


class TorchActor(TorchNetworks):
    """Runs an off-policy module's actor; actions are between -1 and 1, and scaled to the environment's bounds."""

    module: ActorCritic

    def __init__(self, case: Case, module: nn.Module, scale: Scale) -> None:
        super().__init__(case, module, scale)
        assert isinstance(case.algorithm, OffPolicy)
        self._algorithm: OffPolicy = case.algorithm
        self._low = torch.tensor(case.head.low, device=case.device)
        self._high = torch.tensor(case.head.high, device=case.device)

    def act(self, request: ActRequest) -> None:
        assert request.acted is not None
        assert request.values is request.action_mask is request.largest is request.alive is None
        normal = None
        if not request.greedy:
            normal = torch.empty_like(request.actions)
            self._ops.normal(normal, stream=request.stream, turn=request.turn, first_row=request.first_row)
        self.choose(self.outputs(request.observations), normal, request.actions, request.acted)

    def outputs(self, observations: Rows) -> Tensor:
        """Returns the actor's outputs, float32 ``[rows, outputs]``, without gradients, in evaluation mode."""
        with self._computing(learning=False, grad=False):
            outputs: Tensor = self.module.actor(self._scaled(observations)).float()
        return outputs

    def choose(self, outputs: Tensor, normal: Tensor | None, actions: Tensor, acted: Tensor) -> None:
        """Writes ``actions``, in -1 to 1, from an actor's outputs, and ``acted``, scaled to the environment's bounds.

        ``normal``: standard normal numbers; None: the most likely actions.
        """
        if normal is None:
            torch.tanh(outputs[:, : actions.shape[1]], out=actions)  # a stochastic actor's first outputs are means
        else:
            actions.copy_(self._algorithm.explore(outputs, normal))
        self.unscale(actions, acted)

    def unscale(self, actions: Tensor, acted: Tensor) -> None:
        """Writes actions between -1 and 1, scaled to the environment's bounds, to ``acted``."""
        torch.lerp(self._low, self._high, (actions + 1.0) / 2.0, out=acted)
        torch.clamp(acted, self._low, self._high, out=acted)


class ActorCriticNetworks(TorchActor):
    """An actor and critics with their optimisers and target networks.

    Attributes:
        rate: The learning rate, ``[1]``, written by the learner.
        optimisers: For the critics, the actor and, if it is stochastic, the temperature.
        log_temperature: ``[1]``.
        norm: Norm of the critics' gradient, ``[1]``.
        sums: ``SUMS`` of the critics and of the actor, ``[2, TOTALS]``, accumulated over updates.
    """

    _takes_steps = False
    """Whether ``_learn_critics`` and ``_learn_actor`` also take Adam's step and update the targets."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale, group: Group) -> None:
        """Moves the parameters into the optimisers' buffers; the target networks start as copies."""
        super().__init__(case, module, scale)
        algorithm, device = self._algorithm, case.device
        stochastic = algorithm if isinstance(algorithm, SAC) else None
        temperature = 1.0 if stochastic is None else stochastic.temperature
        self.rate = torch.zeros(1, device=device)
        self.log_temperature = nn.Parameter(torch.full((1,), math.log(temperature), device=device))
        self._target_entropy = 0.0 if stochastic is None else stochastic.entropy_target(case.head.width)
        self._learning = [*learning_parameters(self.module), *([[self.log_temperature]] if stochastic else [])]
        self.optimisers = [
            Adam(each, eps=_EPSILON, device=device, threads=case.threads, group=group) for each in self._learning
        ]
        self.targets = copy.deepcopy(self.module).eval()
        parts = learning_parameters(self.targets)[: 1 if stochastic else 2]
        self._target_pairs = [(flattened(part), adam.flat) for part, adam in zip(parts, self.optimisers, strict=False)]
        self.targets.requires_grad_(False)
        self._norms = torch.zeros(len(self.optimisers), device=device)
        self.norm = self._norms[:1]
        self.sums = torch.zeros((2, TOTALS), device=device)
        clips = [algorithm.max_grad_norm, algorithm.max_grad_norm, None]
        self._steps = [
            Step(self.rate, clip, norm, metrics=sums)
            for clip, norm, sums in zip(clips, torch.split(self._norms, 1), [*self.sums, None], strict=False)
        ]

    @final
    @torch.no_grad()
    def learn(self, batch: Transitions, normal: Tensor, *, actor: bool) -> None:
        """Updates the critics and, with ``actor``, the actor, the temperature and the target networks.

        Args:
            batch: Transitions from the buffer.
            normal: Standard normal numbers, ``[B, width]``, for a stochastic actor ``[2 * B, width]``.
            actor: Whether to update the actor.
        """
        if self.scale is not None:  # here, once; ``_input_rows`` only selects features
            scaled, next_scaled = (join_rows(self.scale(o)) for o in (batch.observations, batch.next_observations))
            batch = dataclasses.replace(batch, observations=scaled, next_observations=next_scaled)
        rows = len(batch.observations)
        self._learn_critics(batch, normal[:rows], follow=actor)
        if not self._takes_steps:
            self.optimisers[0].step(self._steps[0])
        if not actor:
            return
        self._learn_actor(batch, normal[-rows:])
        if self._takes_steps:
            return
        for optimiser, step in zip(self.optimisers[1:], self._steps[1:], strict=True):
            optimiser.step(step)
        for target, parameters in self._target_pairs:  # theta' += tau (theta - theta')
            target.lerp_(parameters, self._algorithm.tau)
        for target, buffer in zip(self.targets.buffers(), self.module.buffers(), strict=True):
            target.copy_(buffer)

    @abstractmethod
    def _learn_critics(self, batch: Transitions, normal: Tensor, *, follow: bool) -> None:
        """Writes gradient and ``SUMS`` of the critics' loss to their optimiser; steps only with ``_takes_steps``.

        With ``_takes_steps`` it takes Adam's step and, with ``follow``, updates the targets.
        """

    @abstractmethod
    def _learn_actor(self, batch: Transitions, normal: Tensor) -> None:
        """Writes gradients and ``SUMS`` of the actor's loss, and SAC's temperature's, to the optimisers.

        With ``_takes_steps`` it takes Adam's steps and updates the targets.
        """

    # --- checkpoints ---

    def state(self) -> dict[str, Any]:
        """Returns copies of all that a checkpoint needs in addition to the module's parameters."""
        return {
            "optimisers": [optimiser.state() for optimiser in self.optimisers],
            "targets": {name: tensor.clone() for name, tensor in self.targets.state_dict().items()},
            "log_temperature": self.log_temperature.detach().clone(),
            "norms": self._norms.clone(),
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        """Restores a result of ``state``: all but the parameters of the module."""
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load(saved)
        self.targets.load_state_dict(state["targets"])
        self.log_temperature.copy_(state["log_temperature"])
        self._norms.copy_(state["norms"])


@final
class TorchActorCritic(ActorCriticNetworks):
    """Any actor and critics, with gradients by autograd."""

    def _learn_critics(self, batch: Transitions, normal: Tensor, *, follow: bool) -> None:
        del follow  # learn() updates the targets
        algorithm, input_rows, next_observations = self._algorithm, self._input_rows, batch.next_observations
        with self._computing(learning=True, grad=False):
            actor = self.module.actor if isinstance(algorithm, SAC) else self.targets.actor
            actions, log_probs = algorithm.target_policy(actor(input_rows(next_observations)).float(), normal)
            next_q = self.targets.critics(input_rows(next_observations), actions).float()
        target = algorithm.td_target(batch.returns, batch.discounts, next_q, self._bonus(log_probs))
        with torch.enable_grad():
            with self._computing(learning=True, grad=True):
                q_values = self.module.critics(input_rows(batch.observations), batch.actions).float()
            loss = torch.where(batch.valid, algorithm.critic_loss(q_values, target), 0.0).sum()
        self._differentiate(0, batch, loss, {"value_loss": loss})

    def _learn_actor(self, batch: Transitions, normal: Tensor) -> None:
        algorithm, input_rows, observations = self._algorithm, self._input_rows, batch.observations
        with torch.enable_grad():
            with self._computing(learning=True, grad=True):
                outputs = self.module.actor(input_rows(observations)).float()
            actions, log_probs = algorithm.policy(outputs, normal)
            with self._computing(learning=True, grad=True):
                q_values = self.module.critics(input_rows(observations), actions).float()
            loss = torch.where(batch.valid, algorithm.actor_loss(q_values, self._bonus(log_probs)), 0.0).sum()
        sums = {"policy_loss": loss}
        if isinstance(algorithm, SAC) and log_probs is not None:
            log_probs, temperature = log_probs.detach(), self.optimisers[2]
            sums["entropy"] = -torch.where(batch.valid, log_probs, 0.0).sum()
            gradients = algorithm.temperature_gradient(log_probs, self._target_entropy)
            torch.sum(torch.where(batch.valid, gradients, 0.0), 0, keepdim=True, out=temperature.gradient)
            self._write_totals(temperature, batch, {})
        self._differentiate(1, batch, loss, sums)

    def _bonus(self, log_probs: Tensor | None) -> Tensor | float:
        """Returns SAC's entropy bonus, ``[rows]``; 0.0 for other algorithms."""
        if log_probs is None or not isinstance(self._algorithm, SAC):
            return 0.0
        return self._algorithm.entropy_bonus(log_probs, self.log_temperature.detach())

    def _differentiate(self, index: int, batch: Transitions, loss: Tensor, sums: Mapping[str, Tensor]) -> None:
        """Writes a loss's gradient, by autograd, and its ``sums`` to the optimiser of this index."""
        optimiser, parameters = self.optimisers[index], self._learning[index]
        with matmul_precision(self._precision):
            grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        optimiser.gather([p.new_zeros(p.shape) if g is None else g for g, p in zip(grads, parameters, strict=True)])
        self._write_totals(optimiser, batch, sums)

    @staticmethod
    def _write_totals(optimiser: Adam, batch: Transitions, sums: Mapping[str, Tensor]) -> None:
        """Writes ``sums``, and the number of valid transitions as ``alive``, to an optimiser's totals."""
        totals = {**sums, "alive": batch.valid.sum(dtype=torch.float32)}
        zero = optimiser.totals.new_zeros(())
        torch.stack([totals.get(name, zero).detach() for name in SUMS], out=optimiser.totals)


@final
class TorchActorCriticEngine(Engine):
    """Runs any module, any setting and any off-policy algorithm."""

    name = "torch"
    learns = OffPolicy
    device = ""

    def fallback_reason(self, case: Case) -> str:
        del case
        return ""

    def describe(self, case: Case) -> tuple[tuple[str, str], ...]:
        del case
        return ACTING, BUFFER, ("gradients", "torch"), STEP_KERNELS

    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> TorchActor:
        """Makes a TorchActor, which only acts, or with a ``group`` a TorchActorCritic, which learns."""
        if group is None:
            return TorchActor(case, module, scale)
        if case.device != "cpu":
            warm_up_autograd(case.device)
        return TorchActorCritic(case, module, scale, group)
