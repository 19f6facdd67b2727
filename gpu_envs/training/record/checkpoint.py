"""Checkpoints: written so that a killed process never harms the last good one, and read without running any code."""

import contextlib
import io
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
import torch

from gpu_envs.errors import CheckpointError, NotWrittenError, display
from gpu_envs.extras import MissingExtraError
from gpu_envs.training.process.device import is_out_of_memory

if torch.__version__ < "2.6":
    raise MissingExtraError(
        f"torch {torch.__version__} is installed, which may run code from the files that it loads; training needs 2.6 "
        "or newer: pip install --upgrade 'gpu_envs[train]'",
        name="torch",
    )

FORMAT = 2
"""The version of what a run directory holds: it rises when the meaning of something there changes."""

READ = (1, FORMAT)
"""The versions that can be read; ``run.upgraded`` translates the settings of version 1."""

_KIND = "training"
_NAME = re.compile(r"iteration-(\d{8,})\.pt")
_PARTIAL = ".partial"
_PART = ".buffers-"
_MOST_DEPTH = 16
"""Containers within one another; those of a run are 7 at most."""

_PIECE = 2**22
"""Numbers of a replay buffer that are on the host at a time."""


def save(path: str | Path, payload: Mapping[str, Any]) -> None:
    """Writes a checkpoint; a reader of ``path`` finds the old one or the new one, whole, at any time.

    It holds dicts, lists and tuples of tensors, arrays (as tensors), numbers, strings, bools and None.
    """
    content = {"version": FORMAT, "kind": _KIND, "payload": _plain(payload, "payload")}
    data = io.BytesIO()
    torch.save(content, data)  # into the file itself, torch would make errors of its own of a full disk and of Ctrl-C
    with atomic_write(Path(path)) as file:
        file.write(data.getbuffer())


@contextlib.contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Lets an error of the file system say what could not be written."""
    try:
        yield
    except OSError as error:
        if isinstance(error, NotWrittenError):
            raise
        raise NotWrittenError.of(path, error) from error


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` when it is complete, and goes when it is not."""
    partial = path.with_name(path.name + _PARTIAL)
    try:
        with explain_write_errors(path):
            partial.unlink(missing_ok=True)  # a killed writer's, or a link in a stranger's folder: "x" follows none
            with partial.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)  # the name, too, is to survive a power failure
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse; the data itself is safe by now
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(path: str | Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Reads the payload of a checkpoint, its tensors on ``device``, or says what is wrong with the file."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    with path.open("rb") as file, explain_damage(path):
        with _open_archive(file) as archive:  # torch itself does not look at the checksums
            damaged = archive.testzip()
            if damaged is not None:
                raise zipfile.BadZipFile(f"{damaged} fails its checksum")
            if not any(name.endswith("/data.pkl") for name in archive.namelist()):
                raise zipfile.BadZipFile("it is not a file of torch's")
        file.seek(0)
        content = torch.load(file, map_location=torch.device(device), weights_only=True)
        _check_plain(content)
    if not isinstance(content, dict) or not {"version", "kind", "payload"} <= set(content):
        raise CheckpointError(f"{path} is a file of torch's, but no checkpoint of gpu_envs")
    if content["version"] not in READ:
        raise CheckpointError(
            f"{path} is of format {content['version']}; this gpu_envs reads format {FORMAT}. "
            "Use the version of gpu_envs that wrote it: config.json in the run's folder names it"
        )
    if content["kind"] != _KIND:
        raise CheckpointError(f"{path} is a checkpoint of kind {content['kind']!r}; expected {_KIND!r}")
    payload: dict[str, Any] = content["payload"]
    return payload


def _check_plain(payload: Any) -> None:
    """Refuses what no checkpoint is saved with, and with which a small file would take forever or all memory."""
    stack, visited = [(payload, 0)], set[int]()
    while stack:
        value, depth = stack.pop()
        if isinstance(value, torch.Tensor):
            if type(value) is not torch.Tensor or value.layout != torch.strided or not value.is_contiguous():
                raise CheckpointError("it has a tensor that is a view, or of a special kind")
        elif isinstance(value, dict | list | tuple):
            if value and (id(value) in visited or depth > _MOST_DEPTH):
                raise CheckpointError("it has lists or dicts that occur twice, or are nested too deeply")
            visited.add(id(value))
            stack += [(part, depth + 1) for part in (value.values() if isinstance(value, dict) else value)]
        elif not isinstance(value, bool | int | float | str | None):
            raise CheckpointError(f"it has a {type(value).__name__}")


@final
class Checkpoints:
    """The checkpoints of a run in a folder, of which the newest ``keep`` stay."""

    def __init__(self, folder: str | Path, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least one checkpoint must stay")
        self.folder = Path(folder)
        self.keep = keep

    def save(self, iteration: int, payload: Mapping[str, Any]) -> Path:
        """Writes one; then, when it is safe, removes those too old to keep and what killed writers left behind."""
        path = self.folder / f"iteration-{iteration:08d}.pt"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save(path, payload)
        except OSError as error:
            latest = self.latest()
            last = f"the last good checkpoint is {display(latest)}" if latest else "there is no checkpoint yet"
            advice = f"; {last}. Make room, then gpu-envs train --resume goes on"
            raise NotWrittenError.of(path, error, advice) from error
        others = [old for old in self.paths() if old != path]
        old = others[: max(0, len(others) - self.keep + 1)]
        stay = {path.stem for path in self.paths() if path not in old}
        parts = [part for part in self.folder.glob(f"*{_PART}*") if part.name.partition(_PART)[0] not in stay]
        for left in (*old, *parts, *self.folder.glob(f"*{_PARTIAL}")):
            left.unlink(missing_ok=True)
        return path

    def save_buffers(
        self, iteration: int, rank: int, buffers: Mapping[str, Mapping[str, torch.Tensor]]
    ) -> dict[str, dict[str, int]]:
        """Writes a process's replay buffers, in pieces, before the checkpoint of an iteration.

        Returns the checksum of each tensor, by learner, by which the checkpoint knows its own buffers.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        part = _part(self.folder / f"iteration-{iteration:08d}.pt", rank)
        with atomic_write(part) as file, zipfile.ZipFile(file, "w") as archive:
            for name, tensors in buffers.items():
                for key, tensor in tensors.items():
                    with archive.open(zipfile.ZipInfo(f"{name}/{key}"), "w", force_zip64=True) as entry:
                        for piece in torch.split(tensor.view(-1), _PIECE):
                            entry.write(piece.cpu().numpy().data)
            return {name: {key: archive.getinfo(f"{name}/{key}").CRC for key in buffers[name]} for name in buffers}

    def latest(self) -> Path | None:
        """The newest, or None where there is none."""
        return next(reversed(self.paths()), None)

    def paths(self) -> list[Path]:
        """All of them, the oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted((path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)), key=iteration_of)


def iteration_of(path: Path) -> int:
    """The iteration in a checkpoint's name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name!r} is not a checkpoint's name; they are like iteration-00000123.pt")
    return int(match[1])


def read_buffer(
    path: Path, rank: int, name: str, checksums: Mapping[str, int], buffer: Mapping[str, torch.Tensor]
) -> None:
    """Reads a learner's replay buffer, which belongs to the checkpoint ``path``, into its tensors, in pieces."""
    part = _part(path, rank)
    if not part.is_file():
        raise CheckpointError(
            f"the checkpoint {path} lacks {part.name}, which holds its replay buffer: put it back, or remove the "
            "checkpoint to resume from the one before"
        )
    with part.open("rb") as file, explain_damage(path), _open_archive(file) as archive:
        for key, tensor in buffer.items():
            entry = archive.getinfo(f"{name}/{key}")
            if checksums.get(key) != entry.CRC:
                raise CheckpointError(f"{part.name} belongs to another checkpoint")
            if entry.file_size != tensor.nbytes:
                raise CheckpointError(f"{part.name} has {entry.file_size} bytes of {key}; expected {tensor.nbytes}")
            with archive.open(entry) as stored:
                for piece in torch.split(tensor.view(-1), _PIECE):
                    data = bytearray(stored.read(piece.nbytes))  # checks the checksum at the end
                    piece.copy_(torch.frombuffer(data, dtype=piece.dtype))


def _part(path: Path, rank: int) -> Path:
    return path.with_name(f"{path.stem}{_PART}{rank}.zip")


@contextlib.contextmanager
def _open_archive(file: BinaryIO) -> Iterator[zipfile.ZipFile]:
    """A zip archive, after a look at its entries: compressed or overlapping ones would unpack to more than there is."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise zipfile.BadZipFile("it is compressed")
        if sum(entry.file_size for entry in entries) > os.fstat(file.fileno()).st_size:
            raise zipfile.BadZipFile("its entries overlap")
        yield archive


@contextlib.contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Says of errors that come of the bytes of a checkpoint which file is damaged, and what to do."""
    try:
        yield
    except Exception as error:  # of bytes that anybody may have written zipfile, pickle and torch raise nearly anything
        if is_out_of_memory(error):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        paths = Checkpoints(path.parent).paths() if _NAME.fullmatch(path.name) else []
        older = [other for other in paths if iteration_of(other) < iteration_of(path)]
        advice = (
            f"The checkpoint before it is {older[-1]}: remove the damaged file to go on from there"
            if older
            else "There is no checkpoint before it"
        )
        raise CheckpointError(f"the checkpoint {path} is damaged ({reason}). {advice}") from None


def _plain(value: Any, where: str) -> Any:
    """The value in types that are read back without running code; exact, so that subclasses do not slip through."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return None
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True).contiguous()  # a view does not drag its whole storage along
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value, order="C"))
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int):
                raise TypeError(f"{where} has the key {key!r}; a checkpoint's keys are strings or whole numbers")
        return {_plain(key, where): _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item, f"{where}[{at}]") for at, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    raise TypeError(
        f"{where} is a {type(value).__name__}; a checkpoint holds dicts, lists and tuples of tensors, arrays, numbers, "
        "strings, bools and None"
    )
