"""How far functions are from exact values, on numbers of all sizes."""

import importlib.util
from typing import Any

import numpy as np
import pytest
from small_kernels import Array

from gpu_envs.backend.driver import device_count

wide_enough = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 60, reason="this machine's long double is no wider than its double"
)
needs_cuda = pytest.mark.skipif(
    device_count() == 0 or importlib.util.find_spec("cupy") is None, reason="no CUDA device, or no CuPy"
)


def worst(got: Array, exact: Any, real: str) -> Any:
    """The greatest error, in units in the last place of the exact value."""
    unit = np.spacing(np.abs(exact.astype(real))).astype(np.longdouble)
    return np.max(np.abs(got.astype(np.longdouble) - exact) / unit)


def random_bits(real: str, count: int, seed: int = 0) -> Array:
    """Any number at all: infinities, NaNs and denormals among them."""
    bits = np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)
    return (bits >> np.uint64(32)).astype(np.uint32).view(real) if real == "float32" else bits.view(real)


def same_bits(name: str, x: Array, here: Array, there: Array) -> None:
    """Refuses results of two devices that are not the same bits, or both NaN."""
    bits = f"u{here.itemsize}"
    same = (here.view(bits) == there.view(bits)) | (np.isnan(here) & np.isnan(there))
    at = np.flatnonzero(~same)[:3]
    assert same.all(), f"{name}: {x[at]} give {here[at]} here, {there[at]} there"
