"""The memory that a run stores, known from its settings before anything is allocated."""

import dataclasses
import math
from collections.abc import Iterable
from typing import final

import numpy as np
import torch

from gpu_envs.codegen import layout_of
from gpu_envs.training.algorithms import OffPolicy, OnPolicy
from gpu_envs.training.learner import sample_arrays
from gpu_envs.training.policy import check_actions, check_learning_policies, learns
from gpu_envs.training.process.device import ROOM, ShortageError, available, give_back
from gpu_envs.training.rollout.horizon_env import RoleStorage
from gpu_envs.training.rollout.plan import Plan
from gpu_envs.training.rollout.replay import places_of, stride_of
from gpu_envs.training.run import AUTO, Run

_MANY = 2**20
"""Replicas for which a team is laid out as it is for all larger numbers."""


@final
@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """The bytes that a run stores; weights and what networks work with come on top, and vary with the engine."""

    per_replica: int
    """Bytes that each replica stores as long as the run lasts."""
    per_step: int = 0
    """Of those, bytes for each step that replay buffers hold."""

    def of(self, num_envs: int) -> int:
        """Bytes of ``num_envs`` replicas."""
        return num_envs * self.per_replica

    def most(self, room: float) -> int:
        """The most replicas that fit into ``room`` bytes."""
        return int(room // self.per_replica)


def memory_of_run(plan: Plan) -> MemoryEstimate:
    """Estimates what each replica of a run stores on its device.

    Raises:
        ValueError: A policy cannot learn its role's actions, or an off-policy one would never learn.
    """
    config, spec, limit, horizon = plan.config, plan.world.spec, plan.limit, plan.config.horizon
    stored = _environment(plan) + int(config.stagger)
    shared, per_step = dict[str, int](), 0
    for role in plan.roles:
        kinds = {"alone": not spec.has_team, "limited": limit is not None}
        stored += _growth(vars(RoleStorage(role, horizon, n, "meta", **kinds)).values() for n in (1, 2))
    stored += 4 * horizon * len(spec.metrics)
    check_learning_policies("policies", config.policy_overrides, plan.policies)
    for name, parts in plan.policies.items():
        rows, head, features = sum(len(part.members) for part in parts), parts[0].role.head, parts[0].role.features
        shared |= {part.role.name: 4 * head.width * part.role.agents for part in parts if not part.whole}
        if not learns(name):
            stored += rows * (4 * head.width * (1 + (head.kind == "box")) + 4)
            stored += rows * 4 * head.parameters * name.startswith("random")
            continue
        of_policy = config.for_policy(name)
        algorithm = of_policy.algorithm
        check_actions(algorithm, head.kind, name)
        if isinstance(algorithm, OffPolicy):
            _check_buffer(of_policy, algorithm, rows, name)
            correlated = head.width * (algorithm.exploration == "ou")
            lasts = features * places_of(algorithm.buffer_size, limit)
            kept = algorithm.buffer_size * stride_of(features, head.width) + lasts
            stored += rows * ((correlated > 0) + 4 * (head.width * (horizon + 2) + correlated + kept))
            per_step += -(-4 * rows * kept // algorithm.buffer_size)
            continue
        assert isinstance(algorithm, OnPolicy)
        stored += _growth(sample_arrays(algorithm, horizon, n * rows, head, "meta").values() for n in (1, 2))
        stored += 4 * rows * algorithm.normalise_rewards
    return MemoryEstimate(stored + sum(shared.values()), per_step)


def _check_buffer(config: Run, algorithm: OffPolicy, rows: int, policy: str) -> None:
    """Refuses a buffer below a batch, and random steps that, rounded up to iterations, take the whole run."""
    if config.num_envs == AUTO:
        return
    most = (algorithm.buffer_size - algorithm.n_step) * config.replicas * rows
    if most < algorithm.batch_size:
        raise ValueError(
            f"batch_size is {algorithm.batch_size:,}, and the buffer of the policy {policy!r} holds {most:,} "
            "transitions at most: give a smaller batch_size, or a larger buffer_size"
        )
    waits = -(-algorithm.learning_starts // (config.horizon * config.replicas))
    if waits >= config.iterations:
        raise ValueError(
            f"learning_starts is {algorithm.learning_starts:,}, for which the policy {policy!r} takes {waits:,} whole "
            f"iterations of {config.steps_per_update:,} steps, and the run ends after {config.iterations:,}, before "
            f"anything is learnt: give total_steps above {config.steps_at(waits):,}, or a smaller learning_starts, "
            "num_envs or horizon"
        )


def _environment(plan: Plan) -> int:
    """The bytes of a replica of the environment itself."""
    world, traits = plan.world, plan.backend.traits
    own = frozenset(name for name, value in world.params.items() if isinstance(value, np.ndarray))
    few, many = (
        sum(
            math.prod(shape) * np.dtype(dtype).itemsize
            for shape, dtype in layout_of(dataclasses.replace(world, num_envs=n), traits, own).buffers().values()
        )
        for n in (_MANY, 2 * _MANY)
    )
    everywhere = world.spec.masked and not world.spec.has_team  # that all replicas have a mask
    return (many - few) // _MANY + 4 * len(own) + int(everywhere)


def _growth(sizes: Iterable[Iterable[object]]) -> int:
    """How many bytes more the second's tensors have than the first's."""
    one, two = (sum(part.nbytes for part in arrays if isinstance(part, torch.Tensor)) for arrays in sizes)
    return two - one


def check_room(plan: Plan) -> None:
    """Refuses more replicas of the run's environment than there is memory for.

    Raises:
        ShortageError: A number that cannot fit; the message names the largest that can.
    """
    estimate, config, device, count = memory_of_run(plan), plan.config, plan.device, plan.num_envs
    needed = estimate.of(count)
    if needed <= available(device):
        return
    give_back(device)
    room = available(device)
    if needed <= room:
        return
    most = estimate.most(room * ROOM)
    lower = f"lower num_envs to {most:,}, which fits, or the horizon" if most else "lower the horizon"
    if estimate.per_step:
        fewer = math.ceil((needed - room * ROOM) / (count * estimate.per_step))
        off_policy = [each.algorithm for each in config.variants if isinstance(each.algorithm, OffPolicy)]
        size = min(each.buffer_size for each in off_policy) - fewer
        if size > max(config.horizon, *(each.n_step for each in off_policy)):
            lower = f"lower buffer_size to {size:,}, which fits" + (f", or num_envs to {most:,}" if most else "")
    raise ShortageError(
        f"{count:,} replicas for a horizon of {config.horizon} store {needed / 2**30:,.1f} GiB on {device}, of "
        f"which {room / 2**30:,.1f} GiB are free: {lower}"
    )
