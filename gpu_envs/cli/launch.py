"""``gpu-envs train --gpus N``: torch's launcher starts a process for each GPU, and each finds its place among them."""

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
from gpu_envs.cli.launched import FELL, LOST, PROCESS, SHORT, launched, tell_process
from gpu_envs.cli.parser import FAILED, INTERRUPTED, MISTAKE, OK
from gpu_envs.cli.report import say
from gpu_envs.training.process.watch import ENDED, REQUESTS, request_handlers, set_handlers, signal_reader, state_of

_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""At 1, processes that are started again do not find what those before them left (PyTorch's issue 135712)."""

_ROOT = Path(gpu_envs.__file__).parents[1]
_WORKER = "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module('gpu_envs', None, '__main__', True)"
"""``python -m gpu_envs``, also where it is not installed: the folder that follows comes last in ``sys.path``."""

_LOOKS = 5
"""A process that is stopped at so many looks, one a second, is named."""


class Place(NamedTuple):
    """Where a process stands among those that train together."""

    group: Any
    """torch's process group; None: it trains alone."""
    device: str | None
    """Its device; None: what the settings say."""
    first: bool = True
    """Whether this process speaks for all."""


def count_of(gpus: str, device: str) -> int:
    """How many processes ``--gpus`` asks for, or says why there cannot be so many."""
    if device.startswith("cuda:"):
        raise ValueError(f"--gpus says how many GPUs train, and --device {device} names one; leave one of them out")
    if device not in ("auto", "cpu", "cuda"):
        resolve_device(device)  # says what there is
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
    if not restarted() or not (Path(run or "") / "config.json").is_file():
        return False
    from gpu_envs.training.record.run_directory import RunDirectory

    return RunDirectory.open(run or "").about().get("launch") == os.environ.get("TORCHELASTIC_RUN_ID")


def restarts() -> int:
    """How often a launcher would do so."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) if launched() else 0


def launcher(gpus: int, work: Any, run_id: str = "", folder: str | None = None) -> Any:
    """The launcher of torch for so many processes on this machine, which run a function or a program's path.

    They belong together by ``run_id`` (empty: a new one), and leave word of their ends in a folder.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=gpus,
        run_id=run_id or uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )
    config.signals_to_handle = ",".join(number.name for number in request_handlers())
    return elastic_launch(config, work)


class Ending(NamedTuple):
    """How processes that trained together ended."""

    code: int
    """The exit code that one alone would have."""
    message: str = ""
    """What went wrong."""
    kind: str = ""
    """One of ``MISTOOK``, ``SHORT`` and ``FELL``, where something went wrong."""


def launch(gpus: int, words: Sequence[str], run: str | None, restarts: int, stays: Sequence[str] | None) -> int:
    """Runs ``gpu-envs train`` in so many processes, and starts it again where that may help.

    Args:
        gpus: How many processes.
        words: The command's own.
        run: The folder that they name; None: they name none.
        restarts: How often it may be started again.
        stays: Options of a new run that hold when it goes on; None: this is no new run.

    Returns:
        The exit code that one process alone would have.
    """
    launch_id = uuid.uuid4().hex
    for restart in range(restarts + 1):
        ending = _ended(gpus, [*words, "--max-restarts", "0"], launch_id)
        if not ending.message:
            return ending.code
        folder, done = _begun(run, launch_id if stays is not None else None)
        helps = ending.kind == FELL or (ending.kind == SHORT and folder is not None)
        if not helps or restart == restarts:
            break
        start = f"from update {done:,} of {folder}" if done else "from the beginning"
        say(f"gpu-envs: {ending.message}; goes on {start} (restart {restart + 1} of {restarts})", error=True)
        if folder is not None and stays is not None:
            words = ["--resume", str(folder), *stays]
    resumes = f"; gpu-envs train --resume {folder} --gpus {gpus} goes on from update {done:,}"
    say(f"gpu-envs: error: {ending.message}{resumes * (helps and done > 0)}", error=True)
    return ending.code


def _begun(run: str | None, launch_id: str | None) -> tuple[Path | None, int]:
    """The folder of the run that was launched so, and the update of its last checkpoint; None before it is made."""
    from gpu_envs.training.record.checkpoint import iteration_of
    from gpu_envs.training.record.run_directory import ROOT, RunDirectory

    for folder in [Path(run)] if run else sorted(Path(ROOT).glob("*/"), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            found = RunDirectory.open(folder)
            if launch_id in (None, found.about().get("launch")):
                latest = found.checkpoints.latest()
                return folder, 0 if latest is None else iteration_of(latest)
    return None, 0


def _ended(gpus: int, words: Sequence[str], launch_id: str) -> Ending:
    """Starts the processes, and waits for their end."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    codes: dict[int, int] = {}
    with tempfile.TemporaryDirectory(prefix="gpu_envs_") as folder:
        try:
            with silent_launcher(gpus), signal_reader(functools.partial(_attend, gpus, Path(folder))):
                launcher(gpus, sys.executable, launch_id, folder)("-c", _WORKER, str(_ROOT), "train", *words)
            return Ending(OK)
        except SignalException:
            pass
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        told = {}
        for path in Path(folder).rglob("error.json"):
            with contextlib.suppress(ValueError):  # one that was killed as it wrote
                told[int(path.parent.name)] = json.loads(path.read_text("utf-8"))
    return explained(gpus, codes, told)


def _attend(gpus: int, folder: Path, signals: socket.socket) -> None:
    """Names a stopped process, for which the others wait, and kills all processes at the second request to end.

    torch's launcher would wait for it as for one that saves, for ten minutes, and leave it behind at the third request.
    """
    signals.settimeout(1.0)
    requests, looks = 0, collections.Counter[int]()
    while True:
        try:
            number = signals.recv(1)
        except TimeoutError:
            for rank, process in _processes(folder).items():
                looks[rank] = looks[rank] + 1 if state_of(process) in ("T", "t") else 0
                if looks[rank] == _LOOKS:
                    say(
                        f"gpu-envs: process {rank} of {gpus} (PID {process}) is stopped, and the others wait for it: "
                        f"kill -CONT {process} resumes it; a second Ctrl-C ends all, and the last checkpoint stays",
                        error=True,
                    )
            continue
        if not number:
            return
        requests += number[0] in REQUESTS
        if requests > 1:
            for process in _processes(folder).values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def _processes(folder: Path) -> dict[int, int]:
    """Returns the IDs of the processes that have left theirs, by rank."""
    found = {}
    for path in folder.rglob(PROCESS):
        with contextlib.suppress(ValueError):  # it is being written
            found[int(path.parent.name)] = int(path.read_text("utf-8"))
    return found


def explained(gpus: int, codes: Mapping[int, int], told: Mapping[int, Mapping[str, Any]]) -> Ending:
    """Finds the process that failed first: the others have lost it, or were told to end.

    ``codes`` are exit codes of those that failed, by rank; none where the launcher was told to end.
    """
    causes = {rank: words for rank, words in told.items() if words["kind"] != LOST}
    if causes:
        rank = min(causes, key=lambda rank: (causes[rank]["timestamp"], rank))
        message, kind = str(causes[rank]["message"]), causes[rank]["kind"]
        if kind == FELL:
            return Ending(FAILED, f"process {rank} of {gpus} failed: {message}", kind)
        alone = rank > 0 or kind == SHORT  # what is wrong with the options is so for all, and the first says it
        return Ending(MISTAKE, message + f" (process {rank} of {gpus})" * alone, kind)
    for code, rank in sorted((code, rank) for rank, code in codes.items() if rank not in told):
        if code not in (INTERRUPTED, -signal.SIGTERM, ENDED):
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return Ending(FAILED, f"process {rank} of {gpus} {how}", FELL)
    if told and INTERRUPTED not in codes.values() and codes:
        return Ending(FAILED, f"process {min(told)} of {gpus} failed: {told[min(told)]['message']}", FELL)
    return Ending(INTERRUPTED)


@contextlib.contextmanager
def silent_launcher(gpus: int) -> Iterator[None]:
    """Leaves to us what torch's launcher would say; environment and signal handlers are put back afterwards."""
    from torch.distributed.elastic.multiprocessing import SignalException

    importlib.import_module("torch.distributed.launcher.api")  # now its loggers are there
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    added = {
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # that another process is lost is said here, too
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600",  # seconds to save in, after Ctrl-C
        "OMP_NUM_THREADS": str(max(1, available_threads() // gpus)),
    }
    added = {name: value for name, value in added.items() if name not in os.environ}
    added["PYTHONSAFEPATH"] = "1"  # no random.py of the working folder is imported in place of the real one
    replaced = {name: os.environ[name] for name in added if name in os.environ}
    handlers, hook = request_handlers(), sys.unraisablehook

    def unraisable(found: Any) -> None:
        if not isinstance(found.exc_value, SignalException):  # its timer is thrown away: the processes have ended
            hook(found)

    sys.unraisablehook = unraisable
    os.environ.update(added)
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        set_handlers(handlers)
        sys.unraisablehook = hook
        for logger, level in levels.items():
            logger.setLevel(level)
        for name in added:
            del os.environ[name]
        os.environ.update(replaced)


@contextlib.contextmanager
def place(device: str) -> Iterator[Place]:
    """Joins the processes that a launcher started, and leaves them; alone, there is nothing to join."""
    if not launched():
        yield Place(None, None)
        return
    tell_process()
    if device.startswith("cuda:"):
        raise ValueError(f"each process trains on the GPU that its launcher gives it; --device is {device}: give cuda")
    if restarts() > 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise ValueError(f"a launcher with --max-restarts needs {_OWN_STORE}=1 in its environment, or restarts fail")
    import torch
    import torch.distributed as dist

    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
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
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        torch.cuda.set_device(local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", local))
        yield Place(dist.group.WORLD, f"cuda:{local}", rank == 0)
    dist.barrier()  # the first one has written and said all: a launcher ends the others when one leaves interrupted
    dist.destroy_process_group()


def _name_warnings(rank: int) -> None:
    """Lets this process's warnings say which it is."""
    plain = warnings.formatwarning

    def named(message: Any, *where: Any, **more: Any) -> str:
        return f"process {rank}: {plain(message, *where, **more)}"

    warnings.formatwarning = named
