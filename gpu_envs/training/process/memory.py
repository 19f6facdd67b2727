"""Says what to lower where the device's memory does not suffice."""

import contextlib
import gc
import itertools
import math
import re
import sys
from collections.abc import Iterator
from typing import final

import torch

from gpu_envs.backend.cupy import import_cupy
from gpu_envs.backend.host import host_memory
from gpu_envs.training.run import Run

ROOM = 0.9
"""So much of the device's memory is taken to be usable."""

_COPIES = 7
"""Of weights: as drawn, in the flat buffer twice while it is made, gradients twice, and two moments."""

_SAMPLE = 128
"""Bytes of a step of a replica, roughly: observations, actions and values of an agent that sees a few numbers."""

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "bytes": 1}

_SIGNS = (
    *("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED"),
    *("Storage size calculation overflowed", "invalid storage size"),
)
"""What allocators say that have no exception of their own."""


@final
class ShortageError(MemoryError):
    """There is too little memory, and the message says what to lower."""


def is_shortage(error: Exception) -> bool:
    """Whether an error of NumPy, CuPy or torch says that memory did not suffice."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


@contextlib.contextmanager
def explain_shortage(config: Run, device: str) -> Iterator[None]:
    """Turns errors of allocators into a ShortageError that names the setting to lower, and a value that should fit.

    Within another the inner one, which knows more, explains.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ShortageError) or not is_shortage(error):
            raise
        match = re.search(r"allocate ([\d.]+) (\w+)", str(error), re.IGNORECASE)
        wanted = int(float(match[1]) * _UNITS.get(match[2], 1)) if match else 0
        if isinstance(error, torch.OutOfMemoryError):
            wanted += torch.cuda.memory_allocated(device)
        raise ShortageError(_advice(config, wanted, memory_of(device), device)) from error


def available(device: str) -> int:
    """Returns the bytes of a device's memory that nothing uses."""
    if device == "cpu":
        return host_memory().free
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def give_back(device: str) -> None:
    """Lets go of what is done with, so that it is free again, for other processes too."""
    gc.collect()  # a Trainer that is done with goes when cycles are looked for, and not before
    if device != "cpu":
        torch.cuda.empty_cache()
        if "cupy" in sys.modules:
            import_cupy().get_default_memory_pool().free_all_blocks()


def memory_of(device: str) -> int:
    """Returns the bytes of a device's memory, used or not."""
    return host_memory().total if device == "cpu" else int(torch.cuda.get_device_properties(device).total_memory)


def _advice(config: Run, wanted: int, total: int, device: str) -> str:
    """What was needed, and what to lower. Most memory grows with num_envs times horizon, but not all."""
    config = max(config.variants, key=_weights)
    weights = _weights(config)
    if weights > total * ROOM / 2:
        scale = math.sqrt(total * ROOM / 2 / weights)
        smaller = ",".join(str(max(1, int(width * scale))) for width in config.network.hidden)
        return (
            f"hidden layers of {', '.join(map(str, config.network.hidden))} need {weights / 2**30:,.1f} GiB to be "
            f"trained on {device}, which has {total / 2**30:,.1f} GiB: lower hidden to {smaller}"
        )
    needed = max(wanted, _SAMPLE * config.replicas * config.horizon)
    share = min(0.5, ROOM * total / needed)
    fewer = max(1, int(config.replicas * share))
    have = f", which has {total / 2**30:,.1f} GiB" if wanted else ""
    size = f"more than {wanted / 2**30:,.1f} GiB" if wanted else "more than there is"
    steps = f" for a horizon of {config.horizon}" if config.horizon > 1 else ""
    lower = [f"num_envs to {fewer:,}"] if config.replicas > 1 else []
    lower += [f"horizon to {max(1, int(config.horizon * share))}"] if config.horizon > 1 else []
    rest = "what does not grow with them, such as the weights of hidden layers and what other programs hold, stays"
    advice = f"lower {', or '.join(lower)} ({rest})" if lower else "use smaller hidden layers, or end other programs"
    need = f"{config.replicas:,} replicas{steps} need" if config.replicas > 1 else f"1 replica{steps} needs"
    return f"{need} {size} on {device}{have}: {advice}"


def _weights(config: Run) -> int:
    """The bytes that the weights between hidden layers take while they are trained."""
    between = sum(first * second for first, second in itertools.pairwise((1, *config.network.hidden, 1)))
    return 4 * _COPIES * (1 if config.network.shared_trunk else 2) * between
