"""The run directory: config.json, run.toml, log.csv, TensorBoard event files, and checkpoints."""

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
from gpu_envs.registry.catalog import id_of, needs_trust, portable_name, remember_trusted, spec_of_run
from gpu_envs.registry.sources import parse_spec_path
from gpu_envs.specs.base import Spec
from gpu_envs.training.record.checkpoint import FORMAT, READABLE_FORMATS, WEIGHTS, Checkpoints, atomic_write, read_card
from gpu_envs.training.record.summary import read_log
from gpu_envs.training.run import Run, upgraded
from gpu_envs.training.settings_file import SETTINGS_FILE, to_toml

_CONFIG = "config.json"
_LOCK = ".lock"

ROOT = "runs"
"""Parent of run directories that get a generated name."""


@final
class RunDirectory:
    """A run directory, with settings, log and checkpoints; returned by ``create`` and ``open``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: str | Path | None, config: Run) -> "RunDirectory":
        """Make the directory of a new run, or use an empty one, and write the configuration there.

        Without a path a directory in ``runs`` is made, named after the environment and the time.
        """
        folder = new_folder(id_of(config.env)) if path is None else Path(path)
        file = next((parent for parent in (folder, *folder.parents) if parent.exists() and not parent.is_dir()), None)
        if file is not None:
            raise NotADirectoryError(f"the run directory cannot be {folder}, because {file} is a file: name another")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if any(folder.iterdir()):
                raise FileExistsError
            (folder / _LOCK).open("xb").close()  # if several processes find the folder empty, only one succeeds
        except FileExistsError:
            raise FileExistsError(
                f"the run directory {folder} is not empty: name another, as run_dir or --run-dir, or continue its run "
                f"with gpu_envs.training.resume({str(folder)!r}) or gpu-envs train --resume {folder}"
            ) from None
        run = cls(folder)
        try:
            run._write(config, {})
        except BaseException:
            (folder / _LOCK).unlink(missing_ok=True)  # so that the same command succeeds once the disk has space
            raise
        remember_trusted(portable_name(config.env))  # the user named it for this run
        return run

    @classmethod
    def open(cls, path: "str | Path | RunDirectory") -> "RunDirectory":
        """Open an existing run directory, or a file of weights; raise a FileNotFoundError if it is neither."""
        if isinstance(path, RunDirectory):
            return path
        folder = Path(path)
        if not (folder / _CONFIG).is_file() and not (folder.suffix == WEIGHTS and folder.is_file()):
            problem = "is a file, not a folder" if folder.exists() else "does not exist"
            problem = "has no config.json, so it is not a run directory" if folder.is_dir() else problem
            siblings = [str(other.parent) for other in folder.parent.glob(f"*/{_CONFIG}")]
            raise FileNotFoundError(
                f"the run directory {folder} {problem}; give the folder of a run, such as "
                f"runs/CartPole-v1-20250131-120000{did_you_mean(str(folder), siblings)}"
            )
        return cls(folder)

    def config(self) -> Run:
        """Return the settings of the run, which config.json contains.

        Raises:
            FileNotFoundError: The file of the run's environment is gone.
        """
        about = self.about()
        config = Run.from_flat(upgraded(about["config"], about.get("format", 1)))
        place = parse_spec_path(config.env)
        if place is not None and place.is_file and not Path(place.source).is_file():
            raise FileNotFoundError(
                f"the file of the environment of the run {self.path}, {display(place.source)!r}, does not exist: "
                f"restore it, or write its new path as 'env' into {self.path / _CONFIG}"
            )
        return config

    @property
    def needs_trust(self) -> bool:
        """Whether a new process needs ``--trust`` to import the run's environment."""
        return needs_trust(self.config().env)

    def spec(self, *, trust: bool) -> Spec:
        """Return the spec of the run's environment; with ``trust`` its file is imported if it is not registered."""
        return spec_of_run(self.config().env, f"the run {self.path}", trust=trust)

    def about(self) -> dict[str, Any]:
        """Return the content of config.json: settings, their changes, versions, the device's name, command lines."""
        path = self.path if self.path.is_file() else self.path / _CONFIG
        try:
            about = read_card(path)[0] if path == self.path else json.loads(path.read_text())
        except (ValueError, RecursionError) as error:
            advice = f"restore it, or train a new run with --config {self.path / SETTINGS_FILE}"
            raise ValueError(f"{path} is damaged: {error}; {advice}") from None
        if not isinstance(about, dict) or not isinstance(about.get("config"), dict):
            raise ValueError(f"{path} is not the configuration of a run: it lacks 'config'")
        if about.get("format", 1) not in READABLE_FORMATS:
            version = about.get("gpu_envs")
            raise ValueError(
                f"{path} has format {about['format']}, written by gpu_envs {version}, but gpu_envs "
                f"{gpu_envs.__version__} reads format {FORMAT}: use gpu_envs {version}"
            )
        return about

    def amend(self, config: Run, iteration: int) -> None:
        """Write the settings of a resumed run, and record the changes with the iteration of the resumption."""
        about, before, after = self.about(), self.config().flat(), config.flat()
        changed = {
            name: {"from": before.get(name), "to": value} for name, value in after.items() if before.get(name) != value
        }
        if changed:
            about["changes"] = [*about.get("changes", []), {"iteration": iteration, **changed}]
        self._write(config, about)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Prevent other processes from training this run, if the file system has locks; BlockingIOError if one does.

        The operating system releases the lock when the process ends, even if it is killed.
        """
        if self.path.is_file():
            raise ValueError(f"{self.path} has weights, but not the rest of a run's state: resume its run directory")
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
            with contextlib.suppress(OSError):  # on a full disk, messages of other processes cannot name the holder
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    @property
    def checkpoints(self) -> Checkpoints:
        """The run's checkpoints; the newest ``keep_checkpoints`` are kept."""
        folder = self.path if self.path.is_file() else self.path / "checkpoints"
        return Checkpoints(folder, self.config().keep_checkpoints)

    @property
    def log_path(self) -> Path:
        """Path of log.csv."""
        return self.path / "log.csv"

    def log(self) -> dict[str, list[float]]:
        """Return the log's columns by name: iteration, steps, seconds and metrics; missing values are NaN."""
        return read_log(self.log_path)

    def _write(self, config: Run, about: dict[str, Any]) -> None:
        """Write run.toml, and config.json with other keys of ``about``; TypeError for values that JSON cannot hold."""
        array_to_list = operator.methodcaller("tolist")  # for parameters with a value for each replica
        for name, value in config.flat().items():
            try:
                json.dumps(value, default=array_to_list)
            except (AttributeError, TypeError):
                raise TypeError(
                    f"{name} is {value!r}, which {_CONFIG} cannot contain: give numbers, strings or arrays"
                ) from None
        for place in config.callbacks:  # the user has named them, or trusts them
            remember_trusted(place)
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
            file.write((json.dumps(about, indent=2, default=array_to_list) + "\n").encode())


def _command() -> list[list[str]]:
    """Return a list with the command line; empty if the program is not ``gpu-envs``: it says nothing about the run."""
    program = Path(sys.argv[0])
    is_cli = program.stem == "gpu-envs" or (program.stem == "__main__" and program.parent.name == "gpu_envs")
    return [list(sys.argv)] if is_cli else []


def new_folder(env: str) -> Path:
    """Make a folder in ``runs`` with a unique name of the environment and the time; return its path."""
    stem = re.sub(r"[^\w.+-]", "_", env.rpartition("/")[2]) + time.strftime("-%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        path = Path(ROOT, stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            break
    return path


def device_name(device: str) -> str:
    """Return the product name of a device: of the GPU, or of the processor."""
    resolved = resolve_device(device)
    if resolved == "cpu":
        return processor_name()
    return str(torch.cuda.get_device_name(resolved)) if torch.cuda.is_available() else resolved
