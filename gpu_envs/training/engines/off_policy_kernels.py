"""Default actors and critics of off-policy algorithms: networks as functions, and kernels for the losses."""

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from gpu_envs.backend import open_backend
from gpu_envs.backend.program import ELEMENTARY_HEADER, KernelSettings, Program, program_of
from gpu_envs.training.algorithms import DDPG, SAC, TD3
from gpu_envs.training.algorithms.base import OffPolicy
from gpu_envs.training.engines.base import PERCEPTRON_SETTINGS, STEP_KERNELS, KernelEngine
from gpu_envs.training.engines.functions import (
    ACTIVATIONS,
    MAX_WIDTH,
    actor_form,
    critics_form,
    function_limit,
    functions_of,
)
from gpu_envs.training.engines.kernels import load_filled
from gpu_envs.training.engines.off_policy import ACTING, BUFFER, ActorCriticNetworks, Transitions
from gpu_envs.training.engines.ops import SUMS, float_struct
from gpu_envs.training.engines.wide import GRADIENT, PACK
from gpu_envs.training.networks import Case, Critics, PerceptronActorCritic, actor_outputs
from gpu_envs.training.observations import Scale
from gpu_envs.training.process.group import Group

_ALIVE = SUMS.index("alive")

_LOSSES = "off_policy/actor_critic.cuh"

_CALLS = {
    "actions": float_struct(
        "ActionsCall",
        ("Index", "rows"),
        ("const float*", "observations", ("rows", "features")),
        ("const float*", "outputs", ("rows", 1, "outputs")),
        ("const float*", "normal", ("rows", "width")),
        ("float", "noise"),
        ("float", "noise_limit"),
        ("float*", "inputs", ("rows", "inputs")),
        ("float*", "log_probs", ("rows",)),
    ),
    "td_targets": float_struct(
        "TdTargetsCall",
        ("Index", "rows"),
        ("const float*", "next_q", ("rows", "nets", 1)),
        ("const float*", "returns", ("rows",)),
        ("const float*", "discounts", ("rows",)),
        ("const u8*", "valid", ("rows",)),
        ("const float*", "log_probs", ("rows",)),
        ("const float*", "log_temperature", (1,)),
        ("float*", "grad_q", ("rows", "nets", 1)),
        ("float*", "curvatures", ("rows", "nets", 1)),
    ),
    "critic_losses": float_struct(
        "CriticLossesCall",
        ("Index", "rows"),
        ("const float*", "q_values", ("rows", "nets", 1)),
        ("const float*", "grad_q", ("rows", "nets", 1)),
        ("const u8*", "valid", ("rows",)),
        ("float*", "sums", (len(SUMS), "rows")),
    ),
    "actor_losses": float_struct(
        "ActorLossesCall",
        ("Index", "rows"),
        ("const float*", "inputs", ("rows", "inputs")),
        ("const float*", "outputs", ("rows", 1, "outputs")),
        ("const float*", "normal", ("rows", "width")),
        ("const float*", "log_probs", ("rows",)),
        ("const u8*", "valid", ("rows",)),
        ("const float*", "q_values", ("rows", "nets", 1)),
        ("const float*", "grad_actions", ("rows", "nets", "width")),
        ("const float*", "log_temperature", (1,)),
        ("float", "target_entropy"),
        ("float*", "grad_outputs", ("rows", 1, "outputs")),
        ("float*", "grad_temperature", ("rows",)),
        ("float*", "sums", (len(SUMS), "rows")),
    ),
}


def program(features: int, width: int, nets: int, *, stochastic: bool) -> Program:
    """The program of the loss kernels for a number of features, elements of an action (``width``) and critics."""
    sizes = {"features": features, "width": width, "nets": nets, "inputs": features + width}
    sizes["outputs"] = width * (1 + stochastic)
    prologue = losses_text(features, width, nets, stochastic=stochastic)
    settings = KernelSettings(prologue=prologue, sizes=sizes, weight=width)
    parts = (ELEMENTARY_HEADER, "training/off_policy/losses.cuh", "training/off_policy/actor_critic.cuh")
    return program_of(parts, _CALLS, settings)


def losses_text(features: int, width: int, nets: int, *, stochastic: bool) -> str:
    """C++ text of the constants that ``losses.cuh`` reads."""
    names = ("policy_loss", "value_loss", "entropy", "alive")
    sums = ", ".join(f"{name.upper()} = {SUMS.index(name)}" for name in names)
    return (
        f"constexpr int FEATURES = {features}, WIDTH = {width}, NETS = {nets}, {sums};\n"
        f"constexpr bool STOCHASTIC = {str(stochastic).lower()};"
    )


class KernelActorCritic(ActorCriticNetworks):
    """The default actor and critics, run by kernels: a ``Form`` of each, and buffers for the losses' sums."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale, group: Group) -> None:
        super().__init__(case, module, scale, group)
        assert isinstance(module, PerceptronActorCritic)
        assert isinstance(module.critics, Critics)
        algorithm, activation = self._algorithm, case.network.activation
        self._rows, self._features, self._width = algorithm.batch_size, case.features, case.head.width
        critics, actor = critics_form(module.critics, activation, self._width), actor_form(module.actor, activation)
        self._forms = critics, actor
        noise = (algorithm.target_noise, algorithm.target_noise_clip) if isinstance(algorithm, TD3) else (0.0, 0.0)
        self._noise, self._noise_limit = noise
        self._row_sums = self.rate.new_zeros(2, len(SUMS), self._rows)  # [critics or actor, sum, row]
        self._grad_temperature = self.rate.new_zeros(self._rows)


@final
class FunctionActorCritic(KernelActorCritic):
    """The default actor and critics: their passes by ``Functions``, losses by kernels with one thread per row."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale, group: Group) -> None:
        super().__init__(case, module, scale, group)
        rows, width, inputs, nets = self._rows, self._width, self._features + self._width, self._algorithm.critics
        zeros, forms = self.rate.new_zeros, self._forms
        self._critics, self._actor = (
            functions_of(case, form, adam.flat, adam.gradient, rows)
            for form, adam in zip(forms, self.optimisers, strict=False)
        )
        self._target_critics, *target_actors = (
            functions_of(case, form, target, torch.empty_like(target), rows)
            for form, (target, _) in zip(forms, self._target_pairs, strict=False)
        )
        (self._next_actor,) = target_actors or [self._actor]
        self._inputs, self._acting = zeros(rows, inputs), zeros(rows, inputs)
        self._q_values, self._next_q, self._grad_q, self._curvatures = (zeros(rows, nets, 1) for _ in range(4))
        self._ones = zeros(rows, nets, 1).fill_(1.0)
        self._outputs, self._grad_outputs = (zeros(rows, 1, forms[1].sizes[-1]) for _ in range(2))
        self._grad_actions = zeros(rows, nets, width)
        kernels = load_filled(
            open_backend(case.device, case.threads),
            [program(self._features, width, nets, stochastic=self._algorithm.stochastic)],
            rows=rows,
            inputs=self._acting,
            outputs=self._outputs,
            log_probs=zeros(rows),
            noise_limit=self._noise_limit,
            next_q=self._next_q,
            q_values=self._q_values,
            grad_q=self._grad_q,
            curvatures=self._curvatures,
            grad_actions=self._grad_actions,
            log_temperature=self.log_temperature.detach(),
            target_entropy=self._target_entropy,
            grad_outputs=self._grad_outputs,
            grad_temperature=self._grad_temperature,
        )
        for name, sums in zip(("critic_losses", "actor_losses"), self._row_sums, strict=True):
            kernels[name].fill(sums=sums)
        bound = (kernel.bind(rows) for kernel in kernels.values())  # the remaining arguments are the batch's
        self._write_actions, self._td_target, self._critic_loss, self._actor_loss = bound

    def _learn_critics(self, batch: Transitions, normal: Tensor, *, follow: bool) -> None:
        del follow  # learn() updates the targets
        next_observations = batch.next_observations
        self._next_actor.outputs(next_observations, self._outputs)
        self._write_actions(next_observations.data_ptr(), normal.data_ptr(), self._noise)
        self._target_critics.outputs(self._acting, self._next_q)
        torch.cat((batch.observations, batch.actions), 1, out=self._inputs)
        self._td_target(batch.returns.data_ptr(), batch.discounts.data_ptr(), batch.valid.data_ptr())
        self._critics.backward(self._grad_q, (self._inputs, self._q_values, self._curvatures))
        self._critic_loss(batch.valid.data_ptr())
        torch.sum(self._row_sums[0], 1, out=self.optimisers[0].totals)

    def _learn_actor(self, batch: Transitions, normal: Tensor) -> None:
        self._actor.outputs(batch.observations, self._outputs)
        self._write_actions(batch.observations.data_ptr(), normal.data_ptr(), 0.0)
        forward = self._acting, self._q_values, None
        self._critics.backward(self._ones, forward, grad_inputs=self._grad_actions, weights=False)
        self._actor_loss(normal.data_ptr(), batch.valid.data_ptr())
        self._actor.backward(self._grad_outputs)
        _, actor, *temperature = self.optimisers
        torch.sum(self._row_sums[1], 1, out=actor.totals)
        for adam in temperature:
            torch.sum(self._grad_temperature, 0, keepdim=True, out=adam.gradient)
            adam.totals[_ALIVE].copy_(actor.totals[_ALIVE])


class ActorCriticEngine(KernelEngine):
    """Actors and critics that are perceptrons."""

    learns = OffPolicy
    algorithms = (SAC, TD3, DDPG)
    settings: ClassVar[tuple[str, ...]] = (
        *("learning_rate", "gamma", "max_grad_norm", "buffer_size", "learning_starts", "batch_size", "gradient_steps"),
        *("n_step", "tau", "exploration", "temperature", "target_entropy", "noise", "target_noise"),
        *("target_noise_clip", "policy_delay", *PERCEPTRON_SETTINGS),
    )
    networks: ClassVar[type[KernelActorCritic]] = FunctionActorCritic

    @final
    def make(self, case: Case, module: nn.Module, scale: Scale, group: Group | None) -> ActorCriticNetworks:
        return self.networks(case, module, scale, group or Group())


def wide_limit(case: Case) -> str:
    """A sentence on the first limit of the wide kernels that the actor or the critics exceed; empty: none."""
    algorithm, net = case.algorithm, case.network
    assert isinstance(algorithm, OffPolicy)
    actor = (case.features, *net.hidden, actor_outputs(case.head, algorithm))
    critics = (case.features + case.head.width, *net.hidden, 1)
    reasons = (function_limit(sizes, net.activation, net.precision, case.device) for sizes in (actor, critics))
    return next(filter(None, reasons), "")


@final
class GpuFunctionsEngine(ActorCriticEngine):
    """Actor and critics on a GPU, run by the wide kernels."""

    name = "GPU functions"
    settings = (*ActorCriticEngine.settings, "layer_norm")
    kernels = (
        PACK,
        ACTING,
        BUFFER,
        ("gradients", f"kernel_outputs of wide/act.cuh, {GRADIENT}; losses by {_LOSSES}"),
        STEP_KERNELS,
    )

    def exceeded(self, case: Case) -> str:
        return wide_limit(case)


@final
class CpuEngine(ActorCriticEngine):
    """Actor and critics on a CPU."""

    name = "CPU functions"
    device = "cpu"
    kernels = (ACTING, BUFFER, ("gradients", f"networks by cpu/perceptrons.cuh, losses by {_LOSSES}"), STEP_KERNELS)

    def exceeded(self, case: Case) -> str:
        net = case.network
        if net.activation not in ACTIVATIONS:
            return f"the activation is {net.activation}, not {', '.join(ACTIVATIONS)}"
        if net.precision == "bf16":
            return "the precision is bf16"
        return f"a layer has more than {MAX_WIDTH} units" if max(net.hidden) > MAX_WIDTH else ""
