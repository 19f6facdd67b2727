"""Says what to lower where the device's memory does not suffice."""

import contextlib
import re
from collections.abc import Iterator

import torch

from gpu_envs.training.config import Config

_ROOM = 0.9
"""So much of the device's memory is taken to be usable."""

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "bytes": 1}


@contextlib.contextmanager
def explain_shortage(config: Config, device: str) -> Iterator[None]:
    """Turns the errors of allocators into one that names the setting to lower, and a value that should fit."""
    try:
        yield
    except MemoryError as error:  # of NumPy or CuPy, by which the environment allocates
        raise MemoryError(_advice(config, asked_for(str(error)), None, device)) from error
    except torch.OutOfMemoryError as error:
        total = torch.cuda.get_device_properties(device).total_memory
        wanted = torch.cuda.memory_allocated(device) + asked_for(str(error))
        raise MemoryError(_advice(config, wanted, int(total), device)) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise MemoryError(_advice(config, asked_for(str(error)), None, device)) from error


def asked_for(message: str) -> int:
    """The bytes that an allocator's message says were asked for; 0 where it does not say."""
    found = re.search(r"tried to allocate ([\d.]+) (\w+)", message, re.IGNORECASE)
    return int(float(found.group(1)) * _UNITS.get(found.group(2), 1)) if found else 0


def _advice(config: Config, wanted: int, total: int | None, device: str) -> str:
    """What was needed, and what to lower. Memory grows with num_envs times horizon."""
    share = 0.5 if total is None or not wanted else min(0.5, _ROOM * total / wanted)
    fewer = max(1, int(config.num_envs * share))
    have = f", which has {total / 2**30:,.1f} GiB" if total is not None else ""
    size = f"more than {wanted / 2**30:,.1f} GiB" if wanted else "more than there is"
    return (
        f"{config.num_envs:,} replicas for a horizon of {config.horizon} need {size} on {device}{have}: lower num_envs "
        f"to {fewer:,}, or horizon to {max(1, int(config.horizon * share))}"
    )
