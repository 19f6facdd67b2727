"""Checkpoint files: written atomically, and read without executing code from them."""

import contextlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
import torch

from gpu_envs.errors import CheckpointError, NotWrittenError, display
from gpu_envs.extras import MissingExtraError, extra
from gpu_envs.training.process.device import is_out_of_memory

if torch.__version__ < "2.6":
    raise MissingExtraError(
        f"torch {torch.__version__} is installed, which may run code from the files that it loads; training needs 2.6 "
        "or newer: pip install --upgrade 'gpu_envs[train]'",
        name="torch",
    )

FORMAT = 2
"""Format version of run directories; it increases when the meaning of their content changes."""

READABLE_FORMATS = (1, FORMAT)
"""Format versions that can be read; ``run.upgraded`` converts the settings of version 1."""

WEIGHTS = ".safetensors"
"""Suffix of a file of weights, which can stand for a run directory and its checkpoint."""

_KIND = "training"
_NAME = re.compile(r"iteration-(\d{8,})\.pt")
_PARTIAL = ".partial"
_BUFFERS = ".buffers-"
_MOST_DEPTH = 16
"""Maximum nesting of containers; a run's state is nested at most 7 deep."""

_CHUNK = 2**22
"""Numbers of a replay buffer that are copied to the host at a time."""


def save(path: str | Path, payload: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically: readers of ``path`` always find a complete file.

    The payload may contain dicts, lists and tuples of tensors, arrays (saved as tensors), numbers, strings, bools and
    None.
    """
    content = {"version": FORMAT, "kind": _KIND, "payload": _plain(payload, "payload")}
    data = io.BytesIO()
    torch.save(content, data)  # not into the file: torch would replace the exceptions of a full disk and of Ctrl-C
    with atomic_write(Path(path)) as file:
        file.write(data.getbuffer())


@contextlib.contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn file system errors into a NotWrittenError that names the path."""
    try:
        yield
    except OSError as error:
        if isinstance(error, NotWrittenError):
            raise
        raise NotWrittenError.of(path, error) from error


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Context that gives a temporary file, which replaces ``path`` at the end; an exception deletes it instead."""
    partial = path.with_name(path.name + _PARTIAL)
    try:
        with explain_write_errors(path):
            partial.unlink(missing_ok=True)  # of a killed process, or a link, which "x" does not follow
            with partial.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)  # so that the new name survives a power failure, too
    try:
        with contextlib.suppress(OSError):  # not supported by some network file systems; the data itself is synced
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(path: str | Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Read a checkpoint's payload, with tensors on ``device``; raise a CheckpointError if the file is damaged."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"the checkpoint {path} does not exist or is not a file")
    if path.suffix == WEIGHTS:
        return read_card(path)[1]
    with path.open("rb") as file, explain_damage(path):
        with _open_archive(file) as archive:  # torch does not verify checksums
            damaged = archive.testzip()
            if damaged is not None:
                raise zipfile.BadZipFile(f"its entry {damaged!r} fails its checksum")
            if not any(name.endswith("/data.pkl") for name in archive.namelist()):
                raise zipfile.BadZipFile("it was not written by torch.save")
        file.seek(0)
        content = torch.load(file, map_location=torch.device(device), weights_only=True)
        _check_plain(content)
    if not isinstance(content, dict) or not {"version", "kind", "payload"} <= set(content):
        raise CheckpointError(f"{path} is a torch file, but not a checkpoint of gpu_envs")
    if content["version"] not in READABLE_FORMATS:
        raise CheckpointError(
            f"{path} has format {content['version']}; this version of gpu_envs reads format {FORMAT}. "
            "Use the version of gpu_envs that wrote it, which is named in config.json in the run directory"
        )
    if content["kind"] != _KIND:
        raise CheckpointError(
            f"{path} is a checkpoint of kind {content['kind']!r}, not {_KIND!r}; give a checkpoint that a run wrote"
        )
    payload: dict[str, Any] = content["payload"]
    return payload


def read_card(path: Path) -> tuple[Any, dict[str, Any]]:
    """Read the card of a file of weights, and the part of a run's state that the file has."""
    with extra("safetensors", "safetensors"):
        from safetensors import safe_open
    learners: dict[str, Any] = {}
    with explain_damage(path), safe_open(path, framework="pt") as file:
        card = json.loads(file.metadata()["gpu_envs"])
        for key in sorted(file.keys()):
            policy, part, name = key.split(":", 2)
            learners.setdefault(policy, {}).setdefault(part, {})[name] = file.get_tensor(key)
        for weights in learners.values():
            weights["epsilon"] = weights.get("epsilon", {}).get("")
        windows = {role: [(1.0, mean, 0.0)] for role, mean in card["returns"].items()}
        return card, {"learners": learners, "players": {}, "windows": windows, "steps": card["steps"]}


def check_saveable(value: Any, what: str) -> None:
    """Raise a TypeError or a CheckpointError if ``value`` cannot be part of a checkpoint."""
    try:
        _check_plain({"payload": {"part": {what: _plain(value, what)}}})
    except CheckpointError as error:
        raise CheckpointError(f"{what} cannot be saved: {error}") from None


def _check_plain(payload: Any) -> None:
    """Raise a CheckpointError for values that ``save`` never writes: a small file could exhaust memory by them."""
    stack, visited = [(payload, 0)], set[int]()
    while stack:
        value, depth = stack.pop()
        if isinstance(value, torch.Tensor):
            if type(value) is not torch.Tensor or value.layout != torch.strided or not value.is_contiguous():
                raise CheckpointError("it has a tensor that is a view or not strided")
        elif isinstance(value, dict | list | tuple):
            if value and (id(value) in visited or depth > _MOST_DEPTH):
                raise CheckpointError("it has lists or dicts that are shared or nested too deeply")
            visited.add(id(value))
            stack += [(part, depth + 1) for part in (value.values() if isinstance(value, dict) else value)]
        elif not isinstance(value, bool | int | float | str | None):
            raise CheckpointError(f"it has a {type(value).__name__}, which no run saves")


@final
class Checkpoints:
    """The checkpoints in a folder; ``save`` deletes all but the newest ``keep``."""

    def __init__(self, folder: str | Path, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; give 1 or more")
        self.folder = Path(folder)
        self.keep = keep

    def save(self, iteration: int, payload: Mapping[str, Any]) -> Path:
        """Write a checkpoint; then delete checkpoints that are too old, and partial files of killed processes."""
        path = self.path(iteration)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save(path, payload)
        except OSError as error:
            latest = self.latest()
            last = f"the last good checkpoint is {display(latest)}" if latest else "there is no checkpoint yet"
            advice = f"; {last}. Free disk space, then resume by gpu-envs train --resume"
            raise NotWrittenError.of(path, error, advice) from error
        others = [other for other in self.paths() if other != path]
        old = others[: max(0, len(others) - self.keep + 1)]
        stems = {path.stem for path in self.paths() if path not in old}
        buffers = [file for file in self.folder.glob(f"*{_BUFFERS}*") if file.name.partition(_BUFFERS)[0] not in stems]
        for file in (*old, *buffers, *self.folder.glob(f"*{_PARTIAL}")):
            file.unlink(missing_ok=True)
        return path

    def save_buffers(
        self, iteration: int, rank: int, buffers: Mapping[str, Mapping[str, torch.Tensor]]
    ) -> dict[str, dict[str, int]]:
        """Write a process's replay buffers, before their checkpoint, which stores the returned checksums of tensors."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = _buffer_path(self.path(iteration), rank)
        with atomic_write(path) as file, zipfile.ZipFile(file, "w") as archive:
            for name, tensors in buffers.items():
                for key, tensor in tensors.items():
                    with archive.open(zipfile.ZipInfo(f"{name}/{key}"), "w", force_zip64=True) as entry:
                        for chunk in torch.split(tensor.view(-1), _CHUNK):
                            entry.write(chunk.cpu().numpy().data)
            return {name: {key: archive.getinfo(f"{name}/{key}").CRC for key in buffers[name]} for name in buffers}

    def path(self, iteration: int) -> Path:
        """Return the path of an iteration's checkpoint."""
        return self.folder / f"iteration-{iteration:08d}.pt"

    def latest(self) -> Path | None:
        """Return the newest checkpoint, or None if there is none."""
        return next(reversed(self.paths()), None)

    def paths(self) -> list[Path]:
        """Return all checkpoints, the oldest first; for a file of weights, the file."""
        if self.folder.is_file():
            return [self.folder]
        if not self.folder.is_dir():
            return []
        return sorted((path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)), key=iteration_of)


def iteration_of(path: Path) -> int:
    """Return the iteration in a checkpoint's file name; ValueError for other names."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name!r} is not a checkpoint, such as iteration-00000123.pt: resume a run directory")
    return int(match[1])


def read_buffer(
    path: Path, rank: int, name: str, checksums: Mapping[str, int], buffer: Mapping[str, torch.Tensor]
) -> None:
    """Read a learner's buffer of the checkpoint ``path`` into ``buffer``; CheckpointError if the file does not fit."""
    buffer_path = _buffer_path(path, rank)
    if not buffer_path.is_file():
        raise CheckpointError(
            f"the checkpoint {path} lacks {buffer_path.name}, which holds its replay buffer: put it back, or remove "
            "the checkpoint to resume from the one before"
        )
    with buffer_path.open("rb") as file, explain_damage(path), _open_archive(file) as archive:
        for key, tensor in buffer.items():
            entry = archive.getinfo(f"{name}/{key}")
            if checksums.get(key) != entry.CRC:
                raise CheckpointError(f"{buffer_path.name} belongs to another checkpoint")
            if entry.file_size != tensor.nbytes:
                raise CheckpointError(f"{buffer_path.name} has {entry.file_size} bytes of {key}, not {tensor.nbytes}")
            with archive.open(entry) as stored:
                for chunk in torch.split(tensor.view(-1), _CHUNK):
                    data = bytearray(stored.read(chunk.nbytes))  # verifies the checksum at the end
                    chunk.copy_(torch.frombuffer(data, dtype=chunk.dtype))


def _buffer_path(path: Path, rank: int) -> Path:
    return path.with_name(f"{path.stem}{_BUFFERS}{rank}.zip")


@contextlib.contextmanager
def _open_archive(file: BinaryIO) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive; raise BadZipFile for compressed or overlapping entries, which could exhaust memory."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise zipfile.BadZipFile("it is compressed")
        if sum(entry.file_size for entry in entries) > os.fstat(file.fileno()).st_size:
            raise zipfile.BadZipFile("its entries overlap")
        yield archive


@contextlib.contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Turn errors from the content of a checkpoint into a CheckpointError that names the file and says what to do."""
    try:
        yield
    except Exception as error:  # for invalid content zipfile, pickle and torch raise exceptions of nearly any type
        if is_out_of_memory(error):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        paths = Checkpoints(path.parent).paths() if _NAME.fullmatch(path.name) else []
        older = [other for other in paths if iteration_of(other) < iteration_of(path)]
        advice = "There is no checkpoint before it: restore it, or train a new run"
        if older:
            advice = f"The checkpoint before it is {older[-1]}: remove the damaged file to resume from there"
        raise CheckpointError(f"the checkpoint {path} is damaged ({reason}). {advice}") from None


def _plain(value: Any, where: str) -> Any:
    """Convert a value to types that can be read without executing code, subclasses to base types; else TypeError."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return None
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True).contiguous()  # of a view only the viewed part is saved
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value, order="C"))
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int):
                raise TypeError(f"{where} has the key {key!r}; a checkpoint's keys are strings or integers")
        return {_plain(key, where): _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item, f"{where}[{at}]") for at, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    raise TypeError(
        f"{where} is a {type(value).__name__}; a checkpoint holds dicts, lists and tuples of tensors, arrays, numbers, "
        "strings, bools and None"
    )
