"""Actors and critics of off-policy algorithms, the default ones, as functions with kernels for their losses."""

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from gpu_envs.backend import open_backend
from gpu_envs.backend.program import ELEMENTARY_HEADER, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.algorithms import DDPG, SAC, TD3
from gpu_envs.training.algorithms.base import OffPolicy
from gpu_envs.training.engines.base import PERCEPTRON_SETTINGS, STEP_KERNELS, KernelEngine
from gpu_envs.training.engines.functions import (
    ACTIVATIONS,
    WIDEST,
    actor_form,
    critics_form,
    function_limit,
    functions_of,
)
from gpu_envs.training.engines.kernels import load_filled
from gpu_envs.training.engines.off_policy import ACTING, BUFFER, ActorCriticNetworks, Transitions
from gpu_envs.training.engines.ops import SUMS
from gpu_envs.training.engines.wide import GRADIENT, PACK
from gpu_envs.training.networks import Case, Critics, PerceptronActorCritic, outputs_of
from gpu_envs.training.observations import Scale
from gpu_envs.training.process.group import Group

_ALIVE = SUMS.index("alive")

_LOSSES = "those of off_policy/actor_critic.cuh"

_CALLS = {
    "choose": Struct.of(
        "ChooseCall",
        "float",
        ("Index", "rows"),
        ("const float*", "observations", ("rows", "features")),
        ("const float*", "outputs", ("rows", 1, "outputs")),
        ("const float*", "normal", ("rows", "width")),
        ("float", "noise"),
        ("float", "most"),
        ("float*", "inputs", ("rows", "inputs")),
        ("float*", "log_probs", ("rows",)),
    ),
    "aim": Struct.of(
        "AimCall",
        "float",
        ("Index", "rows"),
        ("const float*", "targets", ("rows", "nets", 1)),
        ("const float*", "returns", ("rows",)),
        ("const float*", "discounts", ("rows",)),
        ("const u8*", "found", ("rows",)),
        ("const float*", "log_probs", ("rows",)),
        ("const float*", "log_temperature", (1,)),
        ("float*", "by_said", ("rows", "nets", 1)),
        ("float*", "curvatures", ("rows", "nets", 1)),
    ),
    "judge": Struct.of(
        "JudgeCall",
        "float",
        ("Index", "rows"),
        ("const float*", "said", ("rows", "nets", 1)),
        ("const float*", "by_said", ("rows", "nets", 1)),
        ("const u8*", "found", ("rows",)),
        ("float*", "sums", (len(SUMS), "rows")),
    ),
    "steer": Struct.of(
        "SteerCall",
        "float",
        ("Index", "rows"),
        ("const float*", "inputs", ("rows", "inputs")),
        ("const float*", "outputs", ("rows", 1, "outputs")),
        ("const float*", "normal", ("rows", "width")),
        ("const float*", "log_probs", ("rows",)),
        ("const u8*", "found", ("rows",)),
        ("const float*", "said", ("rows", "nets", 1)),
        ("const float*", "by_actions", ("rows", "nets", "width")),
        ("const float*", "log_temperature", (1,)),
        ("float", "target_entropy"),
        ("float*", "by_outputs", ("rows", 1, "outputs")),
        ("float*", "by_temperature", ("rows",)),
        ("float*", "sums", (len(SUMS), "rows")),
    ),
}


def program(features: int, width: int, nets: int, *, stochastic: bool) -> Program:
    """The losses' source, for observations and actions of such lengths and so many critics."""
    outputs = width * (2 if stochastic else 1)
    settings = KernelSettings(
        prologue=losses_text(features, width, nets, stochastic=stochastic),
        sizes={"features": features, "width": width, "nets": nets, "outputs": outputs, "inputs": features + width},
        weight=width,
    )
    parts = (ELEMENTARY_HEADER, "training/off_policy/squashed.cuh", "training/off_policy/actor_critic.cuh")
    return program_of(parts, _CALLS, settings)


def losses_text(features: int, width: int, nets: int, *, stochastic: bool) -> str:
    """What ``squashed.cuh`` has compiled in."""
    names = ("policy_loss", "value_loss", "entropy", "alive")
    sums = ", ".join(f"{name.upper()} = {SUMS.index(name)}" for name in names)
    return (
        f"constexpr int FEATURES = {features}, WIDTH = {width}, NETS = {nets}, {sums};\n"
        f"constexpr bool STOCHASTIC = {str(stochastic).lower()};"
    )


class KernelActorCritic(ActorCriticNetworks):
    """The default module's, run by kernels."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale, group: Group) -> None:
        super().__init__(case, module, scale, group)
        assert isinstance(module, PerceptronActorCritic)
        assert isinstance(module.critics, Critics)
        algorithm, activation = self._algorithm, case.network.activation
        self._rows, self._features, self._width = algorithm.batch_size, case.features, case.head.width
        critics, actor = critics_form(module.critics, activation, self._width), actor_form(module.actor, activation)
        self._forms = critics, actor
        self._noise, self._most_noise = (
            (algorithm.target_noise, algorithm.target_noise_clip) if isinstance(algorithm, TD3) else (0.0, 0.0)
        )
        self._sums_of_rows = self.rate.new_zeros(2, len(SUMS), self._rows)  # of critics and of the actor
        self._by_temperature = self.rate.new_zeros(self._rows)


@final
class FunctionActorCritic(KernelActorCritic):
    """Networks as functions forward and backward, and losses row by row."""

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
            for form, (target, _) in zip(forms, self._follows, strict=False)
        )
        (self._next_actor,) = target_actors or [self._actor]
        self._inputs, self._acting = zeros(rows, inputs), zeros(rows, inputs)
        self._q_values, self._target_q, self._grad_q, self._curvatures = (zeros(rows, nets, 1) for _ in range(4))
        self._ones = zeros(rows, nets, 1).fill_(1.0)
        self._outputs, self._by_outputs = (zeros(rows, 1, forms[1].sizes[-1]) for _ in range(2))
        self._by_actions = zeros(rows, nets, width)
        kernels = load_filled(
            open_backend(case.device, case.threads),
            [program(self._features, width, nets, stochastic=self._algorithm.stochastic)],
            rows=rows,
            inputs=self._acting,
            outputs=self._outputs,
            log_probs=zeros(rows),
            most=self._most_noise,
            targets=self._target_q,
            said=self._q_values,
            by_said=self._grad_q,
            curvatures=self._curvatures,
            by_actions=self._by_actions,
            log_temperature=self.log_temperature.detach(),
            target_entropy=self._target_entropy,
            by_outputs=self._by_outputs,
            by_temperature=self._by_temperature,
        )
        for name, sums in zip(("judge", "steer"), self._sums_of_rows, strict=True):
            kernels[name].fill(sums=sums)
        self._choose, self._td_target, self._critic_loss, self._actor_loss = (
            kernel.bind(rows)
            for kernel in kernels.values()  # what is left is of the learner's own batch
        )

    def _learn_critics(self, batch: Transitions, normal: Tensor, *, follow: bool) -> None:
        del follow  # later
        following = batch.next_observations
        self._next_actor.outputs(following, self._outputs)
        self._choose(following.data_ptr(), normal.data_ptr(), self._noise)
        self._target_critics.outputs(self._acting, self._target_q)
        torch.cat((batch.observations, batch.actions), 1, out=self._inputs)
        self._td_target(batch.returns.data_ptr(), batch.discounts.data_ptr(), batch.found.data_ptr())
        self._critics.backward(self._grad_q, (self._inputs, self._q_values, self._curvatures))
        self._critic_loss(batch.found.data_ptr())
        torch.sum(self._sums_of_rows[0], 1, out=self.optimisers[0].totals)

    def _learn_actor(self, batch: Transitions, normal: Tensor) -> None:
        self._actor.outputs(batch.observations, self._outputs)
        self._choose(batch.observations.data_ptr(), normal.data_ptr(), 0.0)
        forward = self._acting, self._q_values, None
        self._critics.backward(self._ones, forward, by_inputs=self._by_actions, weights=False)
        self._actor_loss(normal.data_ptr(), batch.found.data_ptr())
        self._actor.backward(self._by_outputs)
        _, actor, *temperature = self.optimisers
        torch.sum(self._sums_of_rows[1], 1, out=actor.totals)
        for adam in temperature:
            torch.sum(self._by_temperature, 0, keepdim=True, out=adam.gradient)
            adam.totals[_ALIVE].copy_(actor.totals[_ALIVE])


class ActorCriticEngine(KernelEngine):
    """Perceptrons of an actor and critics."""

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
    """Which limit of wide networks' kernels the actor or the critics exceed; empty: none."""
    algorithm, net = case.algorithm, case.network
    assert isinstance(algorithm, OffPolicy)
    actor = (case.features, *net.hidden, outputs_of(case.head, algorithm))
    critics = (case.features + case.head.width, *net.hidden, 1)
    reasons = (function_limit(sizes, net.activation, net.precision, case.device) for sizes in (actor, critics))
    return next(filter(None, reasons), "")


@final
class GpuFunctionsEngine(ActorCriticEngine):
    """Actor and critics as functions, by kernels of wide networks."""

    name = "GPU functions"
    settings = (*ActorCriticEngine.settings, "layer_norm")
    kernels = (
        PACK,
        ACTING,
        BUFFER,
        ("gradients", f"kernel_outputs of wide/act.cuh, {GRADIENT}; for losses {_LOSSES}"),
        STEP_KERNELS,
    )

    def exceeded(self, case: Case) -> str:
        return wide_limit(case)


@final
class CpuEngine(ActorCriticEngine):
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
