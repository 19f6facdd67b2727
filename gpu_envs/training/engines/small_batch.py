"""Small batches on a GPU: one launch updates the critics, and one the actor."""

import dataclasses
from typing import final

from torch import Tensor, nn

from gpu_envs.backend import open_backend
from gpu_envs.backend.program import ELEMENTARY_HEADER, Grid, KernelSettings, Program, program_of
from gpu_envs.training.algorithms.base import OffPolicy
from gpu_envs.training.engines.functions import ACTIVATIONS, Form, activation_functions, table
from gpu_envs.training.engines.kernels import Part, load_filled, sizes_of
from gpu_envs.training.engines.off_policy import ACTING, BUFFER, Transitions
from gpu_envs.training.engines.off_policy_kernels import ActorCriticEngine, KernelActorCritic, losses_text, wide_limit
from gpu_envs.training.engines.ops import SUMS, float_struct
from gpu_envs.training.engines.optimiser import STEP_MEMBERS
from gpu_envs.training.networks import Case
from gpu_envs.training.observations import Scale
from gpu_envs.training.process.group import Group

MAX_ROWS = 768
"""Maximum batch size; with larger batches ``GpuFunctionsEngine`` is as fast."""

_MAX_WIDTH = 256
"""Maximum units of a layer, and maximum inputs."""

_MAX_OUTPUTS = 64
"""Maximum outputs of an actor."""

_COMMON_MEMBERS = (
    ("Index", "rows"),
    ("const float*", "observations", ("rows", "features")),
    ("const u8*", "valid", ("rows",)),
    ("const float*", "normal", ("rows", "width")),
    ("const float*", "critics", ("critics_count",)),
    ("float*", "log_temperature", (1,)),
    ("float*", "sums", (len(SUMS), "rows")),
    ("int", "alone"),
    ("float", "tau"),
    ("float*", "block_squares", ("blocks",)),
    *STEP_MEMBERS,
)
"""Arguments of both kernels. ``alone`` is 0 where processes train together: then the kernels only compute gradients."""

_CALLS = {
    "update_critics": float_struct(
        "UpdateCriticsCall",
        *_COMMON_MEMBERS,
        ("const float*", "actions", ("rows", "width")),
        ("const float*", "returns", ("rows",)),
        ("const float*", "discounts", ("rows",)),
        ("const float*", "next_observations", ("rows", "features")),
        ("float*", "targets", ("critics_count",)),
        ("const float*", "next_actor", ("actor_count",)),
        ("float", "noise"),
        ("float", "noise_limit"),
        ("float*", "inputs", ("rows", "inputs")),
        ("float*", "grad_q", ("nets", "rows")),
        ("float*", "activations", ("critic_layers", "rows", _MAX_WIDTH)),
        ("float*", "grads", ("critic_layers", "rows", _MAX_WIDTH)),
    ),
    "update_actor": float_struct(
        "UpdateActorCall",
        *_COMMON_MEMBERS,
        ("const float*", "actor", ("actor_count",)),
        ("float", "target_entropy"),
        ("float*", "grad_outputs", ("rows", "outputs")),
        ("float*", "grad_temperature", ("rows",)),
        ("float*?", "target", ("actor_count",)),
        ("float*?", "temperature_message", (1 + len(SUMS),)),
        ("float*?", "temperature_means", (1,)),
        ("float*?", "temperature_squares", (1,)),
        ("float*?", "temperature_norm", (1,)),
        ("i64*?", "temperature_steps", (1,)),
        ("float*", "activations", ("actor_layers", "rows", _MAX_WIDTH)),
        ("float*", "grads", ("actor_layers", "rows", _MAX_WIDTH)),
    ),
}

_SIZES = {"shared": "SHARED_BYTES", "threads": "THREADS", "blocks": "CLUSTER * 8 * BLOCKS"}


def program(actor: Form, critics: Form, processes: int) -> tuple[Program, int]:
    """Returns the program for a number of processes that train together, and the number of blocks of a launch."""
    headers, settings = _headers(actor, critics)
    compiled = sizes_of(headers, settings, _SIZES)
    (features, *hidden, outputs), inputs, nets = actor.sizes, critics.sizes[0], len(critics.nets)
    sizes = {"features": features, "width": inputs - features, "inputs": inputs, "outputs": outputs, "nets": nets}
    sizes |= {"actor_layers": len(hidden), "critic_layers": nets * len(hidden), "processes": processes}
    sizes |= {"actor_count": actor.count, "critics_count": critics.count, "blocks": compiled["blocks"]}
    grid = Grid(threads=compiled["threads"], replicas=1, shared_bytes=compiled["shared"], cooperative=True)
    settings = dataclasses.replace(settings, sizes=sizes, grid=grid)
    kernels = "\n".join(
        f"KERNEL_OF_CLUSTERS(kernel_{name}, {call.name}, THREADS, BLOCKS) {{ {name}(call); }}"
        for name, call in _CALLS.items()
    )
    return program_of([*headers, ("small-batch", kernels)], _CALLS, settings), compiled["blocks"]


def _headers(actor: Form, critics: Form) -> tuple[list[Part], KernelSettings]:
    """Returns the parts of the program before its kernels, and settings with only the prologue."""
    features, width = actor.sizes[0], critics.sizes[0] - actor.sizes[0]
    prologue = losses_text(features, width, len(critics.nets), stochastic=actor.sizes[-1] > width)
    text = [
        f"constexpr int HIDDEN = {len(actor.sizes) - 2}, SUMS = {len(SUMS)}, DIVERGENCE = {SUMS.index('kl')};",
        f"constexpr int MAX_WIDTH = {_MAX_WIDTH}, MAX_OUTPUTS = {_MAX_OUTPUTS};",
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
        "training/off_policy/losses.cuh",
        ("form", "\n".join(text)),
        "training/common/adam.cuh",
        *(f"training/off_policy/small_batch/{name}.cuh" for name in ("tiles", "forward", "backward", "step")),
    ], KernelSettings(prologue=prologue)


@final
class SmallBatchActorCritic(KernelActorCritic):
    """Actor and critics, each updated by one launch with gradient, Adam's step and targets."""

    def __init__(self, case: Case, module: nn.Module, scale: Scale, group: Group) -> None:
        """Starts to compile the kernels, and allocates their buffers for a batch."""
        super().__init__(case, module, scale, group)
        (critics_form, actor_form), (critics, actor, *temperature) = self._forms, self.optimisers
        rows, nets, hidden, zeros = self._rows, self._algorithm.critics, len(actor_form.sizes) - 2, self.rate.new_zeros
        self._takes_steps = critics.processes == 1 and not critics.sums_apart
        source, self._blocks = program(actor_form, critics_form, critics.processes)
        (target_critics, _), *target_actors = self._target_pairs
        members = temperature[0].members if temperature else {}
        kernels = load_filled(
            open_backend(case.device),
            [source],
            rows=rows,
            critics=critics.flat,
            log_temperature=self.log_temperature.detach(),
            alone=int(self._takes_steps),
            targets=target_critics,
            next_actor=target_actors[0][0] if target_actors else actor.flat,
            noise=self._noise,
            noise_limit=self._noise_limit,
            inputs=zeros(rows, self._features + self._width),
            grad_q=zeros(nets, rows),
            actor=actor.flat,
            target_entropy=self._target_entropy,
            grad_outputs=zeros(rows, actor_form.sizes[-1]),
            grad_temperature=self._grad_temperature,
            target=target_actors[0][0] if target_actors else None,
            **{f"temperature_{name}": members.get(name) for name in ("message", "means", "squares", "steps")},
            temperature_norm=self._steps[2].norm if temperature else None,
        )
        self._update_critics, self._update_actor = (
            kernel.fill(
                **adam.members,
                sums=sums,
                block_squares=zeros(self._blocks),
                activations=zeros(count * hidden, rows, _MAX_WIDTH),
                grads=zeros(count * hidden, rows, _MAX_WIDTH),
            )
            for kernel, sums, adam, count in zip(
                kernels.values(), self._row_sums, (critics, actor), (nets, 1), strict=True
            )
        )
        self._update_actor.fill(tau=self._algorithm.tau if target_actors else 0.0)

    def _learn_critics(self, batch: Transitions, normal: Tensor, *, follow: bool) -> None:
        tau, step = self._algorithm.tau if follow else 0.0, self._steps[0].members
        self._update_critics.launch(self._blocks, **vars(batch), normal=normal, tau=tau, **step)

    def _learn_actor(self, batch: Transitions, normal: Tensor) -> None:
        inputs = {"observations": batch.observations, "valid": batch.valid, "normal": normal}
        self._update_actor.launch(self._blocks, **inputs, **self._steps[1].members)


@final
class SmallBatchEngine(ActorCriticEngine):
    """Actor and critics with small batches on a GPU."""

    name = "small batch"
    settings = (*ActorCriticEngine.settings, "layer_norm")
    networks = SmallBatchActorCritic
    kernels = (
        ACTING,
        BUFFER,
        (
            "gradients",
            "kernel_update_critics and kernel_update_actor of off_policy/small_batch; they take the step too",
        ),
        ("step", "with several processes: kernel_collect and kernel_adam of common/optimise.cuh"),
    )

    def exceeded(self, case: Case) -> str:
        algorithm, net, width = case.algorithm, case.network, case.head.width
        assert isinstance(algorithm, OffPolicy)
        if reason := wide_limit(case):
            return reason
        if algorithm.batch_size > MAX_ROWS:
            return f"batch_size is {algorithm.batch_size:,}, more than {MAX_ROWS:,}"
        if case.features + width > _MAX_WIDTH:
            return f"features and action elements are {case.features + width}, more than {_MAX_WIDTH}"
        if width > _MAX_OUTPUTS // 2:
            return f"actions have {width} elements, more than {_MAX_OUTPUTS // 2}"
        if net.precision != "tf32":
            return f"the precision is {net.precision}, not tf32"
        if net.activation not in ACTIVATIONS:
            return f"the activation is {net.activation}, not {', '.join(ACTIVATIONS)}"
        return "layer_norm is on" if net.layer_norm else ""
