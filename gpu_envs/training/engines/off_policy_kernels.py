"""Actors and critics of off-policy algorithms, the default ones, in kernels: as functions, or a small batch at once."""

from abc import abstractmethod
from typing import ClassVar, final

import torch
from torch import nn

from gpu_envs.backend import open_backend
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.training.algorithms import TD3
from gpu_envs.training.algorithms.base import OffPolicy, Stochastic
from gpu_envs.training.engines.base import PERCEPTRON_SETTINGS, STEP_KERNELS, KernelEngine
from gpu_envs.training.engines.functions import (
    Functions,
    actor_form,
    critics_form,
    form_of,
    function_limit,
    functions_of,
)
from gpu_envs.training.engines.off_policy import ACTING, BUFFER, ActorCriticNetworks
from gpu_envs.training.engines.wide import GRADIENT, PACK
from gpu_envs.training.networks import Critics, PerceptronActorCritic, outputs_of
from gpu_envs.training.observations import Scale
from gpu_envs.training.operations import actor_critic, small_batch
from gpu_envs.training.operations.ops import SUMS
from gpu_envs.training.operations.perceptrons import ACTIVATIONS, WIDEST, Form
from gpu_envs.training.operations.replay import Transitions
from gpu_envs.training.policies.case import Case
from gpu_envs.training.process.group import Group

_ALIVE = SUMS.index("alive")

MOST_ROWS = 1024
"""Of a batch from which a launch learns; beyond them functions are as quick."""

_SETTINGS = (
    *("learning_rate", "gamma", "max_grad_norm", "buffer_size", "learning_starts", "batch_size", "gradient_steps"),
    *("n_step", "tau", "exploration", "temperature", "target_entropy", "noise", "target_noise", "target_noise_clip"),
    *("policy_delay", *PERCEPTRON_SETTINGS),
)
"""Settings that the kernels of losses know, or that apply outside of them."""

_LOSSES = "those of off_policy/actor_critic.cuh"


class _ActorCriticEngine(KernelEngine):
    """Perceptrons of an actor and critics."""

    learns = OffPolicy
    algorithms = ("sac", "td3", "ddpg")
    settings: ClassVar[tuple[str, ...]] = _SETTINGS


@final
class SmallBatchEngine(_ActorCriticEngine):
    """Critics in one launch of a GPU and the actor in another, for batches of few rows."""

    name = "small batch"
    settings = (*_SETTINGS, "layer_norm")
    kernels = (
        ACTING,
        BUFFER,
        ("gradients", "kernel_critics and kernel_actor of off_policy/small_batch.cuh, which take the step too"),
        ("step", "of several processes: kernel_collect and kernel_adam of common/optimise.cuh"),
    )

    def exceeded(self, case: Case) -> str:
        algorithm, net = case.algorithm, case.network
        assert isinstance(algorithm, OffPolicy)
        if reason := _functions_limit(case):
            return reason
        if algorithm.batch_size > MOST_ROWS:
            return f"batch_size is {algorithm.batch_size:,}, more than {MOST_ROWS:,}"
        if not small_batch.fits(case.features, case.head.width):
            return f"{case.features} features and {case.head.width} elements of actions are too many"
        if net.precision != "tf32":
            return f"the precision is {net.precision}, not tf32"
        if net.activation not in ACTIVATIONS:
            return f"the activation is {net.activation}, not {', '.join(ACTIVATIONS)}"
        return "hidden layers are normalised" if net.layer_norm else ""

    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> ActorCriticNetworks:
        return SmallBatchActorCritic(case, module, scale, group or Group())


@final
class GpuFunctionsEngine(_ActorCriticEngine):
    """Actor and critics as functions, by kernels of wide networks."""

    name = "GPU functions"
    settings = (*_SETTINGS, "layer_norm")
    kernels = (
        PACK,
        ACTING,
        BUFFER,
        ("gradients", f"kernel_outputs of wide/act.cuh, {GRADIENT}; for losses {_LOSSES}"),
        STEP_KERNELS,
    )

    def exceeded(self, case: Case) -> str:
        return _functions_limit(case)

    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> ActorCriticNetworks:
        return FunctionActorCritic(case, module, scale, group or Group())


@final
class CpuEngine(_ActorCriticEngine):
    """Actor and critics as functions on a CPU."""

    name = "CPU functions"
    device = "cpu"
    kernels = (
        ACTING,
        BUFFER,
        ("gradients", f"kernels of cpu/perceptrons.cuh for networks, and for losses {_LOSSES}"),
        STEP_KERNELS,
    )

    def exceeded(self, case: Case) -> str:
        net = case.network
        if net.activation not in ACTIVATIONS:
            return f"the activation is {net.activation}, not {', '.join(ACTIVATIONS)}"
        if net.precision == "bf16":
            return "the precision is bf16"
        return f"a layer has more than {WIDEST} units" if max(net.hidden) > WIDEST else ""

    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> ActorCriticNetworks:
        return FunctionActorCritic(case, module, scale, group or Group())


def _functions_limit(case: Case) -> str:
    """Which limit of wide networks' kernels the actor or the critics exceed; empty: none."""
    algorithm, net = case.algorithm, case.network
    assert isinstance(algorithm, OffPolicy)
    actor = (case.features, *net.hidden, outputs_of(case.head, algorithm))
    critics = (case.features + case.head.width, *net.hidden, 1)
    forms = (form_of(sizes, net.activation, algorithm.critics) for sizes in (actor, critics))
    reasons = (function_limit(form, net.precision, case.device) for form in forms)
    return next(filter(None, reasons), "")


class KernelActorCritic(ActorCriticNetworks):
    """The default module's, run by kernels."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale, group: Group) -> None:
        super().__init__(case, module, scale, group)
        assert isinstance(module, PerceptronActorCritic)
        assert isinstance(module.critics, Critics)
        algorithm, activation, width = self._algorithm, case.network.activation, case.head.width
        self._stochastic = isinstance(algorithm, Stochastic)
        self._of_critics = critics_form(module.critics, activation, width)
        self._of_actor = actor_form(module.actor, activation)
        self._rows, self._features, self._width = algorithm.batch_size, case.features, width
        smoothed = algorithm if isinstance(algorithm, TD3) else None
        self._noise = smoothed.target_noise if smoothed else 0.0
        self._most_noise = smoothed.target_noise_clip if smoothed else 0.0
        self._sums_of_rows = torch.zeros((2, len(SUMS), self._rows), device=case.device)  # of critics and of the actor
        self._by_temperature = torch.zeros(self._rows, device=case.device)
        self._steps_too = False

    @abstractmethod
    def _learn_critics(self, batch: Transitions, normal: torch.Tensor, *, follow: bool) -> None:
        """Leaves the gradient of the critics' loss, and its sums, with their optimiser.

        Where ``_steps_too``, it takes the step, and if asked lets targets follow, as ``_learn_actor`` always does.
        """

    @abstractmethod
    def _learn_actor(self, batch: Transitions, normal: torch.Tensor) -> None:
        """The same of the actor's, and of the temperature's where there is one."""

    @torch.no_grad()
    def learn(self, batch: Transitions, normal: torch.Tensor, *, actor: bool) -> None:
        batch = self._normalised(batch)
        self._learn_critics(batch, normal[: self._rows], follow=actor)
        if not self._steps_too:
            self.optimisers[0].step(self._steps[0])
        if not actor:
            return
        self._learn_actor(batch, normal[-self._rows :])
        if not self._steps_too:
            for optimiser, step in zip(self.optimisers[1:], self._steps[1:], strict=True):
                optimiser.step(step)
            self._follow()


@final
class FunctionActorCritic(KernelActorCritic):
    """Networks as functions forth and back, and losses row by row."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale, group: Group) -> None:
        super().__init__(case, module, scale, group)
        rows, features, width, nets = self._rows, self._features, self._width, len(self._of_critics.nets)

        def functions(form: Form, weights: torch.Tensor, gradient: torch.Tensor | None = None) -> Functions:
            return functions_of(case, form, weights, gradient, rows)

        self._critics, self._actors = (
            functions(form, adam.flat, adam.gradient)
            for form, adam in zip((self._of_critics, self._of_actor), self.optimisers, strict=False)
        )
        self._target_critics = functions(self._of_critics, self._follows[0][0])
        self._next_actor = self._actors if self._stochastic else functions(self._of_actor, self._follows[1][0])

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, device=case.device)

        self._inputs, self._acting = zeros(rows, features + width), zeros(rows, features + width)
        self._q_values, self._target_q, self._grad_q, self._curvatures = (zeros(rows, nets, 1) for _ in range(4))
        self._ones = zeros(rows, nets, 1).fill_(1.0)
        self._outputs, self._by_outputs = (zeros(rows, 1, self._of_actor.sizes[-1]) for _ in range(2))
        self._log_probs, self._by_actions = zeros(rows), zeros(rows, nets, width)
        program = actor_critic.program(features, width, nets, stochastic=self._stochastic)
        choose, td_target, critic_loss, actor_loss = load_kernels(open_backend(case.device, case.threads), program)
        log_temperature = self.log_temperature.detach()
        choose.fill(rows=rows, outputs=self._outputs, log_probs=self._log_probs, most=self._most_noise)
        td_target.fill(
            rows=rows,
            targets=self._target_q,
            log_probs=self._log_probs,
            log_temperature=log_temperature,
            by_said=self._grad_q,
            curvatures=self._curvatures,
        )
        critic_loss.fill(rows=rows, said=self._q_values, by_said=self._grad_q, sums=self._sums_of_rows[0])
        actor_loss.fill(
            rows=rows,
            inputs=self._acting,
            outputs=self._outputs,
            log_probs=self._log_probs,
            said=self._q_values,
            by_actions=self._by_actions,
            log_temperature=log_temperature,
            target_entropy=self._target_entropy,
            by_outputs=self._by_outputs,
            by_temperature=self._by_temperature,
            sums=self._sums_of_rows[1],
        )
        self._choose = choose.fill(inputs=self._acting).bind(rows)  # what is left is of the learner's own batch
        self._td_target, self._critic_loss, self._actor_loss = (
            kernel.bind(rows) for kernel in (td_target, critic_loss, actor_loss)
        )

    def _learn_critics(self, batch: Transitions, normal: torch.Tensor, *, follow: bool) -> None:
        del follow  # later
        critics, following = self.optimisers[0], batch.next_observations
        self._next_actor.outputs(following, self._outputs)
        self._choose(following.data_ptr(), normal.data_ptr(), self._noise)
        self._target_critics.outputs(self._acting, self._target_q)
        torch.cat((batch.observations, batch.actions), 1, out=self._inputs)
        self._td_target(batch.returns.data_ptr(), batch.discounts.data_ptr(), batch.found.data_ptr())
        self._critics.forward_and_backward(self._inputs, self._q_values, self._grad_q, self._curvatures)
        self._critic_loss(batch.found.data_ptr())
        torch.sum(self._sums_of_rows[0], 1, out=critics.totals)

    def _learn_actor(self, batch: Transitions, normal: torch.Tensor) -> None:
        self._actors.outputs(batch.observations, self._outputs)
        self._choose(batch.observations.data_ptr(), normal.data_ptr(), 0.0)
        self._critics.forward_and_backward(
            self._acting, self._q_values, self._ones, by_inputs=self._by_actions, weights=False
        )
        self._actor_loss(normal.data_ptr(), batch.found.data_ptr())
        self._actors.backward(self._by_outputs)
        _, acting, *temperature = self.optimisers
        torch.sum(self._sums_of_rows[1], 1, out=acting.totals)
        for adam in temperature:
            torch.sum(self._by_temperature, 0, keepdim=True, out=adam.gradient)
            adam.totals[_ALIVE].copy_(acting.totals[_ALIVE])


@final
class SmallBatchActorCritic(KernelActorCritic):
    """On a GPU critics learn in one launch and the actor in another, where a batch has few rows."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale, group: Group) -> None:
        super().__init__(case, module, scale, group)
        rows, width, nets = self._rows, self._width, len(self._of_critics.nets)
        backend, hidden = open_backend(case.device), len(self._of_actor.sizes) - 2
        critics, acting = self.optimisers[:2]

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, device=case.device)

        processes, alone = critics.processes, critics.processes == 1 and not critics.sums_apart
        kernels = load_kernels(
            backend,
            small_batch.program(self._of_actor, self._of_critics, processes),
        )
        self._for_critics, self._for_actor = kernels
        self._blocks, self._steps_too = small_batch.blocks_of(self._of_actor, self._of_critics), alone
        for kernel, sums, adam in zip(kernels, self._sums_of_rows, (critics, acting), strict=True):
            kernel.fill(
                **adam.members,
                rows=rows,
                critics=critics.flat,
                log_temperature=self.log_temperature.detach(),
                sums=sums,
                alone=int(alone),
                squares_of_blocks=zeros(self._blocks),
            )
        targets = [target for target, _ in self._follows]
        self._for_critics.fill(
            targets=targets[0],
            next_actor=targets[1] if targets[1:] else acting.flat,
            noise=self._noise,
            most=self._most_noise,
            inputs=zeros(rows, self._features + width),
            by_said=zeros(nets, rows),
            kept=zeros(nets * hidden, rows, small_batch.MOST),
            slopes=zeros(nets * hidden, rows, small_batch.MOST),
        )
        self._for_actor.fill(
            actor=acting.flat,
            target_entropy=self._target_entropy,
            by_outputs=zeros(rows, self._of_actor.sizes[-1]),
            by_temperature=self._by_temperature,
            target=targets[1] if targets[1:] else None,
            tau=self._algorithm.tau if targets[1:] else 0.0,
            kept=zeros(hidden, rows, small_batch.MOST),
            slopes=zeros(hidden, rows, small_batch.MOST),
        )
        own = self.optimisers[2].members if self._stochastic else {}
        self._for_actor.fill(
            **{f"temperature_{name}": own.get(name) for name in ("message", "means", "squares", "steps")},
            temperature_norm=self._steps[2].norm if self._stochastic else None,
        )

    def _learn_critics(self, batch: Transitions, normal: torch.Tensor, *, follow: bool) -> None:
        self._for_critics.launch(
            self._blocks,
            observations=batch.observations,
            found=batch.found,
            normal=normal,
            actions=batch.actions,
            returns=batch.returns,
            discounts=batch.discounts,
            next_observations=batch.next_observations,
            tau=self._algorithm.tau if follow else 0.0,
            **self._steps[0].members,
        )

    def _learn_actor(self, batch: Transitions, normal: torch.Tensor) -> None:
        self._for_actor.launch(
            self._blocks, observations=batch.observations, found=batch.found, normal=normal, **self._steps[1].members
        )
