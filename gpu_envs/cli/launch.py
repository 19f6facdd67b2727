"""``gpu-envs train --gpus N``: torch's launcher starts a process for each GPU, and each finds its place among them."""

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_envs.backend.cuda import device_count
from gpu_envs.cli.parser import FAILED, INTERRUPTED, MISTAKE, OK
from gpu_envs.cli.report import say

_PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
"""What launchers set."""

_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""At 1, processes that are started again do not find what those before them left (PyTorch's issue 135712)."""

_NO_FILE = "<N/A>"
"""What torch's launcher has where a process said nothing of its end."""

_PATIENCE = 20.0
"""Seconds that a process has to end by itself, when it is told to."""


class Place(NamedTuple):
    """Where a process stands among those that train together."""

    group: Any
    """torch's process group; None: it trains alone."""
    device: str | None
    """Its device; None: what the settings say."""
    first: bool = True
    """Whether this process speaks for all."""


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


def restarted() -> bool:
    """Whether a launcher has started this process in the place of one that failed."""
    return launched() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def goes_on(run: str | None) -> bool:
    """Whether this process was started again to go on with a run, which the one before it had begun."""
    from gpu_envs.training.record.run_directory import RunDirectory

    if not restarted() or not (Path(run or "") / "config.json").is_file():
        return False
    return RunDirectory.open(run or "").about().get("launch") == os.environ.get("TORCHELASTIC_RUN_ID")


def restarts() -> int:
    """How often a launcher would do so."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) if launched() else 0


def launcher(gpus: int, work: Any, max_restarts: int = 0) -> Any:
    """The launcher of torch for so many processes on this machine, which run a function or a program."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=gpus, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=max_restarts,
    )  # fmt: skip
    return elastic_launch(config, work)


def launch(gpus: int, words: Sequence[str], max_restarts: int = 0) -> int:
    """Runs ``gpu-envs train`` in so many processes; returns the exit code that one alone would have."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    started = launcher(gpus, sys.executable, max_restarts)  # now its loggers are there
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what it says is said below
    os.environ[_OWN_STORE] = "1"
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # that another process is lost is said below, too
    try:
        started("-m", "gpu_envs", "train", *words)
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
    if failure.error_file != _NO_FILE:  # what it said counts, even where the interpreter's end then failed too
        ended = f"failed: {failure.message}"
    on = "gpu-envs train --resume RUN goes on from the run's last checkpoint"
    say(f"gpu-envs: error: process {rank} of {gpus} {ended}; {on}", error=True)
    return FAILED


def tell_launcher(message: str) -> bool:
    """Leaves the launcher, where there is one, to tell what went wrong: it may be the same in all processes."""
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
    if device.startswith("cuda:"):
        raise ValueError(f"each process trains on the GPU that its launcher gives it; --device is {device}: give cuda")
    if restarts() > 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise ValueError(f"a launcher with --max-restarts needs {_OWN_STORE}=1 in its environment, or restarts fail")
    import torch
    import torch.distributed as dist

    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    _end_when_told()
    if rank > 0:
        _name_warnings(rank)
    if device == "cpu" or (device == "auto" and device_count() == 0):
        dist.init_process_group("gloo")
        yield Place(dist.group.WORLD, "cpu", rank == 0)
    else:
        if local >= device_count():
            raise ValueError(
                f"this is process {local} of its machine, and there are {device_count()} GPUs: start fewer"
            )
        os.environ.setdefault("NCCL_ALGO", "Ring,Tree")  # what adds up in the same order every time
        torch.cuda.set_device(local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", local))
        yield Place(dist.group.WORLD, f"cuda:{local}", rank == 0)
    dist.barrier()  # the first one has written and said all: a launcher ends the others when one leaves interrupted
    dist.destroy_process_group()


def _end_when_told() -> None:
    """Ends this process a while after it was told to, should it wait until then for another that is no more.

    A signal's handler has to wait for the main thread, which may wait for a GPU; what is written here need not.
    """
    told, tell = socket.socketpair()
    tell.setblocking(False)
    signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        with tell:  # kept, and not read: what comes is that a signal came
            told.recv(1)
        time.sleep(_PATIENCE)
        os._exit(FAILED)

    threading.Thread(target=watch, name="end-when-told", daemon=True).start()


def _name_warnings(rank: int) -> None:
    """Lets this process's warnings say which it is."""
    plain = warnings.formatwarning

    def named(message: Any, *where: Any, **more: Any) -> str:
        return f"process {rank}: {plain(message, *where, **more)}"

    warnings.formatwarning = named
