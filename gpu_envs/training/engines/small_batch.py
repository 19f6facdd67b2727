"""A step of critics and one of an actor by a batch of few rows, each in one launch of a GPU."""

import dataclasses
from typing import final

from torch import Tensor, nn

from gpu_envs.backend import open_backend
from gpu_envs.backend.program import ELEMENTARY_HEADER, Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.algorithms.base import OffPolicy
from gpu_envs.training.engines.functions import ACTIVATIONS, Form, activation_functions, table
from gpu_envs.training.engines.kernels import Part, load_filled, sizes_of
from gpu_envs.training.engines.off_policy import ACTING, BUFFER, Transitions
from gpu_envs.training.engines.off_policy_kernels import ActorCriticEngine, KernelActorCritic, losses_text, wide_limit
from gpu_envs.training.engines.ops import SUMS
from gpu_envs.training.engines.optimiser import STEP_MEMBERS
from gpu_envs.training.networks import Case
from gpu_envs.training.observations import Scale
from gpu_envs.training.process.group import Group

MOST_ROWS = 1024
"""Of a batch from which a launch learns; beyond them functions are as quick."""

_MOST = 256
"""Columns of a layer."""

_MOST_OUTPUTS = 64

_OF_BOTH = (
    ("Index", "rows"),
    ("const float*", "observations", ("rows", "features")),
    ("const u8*", "found", ("rows",)),
    ("const float*", "normal", ("rows", "width")),
    ("const float*", "critics", ("critics_count",)),
    ("float*", "log_temperature", (1,)),
    ("float*", "sums", (len(SUMS), "rows")),
    ("int", "alone"),
    ("float", "tau"),
    ("float*", "squares_of_blocks", ("launched",)),
    *STEP_MEMBERS,
)
"""What both learn by: where processes learn together, which is not ``alone``, the gradients are all that is found."""

_CALLS = {
    "critics": Struct.of(
        "CriticsCall",
        "float",
        *_OF_BOTH,
        ("const float*", "actions", ("rows", "width")),
        ("const float*", "returns", ("rows",)),
        ("const float*", "discounts", ("rows",)),
        ("const float*", "next_observations", ("rows", "features")),
        ("float*", "targets", ("critics_count",)),
        ("const float*", "next_actor", ("actor_count",)),
        ("float", "noise"),
        ("float", "most"),
        ("float*", "inputs", ("rows", "inputs")),
        ("float*", "by_said", ("nets", "rows")),
        ("float*", "kept", ("of_critics", "rows", _MOST)),
        ("float*", "slopes", ("of_critics", "rows", _MOST)),
    ),
    "actor": Struct.of(
        "ActorCall",
        "float",
        *_OF_BOTH,
        ("const float*", "actor", ("actor_count",)),
        ("float", "target_entropy"),
        ("float*", "by_outputs", ("rows", "outputs")),
        ("float*", "by_temperature", ("rows",)),
        ("float*?", "target", ("actor_count",)),
        ("float*?", "temperature_message", (1 + len(SUMS),)),
        ("float*?", "temperature_means", (1,)),
        ("float*?", "temperature_squares", (1,)),
        ("float*?", "temperature_norm", (1,)),
        ("i64*?", "temperature_steps", (1,)),
        ("float*", "kept", ("hidden", "rows", _MOST)),
        ("float*", "slopes", ("hidden", "rows", _MOST)),
    ),
}

_SIZES = {"shared": "SHARED_BYTES", "threads": "THREADS", "launched": "CLUSTER * 8 * BLOCKS"}


def program(actor: Form, critics: Form, processes: int) -> tuple[Program, int]:
    """The source, where so many processes learn together, and a launch's blocks: such that all are there at once."""
    parts, settings = _parts(actor, critics)
    compiled = sizes_of(parts, settings, _SIZES)
    features, inputs, nets, hidden = actor.sizes[0], critics.sizes[0], len(critics.nets), len(actor.sizes) - 2
    settings = dataclasses.replace(
        settings,
        sizes={
            "features": features,
            "width": inputs - features,
            "nets": nets,
            "inputs": inputs,
            "outputs": actor.sizes[-1],
            "hidden": hidden,
            "of_critics": nets * hidden,
            "critics_count": critics.count,
            "actor_count": actor.count,
            "launched": compiled["launched"],
            "processes": processes,
        },
        grid=Grid(threads=compiled["threads"], replicas=1, shared_bytes=compiled["shared"], cooperative=True),
    )
    kernels = "\n".join(
        f"KERNEL_OF_CLUSTERS(kernel_{name}, {call.name}, THREADS, BLOCKS) {{ {name}(call); }}"
        for name, call in _CALLS.items()
    )
    return program_of([*parts, ("small-batch", kernels)], _CALLS, settings), compiled["launched"]


def _parts(actor: Form, critics: Form) -> tuple[list[Part], KernelSettings]:
    """Everything but the kernels."""
    features, width = actor.sizes[0], critics.sizes[0] - actor.sizes[0]
    prologue = losses_text(features, width, len(critics.nets), stochastic=actor.sizes[-1] > width)
    text = [
        f"constexpr int HIDDEN = {len(actor.sizes) - 2}, SUMS = {len(SUMS)}, DIVERGENCE = {SUMS.index('kl')};",
        f"constexpr int MOST = {_MOST}, OUTS = {_MOST_OUTPUTS};",
        table("width_of", [actor.sizes[1:-1]], "int l"),
        table("critic_weights", [[layer.weight for layer in net] for net in critics.nets]),
        table("critic_biases", [[layer.bias for layer in net] for net in critics.nets]),
        table("actor_weights", [[layer.weight for layer in actor.nets[0]]], "int l"),
        table("actor_biases", [[layer.bias for layer in actor.nets[0]]], "int l"),
        *activation_functions(actor.activation),
    ]
    return [
        ELEMENTARY_HEADER,
        "training/common/tensor_core.cuh",
        "training/off_policy/squashed.cuh",
        ("form", "\n".join(text)),
        "training/common/adam.cuh",
        "training/off_policy/small_batch.cuh",
    ], KernelSettings(prologue=prologue)


@final
class SmallBatchActorCritic(KernelActorCritic):
    """On a GPU critics learn in one launch and the actor in another, where a batch has few rows."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale, group: Group) -> None:
        super().__init__(case, module, scale, group)
        (of_critics, of_actor), (critics, actor, *temperature) = self._forms, self.optimisers
        rows, nets, hidden, zeros = self._rows, self._algorithm.critics, len(of_actor.sizes) - 2, self.rate.new_zeros
        self._steps_too = critics.processes == 1 and not critics.sums_apart
        source, self._blocks = program(of_actor, of_critics, critics.processes)
        (target_critics, _), *target_actors = self._follows
        members = temperature[0].members if temperature else {}
        kernels = load_filled(
            open_backend(case.device),
            [source],
            rows=rows,
            critics=critics.flat,
            log_temperature=self.log_temperature.detach(),
            alone=int(self._steps_too),
            targets=target_critics,
            next_actor=target_actors[0][0] if target_actors else actor.flat,
            noise=self._noise,
            most=self._most_noise,
            inputs=zeros(rows, self._features + self._width),
            by_said=zeros(nets, rows),
            actor=actor.flat,
            target_entropy=self._target_entropy,
            by_outputs=zeros(rows, of_actor.sizes[-1]),
            by_temperature=self._by_temperature,
            target=target_actors[0][0] if target_actors else None,
            **{f"temperature_{name}": members.get(name) for name in ("message", "means", "squares", "steps")},
            temperature_norm=self._steps[2].norm if temperature else None,
        )
        self._for_critics, self._for_actor = (
            kernel.fill(
                **adam.members,
                sums=sums,
                squares_of_blocks=zeros(self._blocks),
                kept=zeros(count * hidden, rows, _MOST),
                slopes=zeros(count * hidden, rows, _MOST),
            )
            for kernel, sums, adam, count in zip(
                kernels.values(), self._sums_of_rows, (critics, actor), (nets, 1), strict=True
            )
        )
        self._for_actor.fill(tau=self._algorithm.tau if target_actors else 0.0)

    def _learn_critics(self, batch: Transitions, normal: Tensor, *, follow: bool) -> None:
        tau, step = self._algorithm.tau if follow else 0.0, self._steps[0].members
        self._for_critics.launch(self._blocks, **vars(batch), normal=normal, tau=tau, **step)

    def _learn_actor(self, batch: Transitions, normal: Tensor) -> None:
        step = self._steps[1].members
        self._for_actor.launch(self._blocks, observations=batch.observations, found=batch.found, normal=normal, **step)


@final
class SmallBatchEngine(ActorCriticEngine):
    """Critics in one launch of a GPU and the actor in another, for batches of few rows."""

    name = "small batch"
    settings = (*ActorCriticEngine.settings, "layer_norm")
    networks = SmallBatchActorCritic
    kernels = (
        ACTING,
        BUFFER,
        ("gradients", "kernel_critics and kernel_actor of off_policy/small_batch.cuh, which take the step too"),
        ("step", "of several processes: kernel_collect and kernel_adam of common/optimise.cuh"),
    )

    def exceeded(self, case: Case) -> str:
        algorithm, net, width = case.algorithm, case.network, case.head.width
        assert isinstance(algorithm, OffPolicy)
        if reason := wide_limit(case):
            return reason
        if algorithm.batch_size > MOST_ROWS:
            return f"batch_size is {algorithm.batch_size:,}, more than {MOST_ROWS:,}"
        if case.features + width > _MOST or 2 * width > _MOST_OUTPUTS:
            return f"{case.features} features and {width} elements of actions are too many"
        if net.precision != "tf32":
            return f"the precision is {net.precision}, not tf32"
        if net.activation not in ACTIVATIONS:
            return f"the activation is {net.activation}, not {', '.join(ACTIVATIONS)}"
        return "hidden layers are normalised" if net.layer_norm else ""
