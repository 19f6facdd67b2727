"""The folder of a training run: config.json, run.toml, log.csv with TensorBoard's events beside it, and checkpoints."""

import contextlib
import fcntl
import itertools
import json
import operator
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import torch

import gpu_envs
from gpu_envs.backend import resolve_device
from gpu_envs.backend.toolchain import processor_name
from gpu_envs.errors import did_you_mean, display
from gpu_envs.registry.catalog import id_of, spec_of_run
from gpu_envs.registry.sources import parse_spec_path
from gpu_envs.specs.base import Spec
from gpu_envs.training.record.checkpoint import FORMAT, READ, Checkpoints, atomic_write
from gpu_envs.training.record.summary import read_log
from gpu_envs.training.run import Run, upgraded
from gpu_envs.training.settings_file import SETTINGS_FILE, to_toml

_CONFIG = "config.json"
_LOCK = ".lock"

ROOT = "runs"
"""Where folders go that were not named."""


@final
class RunDirectory:
    """Where a run keeps what it was told, what it measured, and what it learnt; made by ``create`` and ``open``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: str | Path | None, config: Run) -> "RunDirectory":
        """Makes the folder of a new run, new or empty, and writes its configuration there.

        Without a path it is in ``runs``, named after the environment and the time.
        """
        folder = _new_folder(id_of(config.env)) if path is None else Path(path)
        wrong = next((place for place in (folder, *folder.parents) if place.exists() and not place.is_dir()), None)
        if wrong is not None:
            raise NotADirectoryError(f"the run directory cannot be {folder}, because {wrong} is a file: name another")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if any(folder.iterdir()):
                raise FileExistsError
            (folder / _LOCK).open("xb").close()  # of processes that find the folder empty, one succeeds
        except FileExistsError:
            raise FileExistsError(
                f"the run directory {folder} is not empty: name another, or go on with that run by "
                f"gpu-envs train --resume {folder}"
            ) from None
        run = cls(folder)
        try:
            run._write(config, {})
        except BaseException:
            (folder / _LOCK).unlink(missing_ok=True)  # once there is room on the disk, the same command succeeds
            raise
        return run

    @classmethod
    def open(cls, path: "str | Path | RunDirectory") -> "RunDirectory":
        """Opens the folder of a run, or raises FileNotFoundError."""
        if isinstance(path, RunDirectory):
            return path
        folder = Path(path)
        if not (folder / _CONFIG).is_file():
            wrong = "is a file, not a folder" if folder.exists() else "does not exist"
            wrong = "has no config.json, so it is not a run's" if folder.is_dir() else wrong
            beside = [str(other.parent) for other in folder.parent.glob(f"*/{_CONFIG}")]
            raise FileNotFoundError(f"the run directory {folder} {wrong}{did_you_mean(str(folder), beside)}")
        return cls(folder)

    def config(self) -> Run:
        """The configuration of the run."""
        about = self.about()
        config = Run.from_flat(upgraded(about["config"], about.get("format", 1)))
        place = parse_spec_path(config.env)
        if place is not None and place.is_file and not Path(place.source).is_file():
            raise FileNotFoundError(
                f"there is no file {display(place.source)!r}, which has the environment of the run {self.path}; "
                f"{self.path / _CONFIG} has it, as 'env': write the new place there, where it has moved"
            )
        return config

    def spec(self, *, trust: bool) -> Spec:
        """The spec of the run's environment, imported where it is not known, if it is to be trusted."""
        return spec_of_run(self.config().env, f"the run {self.path}", trust=trust)

    def about(self) -> dict[str, Any]:
        """All of config.json: the configuration, its changes, versions, the device's name, and the command lines."""
        path = self.path / _CONFIG
        try:
            about = json.loads(path.read_text())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        if not isinstance(about, dict) or not isinstance(about.get("config"), dict):
            raise ValueError(f"{path} is not the configuration of a run: it lacks 'config'")
        if about.get("format", 1) not in READ:
            raise ValueError(
                f"{path} is of format {about['format']}, written by gpu_envs {about.get('gpu_envs')}; this one, "
                f"{gpu_envs.__version__}, reads format {FORMAT}: use that version"
            )
        return about

    def amend(self, config: Run, iteration: int) -> None:
        """Writes the configuration of a run that goes on; what is another from that iteration on is kept, too."""
        about, before, after = self.about(), self.config().flat(), config.flat()
        changed = {
            name: {"from": before.get(name), "to": value} for name, value in after.items() if before.get(name) != value
        }
        if changed:
            about["changes"] = [*about.get("changes", []), {"iteration": iteration, **changed}]
        self._write(config, about)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from training this run meanwhile, where the file system knows locks.

        The operating system lets go of the lock when the process ends, however it ends.
        """
        link = next((entry for entry in self.path.iterdir() if entry.is_symlink()), None)
        if link is not None:
            raise ValueError(
                f"{link} is a symbolic link, and training would follow it out of the run directory: remove it, or "
                "replace it by a copy of its target"
            )
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 100).decode(errors="replace").strip()
                raise BlockingIOError(
                    f"the run {self.path} is being trained already, by {holder or 'another process'}: wait for it, "
                    "or stop it"
                ) from None
            except OSError:  # the file system has no locks
                pass
            with contextlib.suppress(OSError):  # on a full disk nobody learns who holds it
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    @property
    def checkpoints(self) -> Checkpoints:
        """Its checkpoints; it keeps as many as the configuration says."""
        return Checkpoints(self.path / "checkpoints", self.config().keep_checkpoints)

    @property
    def log_path(self) -> Path:
        """The file of the log."""
        return self.path / "log.csv"

    def log(self) -> dict[str, list[float]]:
        """The log's columns by name: iteration, steps, seconds and what was measured; NaN where nothing was."""
        return read_log(self.log_path)

    def _write(self, config: Run, about: dict[str, Any]) -> None:
        of_arrays = operator.methodcaller("tolist")  # parameters with a value for each replica
        for name, value in config.flat().items():
            try:
                json.dumps(value, default=of_arrays)
            except (AttributeError, TypeError):
                raise TypeError(
                    f"{name} is {value!r}, which {_CONFIG} cannot hold: give numbers, strings or arrays"
                ) from None
        about = about | {
            "format": FORMAT,
            "config": config.flat(),
            "gpu_envs": gpu_envs.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": device_name(config.device),
            "commands": [*about.get("commands", []), *_command()],
            "launch": os.environ.get("TORCHELASTIC_RUN_ID"),
        }
        with atomic_write(self.path / SETTINGS_FILE) as file:
            file.write(to_toml(config).encode())
        with atomic_write(self.path / _CONFIG) as file:
            file.write((json.dumps(about, indent=2, default=of_arrays) + "\n").encode())


def _command() -> list[list[str]]:
    """The command line, where it is one of ``gpu-envs``: that of a program which trains says nothing of the run."""
    program = Path(sys.argv[0])
    own = program.stem == "gpu-envs" or (program.stem == "__main__" and program.parent.name == "gpu_envs")
    return [list(sys.argv)] if own else []


def _new_folder(env: str) -> Path:
    """Makes a folder with a name of its own, even where two runs start in the same second."""
    stem = re.sub(r"[^\w.+-]", "_", env.rpartition("/")[2]) + time.strftime("-%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        path = Path(ROOT, stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            break
    return path


def device_name(device: str) -> str:
    """The name of a device as its maker has it: of the card, or of the processor."""
    resolved = resolve_device(device)
    if resolved == "cpu":
        return processor_name()
    return str(torch.cuda.get_device_name(resolved)) if torch.cuda.is_available() else resolved
