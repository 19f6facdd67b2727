"""Reads what a user hands to ``reset``: seeds, and the mask of the replicas to reset."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gpu_envs.arrays import Array, Arrays, library_of, to_numpy
from gpu_envs.options import OUTPUTS
from gpu_envs.params import Value

Seeds: TypeAlias = int | Sequence[int | None] | None
"""The first replica's seed, the others' counting up; or one, or None, for each."""


class Reset(NamedTuple):
    """A reset as the simulation takes it."""

    seeds: int | list[int | None] | None
    """The first replica's seed; one for each, None to keep its own; or None."""
    mask: Array | None
    """Which replicas, as bools in the simulation's memory; None: all."""
    values: Mapping[str, Value]
    """The parameters of this reset."""
    layout: Mapping[str, np.ndarray]
    """Values of the state's fields to begin with, of all replicas."""


def random_seed() -> int:
    """A seed for those who gave none."""
    return secrets.randbits(63)


def derived_seed(seed: int, *purpose: str | int) -> int:
    """A seed of 63 bits for one purpose, by hashing: seeds of purposes next to one another have nothing in common."""
    text = ":".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def check_seed(seed: object) -> int | None:
    """A seed as a Python number, or raises what is wrong with it."""
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"a seed must be a whole number or None; got {seed!r}")
    if seed < 0:
        raise ValueError(f"a seed must not be negative; got {seed}")
    return int(seed)


def read_seeds(seed: Seeds, num_envs: int, *, ready: bool) -> int | list[int | None] | None:
    """Returns the seeds as Python numbers, or raises what is wrong with them.

    Args:
        seed: What the user gave.
        num_envs: The number of replicas.
        ready: The replicas have seeds already; without, a None in a list becomes a random one.
    """
    if seed is None or isinstance(seed, int | np.integer):
        return check_seed(seed)
    if isinstance(seed, str) or not isinstance(seed, Sequence | np.ndarray):
        raise TypeError(f"seed is {seed!r}; a whole number, or a list of {num_envs} (or None)")
    if len(seed) != num_envs:
        raise ValueError(f"seed has {len(seed)} entries; expected {num_envs}, one for each replica")
    seeds = [check_seed(s) for s in seed]
    if not ready:
        return [random_seed() if s is None else s for s in seeds]
    return seeds


def read_mask(mask: Any, num_envs: int, arrays: Arrays, *, on_cpu: bool) -> Array | None:
    """Returns a copy of ``options["reset_mask"]`` in the simulation's memory, or raises what is wrong with it.

    Args:
        mask: What the user gave: bools ``[num_envs]`` of any library, or None.
        num_envs: The number of replicas.
        arrays: The simulation's memory.
        on_cpu: That memory is the host's.
    """
    if mask is None:
        return None
    library = library_of(mask)
    if library not in OUTPUTS:
        raise TypeError(f"options['reset_mask'] is {type(mask).__name__}; give an array of NumPy, torch or CuPy")
    if tuple(mask.shape) != (num_envs,):
        raise ValueError(f"options['reset_mask'] has shape {tuple(mask.shape)}; expected ({num_envs},)")
    if str(mask.dtype).rpartition(".")[2] != "bool":
        raise TypeError(f"options['reset_mask'] has dtype {mask.dtype}; expected bool")
    on_host = library == "numpy" or (library == "torch" and mask.device.type == "cpu")
    if on_host and not mask.any():
        raise ValueError("options['reset_mask'] is False everywhere: it must name at least one replica")
    if library == arrays.name and not on_cpu and not on_host:
        return mask.copy() if library == "cupy" else mask.clone()
    return arrays.full_of(to_numpy(mask))
