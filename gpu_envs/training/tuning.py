"""How many replicas suit a run and its device: powers of two, tried one after the other in this process."""

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
from gpu_envs.training.algorithms import OffPolicy
from gpu_envs.training.memory_estimate import MemoryEstimate, memory_of_run
from gpu_envs.training.process.device import USABLE_FRACTION, ShortageError, available_memory, release_memory
from gpu_envs.training.process.group import Group
from gpu_envs.training.rollout.plan import Plan
from gpu_envs.training.run import AUTO, Run
from gpu_envs.training.trainer import Trainer

NEAR = 0.95
"""A rate from this share of the best up is as good as the best."""

UPDATES = 200
"""A run keeps at least so many: what it learns in an update hardly grows with the replicas once they are many."""

_FIRST = {True: 64, False: 16}
"""The size to begin with, by whether the device is a GPU."""

_SMALL = 2**21
"""On the CPU the first size takes at most so many bytes, if it can: they are soon gone through."""

_SECONDS, _ENOUGH = 0.2, 1.0
"""An iteration is repeated for so long at least, unless it takes so long by itself."""

_LIMIT = 12.0
"""No size is begun that is likely to end later than so many seconds after the first was begun."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Size:
    """What a number of replicas takes and gives."""

    num_envs: int
    """How many replicas, on each GPU."""
    memory: int
    """Bytes: on a GPU measured, with all that torch took; on the CPU worked out."""
    rollout: float
    """Steps of the environment in a second of acting and stepping, all replicas together."""
    training: float
    """Steps of the environment in a second of training: rollout and update."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Tuning:
    """The sizes that were tried, and what follows from them."""

    sizes: tuple[Size, ...]
    """Those that were tried, by rising number of replicas."""
    largest: int
    """The most replicas that there is memory for."""
    most: int
    """The most replicas that leave the run ``UPDATES`` updates."""
    ended: str
    """Why no larger size was tried."""

    @property
    def knee(self) -> int:
        """The fewest replicas whose training is as fast as the best."""
        best = max(size.training for size in self.sizes)
        return min(size.num_envs for size in self.sizes if size.training >= NEAR * best)

    @property
    def chosen(self) -> int:
        """What ``num_envs="auto"`` takes: the knee of those sizes that leave the run enough updates."""
        few = tuple(size for size in self.sizes if size.num_envs <= self.most)
        return dataclasses.replace(self, sizes=few or self.sizes[:1]).knee

    @property
    def why(self) -> str:
        """The reason for what is chosen."""
        if self.chosen > self.most:
            return f"the smallest that is tried, with which total_steps are fewer than {UPDATES} updates"
        if self.chosen * 2 > self.most:
            return f"the largest power of two with which total_steps are {UPDATES} updates or more"
        return "the fewest within 5 % of the fastest training"


def largest(sizes: Sequence[Size], need: MemoryEstimate, room: float) -> int:
    """The most replicas that have room, by what is worked out and how much faster the memory in truth grew."""
    first, last, growth = sizes[0], sizes[-1], 1.0
    if len(sizes) > 1:
        growth = max(1.0, (last.memory - first.memory) / (need.of(last.num_envs) - need.of(first.num_envs)))
    return need.max_replicas(need.of(last.num_envs) + (room - last.memory) / growth)


def still_improving(sizes: Sequence[Size]) -> bool:
    """Whether one of the last two sizes trained faster than all before them, by more than counts as near."""
    if len(sizes) < 3:
        return True
    *before, last, latest = [size.training for size in sizes]
    return NEAR * max(last, latest) > max(before)


def tune(
    config: Run,
    *,
    modules: Mapping[str, nn.Module] | None = None,
    told: Callable[[Size], None] | None = None,
    enough: bool = False,
) -> Tuning:
    """Trains a few iterations with 64, 128, ... replicas (on the CPU 16 or fewer), as long as that gets faster.

    Each size is given up before the next. Nothing is written, and no memory is kept.

    Args:
        config: The run; its ``num_envs`` does not matter.
        modules: Policies of your own, by name; copies of them are trained.
        told: Is given each size as soon as it is measured.
        enough: Stop where larger sizes would leave the run fewer than ``UPDATES`` updates.
    """
    device = resolve_device(config.device)
    release_memory(device)
    held = torch.cuda.memory_reserved(device) if device != "cpu" else 0
    room = available_memory(device) * USABLE_FRACTION
    need = memory_of_run(Plan(dataclasses.replace(config, num_envs=AUTO), device, 1))
    most = max(1, config.total_steps // (UPDATES * config.horizon * config.gpus))
    sizes: list[Size] = []
    count = _FIRST[device != "cpu"]
    while device == "cpu" and count > 1 and need.of(count) > _SMALL:
        count //= 2
    while count < max(map(_fewest, config.variants)):
        count *= 2
    fitting, ended = 0, ""
    _trial(config, count, modules).iterate(1)  # afterwards all is compiled and loaded that is so once
    release_memory(device)
    first_start = time.perf_counter()
    while not ended:
        start = time.perf_counter()
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats(device)
        try:
            rates = _rates(_trial(config, count, modules))
        except ShortageError:  # what is worked out is not all that is taken
            if not sizes:
                raise
            return Tuning(tuple(sizes), min(fitting, count - 1), most, "the memory was full")
        memory = need.of(count) if device == "cpu" else torch.cuda.max_memory_reserved(device) - held
        sizes.append(Size(count, memory, *rates))
        release_memory(device)
        if told is not None:
            told(sizes[-1])
        now, fitting = time.perf_counter(), largest(sizes, need, room)
        count *= 2
        reasons = {
            "training became no faster": not still_improving(sizes),
            "twice as many would not fit": count > fitting,
            "total_steps would be too few updates": enough and count > most,
            "the time was over": now - first_start + 2 * (now - start) > _LIMIT,
        }
        ended = next((reason for reason, holds in reasons.items() if holds), "")
    return Tuning(tuple(sizes), fitting, most, ended)


def _fewest(config: Run) -> int:
    """So many replicas has a policy at least: a sample for each minibatch, or a buffer as large as a batch."""
    algorithm = config.algorithm
    if isinstance(algorithm, OffPolicy):
        return -(-algorithm.batch_size // (algorithm.buffer_size - algorithm.n_step))
    return -(-algorithm.passes[1] // config.horizon)


def _trial(config: Run, num_envs: int, modules: Mapping[str, nn.Module] | None) -> Trainer:
    own = copy.deepcopy(dict(modules or {}))
    steps = config.total_steps + num_envs * config.horizon  # more than a warm-up rounded up to whole iterations
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are no graphs is said by the run itself
        trainer = Trainer(dataclasses.replace(config, num_envs=num_envs, gpus=1, total_steps=steps), modules=own)
        trainer.prepare()
    for learner in trainer.learners.values():
        learner.warmup_iterations = 0  # what is measured is learning
    return trainer


def _rates(trainer: Trainer) -> tuple[float, float]:
    """Steps a second of rollout, and of training to the end of the last iteration's work on the device."""
    count = 1
    while True:
        start = time.perf_counter()
        reports = trainer.iterate(count)
        seconds = time.perf_counter() - start
        if count > 1 or seconds >= _ENOUGH:
            break
        count = max(3, math.ceil(_SECONDS / seconds))
    steps = trainer.config.steps_at(1)
    return steps / statistics.median(report.rollout_seconds for report in reports), steps * len(reports) / seconds


def choose_num_envs(
    config: Run, *, modules: Mapping[str, nn.Module] | None = None, group: object = None
) -> tuple[int, str]:
    """The number that ``num_envs="auto"`` stands for on this device, and why; of several processes, their smallest."""
    processes = Group(group)
    tuning = tune(dataclasses.replace(config, gpus=processes.size), modules=modules, enough=True)
    smallest = min(processes.all_gather_objects(tuning.chosen))
    if smallest < tuning.chosen:
        return smallest, f"the smallest that suits one of {processes.size} processes"
    first, last = tuning.sizes[0].num_envs, tuning.sizes[-1].num_envs
    return smallest, f"{tuning.why} ({first:,} to {last:,} were tried, until {tuning.ended})"
