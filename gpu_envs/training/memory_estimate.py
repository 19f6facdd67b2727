"""Estimate of a run's memory from its settings, before anything is allocated."""

import dataclasses
import math
from collections.abc import Iterable
from typing import final

import numpy as np
import torch

from gpu_envs.codegen import layout_of
from gpu_envs.training.algorithms import OffPolicy, OnPolicy
from gpu_envs.training.assembly import central_input
from gpu_envs.training.learner import sample_arrays
from gpu_envs.training.policy import check_actions, check_learning_policies, learns
from gpu_envs.training.process.device import USABLE_FRACTION, ShortageError, available_memory, release_memory
from gpu_envs.training.rollout.horizon_env import RoleStorage
from gpu_envs.training.rollout.plan import Plan
from gpu_envs.training.rollout.replay import final_obs_capacity, stride_of
from gpu_envs.training.run import AUTO, Run

_MANY = 2**20
"""Number of replicas; from here on the memory of team environments grows linearly."""


@final
@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a run stores permanently, without weights and workspaces of networks, which depend on the engine."""

    per_replica: int
    """Bytes per replica."""
    per_step: int = 0
    """Bytes per replica and step of the replay buffers; included in ``per_replica``."""

    def of(self, num_envs: int) -> int:
        """Return the bytes of ``num_envs`` replicas."""
        return num_envs * self.per_replica

    def max_replicas(self, size: float) -> int:
        """Return the maximum number of replicas that fit into ``size`` bytes."""
        return int(size // self.per_replica)


def memory_of_run(plan: Plan) -> MemoryEstimate:
    """Estimate a run's memory per replica; ValueError if an algorithm cannot learn in its role.

    Without weights, and without the states of users' modules and frozen policies with memory, which are not loaded yet.
    """
    config, spec, limit, horizon = plan.config, plan.world.spec, plan.limit, plan.config.horizon
    stored = _environment(plan) + int(config.stagger)
    shared, per_step = dict[str, int](), 0
    tracks_starts = any(run.network.memory is not None for run in config.variants)
    for role in plan.roles:
        kinds = {"single_agent": not spec.has_team, "may_truncate": limit is not None}
        stored += _bytes_per_replica(vars(RoleStorage(role, horizon, n, "meta", **kinds)).values() for n in (1, 2))
        stored += tracks_starts * (horizon + 1) * role.agents
    stored += 4 * (horizon + 1) * len({name for run in config.variants for name in run.network.critic_observes})
    stored += 4 * horizon * len(spec.metrics)
    check_learning_policies("policies", config.policy_overrides, plan.policies)
    for name, parts in plan.policies.items():
        rows, head, features = sum(len(part.members) for part in parts), parts[0].role.head, parts[0].role.features
        shared |= {part.role.name: 4 * head.width * part.role.agents for part in parts if not part.all_members}
        if not learns(name):
            stored += rows * (4 * head.width * (1 + (head.kind == "box")) + 4)
            stored += rows * 4 * head.parameters * name.startswith("random")
            continue
        policy_config = config.for_policy(name)
        algorithm = policy_config.algorithm
        check_actions(algorithm, head.kind, name)
        if isinstance(algorithm, OffPolicy):
            _check_buffer(policy_config, algorithm, rows, name)
            correlated = head.width * (algorithm.exploration == "ou")
            final_obs = features * final_obs_capacity(algorithm.buffer_size, limit)
            buffer = algorithm.buffer_size * stride_of(features, head.width) + final_obs
            stored += rows * ((correlated > 0) + 4 * (head.width * (horizon + 2) + correlated + buffer))
            per_step += -(-4 * rows * buffer // algorithm.buffer_size)
            continue
        assert isinstance(algorithm, OnPolicy)
        shape = head, "meta", policy_config.network.state_size
        stored += _bytes_per_replica(sample_arrays(algorithm, horizon, n * rows, *shape).values() for n in (1, 2))
        stored += 4 * rows * algorithm.normalise_rewards
        critic = central_input(parts[0].role, policy_config.network)
        stored += 0 if critic is None else 4 * (horizon + 1) * critic.features
    return MemoryEstimate(stored + sum(shared.values()), per_step)


def _check_buffer(config: Run, algorithm: OffPolicy, rows: int, policy: str) -> None:
    """Raise a ValueError if a policy's buffer cannot hold a batch, or its warm-up is as long as the run."""
    if config.num_envs == AUTO:
        return
    capacity = (algorithm.buffer_size - algorithm.n_step) * config.replicas * rows
    if capacity < algorithm.batch_size:
        needed = -(-algorithm.batch_size // (config.replicas * rows)) + algorithm.n_step
        raise ValueError(
            f"batch_size is {algorithm.batch_size:,}, but the buffer of the policy {policy!r} holds at most "
            f"{capacity:,} transitions: lower batch_size to {capacity:,}, or raise buffer_size (steps of each replica) "
            f"to {needed:,}"
        )
    warmup = -(-algorithm.learning_starts // (config.horizon * config.replicas))
    if warmup >= config.iterations:
        raise ValueError(
            f"learning_starts is {algorithm.learning_starts:,}, for which the policy {policy!r} needs {warmup:,} "
            f"iterations of {config.steps_per_update:,} steps, but the run ends after {config.iterations:,}, before "
            f"the first update: give total_steps above {config.steps_at(warmup):,}, or a smaller learning_starts, "
            "num_envs or horizon"
        )


def _environment(plan: Plan) -> int:
    """Return the bytes per replica of the environment itself."""
    world, traits = plan.world, plan.backend.traits
    by_replica = frozenset(name for name, value in world.params.items() if isinstance(value, np.ndarray))
    one, two = (
        sum(
            math.prod(shape) * np.dtype(dtype).itemsize
            for shape, dtype in layout_of(dataclasses.replace(world, num_envs=n), traits, by_replica).buffers().values()
        )
        for n in (_MANY, 2 * _MANY)
    )
    has_mask_flag = world.spec.masked and not world.spec.has_team  # infos mark the replicas with a mask, a byte each
    return (two - one) // _MANY + 4 * len(by_replica) + int(has_mask_flag)


def _bytes_per_replica(sizes: Iterable[Iterable[object]]) -> int:
    """Return the difference in bytes between the tensors in the second and in the first of ``sizes``."""
    one, two = (sum(part.nbytes for part in arrays if isinstance(part, torch.Tensor)) for arrays in sizes)
    return two - one


def check_memory(plan: Plan) -> None:
    """Raise a ShortageError, which names the largest number of replicas that fits, if a run exceeds the free memory."""
    estimate, config, device, count = memory_of_run(plan), plan.config, plan.device, plan.num_envs
    needed = estimate.of(count)
    if needed <= available_memory(device):
        return
    release_memory(device)
    free = available_memory(device)
    if needed <= free:
        return
    replicas = estimate.max_replicas(free * USABLE_FRACTION)
    advice = f"lower num_envs to {replicas:,}, which fits, or the horizon" if replicas else "lower the horizon"
    if estimate.per_step:
        excess = math.ceil((needed - free * USABLE_FRACTION) / (count * estimate.per_step))
        off_policy = [run.algorithm for run in config.variants if isinstance(run.algorithm, OffPolicy)]
        size = min(algorithm.buffer_size for algorithm in off_policy) - excess
        if size > max(config.horizon, *(algorithm.n_step for algorithm in off_policy)):
            advice = f"lower buffer_size to {size:,}, which fits"
            advice += f", or num_envs to {replicas:,}" if replicas else ""
    raise ShortageError(
        f"{count:,} replicas with a horizon of {config.horizon} need {needed / 2**30:,.1f} GiB on {device}, which has "
        f"{free / 2**30:,.1f} GiB free: {advice}"
    )
