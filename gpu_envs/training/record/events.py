"""TensorBoard's event files, written by hand: records of the protocol buffer ``Event``, each framed by its checksums.

A record is its length (uint64), the masked CRC-32C of that, its bytes, and the masked CRC-32C of those. Of the messages
only these members are used, by their numbers in TensorFlow's ``event.proto`` and ``summary.proto``:

    Event       1 wall_time (double)  2 step (int64)  3 file_version (string)  5 summary  7 session_log
    Summary     1 value (repeated)
    Value       1 tag (string)  2 simple_value (float)
    SessionLog  1 status (enum; 1: start)

A member is its number times 8, plus 0 for whole numbers, 1 for double, 2 for bytes or 5 for float, and its value.
"""

import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

_MASK: Final = 0xA282EAD8


@final
class EventWriter:
    """One event file, to which scalars are appended."""

    def __init__(self, folder: str | Path, purge_step: int | None = None) -> None:
        """Starts a file, sorted after those that are there; their events from ``purge_step`` on count no longer."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("events.out.tfevents.*")))
        self._file = (folder / f"events.out.tfevents.{int(time.time()):010d}.{number:04d}").open("xb")
        self._write(0, _bytes(3, b"brain.Event:2"))
        if purge_step is not None:
            self._write(purge_step, _bytes(7, b"\x08\x01"))  # status: start
        self._file.flush()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Appends a value for each tag, and hands all to the operating system."""
        tagged = (_bytes(1, tag.encode()) + b"\x15" + _float32(value) for tag, value in values.items())
        self._write(step, _bytes(5, b"".join(_bytes(1, value) for value in tagged)))
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, step: int, content: bytes) -> None:
        record = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step) + content
        length = struct.pack("<Q", len(record))
        self._file.write(length + _masked(length) + record + _masked(record))


def crc32c(data: bytes) -> int:
    """The checksum of Castagnoli et al. (1993), bits reflected, as in RFC 3720."""
    register = 0xFFFFFFFF
    for byte in data:
        register = _TABLE[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    """A checksum of data that holds checksums is weak, so TFRecord turns and shifts it."""
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF)


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(map(_entry, range(256)))


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


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:  # beyond float32: infinity, as a conversion would give
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))
