"""What memory a run needs, worked out from its settings before anything is allocated."""

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple, final

import numpy as np
import torch
from torch import nn

from gpu_envs.backend import open_backend
from gpu_envs.codegen import SimulationConfig, layout_of
from gpu_envs.training.algorithms import OFF_POLICY, check_actions
from gpu_envs.training.assembly import check_modules, check_names, kernels_of
from gpu_envs.training.config import AUTO, Config
from gpu_envs.training.operations.fused_programs import Network
from gpu_envs.training.operations.heads import log_stds
from gpu_envs.training.operations.replay import places_of, stride_of
from gpu_envs.training.policies.actor_critic import critics_of, outputs_of
from gpu_envs.training.policies.networks import most_rows, units_of
from gpu_envs.training.policies.policy import padded
from gpu_envs.training.policies.wide_kernels import MOST_KEPT
from gpu_envs.training.policies.wide_networks import kept_of_row
from gpu_envs.training.process.memory import ROOM, ShortageError, available, give_back
from gpu_envs.training.rollout.horizon_env import RoleStorage, limit_of, role_infos, simulated
from gpu_envs.training.rollout.policy_rows import RoleMembers, assign, learns
from gpu_envs.training.rollout.sample_storage import SampleStorage

_MANY = 2**20
"""Replicas for which a team is laid out as it is for all larger numbers."""

_MOST = 2**31 - 1

_SURE = 0.8
"""What a run took was this share, at least, of what had been worked out."""

_BY_THEIR_OUTPUTS = ("tanh", "relu")
"""Activations whose gradient follows from their outputs; torch keeps the inputs of others, too."""


@final
class Pass(NamedTuple):
    """Work over rows of samples, which goes in pieces where they are many."""

    rows: float
    """Of a replica."""
    row_bytes: int
    most_rows: float = math.inf
    """In a piece."""

    def bytes_of(self, num_envs: int) -> int:
        """The memory of a piece."""
        return math.ceil(min(self.rows * num_envs, self.most_rows) * self.row_bytes)


@final
@dataclasses.dataclass(frozen=True)
class Need:
    """The memory of a run by the number of its replicas; without weights, and what torch and the driver hold."""

    stored: int
    """Bytes that a replica keeps as long as the run lasts: exact."""
    copied: int
    """Bytes that a replica needs beside that while its policies learn."""
    passes: tuple[Pass, ...]
    """What is done one after the other, of which the largest counts."""
    batches: int = 0
    """Bytes of work that does not grow with the replicas."""
    slot: int = 0
    """Bytes of what is stored, for each step that buffers hold."""

    def of(self, num_envs: int) -> int:
        """The bytes of so many replicas."""
        most = max((each.bytes_of(num_envs) for each in self.passes), default=0)
        return num_envs * (self.stored + self.copied) + most + self.batches

    def most(self, room: float) -> int:
        """The most replicas that have room in so many bytes."""
        return bisect_right(range(1, _MOST + 1), room, key=self.of)


def need_of(config: Config, device: str, modules: Mapping[str, nn.Module] | None = None) -> Need:
    """What memory a run needs on a device, ``cpu`` or ``cuda:N``; of ``num_envs`` nothing is asked.

    Args:
        config: The run.
        device: Where.
        modules: Policies of the user's own, by name.
    """
    world = simulated(config, 1 if config.num_envs == AUTO else config.replicas, device)
    spec = world.spec
    roles = role_infos(world)
    limit, horizon = limit_of(world), config.horizon
    stored = _environment(world, device) + int(config.stagger)
    copied, passes, shared, batches, slot = 0, [], dict[str, int](), 0, 0
    for role in roles:
        one, two = (
            RoleStorage(role, horizon, n, "meta", alone=not spec.has_team, limited=limit is not None) for n in (1, 2)
        )
        stored += _bytes(vars(two).values()) - _bytes(vars(one).values())
    stored += 4 * horizon * len(spec.metrics)
    policies = assign(roles, config.policies)
    check_names("policy_settings", config.policy_settings, policies)
    check_modules(modules or {}, policies)
    for name, parts in policies.items():
        rows, head, features = sum(len(part.members) for part in parts), parts[0].role.head, parts[0].role.features
        shared |= {part.role.name: 4 * head.width * part.role.agents for part in parts if not part.whole}
        if not learns(name):
            stored += rows * (4 * head.width * (1 + (head.kind == "box")) + 4)
            stored += rows * 4 * head.parameters * name.startswith("random")
            continue
        of_policy = config.of_policy(name)
        check_actions(of_policy.algorithm, head.kind, name)
        if of_policy.algorithm in OFF_POLICY:
            memory = _memory(of_policy, parts[0], rows, limit, (modules or {}).get(name))
            _check_batch(of_policy, rows, name)
            _check_warm_up(of_policy, name)
            stored, batches, slot = (one + other for one, other in zip((stored, batches, slot), memory, strict=True))
            copied += 4 * (horizon + 1) * rows
            passes += [Pass(horizon * rows, 24 * features)] * of_policy.normalise_observations
            continue
        once, twice = (vars(SampleStorage(of_policy, n * rows, head, "meta")).values() for n in (1, 2))
        stored += _bytes(twice) - _bytes(once) + 4 * rows * of_policy.normalise_rewards
        samples = horizon * rows
        copied += 8 * samples
        if len(parts) > 1 or not parts[0].whole:  # the rows are gathered from their roles
            copied += samples * (8 * features + 8 + head.parameters * parts[0].role.masked)
        passes += _passes(of_policy, device, parts[0], samples, (modules or {}).get(name))
    return Need(stored + sum(shared.values()), copied, tuple(passes), batches, slot)


def _memory(
    config: Config, part: RoleMembers, rows: int, limit: int | None, module: nn.Module | None
) -> tuple[int, int, int]:
    """What a policy with a buffer stores of a replica, what it works with, and what a replica's slot takes."""
    head, features, width = part.role.head, part.role.features, part.role.head.width
    explored = {"white": 0, "ou": width, "state": width * config.hidden[-1]}[config.exploration]
    lasts = features * places_of(config.slots, limit)
    kept = config.slots * stride_of(features, width) + lasts
    stored = rows * (1 + 4 * (width * (config.horizon + 2) + explored + kept))
    if module is None:
        outputs = outputs_of(head, config.algorithm) + critics_of(config.algorithm) * (config.atoms or 1)
        units = (1 + critics_of(config.algorithm)) * sum(config.hidden) + outputs
    else:
        units = units_of(parameter for parameter in module.parameters() if parameter.requires_grad)
    size = 2 if config.precision == "bf16" else 4
    of_row = 2 * size * units * (1 + config.layer_norm) + 4 * (4 * features + 8 * width + 16 * (config.atoms or 1))
    return stored, config.batch * of_row, -(-4 * rows * kept // config.slots)


def _check_batch(config: Config, rows: int, policy: str) -> None:
    """Refuses a buffer that holds fewer transitions than are drawn at a time."""
    if config.num_envs == AUTO:
        return
    most = (config.slots - config.n_step) * config.replicas * rows
    if most < config.batch:
        raise ValueError(
            f"batch is {config.batch:,}, and the buffer of the policy {policy!r} holds {most:,} transitions at most: "
            "give a smaller batch, or more slots"
        )


def _check_warm_up(config: Config, policy: str) -> None:
    """Refuses a warm-up that, rounded up to whole iterations, takes the whole run."""
    if config.num_envs == AUTO:
        return
    waits = -(-config.warm_up // (config.horizon * config.replicas))
    if waits >= config.iterations:
        raise ValueError(
            f"warm_up is {config.warm_up:,}, for which the policy {policy!r} takes {waits:,} whole iterations of "
            f"{config.steps_of_update:,} steps, and the run ends after {config.iterations:,}, before anything is "
            f"learnt: give total_steps above {config.steps_at(waits):,}, or a smaller warm_up, num_envs or horizon"
        )


def _passes(config: Config, device: str, part: RoleMembers, samples: int, module: nn.Module | None) -> list[Pass]:
    """What a policy that learns does over its samples."""
    head, features, masked, split = part.role.head, part.role.features, part.role.masked, part.role.split
    whole = split is None or module is not None  # modules of the user's own are given whole rows
    held = features if split is None or whole else split.own + -(-split.shared // len(part.members))
    found = [Pass(samples, 24 * held)] if config.normalise_observations else []
    network = Network(head, features, config.hidden, config.activation, config.precision)
    perceptron = module is None and not config.shared_trunk and config.algorithm != "pqn"
    kind, _ = kernels_of(network, config, device, masked=masked, default=module is None, parted=not whole)
    if kind in ("wide", "functions"):
        shared = config.shared_trunk or kind == "functions"
        kept = kept_of_row(head, features, config.hidden, config.precision, shared=shared)
        return [*found, Pass(samples / config.passes[1], kept, MOST_KEPT // kept)]
    if kind:
        return found
    means = head.parameters - log_stds(head)
    if module is not None:
        units = units_of(parameter for parameter in module.parameters() if parameter.requires_grad)
    elif config.algorithm == "pqn":
        units = sum(config.hidden) + head.parameters
    elif config.shared_trunk:
        units = sum(config.hidden) + padded(means + 1)
    else:
        units = 2 * sum(config.hidden) + means + 1
    size = 2 if config.precision == "bf16" else 4
    kept = 1 if module is None and config.activation in _BY_THEIR_OUTPUTS else 2
    kept += config.layer_norm  # the sums before
    widest = 2 * size * max(config.hidden)  # a layer's rows before and after the activation, or their gradients
    read = held * 4 * (1 + config.normalise_observations + (size == 2))
    beside = 4 * (3 * head.parameters + 8)  # the distribution, its gradient, and the sums
    valued = 1 + 1 / config.horizon if perceptron else 1 / config.horizon  # others give values as they act
    return [
        *found,
        Pass(samples / config.passes[1], kept * size * units + widest + read + beside, most_rows(units)),
        Pass(samples * valued, widest + read, most_rows(units)),
    ]


def _environment(simulated: SimulationConfig, device: str) -> int:
    """The bytes of a replica of the environment itself."""
    own = frozenset(name for name, value in simulated.params.items() if isinstance(value, np.ndarray))
    traits = open_backend(device).traits
    few, many = (
        layout_of(dataclasses.replace(simulated, num_envs=n), traits, own).buffers() for n in (_MANY, 2 * _MANY)
    )
    sizes = [
        sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in found.values()) for found in (few, many)
    ]
    everywhere = simulated.spec.masked and not simulated.spec.has_team  # that all replicas have a mask
    return (sizes[1] - sizes[0]) // _MANY + 4 * len(own) + int(everywhere)


def _bytes(arrays: Iterable[object]) -> int:
    """The bytes of the tensors among them, and of tensors in tuples."""
    flat = [part for array in arrays for part in (array if isinstance(array, tuple) else (array,))]
    return sum(part.numel() * part.element_size() for part in flat if isinstance(part, torch.Tensor))


def check_room(config: Config, device: str, modules: Mapping[str, nn.Module]) -> None:
    """Refuses more replicas than there is memory for.

    Raises:
        ShortageError: A number that cannot fit; the message names the largest that can.
    """
    need, count = need_of(config, device, modules), config.replicas
    room = available(device)
    sure = max(count * need.stored, _SURE * need.of(count))
    if sure <= room:
        return
    give_back(device)
    room = available(device)
    if sure <= room:
        return
    most = need.most(room * ROOM)
    lower = f"lower num_envs to {most:,}, which fits, or the horizon" if most else "lower the horizon, or hidden"
    slots = config.slots - math.ceil((need.of(count) - room * ROOM) / (count * need.slot)) if need.slot else 0
    if slots > max(config.horizon, config.n_step):
        lower = f"lower slots to {slots:,}, which fits" + (f", or num_envs to {most:,}" if most else "")
    raise ShortageError(
        f"{count:,} replicas for a horizon of {config.horizon} need {need.of(count) / 2**30:,.1f} GiB on {device}, of "
        f"which {room / 2**30:,.1f} GiB are free: {lower}"
    )
