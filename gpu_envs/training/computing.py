"""Which kernels compute the policies of a run."""

from collections.abc import Mapping, Sequence

from gpu_envs.backend.program import Device
from gpu_envs.codegen import layout_of
from gpu_envs.training.algorithms import OffPolicy
from gpu_envs.training.assembly import kernels_of
from gpu_envs.training.operations.act_and_step import steps_where_it_acts
from gpu_envs.training.operations.fused_programs import Network
from gpu_envs.training.policies.actor_critic_update import TorchUpdate
from gpu_envs.training.policies.functions import why_torch
from gpu_envs.training.policies.kernel_update import SmallBatchUpdate, update_of
from gpu_envs.training.rollout.horizon_env import role_infos, simulated
from gpu_envs.training.rollout.policy_rows import assign, learns
from gpu_envs.training.run import Run

_ACTING = "torch, and kernel_sample of common/sample.cuh"
_CHOOSING = "kernel_prefer of off_policy/choices.cuh, and kernel_sample of common/sample.cuh"
_HORIZON = "kernel_act_and_step of small/act_and_step.cuh, a whole horizon with its steps"
_BUFFER = ("buffer", "kernel_insert and kernel_draw of common/replay.cuh")
_STEP = ("step", "kernel_collect and kernel_adam of common/optimise.cuh")
_WIDE_GRADIENT = (
    "kernel_update of wide/update.cuh, kernel_gradient of wide/gradient.cuh, kernel_reduce of wide/reduce.cuh"
)

_KERNELS: Mapping[str, Sequence[tuple[str, str]]] = {
    "narrow": (
        ("acting", "kernel_act of small/act.cuh"),
        ("values", "kernel_values of small/act.cuh"),
        ("gradient", "kernel_update of small/update.cuh"),
        ("step", "kernel_step of small/reduce.cuh, which adds up the gradient"),
    ),
    "wide": (
        ("weights", "kernel_pack of wide/pack.cuh, before each of the others"),
        ("acting", "kernel_act of wide/act.cuh"),
        ("values", "kernel_values of wide/act.cuh"),
        ("gradient", _WIDE_GRADIENT),
        _STEP,
    ),
    "functions": (
        ("weights", "kernel_pack of wide/pack.cuh, before each of the others"),
        ("acting", f"kernel_outputs of wide/outputs.cuh, {_CHOOSING}"),
        ("values", "kernel_outputs of wide/outputs.cuh, and kernel_best of off_policy/choices.cuh"),
        ("gradient", f"{_WIDE_GRADIENT}; of the loss kernel_judge of off_policy/choices.cuh"),
        _STEP,
    ),
    "values": (
        ("acting", f"torch, {_CHOOSING}"),
        ("values", "torch, and kernel_best of off_policy/choices.cuh"),
        ("gradient", "torch, and of the loss kernel_judge of off_policy/choices.cuh"),
        _STEP,
    ),
    "actors": (("acting", _ACTING), _BUFFER, ("gradients", "torch"), _STEP),
    "small batch": (
        ("acting", _ACTING),
        _BUFFER,
        ("gradients", "kernel_critics and kernel_actor of off_policy/small_batch.cuh, which take the step too"),
        ("step", "of several processes: kernel_collect and kernel_adam of common/optimise.cuh"),
    ),
    "functions on a CPU": (
        ("acting", _ACTING),
        _BUFFER,
        ("gradients", "kernels of cpu/perceptrons.cuh, for networks, and of off_policy/actor_critic.cuh, for losses"),
        _STEP,
    ),
    "functions on a GPU": (
        ("weights", "kernel_pack of wide/pack.cuh, before networks run"),
        ("acting", _ACTING),
        _BUFFER,
        (
            "gradients",
            f"kernel_outputs of wide/outputs.cuh, {_WIDE_GRADIENT}; for losses those of off_policy/actor_critic.cuh",
        ),
        _STEP,
    ),
    "": (
        ("acting", _ACTING),
        ("values", "torch"),
        ("gradient", "torch, and kernel_loss of common/loss.cuh"),
        _STEP,
    ),
}
"""What computes what, for each answer of ``kernels_of``, and where torch values choices or actions; headers are in
``kernels/training/``."""


def who_computes(config: Run, device: str) -> list[str]:
    """Lines for people about each policy of a run that learns.

    Args:
        config: The run.
        device: ``cpu`` or ``cuda:N``, which need not be there.
    """
    world = simulated(config, 1, "cpu")
    roles = role_infos(world)
    lines = []
    for name, parts in assign(roles, config.policies).items():
        if not learns(name):
            continue
        own, role = config.of_policy(name), parts[0].role
        net = own.network
        if isinstance(own.algorithm, OffPolicy):
            reason = why_torch(own, role.features, role.head, device, default=True)
            update = update_of(own, reason, role.features, role.head, device)
            functions = "functions on a CPU" if device == "cpu" else "functions on a GPU"
            kind = {TorchUpdate: "actors", SmallBatchUpdate: "small batch"}.get(update, functions)
        else:
            network = Network(role.head, role.features, net.hidden, net.activation, net.precision)
            kind, reason = kernels_of(
                network, own, device, masked=role.masked, default=True, parted=role.split is not None
            )
            kind = kind or ("values" if own.algorithm.name == "pqn" else "")
        layers = " x ".join(map(str, net.hidden))
        norm = ", normalised" if net.layer_norm else ""
        trunk = ", one trunk for actor and critic" if net.shared_trunk else ""
        lines.append(
            f"{name}: {role.features} features, {layers} {net.activation}{norm}{trunk}, {net.precision}, {device}"
        )
        at_once = kind == "narrow" and steps_where_it_acts(layout_of(world, Device(on_gpu=True)), config.params)
        computing = dict(_KERNELS[kind]) | ({"acting": _HORIZON} if at_once else {})
        lines += [f"  {what:<10}{kernels}" for what, kernels in computing.items()]
        lines += [f"  why torch: {reason}"] if reason else []
    return lines
