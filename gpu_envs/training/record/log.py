"""The log of a run: a row of log.csv and an event of TensorBoard for every entry.

Event files are written by hand: records of the protocol buffer ``Event``, each framed by its checksums. A record is its
length (uint64), the masked CRC-32C of that, its bytes, and the masked CRC-32C of those. Of the messages only these
members are used, by their numbers in TensorFlow's ``event.proto`` and ``summary.proto``:

    Event       1 wall_time (double)  2 step (int64)  3 file_version (string)  5 summary  7 session_log
    Summary     1 value (repeated)
    Value       1 tag (string)  2 simple_value (float)
    SessionLog  1 status (enum; 1: start)

A member is its number times 8, plus 0 for whole numbers, 1 for double, 2 for bytes or 5 for float, and its value.
"""

import csv
import ctypes
import io
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from gpu_envs.errors import did_you_mean, display
from gpu_envs.training.record.checkpoint import atomic_write, explain_write_errors

FIRST: Final = ("iteration", "steps", "seconds")
"""The columns that every log begins with."""


@final
class RunLog:
    """Appends to log.csv, row by row, and to an event file beside it; the columns are those of the first entry."""

    def __init__(self, path: str | Path, iteration: int = 0) -> None:
        """Starts a log, or resumes one after an iteration: later rows are dropped, and a last one cut short."""
        self.path = Path(path)
        if self.path.exists() and not self.path.is_file():  # to read from a pipe never ends
            raise ValueError(f"{display(path)} is no regular file: move it away, and a new log begins")
        rows = _rows(self.path) if self.path.exists() else []
        done = [row for row in rows[1:] if int(row[1][0]) <= iteration]
        kept = [rows[0], *done] if done else []  # without a row the next entry may have other columns
        self._columns = kept[0][1] if kept else []
        self._purge_step = int(kept[-1][1][1]) + 1 if kept else 0
        self._events: EventFile | None = None
        with atomic_write(self.path) as file:
            file.write("".join(line for line, _ in kept).encode())

    def write(self, iteration: int, steps: int, record: Mapping[str, float], seconds: float) -> None:
        """Appends an entry of values by name, some of those that the first one had; ``seconds`` are of training."""
        if not self._columns:
            clash = [name for name in record if name in FIRST]
            if clash:
                raise ValueError(f"the log has a column {clash[0]!r} of its own; give the value another name")
            self._columns = [*FIRST, *record]
            self._append(self._columns)
        names = self._columns[len(FIRST) :]
        unknown = [name for name in record if name not in names]
        if unknown:
            raise ValueError(
                f"the log has no column {unknown[0]!r}{did_you_mean(unknown[0], self._columns)} The first entry fixes "
                f"the columns; they are {', '.join(self._columns)}"
            )
        # digits that read back as the same number
        digits = {name: repr(value if isinstance(value, int) else float(value)) for name, value in record.items()}
        self._append([str(iteration), str(steps), f"{seconds:.3f}", *(digits.get(name, "") for name in names)])
        with explain_write_errors(self.path.parent / "the file of TensorBoard's events"):
            if self._events is None:
                self._events = EventFile(self.path.parent, self._purge_step)
            self._events.scalars(steps, record)

    def _append(self, cells: list[str]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        with explain_write_errors(self.path), self.path.open("a", newline="", encoding="utf-8") as file:
            file.write(text.getvalue())  # one write: a row is there, or is not


def _rows(path: Path) -> list[tuple[str, list[str]]]:
    """Header and rows of a log, as text and cell by cell, without a last one cut short."""
    rows: list[tuple[str, list[str]]] = []
    try:
        for line in path.read_bytes().decode().split("\n")[:-1]:
            row = next(csv.reader([line], strict=True), [])
            if not rows and tuple(row[: len(FIRST)]) != FIRST:
                raise ValueError(f"it does not begin with {','.join(FIRST)}")
            if rows and len(row) != len(rows[0][1]):
                raise ValueError(f"it has {len(row)} cells for {len(rows[0][1])} columns")
            for cell, kind in zip(row if rows else (), (int, int, *[float] * len(row)), strict=False):
                if cell or kind is int:
                    kind(cell)
            rows.append((f"{line}\n", row))
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"{display(path)} is damaged, or no log of a run, at line {len(rows) + 1} ({error}): mend it, or move it "
            "away, and a new one begins"
        ) from None
    return rows


@final
class EventFile:
    """A file of TensorBoard's, to which scalars are appended."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        """Starts a file, sorted after those that are there; their events from ``purge_step`` on count no longer."""
        number = len(list(folder.glob("events.out.tfevents.*")))
        self._path = folder / f"events.out.tfevents.{int(time.time()):010d}.{number:04d}"
        self._path.touch(exist_ok=False)
        self._append(0, _bytes(3, b"brain.Event:2"))
        self._append(purge_step, _bytes(7, b"\x08\x01"))  # status: start

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Appends a value for each tag."""
        # a float of C: infinity beyond float32
        members = (_bytes(1, tag.encode()) + b"\x15" + bytes(_Float32(value)) for tag, value in values.items())
        self._append(step, _bytes(5, b"".join(_bytes(1, value) for value in members)))

    def _append(self, step: int, content: bytes) -> None:
        record = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step) + content
        length = struct.pack("<Q", len(record))
        with self._path.open("ab") as file:
            file.write(length + _masked(length) + record + _masked(record))


_Float32: Final = ctypes.c_float.__ctype_le__


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(map(_entry, range(256)))
_MASK: Final = 0xA282EAD8


def _masked(data: bytes) -> bytes:
    """The checksum of Castagnoli et al. (1993), bits reflected, as in RFC 3720, turned and shifted as in TFRecord."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    if value < 0:
        raise ValueError(f"a step cannot be negative; got {value}")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
