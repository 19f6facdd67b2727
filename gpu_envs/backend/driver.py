"""CUDA driver calls that CuPy lacks: counting devices without importing CuPy, and launches with attributes."""

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from gpu_envs.backend.base import Launch
from gpu_envs.backend.cupy import import_cupy

COOPERATIVE, EARLY = 2, 6
"""``CU_LAUNCH_ATTRIBUTE_COOPERATIVE`` and ``CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION``."""


_RELAXED = 2
"""``CU_STREAM_CAPTURE_MODE_RELAXED``."""


class Attribute(ctypes.Structure):
    """``CUlaunchAttribute`` with an integer value."""

    _fields_ = (("id", ctypes.c_int), ("_pad", ctypes.c_int), ("value", ctypes.c_int), ("_rest", ctypes.c_char * 60))


class Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        *((f"{level}_{axis}", ctypes.c_uint) for level in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """The driver's library; None if no driver is installed."""
    with contextlib.suppress(OSError):
        return ctypes.CDLL("libcuda.so.1")
    return None


@functools.cache
def device_count() -> int:
    """The number of CUDA devices that the driver sees."""
    driver, count = library(), ctypes.c_int(0)
    counted = driver is not None and driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if counted else 0


@contextlib.contextmanager
def relaxed_capture() -> Iterator[None]:
    """Allow this thread calls for other streams while it captures a graph."""
    driver, mode = library(), ctypes.c_int(_RELAXED)
    assert driver is not None
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def launcher(
    handle: int, struct: ctypes.Structure, shape: tuple[int, int, int], attribute: int | None, runs: int = 1
) -> Launch:
    """Returns a launch of a kernel that takes one struct by value, for any stream of the current context.

    Each launch reads the struct's current values. A launch through ``cupy.RawKernel`` converts its arguments each time
    and takes three times as long.

    Args:
        handle: The ``CUfunction``.
        struct: The kernel's argument.
        shape: The number of blocks, threads per block, and bytes of dynamic shared memory per block.
        attribute: ``COOPERATIVE``, ``EARLY``, or None.
        runs: The height of the grid.
    """
    driver = library()
    assert driver is not None, "the kernel's handle comes from the driver"
    launch, function = driver.cuLaunchKernelEx, ctypes.c_void_p(handle)
    blocks, threads, shared_bytes = shape
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(struct))
    attributes = [] if attribute is None else [Attribute(attribute, 0, 1)]
    attribute_array = (Attribute * 1)(*attributes)
    configs: dict[int, Any] = {}  # per stream: another Python thread may launch while the driver reads one

    def launch_on_stream(stream: int, _keep: ctypes.Structure = struct) -> None:
        config = configs.get(stream)
        if config is None:
            config = Config(blocks, runs, 1, threads, 1, 1, shared_bytes, stream, attribute_array, len(attributes))
            configs[stream] = config = ctypes.byref(config)
        status = launch(config, function, arguments, None)
        if status:
            import_cupy().cuda.driver.check_status(status)

    return launch_on_stream
