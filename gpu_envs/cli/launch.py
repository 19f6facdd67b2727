"""``gpu-envs train --gpus N``: torch's launcher starts a process for each GPU, and the processes join one group."""

import collections
import contextlib
import functools
import importlib
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gpu_envs
from gpu_envs.backend import resolve_device
from gpu_envs.backend.background import available_threads
from gpu_envs.backend.driver import device_count
from gpu_envs.cli.launched import FAILURE, LOST_PEER, OUT_OF_MEMORY, PID_FILE, launched, report_pid
from gpu_envs.cli.parser import FAILED, INTERRUPTED, MISTAKE, OK
from gpu_envs.cli.report import PROGRAM, echo, program_command
from gpu_envs.training.process.signals import (
    STOP_SIGNALS,
    TERMINATED,
    request_handlers,
    set_handlers,
    signal_reader,
    state_of,
)

_SEPARATE_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Must be 1 for restarts: otherwise restarted processes find stale keys in the store (PyTorch's issue 135712)."""

_PACKAGE_PARENT = Path(gpu_envs.__file__).parents[1]
_WORKER_CODE = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module('gpu_envs', None, '__main__', True)"
)
"""``python -m gpu_envs``, also if the package is not installed: the next argument is appended to ``sys.path``."""

_STOPPED_POLLS = 5
"""Number of polls, one per second, after which a stopped process is reported."""


class ProcessContext(NamedTuple):
    """The process group and the device of this process."""

    group: Any
    """torch's process group; None: this process trains alone."""
    device: str | None
    """The device of this process; None: as in the settings."""
    is_first: bool = True
    """Whether this process prints for the whole group: its rank is 0."""


def process_count(gpus: str, device: str) -> int:
    """Return the number of processes that ``--gpus`` requests; raise a ValueError if the machine cannot run them."""
    if device.startswith("cuda:"):
        raise ValueError(f"--gpus is a number of GPUs, and --device {device} names one GPU; leave out one")
    if device not in ("auto", "cpu", "cuda"):
        resolve_device(device)  # raises, and names the devices
    available = 0 if device == "cpu" else device_count()
    if gpus == "all":
        if available == 0:
            raise ValueError(f"--gpus is all, but with --device {device} there is no GPU to train on; give a number")
        return available
    if not gpus.isdecimal() or int(gpus) < 1:
        raise ValueError(f"--gpus is {gpus!r}; give an integer of at least 1, or all")
    if device == "cuda" and available == 0:
        raise ValueError("--device is cuda, but this machine has no GPU; give --device cpu")
    if 0 < available < int(gpus):
        raise ValueError(f"--gpus is {gpus}, but this machine has {available} GPUs; give {available} or fewer")
    return int(gpus)


def restarted() -> bool:
    """Return whether a launcher restarted this process after a failure."""
    return launched() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def continues_run(run: str | None) -> bool:
    """Return whether a launcher restarted this process to continue a run that exists in ``run``."""
    if not restarted() or not (Path(run or "") / "config.json").is_file():
        return False
    from gpu_envs.training.record.run_directory import RunDirectory

    return RunDirectory.open(run or "").about().get("launch") == os.environ.get("TORCHELASTIC_RUN_ID")


def launcher_restarts() -> int:
    """Return the maximum number of restarts of the launcher that started this process; 0 without a launcher."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) if launched() else 0


def create_launcher(processes: int, entrypoint: Any, run_id: str = "", folder: str | None = None) -> Any:
    """Return torch's launcher: called with a program's arguments, it runs processes on this machine until they end.

    Args:
        processes: The number of processes.
        entrypoint: The function or the path of the program that each process runs.
        run_id: The ID of the process group; empty: a new one.
        folder: Where the processes write their errors; None: a temporary folder.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=run_id or uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )
    config.signals_to_handle = ",".join(number.name for number in request_handlers())
    return elastic_launch(config, entrypoint)


class Outcome(NamedTuple):
    """How the processes of a launch ended."""

    code: int
    """The exit code of the command."""
    message: str = ""
    """The error message; empty without an error."""
    kind: str = ""
    """The kind of error: ``USER_MISTAKE``, ``OUT_OF_MEMORY`` or ``FAILURE``; empty without an error."""


def launch(
    gpus: int, argv: Sequence[str], run: str | None, max_restarts: int, repeated_options: Sequence[str] | None
) -> int:
    """Run ``gpu-envs train`` in processes, restart them after failures that a restart may cure; return the exit code.

    Args:
        gpus: The number of processes.
        argv: The command's arguments.
        run: The run directory in ``argv``; None: ``argv`` has none.
        max_restarts: The maximum number of restarts.
        repeated_options: The options of a new run that a restart repeats; None: ``argv`` resumes a run.
    """
    launch_id = uuid.uuid4().hex
    for restart in range(max_restarts + 1):
        outcome = _run_processes(gpus, [*argv, "--max-restarts", "0"], launch_id)
        if not outcome.message:
            return outcome.code
        folder, done = _find_run(run, launch_id if repeated_options is not None else None)
        restartable = outcome.kind == FAILURE or (outcome.kind == OUT_OF_MEMORY and folder is not None)
        if not restartable or restart == max_restarts:
            break
        start = f"from update {done:,} of {folder}" if done else "from the beginning"
        echo(f"gpu-envs: {outcome.message}; restarting {start} (restart {restart + 1} of {max_restarts})", error=True)
        if folder is not None and repeated_options is not None:
            argv = ["--resume", str(folder), *repeated_options]
    advice = f"; gpu-envs train --resume {folder} --gpus {gpus} resumes from update {done:,}"
    echo(f"gpu-envs: error: {outcome.message}{advice * (restartable and done > 0)}", error=True)
    return outcome.code


def _find_run(run: str | None, launch_id: str | None) -> tuple[Path | None, int]:
    """Return the directory of the launched run, None before it exists, and the iteration of its last checkpoint."""
    from gpu_envs.training.record.checkpoint import iteration_of
    from gpu_envs.training.record.run_directory import ROOT, RunDirectory

    for folder in [Path(run)] if run else sorted(Path(ROOT).glob("*/"), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            run_directory = RunDirectory.open(folder)
            if launch_id in (None, run_directory.about().get("launch")):
                latest = run_directory.checkpoints.latest()
                return folder, 0 if latest is None else iteration_of(latest)
    return None, 0


def _run_processes(gpus: int, argv: Sequence[str], launch_id: str) -> Outcome:
    """Run ``gpu-envs train`` with the arguments in several processes; return how they ended."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    codes: dict[int, int] = {}
    with tempfile.TemporaryDirectory(prefix="gpu_envs_") as folder:
        try:
            with silent_launcher(gpus), signal_reader(functools.partial(_watch_processes, gpus, Path(folder))):
                run = create_launcher(gpus, sys.executable, launch_id, folder)
                run("-c", _WORKER_CODE, str(_PACKAGE_PARENT), "train", *argv)
            return Outcome(OK)
        except SignalException:
            pass
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        errors = {}
        for path in Path(folder).rglob("error.json"):
            with contextlib.suppress(ValueError):  # the process was killed while it wrote the file
                errors[int(path.parent.name)] = json.loads(path.read_text("utf-8"))
    return find_outcome(gpus, codes, errors)


def _watch_processes(gpus: int, folder: Path, signals: socket.socket) -> None:
    """Report a stopped process, for which the others wait, and kill all processes at the second stop signal.

    torch's launcher alone would wait ten minutes for a stopped process, and leave it running at the third signal.
    """
    signals.settimeout(1.0)
    stop_requests, stopped_polls = 0, collections.Counter[int]()
    while True:
        try:
            data = signals.recv(1)
        except TimeoutError:
            for rank, pid in _read_pids(folder).items():
                stopped_polls[rank] = stopped_polls[rank] + 1 if state_of(pid) in ("T", "t") else 0
                if stopped_polls[rank] == _STOPPED_POLLS:
                    echo(
                        f"gpu-envs: process {rank} of {gpus} (PID {pid}) is stopped, and the others wait for it: "
                        f"kill -CONT {pid} resumes it; a second Ctrl-C ends all, and the last checkpoint is kept",
                        error=True,
                    )
            continue
        if not data:
            return
        stop_requests += data[0] in STOP_SIGNALS
        if stop_requests > 1:
            for pid in _read_pids(folder).values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _read_pids(folder: Path) -> dict[int, int]:
    """Return the PIDs that the processes have written, by rank."""
    pids = {}
    for path in folder.rglob(PID_FILE):
        with contextlib.suppress(ValueError):  # a process is writing the file
            pids[int(path.parent.name)] = int(path.read_text("utf-8"))
    return pids


def find_outcome(gpus: int, codes: Mapping[int, int], errors: Mapping[int, Mapping[str, Any]]) -> Outcome:
    """Return the outcome of the process that failed first; the others lost it, or the launcher ended them.

    Args:
        gpus: The number of processes.
        codes: Exit codes of failed processes, by rank; empty after a signal to the launcher.
        errors: The errors that the processes wrote, by rank.
    """
    causes = {rank: error for rank, error in errors.items() if error["kind"] != LOST_PEER}
    if causes:
        rank = min(causes, key=lambda rank: (causes[rank]["timestamp"], rank))
        message, kind = str(causes[rank]["message"]), causes[rank]["kind"]
        if kind == FAILURE:
            return Outcome(FAILED, f"process {rank} of {gpus} failed: {message}", kind)
        name_rank = rank > 0 or kind == OUT_OF_MEMORY  # a mistake in the options is the same in all processes
        return Outcome(MISTAKE, message + f" (process {rank} of {gpus})" * name_rank, kind)
    for code, rank in sorted((code, rank) for rank, code in codes.items() if rank not in errors):
        if code not in (INTERRUPTED, -signal.SIGTERM, TERMINATED):
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return Outcome(FAILED, f"process {rank} of {gpus} {how}", FAILURE)
    if errors and INTERRUPTED not in codes.values() and codes:
        return Outcome(FAILED, f"process {min(errors)} of {gpus} failed: {errors[min(errors)]['message']}", FAILURE)
    return Outcome(INTERRUPTED)


@contextlib.contextmanager
def silent_launcher(gpus: int) -> Iterator[None]:
    """Inside the block, silence torch's launcher and set its processes' environment; restore signal handlers, too."""
    from torch.distributed.elastic.multiprocessing import SignalException

    importlib.import_module("torch.distributed.launcher.api")  # creates its loggers
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    variables = {
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # this module reports lost processes itself
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600",  # seconds to save the run after Ctrl-C
        "OMP_NUM_THREADS": str(max(1, available_threads() // gpus)),
        PROGRAM: program_command(),
    }
    variables = {name: value for name, value in variables.items() if name not in os.environ}
    variables["PYTHONSAFEPATH"] = "1"  # imports nothing from the working folder, such as a random.py
    replaced = {name: os.environ[name] for name in variables if name in os.environ}
    handlers, previous_hook = request_handlers(), sys.unraisablehook

    def ignore_signal_exception(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, SignalException):  # raised in a finalizer, after the processes ended
            previous_hook(unraisable)

    sys.unraisablehook = ignore_signal_exception
    os.environ.update(variables)
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        set_handlers(handlers)
        sys.unraisablehook = previous_hook
        for logger, level in levels.items():
            logger.setLevel(level)
        for name in variables:
            del os.environ[name]
        os.environ.update(replaced)


@contextlib.contextmanager
def join_process_group(device: str) -> Iterator[ProcessContext]:
    """Join the launcher's process group inside the block, and yield group and device; without a launcher, neither."""
    if not launched():
        yield ProcessContext(None, None)
        return
    report_pid()
    if device.startswith("cuda:"):
        raise ValueError(f"--device is {device}, but the launcher assigns a GPU to each process: give cuda")
    if launcher_restarts() > 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise ValueError(
            f"a launcher with --max-restarts needs {_SEPARATE_STORE}=1 in its environment: restarts fail without it"
        )
    import torch
    import torch.distributed as dist

    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if rank > 0:
        _prefix_warnings(rank)
    if device == "cpu" or (device == "auto" and device_count() == 0):
        dist.init_process_group("gloo")
        yield ProcessContext(dist.group.WORLD, "cpu", rank == 0)
    else:
        if local >= device_count():
            raise ValueError(
                f"the launcher started local process {local}, but this machine has {device_count()} GPUs: start a "
                "process per GPU, or give --device cpu"
            )
        os.environ.setdefault("NCCL_ALGO", "Ring,Tree")  # these sum in the same order every time
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        torch.cuda.set_device(local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", local))
        yield ProcessContext(dist.group.WORLD, f"cuda:{local}", rank == 0)
    dist.barrier()  # rank 0 has saved and printed: a launcher ends all processes when an interrupted one exits
    dist.destroy_process_group()


def _prefix_warnings(rank: int) -> None:
    """Prefix this process's warnings with its rank."""
    original = warnings.formatwarning

    def format_with_rank(message: Any, *args: Any, **kwargs: Any) -> str:
        return f"process {rank}: {original(message, *args, **kwargs)}"

    warnings.formatwarning = format_with_rank
