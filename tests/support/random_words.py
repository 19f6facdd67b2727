"""Philox4x32-10 in NumPy: the random words that the kernels draw."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

Key = tuple[int, int]


def philox(counters: Array, key: Key) -> Array:
    """Words of counters `[n, 4]`: the algorithm as its paper gives it."""
    words, k = counters.astype(np.uint64), [np.uint64(key[0]), np.uint64(key[1])]
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        a, b = words[:, 0] * np.uint64(0xD2511F53), words[:, 2] * np.uint64(0xCD9E8D57)
        words = np.stack(
            [(b >> half) ^ words[:, 1] ^ k[0], b & mask, (a >> half) ^ words[:, 3] ^ k[1], a & mask], axis=1
        )
        k = [(k[0] + np.uint64(0x9E3779B9)) & mask, (k[1] + np.uint64(0xBB67AE85)) & mask]
    return words.astype(np.uint32)
