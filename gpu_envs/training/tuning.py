"""Tuning of the number of replicas for a run and its device: powers of two are measured in turn in this process."""

import copy
import dataclasses
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
from torch import nn

from gpu_envs.backend import resolve_device
from gpu_envs.documented import documented
from gpu_envs.training.algorithms import OffPolicy, OnPolicy
from gpu_envs.training.memory_estimate import MemoryEstimate, memory_of_run
from gpu_envs.training.process.device import USABLE_FRACTION, ShortageError, available_memory, release_memory
from gpu_envs.training.process.group import Group
from gpu_envs.training.rollout.plan import Plan
from gpu_envs.training.run import AUTO, Run
from gpu_envs.training.sequences import sequence_length
from gpu_envs.training.trainer import Trainer

NEAR = 0.95
"""Minimum fraction of the highest rate for a rate to count as equally fast."""

MIN_UPDATES = 200
"""Minimum number of updates of a run: beyond some size, more replicas hardly increase what an update learns."""

_FIRST = {True: 64, False: 16}
"""The first number of replicas, by whether the device is a GPU."""

_MAX_FIRST_BYTES = 2**21
"""On the CPU, size of the first trial, if possible, so that it ends quickly."""

_MIN_SECONDS, _MAX_SECONDS = 0.2, 1.0
"""Iterations are repeated for at least the first time, but not if one takes the second or longer."""

_TIME_LIMIT = 12.0
"""Seconds from the first trial within which every further trial is expected to end."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Size:
    """Measurements for a number of replicas."""

    num_envs: int
    """Number of replicas per GPU."""
    memory: int
    """Memory in bytes: on a GPU measured as torch's peak, on the CPU estimated."""
    rollout: float
    """Environment steps per second of rollout, summed over all replicas."""
    training: float
    """Environment steps per second of training (rollout and update), summed over all replicas."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Tuning:
    """The sizes that were tried, and the recommended number of replicas."""

    sizes: tuple[Size, ...]
    """Measurements by increasing number of replicas."""
    max_fitting: int
    """Estimated maximum number of replicas that fit into memory."""
    max_updating: int
    """Maximum number of replicas for the run to have at least ``MIN_UPDATES`` updates."""
    stop_reason: str
    """Reason why no larger size was tried."""

    @property
    def knee(self) -> int:
        """The smallest number of replicas whose training is within 5 % of the fastest."""
        best = max(size.training for size in self.sizes)
        return min(size.num_envs for size in self.sizes if size.training >= NEAR * best)

    @property
    def chosen(self) -> int:
        """The number that ``num_envs="auto"`` uses: the knee of the sizes that leave the run enough updates."""
        allowed = tuple(size for size in self.sizes if size.num_envs <= self.max_updating)
        return dataclasses.replace(self, sizes=allowed or self.sizes[:1]).knee

    @property
    def reason(self) -> str:
        """The reason for the chosen number."""
        if self.chosen > self.max_updating:
            return f"the smallest that was tried; total_steps is still less than {MIN_UPDATES} updates"
        if self.chosen * 2 > self.max_updating:
            return f"the largest power of two for which total_steps is at least {MIN_UPDATES} updates"
        updates = f" among those with at least {MIN_UPDATES} updates" * (self.chosen != self.knee)
        return f"the fewest within 5 % of the fastest training{updates}"


def max_fitting(sizes: Sequence[Size], estimate: MemoryEstimate, capacity: float) -> int:
    """Estimate the maximum number of replicas that fit into ``capacity`` bytes.

    The estimate is scaled by the measured growth of memory, if that is faster.
    """
    first, last, growth = sizes[0], sizes[-1], 1.0
    if len(sizes) > 1:
        growth = max(1.0, (last.memory - first.memory) / (estimate.of(last.num_envs) - estimate.of(first.num_envs)))
    return estimate.max_replicas(estimate.of(last.num_envs) + (capacity - last.memory) / growth)


def still_improving(sizes: Sequence[Size]) -> bool:
    """Return whether either of the last two sizes trained more than 5 % faster than all smaller sizes."""
    if len(sizes) < 3:
        return True
    *before, last, latest = [size.training for size in sizes]
    return NEAR * max(last, latest) > max(before)


def tune(
    config: Run,
    *,
    modules: Mapping[str, nn.Module] | None = None,
    callback: Callable[[Size], None] | None = None,
    limit_updates: bool = False,
) -> Tuning:
    """Measure training with 64, 128, ... replicas (on the CPU 16, 32, ...), until it gets no faster or meets a limit.

    Nothing is written to disk, and each trial's memory is freed before the next trial.

    Args:
        config: The run; its ``num_envs`` is ignored.
        modules: Your torch modules by policy name; copies of them are trained.
        callback: Called with each size as soon as it is measured.
        limit_updates: Stop before sizes that would leave the run fewer than ``MIN_UPDATES`` updates.
    """
    device = resolve_device(config.device)
    release_memory(device)
    reserved = torch.cuda.memory_reserved(device) if device != "cpu" else 0
    capacity = available_memory(device) * USABLE_FRACTION
    estimate = memory_of_run(Plan(dataclasses.replace(config, num_envs=AUTO), device, 1))
    max_updating = max(1, config.total_steps // (MIN_UPDATES * config.horizon * config.gpus))
    sizes: list[Size] = []
    count = _FIRST[device != "cpu"]
    while device == "cpu" and count > 1 and estimate.of(count) > _MAX_FIRST_BYTES:
        count //= 2
    while count < max(map(_min_replicas, config.variants)):
        count *= 2
    fitting, stop_reason = 0, ""
    _trial(config, count, modules).iterate(1)  # compiles and loads what later trials use, too
    release_memory(device)
    first_start = time.perf_counter()
    while not stop_reason:
        start = time.perf_counter()
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats(device)
        try:
            rates = _rates(_trial(config, count, modules))
        except ShortageError:  # the estimate excludes workspaces of networks
            if not sizes:
                raise
            return Tuning(tuple(sizes), min(fitting, count - 1), max_updating, "the memory was full")
        memory = estimate.of(count) if device == "cpu" else torch.cuda.max_memory_reserved(device) - reserved
        sizes.append(Size(count, memory, *rates))
        release_memory(device)
        if callback is not None:
            callback(sizes[-1])
        now, fitting = time.perf_counter(), max_fitting(sizes, estimate, capacity)
        count *= 2
        reasons = {
            "training became no faster": not still_improving(sizes),
            "twice as many would not fit": count > fitting,
            "total_steps would be too few updates": limit_updates and count > max_updating,
            "the time was over": now - first_start + 2 * (now - start) > _TIME_LIMIT,
        }
        stop_reason = next((reason for reason, holds in reasons.items() if holds), "")
    return Tuning(tuple(sizes), fitting, max_updating, stop_reason)


def _min_replicas(config: Run) -> int:
    """Return the minimum number of replicas: one sample or sequence per minibatch, or a buffer that holds a batch."""
    algorithm = config.algorithm
    if isinstance(algorithm, OffPolicy):
        return -(-algorithm.batch_size // (algorithm.buffer_size - algorithm.n_step))
    assert isinstance(algorithm, OnPolicy)
    steps = sequence_length(algorithm, config.horizon) if config.network.memory is not None else 1
    return -(-algorithm.passes[1] * steps // config.horizon)


def _trial(config: Run, num_envs: int, modules: Mapping[str, nn.Module] | None) -> Trainer:
    """Return a prepared trainer of one process, with ``num_envs`` replicas, copies of the modules and no warm-up."""
    copies = copy.deepcopy(dict(modules or {}))
    steps = config.total_steps + num_envs * config.horizon  # more than any warm-up, so that the run is accepted
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself warns that it has no CUDA graphs
        trial = dataclasses.replace(config, num_envs=num_envs, gpus=1, total_steps=steps, callbacks=())
        trainer = Trainer(trial, modules=copies)
        trainer.prepare()
    for learner in trainer.learners.values():
        learner.warmup_iterations = 0  # so that updates are measured
    return trainer


def _rates(trainer: Trainer) -> tuple[float, float]:
    """Train for 0.2 s or longer; return the steps per second of rollout (median) and of rollout and update."""
    count = 1
    while True:
        start = time.perf_counter()
        reports = trainer.iterate(count)
        seconds = time.perf_counter() - start
        if count > 1 or seconds >= _MAX_SECONDS:
            break
        count = max(3, math.ceil(_MIN_SECONDS / seconds))
    steps = trainer.config.steps_at(1)
    return steps / statistics.median(report.rollout_seconds for report in reports), steps * len(reports) / seconds


def choose_num_envs(
    config: Run, *, modules: Mapping[str, nn.Module] | None = None, group: object = None
) -> tuple[int, str]:
    """Measure, and return the number of replicas for ``num_envs="auto"`` on this device and the reason.

    Several processes use the smallest of their numbers.

    Args:
        config: The run.
        modules: The user's modules by policy.
        group: A process group of torch; None: a single process.
    """
    processes = Group(group)
    tuning = tune(dataclasses.replace(config, gpus=processes.size), modules=modules, limit_updates=True)
    smallest = min(processes.all_gather_objects(tuning.chosen))
    if smallest < tuning.chosen:
        return smallest, f"the smallest number of {processes.size} processes"
    first, last = tuning.sizes[0].num_envs, tuning.sizes[-1].num_envs
    return smallest, f"{tuning.reason} ({first:,} to {last:,} were tried, until {tuning.stop_reason})"
