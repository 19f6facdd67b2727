"""The log of a run: each entry is a row of log.csv and a TensorBoard event.

Event files are written without TensorBoard: they are TFRecords of the protocol buffer ``Event``. A record is its length
(uint64), the masked CRC-32C of the length, the message, and the masked CRC-32C of the message. Only these fields are
used, with their numbers in TensorFlow's ``event.proto`` and ``summary.proto``:

    Event       1 wall_time (double)  2 step (int64)  3 file_version (string)  5 summary  7 session_log
    Summary     1 value (repeated)
    Value       1 tag (string)  2 simple_value (float)
    SessionLog  1 status (enum; 1: start)

A field is its number times 8, plus 0 for integers, 1 for double, 2 for bytes or 5 for float, followed by its value.
"""

import csv
import ctypes
import io
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from gpu_envs.errors import display
from gpu_envs.training.record.checkpoint import atomic_write, explain_write_errors

LEADING_COLUMNS: Final = ("iteration", "steps", "seconds")
"""The first columns of every log."""


@final
class RunLog:
    """Appends rows to log.csv and to a TensorBoard event file; an entry may add columns."""

    def __init__(self, path: str | Path, iteration: int = 0) -> None:
        """Start a log, or resume one after an iteration: later rows and an incomplete last row are dropped."""
        self.path = Path(path)
        if self.path.exists() and not self.path.is_file():  # reading from a pipe would block
            raise ValueError(f"{display(path)} is not a regular file: move it away, and a new log is started")
        rows = _rows(self.path) if self.path.exists() else []
        done = [row for row in rows[1:] if int(row[1][0]) <= iteration]
        remaining = [rows[0], *done] if done else []  # if no row is left, the next entry may have other columns
        self._columns = remaining[0][1] if remaining else []
        self._purge_step = int(remaining[-1][1][1]) + 1 if remaining else 0
        self._events: EventFile | None = None
        with atomic_write(self.path) as file:
            file.write("".join(line for line, _ in remaining).encode())

    def write(self, iteration: int, steps: int, record: Mapping[str, float], seconds: float) -> None:
        """Append an entry to both files, with values of some or all columns; ``seconds`` is the training time."""
        if not self._columns:
            clash = [name for name in record if name in LEADING_COLUMNS]
            if clash:
                raise ValueError(f"the log already has a column {clash[0]!r}; give the value another name")
            self._columns = [*LEADING_COLUMNS, *record]
            self._append(self._columns)
        names = self._columns[len(LEADING_COLUMNS) :]
        unknown = [name for name in record if name not in names]
        if unknown:
            self._add_columns(unknown)
            names += unknown
        # digits that read back as the same number
        digits = {name: repr(value if isinstance(value, int) else float(value)) for name, value in record.items()}
        self._append([str(iteration), str(steps), f"{seconds:.3f}", *(digits.get(name, "") for name in names)])
        with explain_write_errors(self.path.parent / "the file of TensorBoard's events"):
            if self._events is None:
                self._events = EventFile(self.path.parent, self._purge_step)
            self._events.scalars(steps, record)

    def _append(self, cells: list[str]) -> None:
        with explain_write_errors(self.path), self.path.open("a", newline="", encoding="utf-8") as file:
            file.write(_csv_line(cells))  # a single write, so that a killed process leaves no partial row

    def _add_columns(self, names: list[str]) -> None:
        """Write the file again with further columns, whose cells in earlier rows are empty."""
        header, *rows = [cells for _, cells in _rows(self.path)]
        lines = map(_csv_line, [header + names, *(row + [""] * len(names) for row in rows)])
        with explain_write_errors(self.path), atomic_write(self.path) as file:
            file.write("".join(lines).encode())
        self._columns += names


def _csv_line(cells: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _rows(path: Path) -> list[tuple[str, list[str]]]:
    """Read header and rows of a log, as text and as cells, without an incomplete last row; ValueError: damaged."""
    rows: list[tuple[str, list[str]]] = []
    try:
        for line in path.read_bytes().decode().split("\n")[:-1]:
            row = next(csv.reader([line], strict=True), [])
            if not rows and tuple(row[: len(LEADING_COLUMNS)]) != LEADING_COLUMNS:
                raise ValueError(f"it does not start with {','.join(LEADING_COLUMNS)}")
            if rows and len(row) != len(rows[0][1]):
                raise ValueError(f"it has {len(row)} cells for {len(rows[0][1])} columns")
            for cell, kind in zip(row if rows else (), (int, int, *[float] * len(row)), strict=False):
                if cell or kind is int:
                    kind(cell)
            rows.append((f"{line}\n", row))
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"{display(path)} is damaged or not a log of a run, at line {len(rows) + 1} ({error}): repair it, or move "
            "it away, and a new log is started"
        ) from None
    return rows


@final
class EventFile:
    """A TensorBoard event file of scalars."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        """Start a file that sorts after existing ones; TensorBoard ignores their events from ``purge_step`` on."""
        number = len(list(folder.glob("events.out.tfevents.*")))
        self._path = folder / f"events.out.tfevents.{int(time.time()):010d}.{number:04d}"
        self._path.touch(exist_ok=False)
        self._append(0, _bytes(3, b"brain.Event:2"))
        self._append(purge_step, _bytes(7, b"\x08\x01"))  # status: start

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Append an event with a value for each tag."""
        # a C float, which becomes infinite beyond the range of float32 (struct.pack would raise)
        members = (_bytes(1, tag.encode()) + b"\x15" + bytes(_Float32(value)) for tag, value in values.items())
        self._append(step, _bytes(5, b"".join(_bytes(1, value) for value in members)))

    def _append(self, step: int, fields: bytes) -> None:
        """Append an event: the time, the step, and ``fields``, its other protobuf fields, encoded."""
        record = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step) + fields
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
    """Return the CRC-32C of RFC 3720 (Castagnoli et al. 1993), rotated and offset as TFRecord requires."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Encode a step as a protobuf integer: 7 bits per byte, the lowest first; ValueError if it is negative."""
    if value < 0:
        raise ValueError(f"step is {value}; give 0 or more")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
