"""Says what to lower where the device's memory does not suffice."""

import contextlib
import re
from collections.abc import Iterator
from typing import final

import torch

from gpu_envs.training.config import Config

_ROOM = 0.9
"""So much of the device's memory is taken to be usable."""

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "bytes": 1}


_SIGNS = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What allocators say that have no exception of their own."""


@final
class ShortageError(MemoryError):
    """There is too little memory, and the message says what to lower."""


def is_shortage(error: RuntimeError) -> bool:
    """Whether an error says that memory did not suffice."""
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in _SIGNS)


@contextlib.contextmanager
def explain_shortage(config: Config, device: str) -> Iterator[None]:
    """Turns the errors of allocators into one that names the setting to lower, and a value that should fit.

    Within another the inner one, which knows more, explains.

    Raises:
        ShortageError: There is too little memory.
    """
    try:
        yield
    except ShortageError:
        raise
    except MemoryError as error:  # of NumPy or CuPy, by which the environment allocates
        raise ShortageError(_advice(config, asked_for(str(error)), None, device)) from error
    except torch.OutOfMemoryError as error:
        total = torch.cuda.get_device_properties(device).total_memory
        wanted = torch.cuda.memory_allocated(device) + asked_for(str(error))
        raise ShortageError(_advice(config, wanted, int(total), device)) from error
    except RuntimeError as error:
        if not is_shortage(error):
            raise
        raise ShortageError(_advice(config, asked_for(str(error)), None, device)) from error


def asked_for(message: str) -> int:
    """The bytes that an allocator's message says were asked for; 0 where it does not say."""
    found = re.search(r"tried to allocate ([\d.]+) (\w+)", message, re.IGNORECASE)
    return int(float(found.group(1)) * _UNITS.get(found.group(2), 1)) if found else 0


def _advice(config: Config, wanted: int, total: int | None, device: str) -> str:
    """What was needed, and what to lower. Most memory grows with num_envs times horizon, but not all."""
    share = 0.5 if total is None or not wanted else min(0.5, _ROOM * total / wanted)
    fewer = max(1, int(config.num_envs * share))
    have = f", which has {total / 2**30:,.1f} GiB" if total is not None else ""
    size = f"more than {wanted / 2**30:,.1f} GiB" if wanted else "more than there is"
    steps = f" for a horizon of {config.horizon}" if config.horizon > 1 else ""
    lower = [f"num_envs to {fewer:,}"] if config.num_envs > 1 else []
    lower += [f"horizon to {max(1, int(config.horizon * share))}"] if config.horizon > 1 else []
    rest = "what does not grow with them, such as the weights of hidden layers and what other programs hold, stays"
    advice = f"lower {', or '.join(lower)} ({rest})" if lower else "use smaller hidden layers, or end other programs"
    need = f"{config.num_envs:,} replicas{steps} need" if config.num_envs > 1 else f"1 replica{steps} needs"
    return f"{need} {size} on {device}{have}: {advice}"
