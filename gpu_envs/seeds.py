"""Seeds: checks of users' seeds, derived seeds, and the 64 bits that kernels use."""

import hashlib
import secrets
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np


def seed_bits(seed: int) -> int:
    """Return a seed as 64 bits: the seed itself if it fits, otherwise a hash."""
    if seed < 2**64:
        return seed
    digest = hashlib.sha256(seed.to_bytes((seed.bit_length() + 7) // 8, "little")).digest()
    return int.from_bytes(digest[:8], "little")


Seed: TypeAlias = int | np.random.SeedSequence
"""An integer, or a NumPy seed sequence."""

Seeds: TypeAlias = Seed | Sequence[Seed | None] | None
"""One seed: replica *i* gets ``seed + i``. Or a list with a seed, or None, for each replica."""


def random_seed() -> int:
    """A seed from the operating system, 63 bits."""
    return secrets.randbits(63)


def derived_seed(seed: int, *purpose: str | int) -> int:
    """A seed of 63 bits for one purpose, by hashing, so that seeds for similar purposes are unrelated."""
    text = ":".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def check_seed(seed: object) -> int | None:
    """Return a seed as a Python integer, None for None, or raise an error if it is invalid.

    A seed sequence becomes an integer of 63 bits, hashed from its entropy and spawn key. The seeds of replicas count up
    from it too: two batches of ``n`` replicas have a seed in common with a probability of ``n / 2**62``.
    """
    if seed is None:
        return None
    if isinstance(seed, np.random.SeedSequence):
        return int(seed.generate_state(1, np.uint64)[0]) >> 1
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"a seed must be an integer, a numpy.random.SeedSequence or None; got {seed!r}")
    if seed < 0:
        raise ValueError(f"a seed must not be negative; got {seed}")
    return int(seed)
