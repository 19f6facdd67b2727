"""``gpu-envs train --gpus N``: torch's launcher starts a process for each GPU, and each finds its place among them."""

import contextlib
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_envs.backend.cuda import device_count
from gpu_envs.cli.parser import FAILED, INTERRUPTED, MISTAKE, OK
from gpu_envs.cli.report import say

_PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
"""What launchers set."""


class Place(NamedTuple):
    """Where a process stands among those that train together."""

    group: Any
    """torch's process group; None: it trains alone."""
    device: str | None
    """Its device; None: what the settings say."""


def launched() -> bool:
    """Whether this process is one of several that a launcher has started."""
    return all(name in os.environ for name in _PLACE)


def count_of(gpus: str, device: str) -> int:
    """How many processes ``--gpus`` asks for, or says why there cannot be so many."""
    if device.startswith("cuda:"):
        raise ValueError(f"--gpus says how many GPUs train, and --device {device} names one; leave one of them out")
    on_gpus = device == "cuda" or (device == "auto" and device_count() > 0)
    if gpus == "all":
        if not on_gpus:
            raise ValueError("--gpus all asks for every GPU, and there is none to train on; give a number of processes")
        return device_count()
    if not gpus.isdecimal() or int(gpus) < 1:
        raise ValueError(f"--gpus is {gpus!r}; give a whole number from 1 up, or all")
    if on_gpus and int(gpus) > device_count():
        raise ValueError(f"--gpus is {gpus}, and there are {device_count()} GPUs here; give at most so many")
    return int(gpus)


def launch(gpus: int, words: Sequence[str]) -> int:
    """Runs ``gpu-envs train`` in so many processes; returns the exit code that one alone would have."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what it says is said below
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=gpus, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "gpu_envs", "train", *words)
    except SignalException:
        return INTERRUPTED
    except ChildFailedError as error:
        return _explained(error.failures, gpus)
    return OK


def _explained(failures: Mapping[int, Any], gpus: int) -> int:
    """Says which process failed first, and why; the others have lost it, or were told to end. Returns the exit code."""
    from gpu_envs.training.process.group import LOST

    def order(rank: int) -> tuple[bool, bool, int, int]:
        each = failures[rank]
        return LOST in str(each.message), each.exitcode == -signal.SIGTERM, each.timestamp, rank

    rank = min(failures, key=order)
    failure, code = failures[rank], failures[rank].exitcode
    if any(each.exitcode == INTERRUPTED for each in failures.values()):
        return INTERRUPTED
    if code == MISTAKE:
        say(f"gpu-envs: error: {failure.message}" + f" (process {rank} of {gpus})" * (rank > 0), error=True)
        return MISTAKE
    ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    on = "gpu-envs train --resume RUN goes on from the run's last checkpoint"
    say(f"gpu-envs: error: process {rank} of {gpus} {ended}; {on}", error=True)
    return FAILED


def tell_launcher(message: str) -> bool:
    """Leaves the launcher, where there is one, to tell of a mistake: all processes make the same."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not launched() or not file:
        return False
    Path(file).write_text(json.dumps({"message": message, "timestamp": int(time.time())}), "utf-8")
    return True


@contextlib.contextmanager
def place(device: str) -> Iterator[Place]:
    """Joins the processes that a launcher started, and leaves them; alone, there is nothing to join."""
    if not launched():
        yield Place(None, None)
        return
    import torch
    import torch.distributed as dist

    local = int(os.environ["LOCAL_RANK"])
    if device == "cpu" or (device == "auto" and device_count() == 0):
        dist.init_process_group("gloo")
        yield Place(dist.group.WORLD, "cpu")
    else:
        torch.cuda.set_device(local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", local))
        yield Place(dist.group.WORLD, f"cuda:{local}")
    dist.destroy_process_group()
