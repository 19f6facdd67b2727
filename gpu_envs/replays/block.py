"""The data of a page: one block of bytes with arrays, one after another."""

from typing import final

import numpy as np


@final
class Block:
    """The page's block of bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: np.ndarray) -> int:
        """Append an array in little-endian order and return its offset."""
        data = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()
        offset = self._size
        self._parts.append(data)
        self._size += len(data)
        return offset

    def add_changes(self, values: np.ndarray) -> int:
        """Append uint16 values as differences along the last axis, low bytes before high bytes; return the offset.

        Zigzag encoding maps small differences of either sign to small numbers: nearly all high bytes are zero.
        """
        changes = np.diff(values, axis=-1, prepend=values.dtype.type(0)).astype(np.int16).astype(np.int32)
        zigzag = ((changes << 1) ^ (changes >> 15)).astype(np.uint16)
        offset = self.add((zigzag & 0xFF).astype(np.uint8))
        self.add((zigzag >> 8).astype(np.uint8))
        return offset

    def bytes(self) -> bytes:
        """Return all bytes."""
        return b"".join(self._parts)
