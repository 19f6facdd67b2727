"""Seeds: what users give, what follows from them, and the 64 bits that the kernels take."""

import hashlib
import secrets
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np


def seed_bits(seed: int) -> int:
    """A seed as 64 bits: itself where it fits, a hash of it where it is longer."""
    if seed < 2**64:
        return seed
    digest = hashlib.sha256(seed.to_bytes((seed.bit_length() + 7) // 8, "little")).digest()
    return int.from_bytes(digest[:8], "little")


Seed: TypeAlias = int | np.random.SeedSequence
"""A whole number, or a sequence that stands for one."""

Seeds: TypeAlias = Seed | Sequence[Seed | None] | None
"""The first replica's seed, the others' counting up; or one, or None, for each."""


def random_seed() -> int:
    """A seed for those who gave none."""
    return secrets.randbits(63)


def derived_seed(seed: int, *purpose: str | int) -> int:
    """A seed of 63 bits for one purpose, by hashing: seeds of purposes next to one another have nothing in common."""
    text = ":".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def check_seed(seed: object) -> int | None:
    """A seed as a Python number, or raises what is wrong with it.

    A sequence stands for one of 63 bits, hashed from its entropy and its place among those spawned. Replicas count up
    from there too, so that a batch of ``n`` shares a replica with another's with a chance of ``n / 2**62``.
    """
    if seed is None:
        return None
    if isinstance(seed, np.random.SeedSequence):
        return int(seed.generate_state(1, np.uint64)[0]) >> 1
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"a seed must be a whole number, a numpy.random.SeedSequence or None; got {seed!r}")
    if seed < 0:
        raise ValueError(f"a seed must not be negative; got {seed}")
    return int(seed)
